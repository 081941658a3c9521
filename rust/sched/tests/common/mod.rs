//! A scheduler and a model whose text is wrong as soon as a block or a token is.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{FinishReason, Request, RequestId, SamplingParams, TokenId};
use frizzen_sched::sim::ChainModel;
use frizzen_sched::{AdmissionLimits, Policy, Scheduler, SchedulerConfig, StepOutput, StepPlan};

pub const VOCAB: u32 = 50;

pub fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 4,
        max_num_batched_tokens: 32,
        max_model_len: 64,
        block_size: 4,
        num_blocks: 33,
        prefix_caching: true,
        whole_prompts: false,
        long_prefill_threshold: 0,
        policy: Policy::Fcfs,
        hash_seed: 1,
        admissions: AdmissionLimits::for_engine(4, 32, 64, 4, VOCAB),
    }
}

pub fn request(prompt: &[TokenId], max_tokens: u32) -> Arc<Request> {
    Arc::new(Request {
        prompt: prompt.into(),
        params: SamplingParams {
            temperature: 0.0,
            max_tokens: Some(max_tokens),
            ..SamplingParams::default()
        },
        priority: 0,
        constraint: None,
        pooling: None,
        cache_salt: None,
        external_id: "".into(),
    })
}

/// Scheduler and model joined by a queue of steps in flight.
pub struct Rig {
    pub scheduler: Scheduler,
    pub model: ChainModel,
    flight: VecDeque<(StepPlan, StepOutput)>,
    depth: usize,
    pub texts: BTreeMap<RequestId, Vec<TokenId>>,
    pub finished: BTreeMap<RequestId, FinishReason>,
}

impl Rig {
    pub fn new(config: SchedulerConfig, depth: usize) -> Self {
        let model = ChainModel::new(config.num_blocks, config.block_size, config.max_num_seqs, VOCAB);
        Self {
            scheduler: Scheduler::new(config),
            model,
            flight: VecDeque::new(),
            depth,
            texts: BTreeMap::new(),
            finished: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, id: u64, request: &Arc<Request>) {
        self.scheduler.add(RequestId(id), Arc::clone(request), &[], 0, Duration::ZERO);
    }

    /// Plans one step and commits the oldest one beyond the pipeline's depth. False when nothing is left.
    pub fn turn(&mut self) -> bool {
        let mut plan = StepPlan::default();
        let planned = self.scheduler.plan(&mut plan, Duration::ZERO);
        if planned {
            self.check_plan(&plan);
            self.scheduler.fill_masks(&mut plan, VOCAB);
            let mut output = StepOutput::default();
            self.model.run(&plan, &mut output, ChainModel::token_after);
            self.flight.push_back((plan, output));
        }
        let mut committed = false;
        while self.flight.len() > if planned { self.depth } else { 0 } {
            let (plan, output) = self.flight.pop_front().expect("not empty");
            let mut events = Vec::new();
            self.scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
            for event in events {
                let text = self.texts.entry(event.request).or_default();
                text.extend(&output.tokens[event.tokens]);
                text.extend(&event.forced);
                if let Some(finish) = event.finish {
                    self.finished.insert(event.request, finish.reason);
                }
            }
            committed = true;
        }
        self.scheduler.check();
        planned || committed
    }

    fn check_plan(&self, plan: &StepPlan) {
        check_plan(plan, self.scheduler.config());
    }

    pub fn drain(&mut self) {
        for turn in 0.. {
            if !self.turn() {
                break;
            }
            assert!(turn < 10_000, "the schedule does not end");
        }
        assert!(
            self.scheduler.is_idle(),
            "requests are left and none can be scheduled: {:?}",
            self.scheduler
        );
        assert_eq!(self.scheduler.pool().used(), 0, "blocks leak");
    }

    pub fn expect_text(&self, id: u64, request: &Request) {
        let len = request.params.max_tokens.expect("set by the test") as usize;
        let len = len.min(64 - request.prompt.len());
        assert_eq!(self.texts[&RequestId(id)], self.model.text(request, len), "request {id}");
        assert_eq!(self.finished[&RequestId(id)], FinishReason::Length);
    }
}

/// Panics if a plan breaks a limit or its own form.
pub fn check_plan(plan: &StepPlan, config: &SchedulerConfig) {
    assert!(plan.num_tokens() <= config.max_num_batched_tokens as usize, "over the token budget");
    assert!(plan.rows.len() <= config.max_num_seqs as usize);
    assert!(plan.rows.iter().all(|row| row.num_tokens > 0));
    assert!(plan.rows[..plan.num_single].iter().all(|row| row.num_tokens == 1));
    assert!(plan.rows[plan.num_single..].iter().all(|row| row.num_tokens > 1));
    assert!(plan.blocks.len() <= config.admissions.block_deltas as usize);
    let mut rows: Vec<_> = plan.rows.iter().map(|row| row.row).collect();
    rows.sort();
    rows.dedup();
    assert_eq!(rows.len(), plan.rows.len(), "a row is used twice in a step");
}
