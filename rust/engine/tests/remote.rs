//! Several engines behind one handle: the same answers, one loss at a time, nothing left behind.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use frizzen_core::{
    Constraint, Error, FinishReason, OutputDelta, Request, SamplingParams, StopReason, SystemClock, TokenId,
    TokenMatcher,
};
use frizzen_engine::mock::{Fault, MockWorker, TimingLaw, mock_info};
use frizzen_engine::remote::replica::{Ended, ReplicaOptions};
use frizzen_engine::remote::wire::{self, FromReplica};
use frizzen_engine::remote::{Dispatcher, Replica, Supervisor, SupervisorOptions};
use frizzen_engine::{Engine, EngineHandle, EngineOptions, Health, OutputStream, PauseMode, seat};
use frizzen_metrics::{Metrics, MetricsOptions, TextFormat};
use frizzen_sched::sim::OneOf;

const PATIENCE: Duration = Duration::from_secs(20);

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::yield_now();
    }
}

fn socket() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("frizzen-{}-{number}.sock", std::process::id()))
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false }))
}

/// The source is the token that it allows.
fn read_constraint(source: &str) -> frizzen_core::Result<Arc<dyn Constraint>> {
    let token = source.parse().map_err(|error| Error::Request { message: format!("{source}: {error}") })?;
    Ok(Arc::new(Sourced(token)))
}

#[derive(Debug)]
struct Sourced(TokenId);

impl Constraint for Sourced {
    fn matcher(&self) -> Box<dyn TokenMatcher> {
        OneOf(Arc::from([vec![self.0; 2]])).matcher()
    }

    fn source(&self) -> Option<String> {
        Some(self.0.to_string())
    }
}

/// A replica on threads of this process.
fn replica(path: PathBuf, rank: u32, worker: MockWorker) -> JoinHandle<std::io::Result<Ended>> {
    thread::spawn(move || {
        let replica = Replica::connect(&path, rank)?;
        let clock = Arc::new(SystemClock::new());
        let metrics = metrics();
        let (handle, seat) = seat(clock.clone(), 1000);
        let options = ReplicaOptions {
            report: Box::new(|handle| format!("open: {}", handle.open_streams())),
            clock,
            metrics: Arc::clone(&metrics),
            refresh_metrics: Box::new(|_| {}),
            read_constraint: Box::new(read_constraint),
            step_timeout: Duration::from_secs(10),
        };
        let engine = thread::spawn(move || {
            let engine = Engine::new(seat, worker, EngineOptions::default(), metrics.engine(rank));
            engine.and_then(|mut engine| engine.run())
        });
        let ended = replica.serve(&handle, options);
        // Its error, if any, is how the replica ended.
        let _ = engine.join().expect("the engine does not panic");
        ended
    })
}

struct Fleet {
    handle: EngineHandle,
    path: PathBuf,
    dispatcher: Option<JoinHandle<()>>,
    notices: frizzen_engine::remote::dispatcher::Notices,
}

impl Fleet {
    fn new(replicas: u32) -> Self {
        let path = socket();
        let listener = UnixListener::bind(&path).expect("the path is new");
        let (handle, seat) = seat(Arc::new(SystemClock::new()), 1000);
        let mut dispatcher = Dispatcher::new(seat, replicas, listener).expect("threads can be started");
        let notices = dispatcher.notices();
        let dispatcher = Some(thread::spawn(move || dispatcher.run()));
        Self { handle, path, dispatcher, notices }
    }

    fn join(&self, rank: u32, worker: MockWorker) -> JoinHandle<std::io::Result<Ended>> {
        replica(self.path.clone(), rank, worker)
    }

