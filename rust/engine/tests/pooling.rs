//! Requests whose result is a vector, through the same loop: no schedule changes a vector, and nothing leaks.

use std::sync::Arc;

use frizzen_core::{
    Activation, Error, FinishReason, OutputDelta, Pooling, PoolingInfo, PoolingTask, Request, SamplingParams,
    StopReason, SystemClock, TokenId,
};
use frizzen_engine::mock::{Fault, MockWorker, mock_info};
use frizzen_engine::{Engine, EngineHandle, EngineOptions, OutputStream, Turn, WorkerInfo, seat};
use frizzen_metrics::{Metrics, MetricsOptions};
use frizzen_sched::sim::ChainModel;

const SIZE: usize = 3;

fn info(whole: bool) -> WorkerInfo {
    let pooling = PoolingInfo {
        task: PoolingTask::Embed,
        size: SIZE as u32,
        normalize: true,
        dimensions: None,
        activation: Activation::Identity,
        labels: Vec::new(),
        every_token: whole,
        whole_prompts: whole,
        per_token: false,
    };
    WorkerInfo { pooling: Some(pooling), max_model_len: 64, max_num_batched_tokens: 64, ..mock_info() }
}

fn request(prompt: &[TokenId]) -> Request {
    Request {
        prompt: prompt.into(),
        params: SamplingParams::default(),
        pooling: Some(Pooling::default()),
        priority: 0,
        constraint: None,
        cache_salt: None,
        external_id: "test".into(),
    }
}

struct Rig {
    engine: Engine<MockWorker>,
    handle: EngineHandle,
}

impl Rig {
    fn new(worker: MockWorker, options: EngineOptions) -> Self {
        let (handle, seat) = seat(Arc::new(SystemClock::new()), 1000);
        let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
        let engine = Engine::new(seat, worker, options, metrics.engine(0)).expect("consistent sizes");
        Self { engine, handle }
    }

    fn submit(&self, prompts: &[Vec<TokenId>]) -> Vec<OutputStream> {
        prompts.iter().map(|prompt| self.handle.submit(request(prompt)).expect("it fits")).collect()
    }

    fn run(&mut self) {
        for turn in 0.. {
            assert!(turn < 10_000, "the loop does not come to rest");
            if self.engine.step().expect("no fatal fault was planned") == Turn::Idle {
                break;
            }
        }
        self.engine.scheduler().check();
        assert_eq!(self.engine.scheduler().pool().used(), 0, "blocks leak");
    }
}

fn all(mut stream: OutputStream) -> OutputDelta {
    let mut all = OutputDelta::default();
    while let Some(delta) = stream.try_next() {
        all.merge(delta);
    }
    all
}

fn prompts() -> Vec<Vec<TokenId>> {
    [1, 2, 33, 64, 17, 40, 40].iter().map(|len| (0..*len).map(|at| at * 7 % 11).collect()).collect()
}

fn expect_vectors(streams: Vec<OutputStream>, prompts: &[Vec<TokenId>]) {
    for (stream, prompt) in streams.into_iter().zip(prompts) {
        let delta = all(stream);
        assert_eq!(delta.pooled, ChainModel::vector(prompt, SIZE));
        assert_eq!(delta.finish, Some(FinishReason::Stop(StopReason::Complete)));
        let prefill = delta.prefill.expect("it comes with the result");
        assert_eq!(prefill.cached_tokens + prefill.computed_tokens, prompt.len() as u32);
        assert!(delta.tokens.is_empty());
    }
}

/// Engines that cut prompts, run out of blocks, and do neither, overlapped and not.
fn rigs() -> impl Iterator<Item = Rig> {
    [false, true].into_iter().flat_map(|overlap| {
        [(64, 4097), (5, 4097), (16, 9), (7, 5)].into_iter().map(move |(step, blocks)| {
            let info = WorkerInfo { max_num_batched_tokens: step, num_blocks: blocks, ..info(false) };
            Rig::new(
                MockWorker::new(info),
                EngineOptions { overlap: Some(overlap), ..EngineOptions::default() },
            )
        })
    })
}

