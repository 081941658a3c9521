//! Questions to the worker, and what is told and counted when a step goes wrong.

use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use frizzen_core::{Error, FinishReason, Request, SamplingParams, SystemClock};
use frizzen_engine::mock::{Fault, MockWorker, TimingLaw, mock_info};
use frizzen_engine::{Engine, EngineHandle, EngineOptions, Turn, Worker, WorkerError, WorkerInfo, seat};
use frizzen_metrics::{Metrics, MetricsOptions, TextFormat};
use frizzen_sched::{StepOutput, StepPlan};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(20);

fn request(prompt: u32) -> Request {
    Request {
        prompt: [prompt; 20].into(),
        params: SamplingParams { max_tokens: Some(10), ..SamplingParams::default() },
        priority: 0,
        constraint: None,
        pooling: None,
        cache_salt: None,
        external_id: "test".into(),
    }
}

fn engine(worker: MockWorker) -> (Engine<MockWorker>, EngineHandle, Metrics) {
    let (handle, seat) = seat(Arc::new(SystemClock::new()), 100);
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: true });
    let engine = Engine::new(seat, worker, EngineOptions::default(), metrics.engine(0));
    (engine.expect("the mock's sizes are consistent"), handle, metrics)
}

#[test]
fn a_question_is_answered_while_idle_and_between_steps() {
    let worker = MockWorker::new(mock_info())
        .taking(TimingLaw::constant(Duration::from_millis(1)))
        .answering("counters", r#"{"graph_steps": 3}"#);
    let (mut engine, handle, _) = engine(worker);
    let thread = thread::spawn(move || engine.run());
    let ask = || handle.control("counters", "null").recv_timeout(PATIENCE);
    assert_eq!(ask(), Ok(Ok(r#"{"graph_steps": 3}"#.to_owned())));
    let mut stream = handle.submit(request(1)).expect("it fits");
    stream.blocking_next();
    assert_eq!(ask(), Ok(Ok(r#"{"graph_steps": 3}"#.to_owned())));
    let refused = handle.control("nothing", "null").recv_timeout(PATIENCE).expect("an answer");
    assert!(refused.is_err_and(|why| why.contains("\"nothing\"")));
    while stream.blocking_next().is_some() {}
    handle.shutdown();
    thread.join().expect("no panic").expect("no failure");
    assert!(ask().is_err(), "nobody is there");
}

#[test]
fn a_row_without_finite_logits_is_counted_once_and_the_others_are_not() {
    let (mut engine, handle, metrics) = engine(MockWorker::new(mock_info()).failing(Fault::BadRow(2)));
    let streams = [1, 2].map(|prompt| handle.submit(request(prompt)).expect("it fits"));
    while engine.step().expect("one row's failure is not the engine's") == Turn::Worked {}
    drop(streams);
    let text = metrics.encode(TextFormat::Prometheus);
    for prefix in ["frizzen", "vllm"] {
        let line = format!("{prefix}:corrupted_requests_total{{model_name=\"m\",engine=\"0\"}} 1\n");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn running_out_of_memory_twice_says_who_holds_it() {
    let owners = json!([
        {"owner": "weights", "predicted": 5 << 20, "measured": 6 << 20},
        {"owner": "kv_cache", "predicted": 7 << 20, "measured": null},
    ]);
    let info = WorkerInfo { plan: json!({"memory": {"owners": owners}}), ..mock_info() };
    let worker = MockWorker::new(info).failing(Fault::OutOfMemory(1)).failing(Fault::OutOfMemory(2));
    let (mut engine, handle, _) = engine(worker);
    let mut stream = handle.submit(request(1)).expect("it fits");
    let failed = engine.run().expect_err("the second time is fatal").to_string();
    assert!(failed.ends_with("(the memory holds weights 6 MiB, kv_cache 7 MiB)"), "{failed}");
    let last = stream.blocking_next().and_then(|delta| delta.finish);
    assert!(matches!(last, Some(FinishReason::Error(Error::Engine { .. }))));
}

/// Answers a question by telling the loop to end, so that the loop finds that command within the step.
struct EndsOnQuestion(MockWorker, Arc<OnceLock<EngineHandle>>);

impl Worker for EndsOnQuestion {
    fn info(&self) -> &WorkerInfo {
        self.0.info()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        self.0.submit(plan)
    }

    fn sample(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        self.0.sample(plan)
    }

    fn collect(&mut self, plan: &StepPlan, output: &mut StepOutput) -> Result<(), WorkerError> {
        self.0.collect(plan, output)
    }

    fn control(&mut self, _name: &str, _argument: &str) -> Result<String, String> {
        self.1.get().expect("the handle is set before the loop runs").shutdown();
        Ok("null".to_owned())
    }
}

#[test]
fn a_shutdown_that_a_step_takes_ends_the_loop_all_the_same() {
    let (own, seat) = seat(Arc::new(SystemClock::new()), 100);
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
    let known = Arc::new(OnceLock::from(own.clone()));
    let worker = EndsOnQuestion(MockWorker::new(mock_info()), known);
    let mut engine =
        Engine::new(seat, worker, EngineOptions::default(), metrics.engine(0)).expect("sizes fit");
    // Waiting already when the loop begins, so the first step takes it and what it brings.
    let _answer = own.control("end", "null");
    let (ended, end) = channel();
    thread::spawn(move || ended.send(engine.run()));
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Ok(())), "the loop still waits for a command");
}