    fn wait_ready(&self) {
        wait_until("all are ready", || self.handle.health() == Health::Ready);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.dispatcher.take() {
            thread.join().expect("the dispatcher does not panic");
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn worker() -> MockWorker {
    MockWorker::new(mock_info())
}

fn slow() -> MockWorker {
    worker().taking(TimingLaw::constant(Duration::from_millis(2)))
}

fn request(seed: u32, max_tokens: u32) -> Request {
    Request {
        prompt: (0..100).map(|index| (seed * 31 + index) % 200).collect(),
        params: SamplingParams {
            temperature: 0.0,
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            logprobs: Some(2),
            ..SamplingParams::default()
        },
        priority: 0,
        constraint: None,
        pooling: None,
        cache_salt: None,
        external_id: "test".into(),
    }
}

fn all(mut stream: OutputStream) -> OutputDelta {
    let mut all = OutputDelta::default();
    while let Some(delta) = stream.blocking_next() {
        all.merge(delta);
    }
    all
}

#[test]
fn answers_are_those_of_one_engine_and_every_replica_works() {
    let fleet = Fleet::new(2);
    let replicas = [fleet.join(0, worker()), fleet.join(1, worker())];
    fleet.wait_ready();
    let streams: Vec<_> = (0..20).map(|seed| fleet.handle.submit(request(seed, 9)).unwrap()).collect();
    for (seed, stream) in (0..).zip(streams) {
        let answer = all(stream);
        assert_eq!(answer.tokens, worker().text(&request(seed, 9), 9), "request {seed}");
        assert_eq!((answer.finish, answer.logprobs.len()), (Some(FinishReason::Length), 9));
        let timing = answer.timing.unwrap();
        assert!(timing.queued <= timing.first_token && timing.first_token <= timing.last_token);
    }
    assert_eq!(fleet.handle.open_streams(), 0);
    let merged = || metrics().encode_with(TextFormat::Prometheus, &fleet.handle.remote_metrics());
    let of = |rank: u32| -> u64 {
        let text = merged();
        let start = format!("frizzen:generation_tokens_total{{model_name=\"m\",engine=\"{rank}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        value.map_or(0, |value| value.parse().unwrap())
    };
    wait_until("the metrics show all tokens", || of(0) + of(1) == 20 * 9);
    assert!(of(0) > 0 && of(1) > 0, "both have worked");
    wait_until("the prefixes can be forgotten", || fleet.handle.reset_prefix_cache());
    fleet.handle.pause(PauseMode::Keep).recv().expect("both replicas stand still");
    let mut held = fleet.handle.submit(request(50, 3)).unwrap();
    assert!(held.try_next().is_none());
    fleet.handle.resume();
    assert_eq!(all(held).tokens.len(), 3);
    drop(fleet);
    for replica in replicas {
        assert_eq!(replica.join().unwrap().unwrap(), Ended::Told);
    }
}

#[test]
fn the_death_of_a_replica_fails_its_requests_and_no_others() {
    let fleet = Fleet::new(2);
    let dying = fleet.join(0, slow().failing(Fault::Raise(30)));
    let living = fleet.join(1, slow());
    fleet.wait_ready();
    let streams: Vec<_> = (0..8).map(|seed| fleet.handle.submit(request(seed, 200)).unwrap()).collect();
    let answers: Vec<OutputDelta> = streams.into_iter().map(all).collect();
    let failed = |answer: &OutputDelta| {
        matches!(answer.finish, Some(FinishReason::Error(Error::Engine { .. } | Error::Request { .. })))
    };
    assert_eq!(answers.iter().filter(|answer| failed(answer)).count(), 4, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.tokens.len() == 200).count(), 4);
    assert!(matches!(dying.join().unwrap().unwrap(), Ended::Failed(_)));
    wait_until("it is known", || !fleet.handle.replicas()[0].ready);
    assert_eq!(fleet.handle.health(), Health::Ready, "the other one serves");
    assert_eq!(all(fleet.handle.submit(request(99, 3)).unwrap()).tokens.len(), 3);
    let again = fleet.join(0, worker());
    wait_until("it is back", || fleet.handle.replicas()[0].ready);
    let streams: Vec<_> = (0..4).map(|seed| fleet.handle.submit(request(seed, 100)).unwrap()).collect();
    wait_until("both work", || fleet.handle.replicas().iter().all(|replica| replica.starts > 0));
    assert!(streams.into_iter().all(|stream| all(stream).tokens.len() == 100));
    drop(fleet);
    assert!(again.join().unwrap().is_ok() && living.join().unwrap().is_ok());
}

#[test]
fn an_abandoned_request_frees_its_replica_and_a_stop_string_counts_as_a_stop() {
    let fleet = Fleet::new(1);
    let replica = fleet.join(0, slow());
    fleet.wait_ready();
    let mut abandoned = fleet.handle.submit(request(1, 4000)).unwrap();
    let mut stopped = fleet.handle.submit(request(2, 4000)).unwrap();
    assert!(abandoned.blocking_next().is_some() && stopped.blocking_next().is_some());
    drop(abandoned);
    stopped.stop();
    wait_until("both rows are free", || {
        let load = fleet.handle.load();
        load.running + load.waiting + load.used_blocks == 0 && load.total_blocks > 0
    });
    let ends = |reason: &str| {
        format!(
            "frizzen:request_success_total{{model_name=\"m\",engine=\"0\",finished_reason=\"{reason}\"}} 1\n"
        )
    };
    wait_until("they are counted for what they were", || {
        let text = metrics().encode_with(TextFormat::Prometheus, &fleet.handle.remote_metrics());
        text.contains(&ends("abort")) && text.contains(&ends("stop"))
    });
    drop(fleet);
    assert!(replica.join().unwrap().is_ok());
}

#[test]
fn a_stop_string_at_the_length_s_end_counts_as_a_stop_behind_a_replica_too() {
    let fleet = Fleet::new(2);
    let replicas = [fleet.join(0, worker()), fleet.join(1, worker())];
    fleet.wait_ready();
    let ended = |seed| {
        let mut request = request(seed, 3);
        request.params.stop_strings = true;
        let mut stream = fleet.handle.submit(request).unwrap();
        while stream.blocking_next().is_some_and(|delta| delta.finish.is_none()) {}
        stream
    };
    for seed in 0..4 {
        ended(seed).stop();
        drop(ended(seed + 4));
    }
    // Nobody reads the end of this one.
    let mut request = request(8, 3);
    request.params.stop_strings = true;
    let unread = fleet.handle.submit(request).unwrap();
    wait_until("it has ended", || fleet.handle.open_streams() == 0);
    drop(unread);
    let count = |text: &str, reason: &str| -> f64 {
        let lines = text.lines().filter(|line| {
            line.starts_with("frizzen:request_success_total")
                && line.contains(&format!("finished_reason=\"{reason}\""))
        });
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    wait_until("each is counted for what it was", || {
        let text = metrics().encode_with(TextFormat::Prometheus, &fleet.handle.remote_metrics());
        (count(&text, "stop"), count(&text, "length")) == (4.0, 5.0)
    });
    drop(fleet);
    assert!(replicas.into_iter().all(|replica| replica.join().unwrap().is_ok()));
}

#[test]
fn a_constraint_travels_as_its_source_or_is_refused() {
    let fleet = Fleet::new(1);
    let replica = fleet.join(0, worker());
    fleet.wait_ready();
    let constrained = |constraint: Arc<dyn Constraint>| {
        all(fleet.handle.submit(Request { constraint: Some(constraint), ..request(1, 9) }).unwrap())
    };
    let answer = constrained(Arc::new(Sourced(7)));
    assert_eq!(
        (&answer.tokens[..2], answer.finish),
        (&[7, 7][..], Some(FinishReason::Stop(StopReason::Complete)))
    );
    let answer = constrained(Arc::new(OneOf(Arc::from([vec![1, 2]]))));
    assert!(matches!(answer.finish, Some(FinishReason::Error(Error::Unsupported { .. }))), "{answer:?}");
    drop(fleet);
    assert!(replica.join().unwrap().is_ok());
}

#[test]
fn a_start_with_fewer_engines_than_asked_for_fails_and_says_which() {
    let fleet = Fleet::new(2);
    let replica = fleet.join(0, worker());
    wait_until("one is there", || fleet.handle.replicas()[0].ready);
    assert!(matches!(fleet.handle.health(), Health::Loading(text) if text == "engine 1: starting"));
    fleet.notices.gave_up(1, "no memory".to_owned());
    wait_until("it failed", || matches!(fleet.handle.health(), Health::Failed(_)));
    let Health::Failed(error) = fleet.handle.health() else { unreachable!() };
    assert!(error.to_string().contains("engine 1") && error.to_string().contains("no memory"), "{error}");
    drop(fleet);
    assert!(replica.join().unwrap().is_ok());
}

#[test]
fn who_does_not_greet_in_the_same_version_is_turned_away() {
    let fleet = Fleet::new(1);
    let mut other = UnixStream::connect(&fleet.path).unwrap();
    wire::write(&mut other, &FromReplica::Hello { version: 999, rank: 0 }).unwrap();
    assert!(wire::read::<FromReplica>(&mut other).is_ok_and(|read| read.is_none()), "it is hung up on");
    assert_eq!(fleet.handle.replicas()[0].starts, 0);
}

#[test]
fn a_replica_without_its_front_end_ends() {
    let fleet = Fleet::new(1);
    let replica = fleet.join(0, slow());
    fleet.wait_ready();
    let stream = fleet.handle.submit(request(1, 4000)).unwrap();
    drop(fleet);
    assert_eq!(replica.join().unwrap().unwrap(), Ended::Told);
    assert_eq!(all(stream).finish, Some(FinishReason::Abort));
}

#[test]
fn a_process_that_keeps_dying_is_given_up_and_reported() {
    let fleet = Fleet::new(1);
    let starts = Arc::new(Mutex::new(0));
    let count = Arc::clone(&starts);
    let start = Box::new(move |_| {
        *count.lock().unwrap() += 1;
        std::process::Command::new("false").spawn()
    });
    let options =
        SupervisorOptions { restarts: 2, delay: Duration::from_millis(1), ..SupervisorOptions::default() };
    let supervisor = Supervisor::new(1, start, fleet.notices.clone(), options).unwrap();
    wait_until("it is given up", || matches!(fleet.handle.health(), Health::Failed(_)));
    assert_eq!(*starts.lock().unwrap(), 3);
    drop(supervisor);
}