#[test]
fn chunks_cached_prefixes_preemptions_and_overlap_change_no_vector() {
    for mut rig in rigs() {
        for _ in 0..2 {
            let streams = rig.submit(&prompts());
            rig.run();
            expect_vectors(streams, &prompts());
        }
        assert!(rig.engine.scheduler().counters().prefix_hits > 0);
    }
}

#[test]
fn vectors_of_tokens_come_once_each_and_in_order_whatever_the_schedule() {
    for mut rig in rigs() {
        // The second time the prefixes are cached, by those that want one vector.
        for _ in 0..2 {
            let plain = rig.submit(&prompts());
            let streams: Vec<OutputStream> = prompts()
                .iter()
                .map(|prompt| {
                    let pooling = Pooling { per_token: true, ..Pooling::default() };
                    rig.handle.submit(Request { pooling: Some(pooling), ..request(prompt) }).expect("it fits")
                })
                .collect();
            rig.run();
            expect_vectors(plain, &prompts());
            for (stream, prompt) in streams.into_iter().zip(prompts()) {
                let delta = all(stream);
                assert_eq!(delta.pooled, ChainModel::token_vectors(&prompt, SIZE));
                assert_eq!(delta.finish, Some(FinishReason::Stop(StopReason::Complete)));
            }
        }
    }
}

#[test]
fn a_whole_prompt_is_never_cut_by_budget_or_threshold() {
    for overlap in [false, true] {
        let options =
            EngineOptions { overlap: Some(overlap), long_prefill_threshold: 8, ..EngineOptions::default() };
        let mut rig = Rig::new(MockWorker::new(info(true)), options);
        for _ in 0..2 {
            let streams = rig.submit(&prompts());
            rig.run();
            expect_vectors(streams, &prompts());
        }
        assert_eq!(rig.engine.scheduler().counters().prefix_hits, 0, "every token has to be seen");
    }
}

#[test]
fn after_a_shortage_a_whole_prompt_over_the_budget_runs_alone() {
    let mut rig =
        Rig::new(MockWorker::new(info(true)).failing(Fault::OutOfMemory(1)), EngineOptions::default());
    let streams = rig.submit(&prompts());
    rig.run();
    assert_eq!(rig.engine.scheduler().config().max_num_batched_tokens, 32);
    expect_vectors(streams, &prompts());
}

#[test]
fn a_row_that_fails_takes_no_other_with_it() {
    let mut rig = Rig::new(MockWorker::new(info(true)).failing(Fault::BadRow(1)), EngineOptions::default());
    let prompts = prompts();
    let mut streams = rig.submit(&prompts);
    rig.run();
    let failed = all(streams.remove(0));
    assert!(matches!(failed.finish, Some(FinishReason::Error(Error::Request { .. }))));
    assert!(failed.pooled.is_empty());
    expect_vectors(streams, &prompts[1..]);
}

#[test]
fn a_prompt_may_fill_the_context_and_not_more() {
    let rig = Rig::new(MockWorker::new(info(true)), EngineOptions::default());
    assert!(rig.handle.submit(request(&[1; 64])).is_ok());
    let error = rig.handle.submit(request(&[1; 65])).expect_err("one too many").to_string();
    assert_eq!(error, "the prompt has 65 tokens, and it may have 64");
}

#[test]
fn a_model_refuses_the_task_it_lacks_and_names_the_one_it_has() {
    let pools = Rig::new(MockWorker::new(info(true)), EngineOptions::default());
    let error = pools.handle.submit(Request { pooling: None, ..request(&[1]) }).expect_err("no text here");
    assert!(error.to_string().contains("generates no text; its task is embed"), "{error}");
    let generates = Rig::new(MockWorker::new(mock_info()), EngineOptions::default());
    let error = generates.handle.submit(request(&[1])).expect_err("no vectors here");
    assert!(error.to_string().contains("this model generates text"), "{error}");
}

#[test]
fn a_step_that_is_shorter_than_a_whole_prompt_is_refused_at_the_start() {
    let (_, seat) = seat(Arc::new(SystemClock::new()), 1);
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
    let worker = MockWorker::new(WorkerInfo { max_num_batched_tokens: 63, ..info(true) });
    let error =
        Engine::new(seat, worker, EngineOptions::default(), metrics.engine(0)).expect_err("too short");
    assert!(
        error.to_string().contains("max_num_batched_tokens must be at least max_model_len 64"),
        "{error}"
    );
}
