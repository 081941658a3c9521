//! The time of a decode step over its rows and drafts, learnt from the steps themselves.
//!
//! One cell per (rows, drafts), both on a geometric scale, holds a decaying mean of what a step takes that proposes
//! nothing; another per (rows, drafts per row) what proposing adds. A read joins the cells of a number of rows into a
//! curve that never falls with the drafts: violations are noise, and pooled. Between and beyond the measured points
//! the curve follows the [`Law`] that is fitted to all cells, which knows that tokens share experts. As long as the law
//! foretells the first measurement of cells well, it stands for those that were not measured.
//!
//! What the prefill of a step adds is kept by its tokens. Under short answers hardly a step is without prefill; less what
//! its prefill is known to take, such a step says what decoding takes wherever no other does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::curve::{Cell, MEMORY, pooled, rising};
use super::law::{Experts, Law, Sample};

pub use super::curve::Curve;

/// A measurement below this part of what is expected counts as this part: a hiccup must not pass for a change, and a change
/// comes back.
const OUTLIER: f64 = 3.0;
/// The same for measurements beyond a multiple of what is expected: most hiccups are of that kind.
const HICCUP: f64 = 2.0;
/// A lone step that takes longer than this multiple of what is known is left out.
const DOUBTFUL: f64 = 1.5;
/// Buckets of rows that stand for each other where the law carries times over: half as many again.
const NEAR: u32 = 2;
/// The same for what proposing adds: four times as many.
const FAR: u32 = 8;
/// The same for steps without drafts where the law is good: twice as many.
const FAR_PLAIN: u32 = 4;
/// Measurements after which the law is fitted anew; a new cell has it fitted at once.
const FIT_EVERY: u64 = 16;
/// How wrong the law may be about new cells and still stand for those that were not measured.
const LAW_ERROR: f64 = 0.12;
/// Weight of the latest new cell in that.
const LAW_NEWEST: f64 = 0.3;
/// The law stands for steps of up to so many times as many tokens as were measured.
const LAW_REACH: f64 = 2.0;
/// Times of fewer and more drafts, one over the other, between which nothing need be measured.
const BRACKET: f64 = 1.3;
/// Prefill may take this share of a step that is to say something about decoding.
const PREFILL_SHARE: f64 = 0.5;
/// What a step with prefill counts that says something about decoding: one without is better.
const INDIRECT: f64 = 2.0;
/// What a time from an earlier run counts: it is used at once and soon outweighed.
const REMEMBERED: f64 = 2.0;

/// Exact up to 4, then four buckets per doubling.
fn bucket(count: usize) -> u32 {
    if count <= 4 { count as u32 } else { 4 + (4.0 * (count as f64 / 4.0).log2()) as u32 }
}

type Cells = BTreeMap<(u32, u32), Cell>;

/// The fitted times.
#[derive(Clone, Debug)]
pub struct CostModel {
    cells: Cells,
    /// What proposing so many drafts per row adds.
    drafting: Cells,
    /// What so many tokens of prefill add; the first index is 1.
    prefill: Cells,
    law: Law,
    /// Mean error of the law about the first measurement of a cell.
    law_error: f64,
    /// Most tokens of a measured step without prefill.
    reach: f64,
    step: u64,
}

/// What is known about the time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// It is its own cell, once measured.
    once: bool,
    /// When it was measured last.
    last: u64,
}

/// The times of a machine, for the next start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Rows, drafts and seconds of steps that propose nothing.
    pub steps: Vec<(f64, f64, f64)>,
    /// Rows, drafts per row and the seconds that proposing them adds.
    pub drafting: Vec<(f64, f64, f64)>,
}

impl Costs {
    /// Adds the times of `others` that are of other cells.
    pub fn complete(&mut self, others: Self) {
        let sides = [(&mut self.steps, others.steps), (&mut self.drafting, others.drafting)];
        for (own, others) in sides {
            let cell = |(rows, drafts, _): &(f64, f64, f64)| {
                (bucket(rows.round() as usize), bucket(drafts.round() as usize))
            };
            let known: Vec<_> = own.iter().map(cell).collect();
            own.extend(others.into_iter().filter(|other| !known.contains(&cell(other))));
        }
    }
}

