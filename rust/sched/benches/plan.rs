//! Time of `plan` and `commit` in steady decode: `cargo bench -p frizzen-sched`.

use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{Request, RequestId, SamplingParams};
use frizzen_sched::{AdmissionLimits, Policy, RowEvent, Scheduler, SchedulerConfig, StepOutput, StepPlan};

fn main() {
    divan::main();
}

struct Decode {
    scheduler: Scheduler,
    plan: StepPlan,
    output: StepOutput,
    events: Vec<RowEvent>,
}

impl Decode {
    /// `rows` requests past their prefill, with enough context and blocks never to end.
    fn steady(rows: u32) -> Self {
        let max_model_len = 1 << 20;
        let blocks = rows * 512 + (1 << 16) + 1;
        let mut scheduler = Scheduler::new(SchedulerConfig {
            max_num_seqs: rows,
            max_num_batched_tokens: rows * 64,
            max_model_len,
            block_size: 16,
            num_blocks: blocks,
            prefix_caching: true,
            whole_prompts: false,
            long_prefill_threshold: 0,
            policy: Policy::Fcfs,
            hash_seed: 1,
            admissions: AdmissionLimits::for_engine(rows, rows * 64, max_model_len, 16, 1000),
        });
        for id in 0..u64::from(rows) {
            let params =
                SamplingParams { temperature: 0.0, max_tokens: Some(8000), ..SamplingParams::default() };
            let prompt: Vec<u32> = (0..32).map(|i| i * 31 + id as u32).collect();
            let request = Request {
                prompt: prompt.into(),
                params,
                priority: 0,
                constraint: None,
                pooling: None,
                cache_salt: None,
                external_id: "".into(),
            };
            scheduler.add(RequestId(id), Arc::new(request), &[], 0, Duration::ZERO);
        }
        let mut decode =
            Self { scheduler, plan: StepPlan::default(), output: StepOutput::default(), events: Vec::new() };
        for _ in 0..4 {
            decode.step();
        }
        decode
    }

    fn commit(&mut self) {
        self.output.clear();
        for row in &self.plan.rows {
            self.output.num_sampled.push(u32::from(row.samples));
            self.output.tokens.extend(row.samples.then_some(7));
        }
        self.scheduler.commit(&self.plan, &self.output, Duration::ZERO, &mut self.events);
    }

    fn step(&mut self) {
        assert!(self.scheduler.plan(&mut self.plan, Duration::ZERO));
        self.commit();
    }
}

#[divan::bench(args = [1, 32, 256, 1024], sample_count = 50, sample_size = 10)]
fn plan_and_commit(bencher: divan::Bencher<'_, '_>, rows: u32) {
    let mut decode = Decode::steady(rows);
    bencher.bench_local(|| decode.step());
}

#[divan::bench(args = [1, 32, 256, 1024], sample_count = 400, sample_size = 1)]
fn plan(bencher: divan::Bencher<'_, '_>, rows: u32) {
    let decode = std::cell::RefCell::new(Decode::steady(rows));
    bencher.with_inputs(|| decode.borrow_mut().commit_pending()).bench_local_values(|()| {
        let mut decode = decode.borrow_mut();
        let Decode { scheduler, plan, .. } = &mut *decode;
        scheduler.plan(plan, Duration::ZERO)
    });
}

impl Decode {
    /// Commits the step that the last timed call planned, outside the timing.
    fn commit_pending(&mut self) {
        if self.plan.rows.is_empty() {
            return;
        }
        self.commit();
        self.plan.clear();
    }
}
