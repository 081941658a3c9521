//! The front end's side of an engine: submit, abort, ask how it is.
//!
//! A handle is cheap to clone and never blocks on the engine: requests go through a channel, outputs come back
//! through mailboxes, and everything else is an atomic or a short lock. The first fatal error wins and stays.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use frizzen_core::{Clock, Error, FinishReason, Request, RequestId, Result, Speculation};
use frizzen_sched::speculation::SpeculationStatus;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::mailbox::{Mailbox, OutputStream};
use crate::pause::PauseMode;
use crate::watchdog::{Activity, Doing, ShowStacks};
use crate::worker::WorkerInfo;

/// What the loop is told between steps.
#[derive(Debug)]
pub(crate) enum Command {
    /// Schedule this request.
    Add(RequestId, Arc<Request>),
    /// Forget this request, whatever its state; the front end has ended it for this reason.
    End(RequestId, FinishReason),
    /// Forget the hashed prefixes; the answer says whether it happened (no block may be in use).
    ResetPrefixCache(Sender<bool>),
    /// Hold new requests back; the answer comes when nothing moves any more.
    Pause(PauseMode, Sender<()>),
    /// Take requests again.
    Resume,
    /// Ask the worker this, with this argument in JSON; it answers in JSON, or says why not.
    Control(String, String, Sender<ControlAnswer>),
    /// Leave the loop after aborting what is left.
    Shutdown,
}

/// What a worker answers to a question: JSON, or why there is no answer.
pub type ControlAnswer = std::result::Result<String, String>;

/// How the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The worker is being built; the text says what it is doing.
    Loading(String),
    /// Steps end, or there is nothing to do.
    Ready,
    /// Finishing what it has; nothing new is taken.
    Draining,
    /// The first fatal error.
    Failed(Error),
}

/// A snapshot of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Requests in the worker's batch.
    pub running: u64,
    /// Requests that wait for a row or for blocks.
    pub waiting: u64,
    /// KV blocks in use (cached blocks that nobody refers to are free).
    pub used_blocks: u64,
    /// KV blocks in all, the null block not counted.
    pub total_blocks: u64,
}

/// How one of several engines behind a handle is.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaStatus {
    /// Its number, from 0: the label `engine` of its metrics.
    pub rank: u32,
    /// It takes requests.
    pub ready: bool,
    /// It is gone and will not be started again.
    pub given_up: bool,
    /// What it does while it loads, or why it is gone; empty otherwise.
    pub note: String,
    /// How often it has connected.
    pub starts: u32,
    /// Requests that it has.
    pub open: usize,
    /// Its own load.
    pub load: Load,
    /// What its worker is, while it takes requests.
    pub info: Option<Arc<WorkerInfo>>,
    /// What it said last of itself, in the words of [`ReplicaOptions::report`](crate::remote::replica::ReplicaOptions).
    pub report: Arc<str>,
}

pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) info: OnceLock<WorkerInfo>,
    pub(crate) max_queue: usize,
    next_id: AtomicU64,
    registry: Mutex<FxHashMap<RequestId, Arc<Mailbox>>>,
    phase: Mutex<Health>,
    pub(crate) stopping: AtomicBool,
    /// What the loop does; nothing while it waits for a command.
    activity: Mutex<Option<Activity>>,
    stacks: OnceLock<ShowStacks>,
    pub(crate) running: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) used_blocks: AtomicU64,
    pub(crate) total_blocks: AtomicU64,
    replicas: Mutex<Vec<ReplicaStatus>>,
    remote_metrics: Mutex<Vec<String>>,
    paused: AtomicBool,
    asleep: AtomicBool,
    speculation: Mutex<Option<SpeculationStatus>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(clock: Arc<dyn Clock>, max_queue: usize) -> Self {
        Self {
            clock,
            info: OnceLock::new(),
            max_queue,
            next_id: AtomicU64::new(1),
            registry: Mutex::default(),
            phase: Mutex::new(Health::Loading("starting".to_owned())),
            stopping: AtomicBool::new(false),
            activity: Mutex::default(),
            stacks: OnceLock::new(),
            running: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            used_blocks: AtomicU64::new(0),
            total_blocks: AtomicU64::new(0),
            replicas: Mutex::default(),
            remote_metrics: Mutex::default(),
            paused: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            speculation: Mutex::default(),
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, FxHashMap<RequestId, Arc<Mailbox>>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn phase(&self) -> MutexGuard<'_, Health> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves to `next` unless the engine has failed: a failure is final.
    pub(crate) fn set_phase(&self, next: Health) {
        let mut phase = self.phase();
        if !matches!(*phase, Health::Failed(_)) {
            *phase = next;
        }
    }

    fn activity(&self) -> MutexGuard<'_, Option<Activity>> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop begins something that ends by itself.
    pub(crate) fn begin(&self, doing: Doing) {
        *self.activity() = Some(Activity { since: self.clock.now(), doing });
    }

    /// It goes on with the same activity, of which more is known.
    pub(crate) fn go_on(&self, doing: Doing) {
        if let Some(activity) = self.activity().as_mut() {
            activity.doing = doing;
        }
    }

    /// It has ended.
    pub(crate) fn end(&self) {
        *self.activity() = None;
    }

    pub(crate) fn set_speculation(&self, status: SpeculationStatus) {
        *self.speculation.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    pub(crate) fn set_replicas(&self, statuses: Vec<ReplicaStatus>) {
        *self.replicas.lock().unwrap_or_else(PoisonError::into_inner) = statuses;
    }

    pub(crate) fn set_remote_metrics(&self, texts: Vec<String>) {
        *self.remote_metrics.lock().unwrap_or_else(PoisonError::into_inner) = texts;
    }

    /// Ends every open stream with `reason`.
    pub(crate) fn finish_all(&self, reason: &FinishReason) {
        let open = std::mem::take(&mut *self.registry());
        let mut open: Vec<_> = open.into_iter().collect();
        open.sort_unstable_by_key(|(id, _)| *id);
        for (_, mailbox) in &open {
            let waiting = mailbox.append(|delta| delta.finish = Some(reason.clone()));
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Records the first fatal error and ends every open stream with it.
    pub(crate) fn fail(&self, error: Error) {
        let first = {
            let mut phase = self.phase();
            if let Health::Failed(first) = &*phase {
                first.clone()
            } else {
                *phase = Health::Failed(error.clone());
                error
            }
        };
        self.finish_all(&FinishReason::Error(first));
    }
}

/// The front end's side of an engine.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: Sender<Command>,
}

impl EngineHandle {
    /// What the worker is; `None` while it is being built.
    pub fn info(&self) -> Option<&WorkerInfo> {
        self.shared.info.get()
    }

    /// How the engine is. Touches no queue of the engine.
    pub fn health(&self) -> Health {
        self.shared.phase().clone()
    }

    /// Says what the worker's construction is doing, for `/health` while loading.
    pub fn set_loading(&self, what: &str) {
        self.shared.set_phase(Health::Loading(what.to_owned()));
    }

    /// Records a fatal error: every open stream ends with it, and nothing is taken from now on.
    pub fn fail(&self, error: Error) {
        self.shared.fail(error);
    }

    /// What the engine's clock shows.
    pub fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    /// What the loop does; `None` while it waits for a command.
    pub fn activity(&self) -> Option<Activity> {
        self.shared.activity().clone()
    }

    /// How the stacks of the worker's threads can be shown. The second call has no effect.
    pub fn show_stacks_by(&self, show: ShowStacks) {
        // A worker is built once.
        let _ = self.shared.stacks.set(show);
    }

    /// The stacks of the worker's threads; `None` of a worker that has none to show.
    pub fn stacks(&self) -> Option<std::io::Result<String>> {
        self.shared.stacks.get().map(|show| show())
    }

    /// A snapshot of the load.
    pub fn load(&self) -> Load {
        Load {
            running: self.shared.running.load(Ordering::Relaxed),
            waiting: self.shared.waiting.load(Ordering::Relaxed),
            used_blocks: self.shared.used_blocks.load(Ordering::Relaxed),
            total_blocks: self.shared.total_blocks.load(Ordering::Relaxed),
        }
    }

    /// The engines behind this handle, if they are processes of their own; empty for an engine in this process.
    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        self.shared.replicas.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What they said last of their metrics, as OpenMetrics text, a second old at most.
    pub fn remote_metrics(&self) -> Vec<String> {
        self.shared.remote_metrics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How speculation was doing a few steps ago; `None` without a drafter.
    pub fn speculation(&self) -> Option<SpeculationStatus> {
        self.shared.speculation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.shared.registry().len()
    }

    /// Hands a request to the engine.
    ///
    /// # Errors
    /// `Invalid` if it does not fit the model, `Busy` while loading, draining or when the queue is full, `Engine`
    /// after a failure.
    pub fn submit(&self, request: Request) -> Result<OutputStream> {
        match self.health() {
            Health::Ready => {}
            Health::Loading(what) => return Err(Error::Busy { message: format!("loading: {what}") }),
            Health::Draining => {
                return Err(Error::Busy { message: "the server is shutting down".to_owned() });
            }
            Health::Failed(error) => return Err(error),
        }
        if self.is_asleep() {
            return Err(Error::Busy { message: "the server sleeps until /wake_up".to_owned() });
        }
        let info = self.info().ok_or_else(|| Error::Busy { message: "loading".to_owned() })?;
        check_request(&request, info)?;
        let id = RequestId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let mailbox = Arc::new(Mailbox::named(&request.external_id));
        {
            let mut registry = self.shared.registry();
            if registry.len() >= self.shared.max_queue {
                let message =
                    format!("{} requests are open, the limit is {}", registry.len(), self.shared.max_queue);
                return Err(Error::Busy { message });
            }
            registry.insert(id, Arc::clone(&mailbox));
        }
        let stream = OutputStream::new(id, mailbox, self.clone(), request.params.stop_strings);
        if self.commands.send(Command::Add(id, Arc::new(request))).is_err() {
            self.shared.registry().remove(&id);
            return Err(self.dead());
        }
        // A failure between the check above and the insertion has already swept the registry.
        if let Health::Failed(error) = self.health() {
            return Err(error);
        }
        Ok(stream)
    }

    /// Aborts a request; one that has ended already is ignored.
    pub fn abort(&self, id: RequestId) {
        self.end(id, FinishReason::Abort);
    }

    /// Aborts the requests whose caller's name is `chosen`; how many there were.
    pub fn abort_where(&self, chosen: impl Fn(&str) -> bool) -> usize {
        let ids: Vec<RequestId> = {
            let registry = self.shared.registry();
            registry.iter().filter(|(_, mailbox)| chosen(mailbox.name())).map(|(id, _)| *id).collect()
        };
        for id in &ids {
            self.abort(*id);
        }
        ids.len()
    }

    /// Holds new requests back until [`Self::resume`]; they are taken and wait. The answer comes when nothing moves any
    /// more, and never if the loop ends before.
    pub fn pause(&self, mode: PauseMode) -> Receiver<()> {
        let (answer, settled) = std::sync::mpsc::channel();
        self.shared.paused.store(true, Ordering::Release);
        if mode == PauseMode::Abort {
            self.abort_where(|_| true);
        }
        // A loop that has ended drops the sender, which the receiver notices.
        let _ = self.commands.send(Command::Pause(mode, answer));
        settled
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.shared.paused.store(false, Ordering::Release);
        let _ = self.commands.send(Command::Resume);
    }

    /// Whether new requests are held back.
    pub fn is_paused(&self) -> bool {
        self.shared.paused.load(Ordering::Acquire)
    }

    /// Refuses new requests, or takes them again.
    pub fn set_asleep(&self, asleep: bool) {
        self.shared.asleep.store(asleep, Ordering::Release);
    }

    /// Whether new requests are refused.
    pub fn is_asleep(&self) -> bool {
        self.shared.asleep.load(Ordering::Acquire)
    }

    /// Ends a request for a reason that the front end found (it went away, a stop string). False if it has ended already.
    pub(crate) fn end(&self, id: RequestId, reason: FinishReason) -> bool {
        let mailbox = self.shared.registry().remove(&id);
        let Some(mailbox) = mailbox else { return false };
        let waiting = mailbox.append(|delta| delta.finish = Some(reason.clone()));
        waiting.into_iter().for_each(Waker::wake);
        self.settle(id, reason);
        true
    }

    /// Says how a request ended.
    pub(crate) fn settle(&self, id: RequestId, reason: FinishReason) {
        // A loop that has ended has freed everything already.
        let _ = self.commands.send(Command::End(id, reason));
    }

    /// Drops all cached prefixes. Returns false if requests were running, or the loop has ended.
    pub fn reset_prefix_cache(&self) -> bool {
        let (answer, done) = std::sync::mpsc::channel();
        self.commands.send(Command::ResetPrefixCache(answer)).is_ok() && done.recv().unwrap_or(false)
    }

    /// Asks the worker something, JSON in and out. The answer comes between two steps; none ever comes if the loop ends.
    /// Of several engines each is asked, and the answer is a list of `{"engine": rank, "answer" or "error": ...}`.
    pub fn control(&self, name: &str, argument: &str) -> Receiver<ControlAnswer> {
        let (answer, answered) = std::sync::mpsc::channel();
        // A loop that has ended drops the question, which the receiver notices.
        let _ = self.commands.send(Command::Control(name.to_owned(), argument.to_owned(), answer));
        answered
    }

    /// Takes nothing new from now on; what runs goes on.
    pub fn drain(&self) {
        self.shared.set_phase(Health::Draining);
    }

    /// True once the loop has been told to end.
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
    }

    /// Ends the loop. What still runs is aborted.
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = self.commands.send(Command::Shutdown);
    }

    fn dead(&self) -> Error {
        match self.health() {
            Health::Failed(error) => error,
            _ => Error::Busy { message: "the server is shutting down".to_owned() },
        }
    }
}

fn check_request(request: &Request, info: &WorkerInfo) -> Result<()> {
    if request.prompt.is_empty() {
        return Err(Error::invalid("prompt", "the prompt must have at least one token"));
    }
    let (length, limit) = (request.prompt.len(), info.max_model_len as usize);
    check_task(request, info)?;
    if request.pooling.is_some() && length > limit {
        let message = format!("the prompt has {length} tokens, and it may have {limit}");
        return Err(Error::invalid("prompt", message));
    }
    if request.pooling.is_none() && length >= limit {
        return Err(Error::invalid(
            "prompt",
            format!("the prompt has {length} tokens, and prompt and output together may have {limit}"),
        ));
    }
    if let Some(id) = request.prompt.iter().find(|id| **id >= info.vocab_size) {
        let size = info.vocab_size;
        return Err(Error::invalid(
            "prompt",
            format!("token id {id} is not below the vocabulary size {size}"),
        ));
    }
    check_speculation(request.params.speculation, info.max_drafts)
}

fn check_task(request: &Request, info: &WorkerInfo) -> Result<()> {
    let message = match (&request.pooling, &info.pooling) {
        (Some(_), None) => {
            "this model generates text; it returns no vectors unless it is started with --runner pooling"
        }
        (None, Some(pooling)) => {
            let message = format!("this model generates no text; its task is {}", pooling.tasks());
            return Err(Error::invalid("model", message));
        }
        _ => return Ok(()),
    };
    Err(Error::invalid("model", message))
}

fn check_speculation(asked: Option<Speculation>, max_drafts: u32) -> Result<()> {
    let problem = match asked {
        None | Some(Speculation::Off) => return Ok(()),
        Some(_) if max_drafts == 0 => {
            "needs a drafter, and the engine runs without one (--drafter)".to_owned()
        }
        Some(Speculation::MaxTokens(most)) if !(1..=max_drafts).contains(&most) => {
            format!("max_tokens must be from 1 to {max_drafts}, got {most}")
        }
        Some(_) => return Ok(()),
    };
    Err(Error::invalid("speculation", format!("speculation {problem}")))
}
