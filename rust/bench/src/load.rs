//! Sending the requests of a run.
//!
//! Two threads, so that the clock is not disturbed: the calling one only sends, reads and stamps; another parses the
//! finished answers and shows the progress. Bodies are made before the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::answer::Reading;
use crate::failure::Failure;
use crate::http::{Client, Exchange};
use crate::process::{self, ThreadTime};
use crate::progress::Progress;
use crate::sample::Sample;

/// One request.
#[derive(Clone, Debug)]
pub struct Job {
    /// When to send it, from the start of the run.
    pub due: Duration,
    /// Its JSON.
    pub body: Vec<u8>,
    /// Prompt tokens, as well as the client can tell.
    pub prompt_tokens: u64,
    /// Inputs in it.
    pub inputs: u64,
}

/// What is sent where.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Path of the requests.
    pub path: &'a str,
    /// How answers are read.
    pub reading: Reading,
    /// Requests in flight.
    pub max_concurrency: Option<usize>,
    /// A process on this machine whose CPU time is counted.
    pub server_pid: Option<u32>,
}

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// How many.
    pub count: u64,
    /// What the first one said.
    pub first: String,
}

/// What a run showed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests that succeeded, in the order of their ends.
    pub samples: Vec<Sample>,
    /// The others, by kind.
    pub failures: BTreeMap<String, Failed>,
    /// From the start of the run to the last answer.
    pub duration: Duration,
    /// The thread that sends and reads.
    pub client: Option<ThreadTime>,
    /// CPU time of this whole process.
    pub client_cpu: Option<Duration>,
    /// CPU time of the server.
    pub server_cpu: Option<Duration>,
    /// Memory of the server after the run.
    pub server_memory: Option<process::Memory>,
}

impl Outcome {
    /// Requests that failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|failed| failed.count).sum()
    }
}

struct Finished {
    job: Job,
    late: Duration,
    result: Result<Exchange, Failure>,
}

/// Sends every job when it is due, or as soon after that as `max_concurrency` allows, and waits for all answers.
pub async fn run(
    client: &Arc<Client>,
    target: Target<'_>,
    jobs: Vec<Job>,
    progress: Option<Progress>,
) -> Result<Outcome, String> {
    let (sender, receiver) = channel();
    let origin = Instant::now();
    let reading = target.reading;
    let collector = std::thread::Builder::new()
        .name("frizzen-answers".to_owned())
        .spawn(move || collect(&receiver, reading, origin, progress))
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let cpu = || (process::cpu_time(None), target.server_pid.and_then(|pid| process::cpu_time(Some(pid))));
    let (thread_before, before) = (ThreadTime::now(), cpu());
    send(client, target, jobs, origin, sender).await;
    let duration = origin.elapsed();
    let (thread_after, after) = (ThreadTime::now(), cpu());
    let Ok(mut outcome) = collector.join() else { return Err("the thread of the answers died".to_owned()) };
    outcome.duration = duration;
    outcome.client = thread_after.zip(thread_before).map(|(after, before)| after - before);
    outcome.client_cpu = after.0.zip(before.0).map(|(after, before)| after.saturating_sub(before));
    outcome.server_cpu = after.1.zip(before.1).map(|(after, before)| after.saturating_sub(before));
    outcome.server_memory = target.server_pid.and_then(process::memory);
    Ok(outcome)
}

async fn send(
    client: &Arc<Client>,
    target: Target<'_>,
    jobs: Vec<Job>,
    origin: Instant,
    finished: Sender<Finished>,
) {
    let permits = Arc::new(Semaphore::new(target.max_concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
    let path: Arc<str> = target.path.into();
    let keep = target.reading.keeps_body();
    let mut tasks = JoinSet::new();
    for job in jobs {
        let due = origin + job.due;
        // tokio's timer has steps of a millisecond: what is due earlier is sent at once.
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        }
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
        let (client, path, finished) = (Arc::clone(client), Arc::clone(&path), finished.clone());
        tasks.spawn(async move {
            let late = due.elapsed();
            let result = client.post(&path, &job.body, keep).await;
            drop(permit);
            let job = Job { body: Vec::new(), ..job };
            // The receiver outlives every sender: it ends when the last one is gone.
            let _ = finished.send(Finished { job, late, result });
        });
        while tasks.try_join_next().is_some() {}
    }
    while tasks.join_next().await.is_some() {}
}

fn collect(
    finished: &Receiver<Finished>,
    reading: Reading,
    origin: Instant,
    mut progress: Option<Progress>,
) -> Outcome {
    let mut outcome = Outcome::default();
    for Finished { job, late, result } in finished {
        match result.and_then(|exchange| reading.sample(&exchange, &job, origin, late)) {
            Ok(sample) => outcome.samples.push(sample),
            Err(failure) => {
                let failed = outcome
                    .failures
                    .entry(failure.kind())
                    .or_insert_with(|| Failed { count: 0, first: failure.to_string() });
                failed.count += 1;
            }
        }
        if let Some(progress) = &mut progress {
            progress.show(outcome.samples.len() as u64, outcome.failed());
        }
    }
    if let Some(progress) = progress {
        progress.clear();
    }
    outcome
}
