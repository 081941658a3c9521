//! The masks of a step, on a few threads where there are many of them and cores to spare.
//!
//! Each row's masks are a function of its own constraint, so the threads change nothing but the time.

use std::sync::OnceLock;
use std::thread::available_parallelism;

use frizzen_sched::MaskJob;

/// Fewest rows that are worth a thread: a mask takes tens of microseconds, and so does starting one.
const ROWS_PER_THREAD: usize = 8;
/// Of how many cores one may be taken: the others compute.
const CORES_PER_THREAD: usize = 4;

/// Threads for this many rows on this many cores.
fn threads(rows: usize, cores: usize) -> usize {
    (rows / ROWS_PER_THREAD).min(cores / CORES_PER_THREAD).max(1)
}

/// Runs all jobs and returns when they are done.
pub fn fill(jobs: Vec<MaskJob<'_>>) {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| available_parallelism().map_or(1, usize::from));
    fill_on(jobs, cores);
}

fn fill_on(mut jobs: Vec<MaskJob<'_>>, cores: usize) {
    let threads = threads(jobs.len(), cores);
    let share = jobs.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        while jobs.len() > share {
            let part = jobs.split_off(jobs.len() - share);
            scope.spawn(move || part.into_iter().for_each(MaskJob::run));
        }
        jobs.into_iter().for_each(MaskJob::run);
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use frizzen_core::{Constraint, Request, RequestId, SamplingParams};
    use frizzen_sched::sim::OneOf;
    use frizzen_sched::{AdmissionLimits, Policy, Scheduler, SchedulerConfig, StepPlan};

    use super::*;

    #[test]
    fn a_thread_is_for_many_rows_and_leaves_cores_to_the_model() {
        let table = [(0, 64, 1), (7, 64, 1), (16, 64, 2), (128, 64, 16), (128, 16, 4), (128, 2, 1)];
        for (rows, cores, wanted) in table {
            assert_eq!(threads(rows, cores), wanted, "{rows} rows, {cores} cores");
        }
    }

    #[test]
    fn masks_are_the_same_on_any_number_of_threads() {
        let masks = [1, 8, 64].map(|cores| {
            let mut scheduler = Scheduler::new(SchedulerConfig {
                whole_prompts: false,
                max_num_seqs: 64,
                max_num_batched_tokens: 256,
                max_model_len: 16,
                block_size: 4,
                num_blocks: 300,
                prefix_caching: false,
                long_prefill_threshold: 0,
                policy: Policy::Fcfs,
                hash_seed: 1,
                admissions: AdmissionLimits::for_engine(64, 256, 16, 4, 64),
            });
            for id in 0..50 {
                let constraint: Arc<dyn Constraint> = Arc::new(OneOf([vec![id, 7], vec![63 - id]].into()));
                let request = Request {
                    pooling: None,
                    prompt: [1, 2].into(),
                    params: SamplingParams { max_tokens: Some(4), ..SamplingParams::default() },
                    constraint: (id % 5 != 0).then_some(constraint),
                    priority: 0,
                    cache_salt: None,
                    external_id: "".into(),
                };
                scheduler.add(RequestId(u64::from(id)), Arc::new(request), &[0], 0, Duration::ZERO);
            }
            let mut plan = StepPlan::default();
            assert!(scheduler.plan(&mut plan, Duration::ZERO));
            fill_on(scheduler.mask_jobs(&mut plan, 64), cores);
            assert_eq!(plan.masks.len(), plan.mask_rows.len() * 2);
            plan.masks
        });
        assert!(masks[0].iter().any(|word| *word != u32::MAX));
        assert!(masks[1] == masks[0] && masks[2] == masks[0]);
    }
}
