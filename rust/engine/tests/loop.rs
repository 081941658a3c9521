//! The loop over the mock: overlap changes nothing, faults end streams, nothing leaks.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use frizzen_core::{
    Constraint, Error, FinishReason, ManualClock, OutputDelta, Request, SamplingParams, StopReason,
    SystemClock, TokenId, TokenMatcher,
};
use frizzen_engine::mock::{Content, Fault, MockWorker, TimingLaw, mock_info};
use frizzen_engine::{
    Engine, EngineHandle, EngineOptions, Health, OutputStream, PauseMode, Turn, Worker, WorkerError,
    WorkerInfo, seat,
};
use frizzen_metrics::{Metrics, MetricsOptions, TextFormat};
use frizzen_sched::sim::OneOf;
use frizzen_sched::{StepOutput, StepPlan};

fn request(prompt: &[TokenId], max_tokens: u32) -> Request {
    Request {
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
        external_id: "test".into(),
    }
}

struct Rig {
    engine: Engine<MockWorker>,
    handle: EngineHandle,
    metrics: Metrics,
}

fn rig(worker: MockWorker, options: EngineOptions) -> Rig {
    let (handle, seat) = seat(Arc::new(SystemClock::new()), 10_000);
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
    let engine =
        Engine::new(seat, worker, options, metrics.engine(0)).expect("the mock's sizes are consistent");
    Rig { engine, handle, metrics }
}

impl Rig {
    fn run_to_idle(&mut self) {
        for turn in 0.. {
            assert!(turn < 100_000, "the loop does not come to rest");
            if self.engine.step().expect("no fault was planned") == Turn::Idle {
                break;
            }
        }
        self.engine.scheduler().check();
    }