impl Default for CostModel {
    fn default() -> Self {
        Self::new(None)
    }
}

impl CostModel {
    /// A model that knows nothing but the target's experts.
    pub const fn new(experts: Option<Experts>) -> Self {
        let cells = Cells::new;
        Self {
            cells: cells(),
            drafting: cells(),
            prefill: cells(),
            law: Law::new(experts),
            law_error: 0.0,
            reach: 0.0,
            step: 0,
        }
    }

    /// Seconds that the prefill of so many tokens adds to a step; `None` if none like it was measured.
    pub fn prefill(&self, tokens: usize) -> Option<f64> {
        if tokens == 0 {
            return Some(0.0);
        }
        let points: Vec<(f64, f64)> =
            pooled(self.prefill.values().map(|cell| (cell.drafts, cell.seconds, cell.weight)));
        let (last_tokens, last) = *points.last()?;
        let tokens = tokens as f64;
        let after = points.partition_point(|(at, _)| *at < tokens);
        let Some((x1, y1)) = points.get(after).copied() else { return Some(last * tokens / last_tokens) };
        let (x0, y0) = after.checked_sub(1).map_or((0.0, 0.0), |before| points[before]);
        Some(y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))
    }

    /// Takes the time of a step over that also had `prefill` tokens of prefill. Returns what these took, if it is known.
    pub fn measure_beside(
        &mut self,
        prefill: usize,
        rows: usize,
        drafts: usize,
        proposed: usize,
        seconds: f64,
    ) -> Option<f64> {
        if prefill == 0 {
            self.measure(rows, drafts, proposed, seconds);
            return Some(0.0);
        }
        self.step += 1;
        let expected = self.curve(rows).map(|curve| curve.at(drafts) + self.drafting(rows).at(proposed));
        if let Some(expected) = expected.filter(|_| self.knows(rows, drafts, proposed)) {
            let step = self.step;
            let cell = self.prefill.entry((1, bucket(prefill))).or_default();
            cell.add(1, prefill, (seconds - expected).max(0.0), step);
        } else if let Some(took) = self.prefill(prefill).filter(|took| *took < PREFILL_SHARE * seconds) {
            self.enter(rows, drafts, proposed, seconds - took, INDIRECT);
        }
        self.prefill(prefill).filter(|took| *took < PREFILL_SHARE * seconds)
    }

    /// Takes the time of a step without prefill over; its worker proposed `proposed` drafts per row.
    pub fn measure(&mut self, rows: usize, drafts: usize, proposed: usize, seconds: f64) {
        self.step += 1;
        self.enter(rows, drafts, proposed, seconds, MEMORY);
    }

    fn enter(&mut self, rows: usize, drafts: usize, proposed: usize, seconds: f64, most: f64) {
        let adds = self.drafting(rows).at(proposed);
        let at = (bucket(rows), bucket(drafts));
        let Some(seconds) = self.credible(at, adds, seconds) else { return };
        // Without drafts the time of the step is known, so that the rest is what proposing adds; with drafts, and with
        // proposing known, it is the other way round.
        let proposes_only = drafts == 0 && proposed > 0;
        let knows_plain = || self.cells.contains_key(&at) || self.knows(rows, 0, 0);
        let plain = Some(()).filter(|()| proposes_only && knows_plain());
        let plain = plain.and_then(|()| self.curve(rows)).map(|curve| curve.at(0));
        if proposes_only && plain.is_none() {
            return;
        }
        let step = self.step;
        if let Some(plain) = plain {
            let cell = self.drafting.entry((at.0, bucket(proposed))).or_default();
            cell.add_up_to(most, rows, proposed, seconds - plain, step);
            return;
        }
        let mut verifying = (seconds - adds).max(seconds / OUTLIER);
        // Verifying drafts takes no less than a step without them: proposing was thought too dear.
        let least = Some(rows).filter(|_| drafts > 0 && proposed > 0 && self.knows(rows, 0, 0));
        let least = least.and_then(|rows| self.curve(rows)).map_or(0.0, |curve| curve.at(0));
        if verifying < least {
            let cell = self.drafting.entry((at.0, bucket(proposed))).or_default();
            cell.add_up_to(INDIRECT, rows, proposed, (seconds - least).max(0.0), step);
            verifying = least;
        }
        let is_new = !self.cells.contains_key(&at);
        let foretold = Some(()).filter(|()| is_new).and_then(|()| self.foretell(rows, drafts));
        if let Some(foretold) = foretold {
            self.law_error += LAW_NEWEST * ((verifying / foretold - 1.0).abs() - self.law_error);
        }
        let cell = self.cells.entry(at).or_default();
        cell.add_up_to(most, rows, drafts, verifying, step);
        self.reach = self.reach.max((rows + drafts) as f64);
        if is_new || step.is_multiple_of(FIT_EVERY) {
            self.fit();
        }
    }

    /// A step's time, as far as it is to be believed beside what its cell knows; `None` for a lone one that took far longer
    /// than those before it: machines have hiccups, and these say nothing. Of two in a row the second is believed.
    fn credible(&mut self, at: (u32, u32), adds: f64, seconds: f64) -> Option<f64> {
        let Some(cell) = self.cells.get_mut(&at).filter(|cell| cell.weight >= 1.0) else {
            return Some(seconds);
        };
        let known = cell.seconds + adds;
        let doubted = std::mem::replace(&mut cell.doubted, seconds > DOUBTFUL * known);
        if cell.doubted && !doubted {
            return None;
        }
        if cell.weight < 3.0 {
            // It may have begun with a hiccup.
            cell.weight = if seconds < known / DOUBTFUL { 0.0 } else { cell.weight };
            return Some(seconds);
        }
        Some(seconds.clamp(known / OUTLIER, known * HICCUP))
    }

    /// What the law makes of the measured times, for a step that is like none of them.
    fn foretell(&self, rows: usize, drafts: usize) -> Option<f64> {
        let curve = self.curve(rows).filter(|_| self.law.is_fitted());
        curve.map(|curve| curve.at(drafts)).filter(|seconds| *seconds > 0.0)
    }

    fn fit(&mut self) {
        let step = self.step;
        self.law.fit(self.cells.values().map(|cell| Sample {
            rows: cell.rows,
            drafts: cell.drafts,
            seconds: cell.seconds,
            weight: cell.weight / (1.0 + (step - cell.last) as f64 / 1000.0),
        }));
    }

    /// Forgets what steps without drafts take.
    pub fn forget_plain(&mut self) {
        for (_, cell) in self.cells.iter_mut().filter(|((_, drafts), _)| *drafts == 0) {
            cell.weight = 0.0;
        }
    }

    /// Lets the next measurements of steps with drafts, at this number of rows, outweigh what was measured so far.
    pub fn distrust_drafts(&mut self, rows: usize) {
        let rows = bucket(rows);
        for cells in [&mut self.cells, &mut self.drafting] {
            for (_, cell) in cells.range_mut((rows, 1)..=(rows, u32::MAX)) {
                cell.weight = cell.weight.min(1.0);
            }
        }
    }

    /// Steps since one with these rows and drafts was measured; `None` if its time is not known.
    pub fn age(&self, rows: usize, drafts: usize, proposed: usize) -> Option<u64> {
        self.known(rows, drafts, proposed).map(|known| self.step - known.last)
    }

    /// Whether the time of such a step need not be measured before it is counted on: it was, or the law has shown that it
    /// can tell.
    pub fn knows(&self, rows: usize, drafts: usize, proposed: usize) -> bool {
        self.known(rows, drafts, proposed).is_some_and(|known| !known.once)
    }

    fn known(&self, rows: usize, drafts: usize, proposed: usize) -> Option<Known> {
        if proposed > 0 && !self.knows_drafting(rows, proposed) {
            return None;
        }
        let wanted = bucket(rows);
        let own = self.cells.get(&(wanted, bucket(drafts)));
        if let Some(cell) = own.filter(|cell| cell.weight >= 2.0) {
            return Some(Known { once: false, last: cell.last });
        }
        let carries = self.law.is_fitted() && self.law_error < LAW_ERROR;
        if let Some(cell) = own {
            // One measurement may be a hiccup, unless it is what was to be expected.
            return Some(Known { once: !carries, last: cell.last });
        }
        if !self.law.is_fitted() {
            return None;
        }
        // A step with nearly as many rows and drafts per row will do; any step of its kind, if the law is good.
        let per_row = drafts as f64 / rows.max(1) as f64;
        let is_alike = |(at, cell): &(&(u32, u32), &Cell)| {
            let other = cell.drafts / cell.rows.max(1.0);
            let is_near =
                at.0.abs_diff(wanted) <= NEAR && (per_row - other).abs() <= 0.3 * per_row.max(other);
            let is_far = at.0.abs_diff(wanted) > FAR_PLAIN;
            is_near || (carries && (cell.drafts > 0.0) == (drafts > 0) && !(drafts == 0 && is_far))
        };
        let within = (rows + drafts) as f64 <= LAW_REACH * self.reach;
        let alike = self.cells.iter().filter(is_alike).map(|(_, cell)| cell.last).max();
        let last = alike.filter(|_| within).or_else(|| self.bracketed(wanted, per_row))?;
        Some(Known { once: false, last })
    }

    /// When steps with fewer and with more drafts per row were measured, if these take about as long.
    fn bracketed(&self, wanted: u32, per_row: f64) -> Option<u64> {
        let near = self.cells.range((wanted.saturating_sub(NEAR), 0)..=(wanted + NEAR, u32::MAX));
        let near = near.map(|(_, cell)| (cell.drafts / cell.rows.max(1.0), cell));
        let (less, more): (Vec<_>, Vec<_>) = near.partition(|(other, _)| *other <= per_row);
        let (_, less) = less.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let (_, more) = more.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        (more.seconds <= BRACKET * less.seconds).then_some(less.last.min(more.last))
    }

    /// Whether it is known what proposing so many drafts per row adds: it was measured at about as many rows, or two other
    /// lengths were, between and beyond which it grows evenly.
    pub fn knows_drafting(&self, rows: usize, proposed: usize) -> bool {
        let (wanted, proposed) = (bucket(rows), bucket(proposed));
        let near = self.drafting.range((wanted.saturating_sub(FAR), 0)..=(wanted + FAR, u32::MAX));
        let mut lengths = near.map(|((_, length), _)| *length);
        let Some(first) = lengths.next() else { return false };
        first == proposed || lengths.any(|length| length == proposed || length != first)
    }

    /// The curve at this number of rows, of steps that propose nothing; `None` before any step without drafts was
    /// measured.
    ///
    /// Numbers of rows that were not seen take the curve of the nearest one, moved to the time without drafts that lies
    /// between the known ones.
    pub fn curve(&self, rows: usize) -> Option<Curve> {
        let wanted = bucket(rows);
        let plain = || self.cells.iter().filter(|((_, drafts), _)| *drafts == 0);
        let ((nearest, _), base) = plain().min_by_key(|((rows, _), _)| rows.abs_diff(wanted))?;
        let law = self.law;
        if *nearest == wanted {
            let cells = self.cells.range((*nearest, 0)..=(*nearest, u32::MAX));
            return Some(Curve { points: rising(cells.map(|(_, cell)| cell), 0.0), law, rows: rows as f64 });
        }
        let moved = self.plain_time(wanted, rows);
        if law.is_fitted() {
            return Some(Curve { points: vec![(0.0, moved)], law, rows: rows as f64 });
        }
        let cells = self.cells.range((*nearest, 0)..=(*nearest, u32::MAX));
        let points = rising(cells.map(|(_, cell)| cell), moved - base.seconds);
        Some(Curve { points, law, rows: rows as f64 })
    }

    /// What proposing adds to a step of this many rows, over the drafts per row; 0 as long as nothing is known.
    pub fn drafting(&self, rows: usize) -> Curve {
        let wanted = bucket(rows);
        let nearest = self.drafting.keys().map(|(rows, _)| *rows).min_by_key(|rows| rows.abs_diff(wanted));
        let Some(nearest) = nearest else { return Curve::zero() };
        let cells = self.drafting.range((nearest, 0)..=(nearest, u32::MAX));
        let points = cells.map(|(_, cell)| (cell.drafts, cell.seconds.max(0.0), cell.weight));
        let nothing = std::iter::once((0.0, 0.0, MEMORY));
        Curve { points: pooled(nothing.chain(points)), law: Law::new(None), rows: 0.0 }
    }

    /// Time without drafts at a bucket of rows between those that were measured, or beyond them as the law grows.
    fn plain_time(&self, wanted: u32, rows: usize) -> f64 {
        let plain = || self.cells.iter().filter(|((_, drafts), _)| *drafts == 0);
        let below = plain().rfind(|((at, _), _)| *at <= wanted);
        let above = plain().find(|((at, _), _)| *at >= wanted);
        match (below, above) {
            (Some(((x0, _), low)), Some(((x1, _), high))) if x1 > x0 => {
                low.seconds + (high.seconds - low.seconds) * f64::from(wanted - x0) / f64::from(x1 - x0)
            }
            (Some((_, cell)), _) | (None, Some((_, cell))) => {
                let ahead = self.law.at(rows as f64, 0.0) - self.law.at(cell.rows, 0.0);
                let ahead = if self.law.is_fitted() { ahead } else { 0.0 };
                (cell.seconds + ahead).max(cell.seconds / OUTLIER)
            }
            (None, None) => 0.0,
        }
    }

    /// The law that is fitted to all cells.
    pub const fn law(&self) -> &Law {
        &self.law
    }

    /// Steps that were measured.
    pub const fn num_measured(&self) -> u64 {
        self.step
    }

    /// What is known, for the next start.
    pub fn costs(&self) -> Costs {
        let list =
            |cells: &Cells| cells.values().map(|cell| (cell.rows, cell.drafts, cell.seconds)).collect();
        Costs { steps: list(&self.cells), drafting: list(&self.drafting) }
    }

    /// Takes over what an earlier run knew of the same machine; numbers that cannot be times are left out.
    pub fn restore(&mut self, costs: &Costs) {
        for (cells, known) in [(&mut self.cells, &costs.steps), (&mut self.drafting, &costs.drafting)] {
            for (rows, drafts, seconds) in known.iter().copied() {
                let is_time = (0.0..3600.0).contains(&seconds) && (1.0..1e6).contains(&rows);
                if is_time && (0.0..1e7).contains(&drafts) {
                    let at = (bucket(rows.round() as usize), bucket(drafts.round() as usize));
                    cells.insert(
                        at,
                        Cell { seconds, rows, drafts, weight: REMEMBERED, last: self.step, doubted: false },
                    );
                }
            }
        }
        self.fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_never_fall_with_the_drafts_whatever_was_measured() {
        let mut model = CostModel::default();
        let mut state = 1u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = |shift: u32, most: u64| ((state >> shift) % most) as usize;
            model.measure(
                1 + random(33, 40),
                random(40, 20),
                random(44, 3),
                0.001 * (1 + random(50, 1000)) as f64,
            );
            for rows in [1, 7, 33, 100] {
                let Some(curve) = model.curve(rows) else { continue };
                let times: Vec<f64> = (0..64).map(|drafts| curve.at(drafts)).collect();
                // Up to the rounding of the interpolation.
                assert!(times.is_sorted_by(|a, b| *a <= b + 1e-12), "{times:?}");
            }
        }
    }

    #[test]
    fn the_model_finds_a_law_and_follows_when_it_changes() {
        let mut model = CostModel::default();
        for scale in [1.0, 2.5, 0.4] {
            let law =
                |rows: usize, drafts: usize| scale * (0.01 + 0.001 * rows as f64 + 0.002 * drafts as f64);
            for step in 0..900 {
                let (rows, drafts) = ([1, 4, 16][step % 3], [0, 2, 8][step / 3 % 3]);
                model.measure(rows, drafts, 0, law(rows, drafts));
            }
            for (rows, drafts) in [(1, 0), (4, 2), (16, 8), (4, 5), (16, 16)] {
                let (found, expected) = (model.curve(rows).expect("measured").at(drafts), law(rows, drafts));
                assert!((found / expected - 1.0).abs() < 0.05, "{rows} {drafts}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn unseen_rows_lie_between_the_seen_ones() {
        let mut model = CostModel::default();
        assert_eq!(model.curve(4), None);
        for (rows, drafts, seconds) in [(4, 0, 0.010), (16, 0, 0.020), (4, 4, 0.012)] {
            model.measure(rows, drafts, 0, seconds);
        }
        let curve = model.curve(8).expect("two were measured");
        assert!((0.010..0.020).contains(&curve.at(0)), "{}", curve.at(0));
    }

    #[test]
    fn one_hiccup_does_not_pass_for_a_change() {
        let mut model = CostModel::default();
        for _ in 0..30 {
            model.measure(1, 0, 0, 0.010);
        }
        model.measure(1, 0, 0, 5.0);
        assert!(model.curve(1).expect("measured").at(0) < 0.012);
    }

    #[test]
    fn what_proposing_takes_is_told_apart_from_what_verifying_takes() {
        let mut model = CostModel::default();
        let law = |drafts: usize, proposed: usize| 0.010 + 0.001 * drafts as f64 + 0.0005 * proposed as f64;
        for step in 0..200 {
            let (drafts, proposed) = [(0, 0), (0, 4), (4, 4), (2, 2), (0, 2)][step % 5];
            model.measure(1, drafts, proposed, law(drafts, proposed));
        }
        let curve = model.curve(1).expect("measured");
        let adds = model.drafting(1);
        for (drafts, proposed) in [(0, 0), (2, 4), (4, 4), (4, 0), (3, 3)] {
            let (found, wanted) = (curve.at(drafts) + adds.at(proposed), law(drafts, proposed));
            assert!((found / wanted - 1.0).abs() < 0.02, "{drafts} {proposed}: {found}, {wanted}");
        }
    }

    #[test]
    fn between_measured_lengths_the_time_grows_with_the_distinct_experts() {
        let experts = Experts { num: 128, per_token: 8, layers: 48 };
        let mut model = CostModel::new(Some(experts));
        let law = |tokens: f64| 0.001 * (2.0 + 0.1 * experts.distinct(tokens));
        for _ in 0..4 {
            for drafts in [0, 32] {
                model.measure(1, drafts, 0, law(1.0 + drafts as f64));
            }
        }
        let curve = model.curve(1).expect("measured");
        for drafts in [1, 4, 8, 16] {
            let (found, wanted) = (curve.at(drafts), law(1.0 + drafts as f64));
            assert!((found / wanted - 1.0).abs() < 0.06, "{drafts}: {found}, {wanted}");
        }
    }

    #[test]
    fn times_survive_a_restart_and_nonsense_does_not() {
        let mut model = CostModel::default();
        for (drafts, proposed, seconds) in [(0, 0, 0.010), (0, 3, 0.012), (3, 3, 0.013), (6, 0, 0.014)] {
            model.measure(4, drafts, proposed, seconds);
        }
        let text = serde_json::to_string(&model.costs()).expect("numbers");
        let mut costs: Costs = serde_json::from_str(&text).expect("what was written");
        costs.steps.extend([(4.0, 1.0, -1.0), (f64::NAN, 1.0, 1.0), (4.0, 2.0, f64::INFINITY)]);
        let mut again = CostModel::default();
        again.restore(&costs);
        let (one, two) = (model.curve(4).expect("measured"), again.curve(4).expect("restored"));
        assert!((0..8).all(|drafts| (one.at(drafts) - two.at(drafts)).abs() < 1e-3));
        assert!((again.drafting(4).at(3) - 0.002).abs() < 1e-9);
        assert!(again.knows(4, 0, 0), "it is used without being measured again");
    }

    #[test]
    fn steps_with_prefill_say_what_it_takes_and_then_what_decoding_takes() {
        let mut model = CostModel::default();
        let law = |rows: usize, drafts: usize, prefill: usize| {
            0.010 + 0.001 * (rows + drafts) as f64 + 0.0001 * prefill as f64
        };
        model.measure(4, 0, 0, law(4, 0, 0));
        model.measure(4, 0, 0, law(4, 0, 0));
        assert_eq!(model.measure_beside(30, 9, 0, 0, law(9, 0, 30)), None, "neither part is known");
        for _ in 0..3 {
            let took = model.measure_beside(30, 4, 0, 0, law(4, 0, 30)).expect("decoding is known");
            assert!((took - 0.003).abs() < 1e-6, "{took}");
        }
        model.measure_beside(60, 9, 0, 0, law(9, 0, 60));
        let found = model.curve(9).expect("measured").at(0);
        assert!((found / law(9, 0, 0) - 1.0).abs() < 0.01, "{found}");
        let long = model.measure_beside(3000, 4, 0, 0, law(4, 0, 3000));
        assert_eq!(long, None, "a step that mostly prefills says nothing of decoding");
    }

    #[test]
    fn a_law_that_foretells_new_cells_stands_for_others_and_one_that_does_not_is_not_believed() {
        let lines = |rows: usize, drafts: usize| 0.010 + 0.001 * (rows + drafts) as f64;
        let steps = |rows: usize, drafts: usize| if rows + drafts > 10 { 0.030 } else { 0.010 };
        let knows = |law: &dyn Fn(usize, usize) -> f64| {
            let mut model = CostModel::default();
            for (rows, drafts) in [(4, 0), (4, 4), (4, 8), (8, 0), (8, 8), (8, 16)] {
                model.measure(rows, drafts, 0, law(rows, drafts));
                model.measure(rows, drafts, 0, law(rows, drafts));
            }
            assert!(!model.knows(4, 1000, 0), "far beyond anything that was measured");
            model.knows(2, 10, 0)
        };
        assert!(knows(&lines));
        assert!(!knows(&steps));
    }

    #[test]
    fn between_times_that_hardly_differ_nothing_need_be_measured() {
        let mut model = CostModel::default();
        for (drafts, seconds) in [(0, 0.010), (16, 0.0125), (64, 0.040)] {
            model.measure(4, drafts, 0, seconds);
            model.measure(4, drafts, 0, seconds);
        }
        assert!(model.bracketed(bucket(4), 2.0).is_some());
        assert!(model.bracketed(bucket(4), 8.0).is_none());
    }

    #[test]
    fn a_lone_hiccup_says_nothing_and_a_change_is_believed() {
        let mut model = CostModel::default();
        let plain = |model: &CostModel| model.curve(1).map_or(0.0, |curve| curve.at(0));
        for step in 0..40 {
            model.measure(1, 0, 0, if step % 10 == 0 { 0.1 } else { 0.01 });
        }
        assert!((plain(&model) - 0.01).abs() < 1e-9, "{}", plain(&model));
        for _ in 0..60 {
            model.measure(1, 0, 0, 0.03);
        }
        assert!(plain(&model) > 0.025, "{}", plain(&model));
    }
}
