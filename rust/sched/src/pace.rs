//! What decoding takes without prefill beside it, so that a step with prefill can say what the prefill cost the others.
//!
//! A step's time is measured from the end of the step before it or, if it was planned later, from then: an engine that
//! was idle lost nothing to anybody. Steps are told apart by the power of two of the tokens that they decode, drafts
//! included.

use std::time::Duration;

use crate::plan::StepPlan;

/// Weight of the newest step in a mean: one slow step is forgotten after a few dozen.
const NEWEST: f64 = 0.125;
/// More tokens than any step has, as a power of two.
const SIZES: usize = usize::BITS as usize;

/// Mean times of the steps that only decoded.
#[derive(Debug)]
pub(crate) struct DecodePace {
    last_end: Duration,
    /// Seconds, by the power of two of decoded tokens.
    means: [Option<f64>; SIZES],
}

impl Default for DecodePace {
    fn default() -> Self {
        Self { last_end: Duration::ZERO, means: [None; SIZES] }
    }
}

impl DecodePace {
    /// Takes over a step that ended at `now`; returns what it took longer because of its prefill.
    pub fn step(&mut self, plan: &StepPlan, now: Duration) -> Duration {
        let took = now.saturating_sub(plan.planned.max(self.last_end));
        self.last_end = now;
        let prefilled = plan.prefill_tokens();
        let Some(size) = (plan.num_tokens() - prefilled).checked_ilog2() else { return Duration::ZERO };
        let size = size as usize;
        if prefilled == 0 {
            let mean = &mut self.means[size];
            let seconds = took.as_secs_f64();
            *mean = Some(mean.map_or(seconds, |mean| mean + NEWEST * (seconds - mean)));
            return Duration::ZERO;
        }
        self.nearest(size).map_or(Duration::ZERO, |alone| took.saturating_sub(Duration::from_secs_f64(alone)))
    }

    /// The mean of the nearest size that was measured, the smaller one first.
    fn nearest(&self, size: usize) -> Option<f64> {
        let (smaller, larger) = self.means.split_at(size + 1);
        smaller.iter().rev().chain(larger).flatten().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use frizzen_core::{RequestId, RowId};

    use super::*;
    use crate::plan::PlannedRow;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// A step of rows with these tokens, of which those that are `true` prefill.
    fn plan(planned: Duration, rows: &[(u32, bool)]) -> StepPlan {
        let row = |(at, (num_tokens, prefills)): (usize, &(u32, bool))| PlannedRow {
            request: RequestId(at as u64),
            row: RowId(at as u32),
            epoch: 0,
            start: 0,
            num_tokens: *num_tokens,
            num_drafts: 0,
            samples: true,
            next_token: -1,
            prefills: *prefills,
            num_vectors: 0,
        };
        let tokens = rows.iter().map(|(tokens, _)| *tokens as usize).sum();
        let rows = rows.iter().enumerate().map(row).collect();
        StepPlan { planned, rows, input_ids: vec![0; tokens], ..StepPlan::default() }
    }

    #[test]
    fn a_step_loses_what_it_takes_beyond_the_mean_without_prefill() {
        let mut pace = DecodePace::default();
        assert_eq!(pace.step(&plan(ms(0), &[(1, false), (1, false)]), ms(10)), ms(0));
        assert_eq!(pace.step(&plan(ms(10), &[(1, false), (1, false), (64, true)]), ms(40)), ms(20));
        // No faster step lost anything, and none with prefill teaches what decoding takes.
        assert_eq!(pace.step(&plan(ms(40), &[(1, false), (1, false), (1, true)]), ms(45)), ms(0));
        assert_eq!(pace.step(&plan(ms(45), &[(1, false), (1, false), (64, true)]), ms(75)), ms(20));
    }

    #[test]
    fn nothing_counts_before_decoding_alone_was_measured() {
        let mut pace = DecodePace::default();
        assert_eq!(pace.step(&plan(ms(0), &[(1, false), (64, true)]), ms(40)), ms(0));
        assert_eq!(pace.step(&plan(ms(40), &[(64, true)]), ms(80)), ms(0), "nobody decodes");
    }

    #[test]
    fn the_nearest_size_that_was_measured_stands_for_others_the_smaller_first() {
        let mut pace = DecodePace::default();
        pace.step(&plan(ms(0), &[(1, false); 9]), ms(12));
        assert_eq!(pace.step(&plan(ms(12), &[(1, false), (8, true)]), ms(32)), ms(8));
        pace.step(&plan(ms(32), &[(1, false)]), ms(36));
        assert_eq!(pace.step(&plan(ms(36), &[(2, false), (8, true)]), ms(56)), ms(16));
    }

    #[test]
    fn idle_time_and_the_end_of_the_step_before_are_no_part_of_a_step() {
        let mut pace = DecodePace::default();
        pace.step(&plan(ms(1000), &[(1, false)]), ms(1010));
        // Planned ahead, while the step before was running.
        assert_eq!(pace.step(&plan(ms(1001), &[(1, false), (8, true)]), ms(1025)), ms(5));
    }
}