    /// The value of a metric that has the label `engine="0"` and no other but the model's name.
    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.encode(TextFormat::Prometheus);
        let line = text.lines().find(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')) && !line.contains("le=")
        });
        let line = line.unwrap_or_else(|| panic!("no metric {name} in\n{text}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    }
}

fn all(mut stream: OutputStream) -> OutputDelta {
    let mut all = OutputDelta::default();
    while let Some(delta) = stream.try_next() {
        all.merge(delta);
    }
    all
}

/// A constraint that becomes too complex after some tokens, as a lexer with a limit does.
#[derive(Clone, Debug)]
struct Breaks {
    after: usize,
}

impl Constraint for Breaks {
    fn matcher(&self) -> Box<dyn TokenMatcher> {
        Box::new(self.clone())
    }
}

impl TokenMatcher for Breaks {
    fn fill(&mut self, mask: &mut [u32]) -> frizzen_core::Result<()> {
        mask.fill(u32::MAX);
        if self.after == 0 {
            return Err(Error::Request { message: "too complex".to_owned() });
        }
        Ok(())
    }

    fn accept(&mut self, _: TokenId) -> frizzen_core::Result<()> {
        self.after -= 1;
        Ok(())
    }

    fn validate(&mut self, tokens: &[TokenId]) -> usize {
        tokens.len().min(self.after)
    }

    fn rollback(&mut self, count: usize) -> frizzen_core::Result<()> {
        self.after += count;
        Ok(())
    }

    fn can_end(&mut self) -> bool {
        false
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn TokenMatcher> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_that_breaks_ends_its_request_with_an_error_and_no_other_guidance_1042() {
    for overlap in [false, true] {
        let mut rig = rig(
            MockWorker::new(mock_info()),
            EngineOptions { overlap: Some(overlap), ..EngineOptions::default() },
        );
        let mut breaking = request(&[1, 2], 20);
        breaking.constraint = Some(Arc::new(Breaks { after: 5 }));
        breaking.params.ignore_eos = true;
        let mut whole = request(&[3], 20);
        whole.constraint = Some(Arc::new(OneOf([vec![7, 8, 9]].into())));
        let [breaking, whole, plain] =
            [breaking, whole, request(&[4], 9)].map(|new| rig.handle.submit(new).expect("the mock takes it"));
        rig.run_to_idle();
        let failed = all(breaking);
        assert_eq!(failed.tokens.len(), 5, "what was generated before is not lost");
        assert!(
            matches!(failed.finish, Some(FinishReason::Error(Error::Request { message })) if message == "too complex")
        );
        let whole = all(whole);
        assert_eq!(
            (whole.tokens, whole.finish),
            (vec![7, 8, 9], Some(FinishReason::Stop(StopReason::Complete)))
        );
        assert_eq!(all(plain).tokens.len(), 9);
        assert_eq!(rig.handle.health(), Health::Ready);
    }
}

#[test]
fn overlapped_and_plain_loops_give_equal_streams() {
    let tight = WorkerInfo {
        num_blocks: 20,
        max_model_len: 256,
        max_num_seqs: 6,
        max_num_batched_tokens: 48,
        ..mock_info()
    };
    let texts = [false, true].map(|overlap| {
        let mut rig = rig(
            MockWorker::new(tight.clone()),
            EngineOptions { overlap: Some(overlap), ..EngineOptions::default() },
        );
        let streams: Vec<_> = (0..24u32)
            .map(|i| {
                let prompt: Vec<TokenId> = (0..=(i * 7 % 90)).map(|t| (t * 13 + i / 3) % 256).collect();
                let mut new = request(&prompt, 40 + i % 9);
                if i % 4 == 0 {
                    (new.params.temperature, new.params.seed) = (1.0, Some(u64::from(i)));
                }
                if i % 5 == 0 {
                    new.params.logprobs = Some(2);
                }
                if i % 3 == 0 {
                    let texts: Vec<Vec<TokenId>> = (0..4)
                        .map(|text| (0..9 + text * 7).map(|at| (text + at * i) % 250 + 1).collect())
                        .collect();
                    new.constraint = Some(Arc::new(OneOf(texts.into())));
                }
                rig.handle.submit(new).expect("the mock takes it")
            })
            .collect();
        rig.run_to_idle();
        assert!(rig.metric("frizzen:num_preemptions_total") > 0.0, "the pool is meant to be short");
        streams.into_iter().map(all).map(|d| (d.tokens, d.logprobs, d.finish)).collect::<Vec<_>>()
    });
    let [plain, overlapped] = texts;
    for (at, (plain, overlapped)) in plain.iter().zip(&overlapped).enumerate() {
        let same = plain.0.iter().zip(&overlapped.0).take_while(|(a, b)| a == b).count();
        assert_eq!((plain.0.len(), same), (overlapped.0.len(), plain.0.len()), "request {at} differs");
        assert_eq!((&plain.1, &plain.2), (&overlapped.1, &overlapped.2), "request {at}");
    }
    assert!(
        plain
            .iter()
            .all(|(tokens, logprobs, _)| !tokens.is_empty() && [0, tokens.len()].contains(&logprobs.len()))
    );
}

#[test]
fn overlap_hides_the_host_behind_the_step_on_a_virtual_clock() {
    let clock = ManualClock::new();
    let worker =
        MockWorker::new(mock_info()).taking(TimingLaw::constant(Duration::from_millis(10))).on(clock.clone());
    let (handle, seat) = seat(Arc::new(clock.clone()), 10);
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
    let options = EngineOptions { overlap: Some(true), ..EngineOptions::default() };
    let mut engine = Engine::new(seat, worker, options, metrics.engine(0)).expect("consistent");
    let stream = handle.submit(request(&[1, 2, 3], 20)).expect("fits");
    while engine.step().expect("no fault") != Turn::Idle {}
    let timing = all(stream).timing.expect("the request has ended");
    assert_eq!(
        timing.last_token.saturating_sub(timing.queued),
        Duration::from_millis(200),
        "20 steps of 10 ms, back to back"
    );
}

/// An engine on a virtual clock whose steps take 10 ms and 1 ms more for each token of a prompt.
fn virtual_rig(overlap: bool) -> Rig {
    let clock = ManualClock::new();
    let law = TimingLaw {
        per_prefill_token: Duration::from_millis(1).as_nanos() as u64,
        ..TimingLaw::constant(Duration::from_millis(10))
    };
    let worker = MockWorker::new(mock_info()).taking(law).on(clock.clone());
    let (handle, seat) = seat(Arc::new(clock), 10);
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
    let options = EngineOptions { overlap: Some(overlap), ..EngineOptions::default() };
    let engine = Engine::new(seat, worker, options, metrics.engine(0)).expect("consistent");
    Rig { engine, handle, metrics }
}

#[test]
fn time_lost_to_the_prefill_of_others_is_what_their_prompts_made_a_step_longer() {
    for overlap in [false, true] {
        let mut rig = virtual_rig(overlap);
        let first = rig.handle.submit(request(&[1, 2, 3], 20)).expect("fits");
        for _ in 0..5 {
            rig.engine.step().expect("no fault");
        }
        let prompt: Vec<TokenId> = (1..=40).collect();
        let second = rig.handle.submit(request(&prompt, 5)).expect("fits");
        rig.run_to_idle();
        let (first, second) =
            [first, second].map(|stream| all(stream).timing.expect("the request has ended")).into();
        assert_eq!(first.lost_to_prefill, Duration::from_millis(40), "40 tokens of 1 ms each");
        assert_eq!(second.lost_to_prefill, Duration::ZERO, "its own prompt is no other's");
        assert!((rig.metric("frizzen:request_lost_to_prefill_seconds_sum") - 0.04).abs() < 1e-9);
    }
}

#[test]
fn every_delta_has_the_times_so_far() {
    let mut rig = virtual_rig(false);
    let mut stream = rig.handle.submit(request(&[1, 2, 3], 20)).expect("fits");
    let mut ends = Vec::new();
    while rig.engine.step().expect("no fault") != Turn::Idle {
        ends.extend(stream.try_next().and_then(|delta| delta.timing).map(|timing| timing.last_token));
    }
    assert_eq!(ends.len(), 20);
    assert!(ends.is_sorted_by(|before, after| before < after));
}

#[test]
fn requests_that_a_pause_holds_back_are_deferred() {
    let mut rig = rig(MockWorker::new(mock_info()), EngineOptions::default());
    let _settled = rig.handle.pause(PauseMode::Wait);
    let stream = rig.handle.submit(request(&[1], 2)).expect("fits");
    rig.run_to_idle();
    let deferred = |rig: &Rig| {
        let text = rig.metrics.encode(TextFormat::Prometheus);
        text.lines().any(|line| {
            line.starts_with("frizzen:num_requests_waiting_by_reason{") && line.ends_with("\"deferred\"} 1")
        })
    };
    assert!(deferred(&rig));
    assert!(rig.metric("frizzen:num_requests_waiting") > 0.0);
    rig.handle.resume();
    rig.run_to_idle();
    assert!(!deferred(&rig));
    assert_eq!(all(stream).tokens.len(), 2);
}

#[test]
fn followed_blocks_tell_of_their_reuse_and_of_their_end() {
    let info = WorkerInfo { num_blocks: 17, block_size: 4, max_model_len: 64, ..mock_info() };
    let mut rig = rig(MockWorker::new(info), EngineOptions::default());
    for at in 0..8 {
        let prompt: Vec<TokenId> = (0..40).map(|token| token + at).collect();
        for _ in 0..2 {
            let stream = rig.handle.submit(request(&prompt, 2)).expect("fits");
            rig.run_to_idle();
            all(stream);
        }
    }
    for name in ["lifetime", "idle_before_evict", "reuse_gap"] {
        assert!(rig.metric(&format!("frizzen:kv_block_{name}_seconds_count")) > 0.0, "{name}");
    }
}

#[test]
fn an_idle_loop_gives_the_worker_time_until_it_has_nothing_left_to_do() {
    let (done, chores) = channel();
    let rig = rig(MockWorker::new(mock_info()).with_chores(3, done), EngineOptions::default());
    let (mut engine, handle) = (rig.engine, rig.handle);
    let stream = handle.submit(request(&[1, 2], 5)).expect("fits");
    let thread = thread::spawn(move || engine.run());
    for _ in 0..3 {
        chores.recv().expect("the loop is idle once the request has ended");
    }
    assert_eq!(all(stream).tokens.len(), 5);
    // A request still finds the loop, whatever the worker was doing.
    let again = handle.submit(request(&[3], 4)).expect("fits");
    handle.shutdown();
    thread.join().expect("no panic").expect("no fault");
    drop(again);
    assert!(chores.recv().is_err(), "the worker had three pieces of work");
}

#[test]
fn only_a_device_of_its_own_makes_overlap_the_default() {
    let tokens_after = |device: &str, overlap| {
        let info = WorkerInfo { device: device.to_owned(), ..mock_info() };
        let mut rig = rig(MockWorker::new(info), EngineOptions { overlap, ..EngineOptions::default() });
        let stream = rig.handle.submit(request(&[1, 2], 5)).expect("fits");
        rig.engine.step().expect("no fault");
        all(stream).tokens.len()
    };
    assert_eq!((tokens_after("cpu", None), tokens_after("cuda:0", None)), (1, 0));
    assert_eq!((tokens_after("cpu", Some(true)), tokens_after("cuda:0", Some(false))), (0, 1));
}

#[test]
fn runs_of_several_tokens_per_step_arrive_whole_and_in_order() {
    let script: Arc<[TokenId]> = (1..=10).collect();
    let mut rig = rig(
        MockWorker::new(mock_info()).saying(Content::Script(script)).in_runs_of(4),
        EngineOptions::default(),
    );
    let stream = rig.handle.submit(request(&[1], 100)).expect("fits");
    rig.run_to_idle();
    let delta = all(stream);
    assert_eq!(delta.tokens, (1..=10).chain([0]).collect::<Vec<_>>());
    assert_eq!(delta.finish.map(|finish| finish.label()), Some("stop"));
}

#[test]
fn a_dropped_stream_frees_its_blocks_and_is_counted_as_aborted() {
    let mut rig = rig(MockWorker::new(mock_info()), EngineOptions::default());
    let stream = rig.handle.submit(request(&[1; 100], 1000)).expect("fits");
    let queued = rig.handle.submit(request(&[2; 100], 1000)).expect("fits");
    rig.engine.step().expect("no fault");
    assert!(rig.handle.load().used_blocks > 0);
    drop(stream);
    drop(queued);
    rig.run_to_idle();
    assert_eq!(rig.handle.load().used_blocks, 0);
    assert_eq!(rig.handle.open_streams(), 0);
    let text = rig.metrics.encode(TextFormat::Prometheus);
    assert!(text.contains("finished_reason=\"abort\"") || text.contains("abort"), "{text}");
}

/// A worker during whose steps the front end gives a request up.
struct Meanwhile {
    worker: MockWorker,
    given_up: Receiver<OutputStream>,
    stops: bool,
}

impl Worker for Meanwhile {
    fn info(&self) -> &WorkerInfo {
        self.worker.info()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        self.worker.submit(plan)
    }

    fn sample(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        self.worker.sample(plan)
    }

    fn collect(&mut self, plan: &StepPlan, output: &mut StepOutput) -> Result<(), WorkerError> {
        if let Ok(stream) = self.given_up.try_recv() {
            if self.stops { stream.stop() } else { drop(stream) }
        }
        self.worker.collect(plan, output)
    }
}

#[test]
fn a_request_that_ends_while_it_is_given_up_is_counted_once_rapid_mlx_2915() {
    for (stops, counted) in [(true, "stop"), (false, "abort")] {
        let (give_up, given_up) = channel();
        let (handle, seat) = seat(Arc::new(SystemClock::new()), 10);
        let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
        let worker = Meanwhile { worker: MockWorker::new(mock_info()), given_up, stops };
        let mut engine =
            Engine::new(seat, worker, EngineOptions::default(), metrics.engine(0)).expect("it is consistent");
        // One step, and the command that gives it up comes while that runs.
        give_up.send(handle.submit(request(&[1, 2, 3], 1)).expect("fits")).expect("the worker is there");
        while engine.step().expect("no fault was planned") != Turn::Idle {}
        let text = metrics.encode(TextFormat::Prometheus);
        for reason in ["stop", "abort", "length"] {
            let expected = u8::from(reason == counted);
            let line = format!("finished_reason=\"{reason}\"}} {expected}");
            assert!(text.contains(&line), "{counted}: {line}");
        }
    }
}

#[test]
fn a_stop_string_counts_as_stopped() {
    let mut rig = rig(MockWorker::new(mock_info()), EngineOptions::default());
    let stream = rig.handle.submit(request(&[1], 1000)).expect("fits");
    rig.engine.step().expect("no fault");
    stream.stop();
    rig.run_to_idle();
    let text = rig.metrics.encode(TextFormat::Prometheus);
    let stopped = text
        .lines()
        .find(|line| line.starts_with("frizzen:request_success_total") && line.contains("\"stop\""));
    assert!(stopped.is_some_and(|line| line.ends_with(" 1")), "{text}");
}

#[test]
fn a_thousand_requests_dropped_at_random_moments_leak_nothing() {
    let tight = WorkerInfo { num_blocks: 120, max_model_len: 512, max_num_seqs: 16, ..mock_info() };
    for overlap in [false, true] {
        let mut rig = rig(
            MockWorker::new(tight.clone()),
            EngineOptions { overlap: Some(overlap), ..EngineOptions::default() },
        );
        let mut open: Vec<OutputStream> = Vec::new();
        let mut state = 1u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for i in 0..1000u32 {
            let prompt: Vec<TokenId> = (0..=(random(200) as u32)).map(|t| (t + i) % 7).collect();
            open.push(rig.handle.submit(request(&prompt, random(100) as u32 + 1)).expect("fits"));
            for _ in 0..random(3) {
                rig.engine.step().expect("no fault");
            }
            while open.len() > random(30) {
                drop(open.swap_remove(random(open.len())));
            }
        }
        drop(open);
        rig.run_to_idle();
        let load = rig.handle.load();
        assert_eq!((load.running, load.waiting, load.used_blocks), (0, 0, 0));
        assert_eq!(rig.handle.open_streams(), 0);
        for gauge in
            ["frizzen:num_requests_running", "frizzen:num_requests_waiting", "frizzen:kv_cache_usage_perc"]
        {
            assert_eq!(rig.metric(gauge), 0.0, "{gauge}");
        }
    }
}

fn run_in_thread(worker: MockWorker) -> (EngineHandle, thread::JoinHandle<Result<(), Error>>) {
    let Rig { mut engine, handle, .. } = rig(worker, EngineOptions::default());
    (handle, thread::spawn(move || engine.run()))
}

#[test]
fn a_failing_worker_ends_every_stream_with_the_first_error_and_stays_failed() {
    for fault in [Fault::Raise(3), Fault::Panic(3)] {
        let (handle, engine) = run_in_thread(MockWorker::new(mock_info()).failing(fault));
        let mut streams: Vec<_> = (0..3).filter_map(|_| handle.submit(request(&[1, 2], 100)).ok()).collect();
        let result = engine.join().expect("the loop catches panics");
        let Err(Error::Engine { message }) = &result else { panic!("{result:?}") };
        assert!(message.contains("the mock was told to"), "{message}");
        for stream in &mut streams {
            let mut last = None;
            while let Some(delta) = stream.blocking_next() {
                last = delta.finish;
            }
            assert_eq!(last, result.clone().err().map(FinishReason::Error));
        }
        assert_eq!(Some(handle.health()), result.clone().err().map(Health::Failed));
        assert_eq!(handle.submit(request(&[1], 1)).err(), result.err());
    }
}

#[test]
fn a_hanging_worker_can_be_failed_from_outside_and_its_streams_end() {
    let mut worker = MockWorker::new(mock_info()).failing(Fault::Hang(2));
    let guard = worker.hang_guard();
    let (handle, engine) = run_in_thread(worker);
    let mut stream = handle.submit(request(&[1, 2], 100)).expect("fits");
    assert_eq!(stream.blocking_next().map(|delta| delta.tokens.len()), Some(1));
    while handle.activity().is_none() {
        thread::yield_now();
    }
    let error = Error::Engine { message: "a step takes longer than the limit".to_owned() };
    handle.fail(error.clone());
    assert_eq!(
        stream.blocking_next().and_then(|delta| delta.finish),
        Some(FinishReason::Error(error.clone()))
    );
    drop(guard);
    assert!(engine.join().expect("no panic").is_err());
    assert_eq!(handle.health(), Health::Failed(error), "the first error stays");
}

#[test]
fn out_of_memory_recomputes_once_in_smaller_steps_and_twice_in_a_row_is_fatal() {
    let plain = MockWorker::new(mock_info());
    let new = request(&(0..100).collect::<Vec<_>>(), 20);
    let text = plain.text(&new, 20);
    let mut once = rig(plain.failing(Fault::OutOfMemory(3)), EngineOptions::default());
    let stream = once.handle.submit(new.clone()).expect("fits");
    once.run_to_idle();
    assert_eq!(all(stream).tokens, text);
    assert_eq!(
        once.engine.scheduler().config().max_num_batched_tokens,
        mock_info().max_num_batched_tokens / 2
    );
    let worker = MockWorker::new(mock_info()).failing(Fault::OutOfMemory(3)).failing(Fault::OutOfMemory(4));
    let mut twice = rig(worker, EngineOptions::default());
    let _stream = twice.handle.submit(new).expect("fits");
    let error = std::iter::repeat_with(|| twice.engine.step()).find_map(Result::err);
    assert!(error.is_some_and(|error| error.to_string().contains("out of memory twice")));
}

#[test]
fn one_bad_row_fails_alone() {
    let mut rig = rig(MockWorker::new(mock_info()).failing(Fault::BadRow(2)), EngineOptions::default());
    let streams = [1, 2].map(|token| rig.handle.submit(request(&[token; 20], 10)).expect("fits"));
    rig.run_to_idle();
    let [bad, good] = streams.map(all);
    assert_eq!(bad.finish.map(|finish| finish.label()), Some("error"));
    assert_eq!((good.tokens.len(), good.finish), (10, Some(FinishReason::Length)));
}

#[test]
fn parts_of_a_prompt_that_is_scored_come_beside_rows_without_logprobs_vllm_14239_vllm_mblt_6() {
    let chunked = WorkerInfo { max_num_batched_tokens: 8, ..mock_info() };
    for overlap in [false, true] {
        let options = EngineOptions { overlap: Some(overlap), ..EngineOptions::default() };
        let mut rig = rig(MockWorker::new(chunked.clone()), options);
        let plain = rig.handle.submit(request(&[1, 2], 20)).expect("fits");
        for _ in 0..3 {
            rig.engine.step().expect("no fault was planned");
        }
        let mut scored = request(&[3; 30], 2);
        scored.params.logprobs = Some(1);
        scored.params.prompt_logprobs = Some(1);
        let scored = rig.handle.submit(scored).expect("fits");
        rig.run_to_idle();
        let (plain, scored) = (all(plain), all(scored));
        assert_eq!((plain.tokens.len(), plain.logprobs.len()), (20, 0));
        assert_eq!((scored.tokens.len(), scored.logprobs.len(), scored.prompt_logprobs.len()), (2, 2, 29));
    }
}

#[test]
fn requests_are_refused_while_loading_and_when_too_many_are_open() {
    let (handle, seat) = seat(Arc::new(SystemClock::new()), 1);
    assert!(matches!(handle.submit(request(&[1], 1)), Err(Error::Busy { .. })));
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false });
    let _engine =
        Engine::new(seat, MockWorker::new(mock_info()), EngineOptions::default(), metrics.engine(0));
    let _open = handle.submit(request(&[1], 1)).expect("one is allowed");
    assert!(matches!(handle.submit(request(&[1], 1)), Err(Error::Busy { .. })));
}

#[test]
fn sizes_with_which_no_request_can_work_are_refused_llama_cpp_23453() {
    let good = mock_info();
    assert_eq!(good.validate(), Ok(()));
    for bad in [
        WorkerInfo { max_model_len: 0, ..mock_info() },
        WorkerInfo { max_model_len: 1, ..mock_info() },
        WorkerInfo { max_num_seqs: 0, ..mock_info() },
        WorkerInfo { max_num_batched_tokens: 0, ..mock_info() },
        WorkerInfo { block_size: 0, ..mock_info() },
        WorkerInfo { num_blocks: 1, ..mock_info() },
        WorkerInfo { max_model_len: u32::MAX, ..mock_info() },
    ] {
        assert!(bad.validate().is_err(), "{bad:?}");
    }
}

#[test]
fn prompts_that_do_not_fit_are_refused_with_both_numbers() {
    let rig = rig(MockWorker::new(WorkerInfo { max_model_len: 8, ..mock_info() }), EngineOptions::default());
    for (prompt, text) in
        [(vec![], "at least one token"), (vec![1; 8], "8 tokens"), (vec![256], "vocabulary size 256")]
    {
        let error = rig.handle.submit(request(&prompt, 1)).expect_err("refused");
        assert!(
            matches!(error, Error::Invalid { param: "prompt", .. }) && error.to_string().contains(text),
            "{error}"
        );
    }
}

#[test]
fn iteration_tokens_count_computed_prompt_and_generated_tokens_of_live_requests_only() {
    let mut rig = rig(MockWorker::new(mock_info()), EngineOptions::default());
    let sum = "frizzen:iteration_tokens_total_sum";
    let count = "frizzen:iteration_tokens_total_count";
    assert_eq!((rig.metric(sum), rig.metric(count)), (0.0, 0.0), "the series exists before traffic");
    let prompt: Vec<TokenId> = (0..100).collect();
    let stream = rig.handle.submit(request(&prompt[..48], 1)).expect("fits");
    rig.run_to_idle();
    drop(stream);
    assert_eq!((rig.metric(sum), rig.metric(count)), (49.0, 1.0));
    // 48 of the 100 tokens are cached, 52 are computed, one is generated.
    let stream = rig.handle.submit(request(&prompt, 1)).expect("fits");
    rig.run_to_idle();
    drop(stream);
    assert_eq!((rig.metric(sum), rig.metric(count)), (49.0 + 53.0, 2.0));
    // Everything of this step was given up while it ran: no observation, not an observation of zero.
    let gone = rig.handle.submit(request(&[9; 20], 5)).expect("fits");
    rig.engine.step().expect("no fault");
    let (before_sum, before_count) = (rig.metric(sum), rig.metric(count));
    drop(gone);
    rig.run_to_idle();
    assert_eq!((rig.metric(sum), rig.metric(count)), (before_sum, before_count));
}

#[test]
fn shutdown_aborts_what_is_left_and_ends_the_loop() {
    let law = TimingLaw::constant(Duration::from_millis(1));
    let (handle, engine) = run_in_thread(MockWorker::new(mock_info()).taking(law));
    let mut stream = handle.submit(request(&[1], 4000)).expect("fits");
    handle.shutdown();
    let mut finish = None;
    while let Some(delta) = stream.blocking_next() {
        finish = delta.finish;
    }
    assert_eq!(finish, Some(FinishReason::Abort));
    assert_eq!(engine.join().expect("no panic"), Ok(()));
}
