//! The engine's side: requests come from a socket in place of HTTP handlers.
//!
//! One thread reads messages; one, the caller of [`Replica::serve`], owns the open streams and writes. A stream tells
//! it through its waker that something came, so that all deltas of a step travel in one frame.

use std::collections::VecDeque;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use frizzen_core::{Clock, Constraint, Error, FinishReason, OutputDelta, Request, RequestId, Result};
use frizzen_metrics::{Metrics, TextFormat};
use rustc_hash::FxHashMap;

use super::wire::{self, Ending, FromReplica, RemoteRequest, ToReplica, VERSION};
use crate::handle::{ControlAnswer, EngineHandle, Health, Load};
use crate::mailbox::OutputStream;
use crate::watchdog::Watchdog;

/// How often health and load are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often metrics are looked at.
const METRICS_EVERY: Duration = Duration::from_secs(1);

/// Compiles the source of a constraint, which is all of it that travels.
pub type ReadConstraint = Box<dyn FnMut(&str) -> Result<Arc<dyn Constraint>> + Send>;

/// Brings the metrics up to date that only the worker can count; may take a while.
pub type RefreshMetrics = Box<dyn FnMut(&EngineHandle) + Send>;

/// Says how the engine is, in the front end's words.
pub type Report = Box<dyn FnMut(&EngineHandle) -> String + Send>;

/// What is known of this process by the one that serves it.
pub struct ReplicaOptions {
    /// Its requests' clock, the engine's.
    pub clock: Arc<dyn Clock>,
    /// Its instruments.
    pub metrics: Arc<Metrics>,
    /// Called before they are sent.
    pub refresh_metrics: RefreshMetrics,
    /// What is said of the engine where the front end shows its engines one by one; may take a while.
    pub report: Report,
    /// Makes constraints again from their sources.
    pub read_constraint: ReadConstraint,
    /// A step that takes longer is a failure.
    pub step_timeout: Duration,
}

impl std::fmt::Debug for ReplicaOptions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ReplicaOptions")
            .field("step_timeout", &self.step_timeout)
            .finish_non_exhaustive()
    }
}

/// How a replica ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The front end said so, or is gone.
    Told,
    /// The engine failed.
    Failed(Error),
    /// A step never ended: the engine's thread cannot be joined.
    Stuck(Error),
}

enum Event {
    Said(ToReplica),
    /// The stream of this request has something.
    Came(RequestId),
    /// The metrics have changed.
    Measured(String),
    /// What is said of the engine has changed.
    Reported(String),
    /// The front end is gone.
    Closed,
}

struct Waking {
    id: RequestId,
    events: Sender<Event>,
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        // Nobody listens any more once the replica has ended.
        let _ = self.events.send(Event::Came(self.id));
    }
}

struct Open {
    stream: OutputStream,
    waker: Waker,
}

/// A connection to a front end.
#[derive(Debug)]
pub struct Replica {
    stream: UnixStream,
}

impl Replica {
    /// Connects to the front end that listens at `path`, as its replica `rank`.
    pub fn connect(path: &Path, rank: u32) -> io::Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| {
            io::Error::new(error.kind(), format!("no front end at {}: {error}", path.display()))
        })?;
        Self::over(stream, rank)
    }

    /// The same over a connection that exists.
    pub fn over(mut stream: UnixStream, rank: u32) -> io::Result<Self> {
        wire::write(&mut stream, &FromReplica::Hello { version: VERSION, rank })?;
        Ok(Self { stream })
    }

    /// Serves the front end until it says that it is enough, or is gone, or the engine fails. The engine may still be
    /// loading; its loop is told to end when this returns.
    ///
    /// # Errors
    /// What reading or writing the connection failed with.
    pub fn serve(self, handle: &EngineHandle, options: ReplicaOptions) -> io::Result<Ended> {
        let (events, arrived) = channel();
        let mut input = BufReader::new(self.stream.try_clone()?);
        let sender = events.clone();
        let reader = thread::Builder::new().name("front-end".to_owned()).spawn(move || {
            loop {
                let event = match wire::read(&mut input) {
                    Ok(Some(message)) => Event::Said(message),
                    Ok(None) | Err(_) => Event::Closed,
                };
                let last = matches!(event, Event::Closed);
                if sender.send(event).is_err() || last {
                    return;
                }
            }
        })?;
        let ReplicaOptions { clock, metrics, mut refresh_metrics, mut report, read_constraint, step_timeout } =
            options;
        let (stop, stopped) = channel::<()>();
        let (measured, measuring) = (events.clone(), handle.clone());
        let reporter = thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            let (mut last, mut reported) = (String::new(), String::new());
            // The other end is dropped when the replica ends.
            while stopped.recv_timeout(METRICS_EVERY) == Err(RecvTimeoutError::Timeout) {
                refresh_metrics(&measuring);
                let text = metrics.encode(TextFormat::OpenMetrics);
                if text != last {
                    last.clone_from(&text);
                    if measured.send(Event::Measured(text)).is_err() {
                        return;
                    }
                }
                let text = report(&measuring);
                if text != reported {
                    reported.clone_from(&text);
                    if measured.send(Event::Reported(text)).is_err() {
                        return;
                    }
                }
            }
        })?;
        let mut serving = Serving {
            handle,
            clock,
            read_constraint,
            watchdog: Watchdog::new(step_timeout),
            events,
            out: BufWriter::new(self.stream.try_clone()?),
            open: FxHashMap::default(),
            came: Vec::new(),
            said: Said::default(),
            pauses: Vec::new(),
            questions: VecDeque::new(),
        };
        let ended = serving.run(&arrived);
        // Dropping the streams aborts them, and the loop is told to end only after that.
        drop(serving);
        handle.shutdown();
        // The reader may be waiting for a front end that has nothing to say.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = reader.join();
        drop(stop);
        let _ = reporter.join();
        ended
    }
}

/// The answer to a question, if it has come, or will never come.
fn answered(question: &Receiver<ControlAnswer>) -> Option<ControlAnswer> {
    match question.try_recv() {
        Ok(answer) => Some(answer),
        Err(TryRecvError::Disconnected) => Some(Err("the engine has ended".to_owned())),
        Err(TryRecvError::Empty) => None,
    }
}

/// What the front end was told last.
#[derive(Default)]
struct Said {
    loading: String,
    ready: bool,
    load: Load,
}

struct Serving<'a> {
    handle: &'a EngineHandle,
    clock: Arc<dyn Clock>,
    read_constraint: ReadConstraint,
    watchdog: Watchdog,
    events: Sender<Event>,
    out: BufWriter<UnixStream>,
    open: FxHashMap<RequestId, Open>,
    came: Vec<RequestId>,
    said: Said,
    /// Pauses that are not settled yet.
    pauses: Vec<Receiver<()>>,
    /// Questions to the worker that it has not answered, oldest first.
    questions: VecDeque<Receiver<ControlAnswer>>,
}

impl Serving<'_> {
    fn run(&mut self, arrived: &Receiver<Event>) -> io::Result<Ended> {
        let mut reported = Instant::now();
        loop {
            if let Some(ended) = self.report()? {
                return Ok(ended);
            }
            while reported.elapsed() < TICK {
                let mut next = match arrived.recv_timeout(TICK) {
                    Ok(event) => Some(event),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Told),
                };
                while let Some(event) = next {
                    if self.obey(event)? {
                        return Ok(Ended::Told);
                    }
                    next = arrived.try_recv().ok();
                }
                self.send_deltas()?;
            }
            reported = Instant::now();
        }
    }

    /// Returns true if this was the last event.
    fn obey(&mut self, event: Event) -> io::Result<bool> {
        match event {
            Event::Came(id) => self.came.push(id),
            Event::Measured(text) => self.say(&FromReplica::Metrics(text))?,
            Event::Reported(text) => self.say(&FromReplica::Report(text))?,
            Event::Said(ToReplica::Add(request)) => self.add(*request),
            Event::Said(ToReplica::End(id, ending)) => {
                if let Some(open) = self.open.remove(&id) {
                    match ending {
                        // Dropping it aborts the request.
                        Ending::Abort => drop(open),
                        Ending::StopString => open.stream.stop(),
                    }
                }
            }
            Event::Said(ToReplica::ResetPrefixCache) => {
                let reset = self.handle.reset_prefix_cache();
                self.say(&FromReplica::PrefixCacheReset(reset))?;
            }
            Event::Said(ToReplica::Pause(mode)) => self.pauses.push(self.handle.pause(mode)),
            Event::Said(ToReplica::Resume) => self.handle.resume(),
            Event::Said(ToReplica::Control { name, argument }) => {
                self.questions.push_back(self.handle.control(&name, &argument));
            }
            Event::Said(ToReplica::Shutdown) | Event::Closed => return Ok(true),
        }
        Ok(false)
    }

    fn add(&mut self, request: RemoteRequest) {
        let id = request.id;
        let constraint = request.constraint.as_deref().map(&mut self.read_constraint).transpose();
        let submitted = constraint.and_then(|constraint| {
            self.handle.submit(Request {
                prompt: request.prompt.into(),
                params: request.params,
                constraint,
                pooling: request.pooling,
                priority: request.priority,
                cache_salt: request.cache_salt.map(Into::into),
                external_id: request.external_id.into(),
            })
        });
        match submitted {
            Ok(stream) => {
                let waker = Waker::from(Arc::new(Waking { id, events: self.events.clone() }));
                self.open.insert(id, Open { stream, waker });
                self.came.push(id);
            }
            Err(error) => {
                let finish = Some(FinishReason::Error(error));
                let deltas = vec![(id, OutputDelta { finish, ..OutputDelta::default() })];
                // A connection that is gone shows itself at the next read.
                let _ = self.say(&FromReplica::Deltas { now: self.clock.now(), deltas });
            }
        }
    }

    fn send_deltas(&mut self) -> io::Result<()> {
        let mut deltas = Vec::with_capacity(self.came.len());
        for id in self.came.drain(..) {
            let Some(open) = self.open.get_mut(&id) else { continue };
            let context = Context::from_waker(&open.waker);
            let mut all = OutputDelta::default();
            let mut any = false;
            let ended = loop {
                match open.stream.poll_next(&context) {
                    Poll::Ready(Some(delta)) => {
                        all.merge(delta);
                        any = true;
                    }
                    Poll::Ready(None) => break true,
                    Poll::Pending => break false,
                }
            };
            if ended && !open.stream.settles() {
                self.open.remove(&id);
            }
            if any {
                deltas.push((id, all));
            }
        }
        if deltas.is_empty() {
            return Ok(());
        }
        self.say(&FromReplica::Deltas { now: self.clock.now(), deltas })
    }

    /// Tells the front end what has changed; returns how the replica ended, if it has.
    fn report(&mut self) -> io::Result<Option<Ended>> {
        match self.handle.health() {
            Health::Loading(what) if what != self.said.loading => {
                self.said.loading.clone_from(&what);
                self.say(&FromReplica::Loading(what))?;
            }
            Health::Ready if !self.said.ready => {
                self.said.ready = true;
                let info = serde_json::to_string(&self.handle.info()).map_err(io::Error::other)?;
                self.say(&FromReplica::Ready { info })?;
            }
            Health::Failed(error) => {
                self.send_deltas()?;
                self.say(&FromReplica::Failed(error.to_string()))?;
                return Ok(Some(Ended::Failed(error)));
            }
            Health::Loading(_) | Health::Ready | Health::Draining => {}
        }
        if let Some(stall) = self.watchdog.look(self.handle) {
            stall.report(self.handle);
            if stall.is_final() {
                let error = stall.error();
                self.handle.fail(error.clone());
                self.say(&FromReplica::Failed(error.to_string()))?;
                return Ok(Some(Ended::Stuck(error)));
            }
        }
        let before = self.pauses.len();
        self.pauses.retain(|settled| settled.try_recv() == Err(TryRecvError::Empty));
        for _ in self.pauses.len()..before {
            self.say(&FromReplica::Paused)?;
        }
        while let Some(answer) = self.questions.front().and_then(answered) {
            self.questions.pop_front();
            self.say(&FromReplica::Answered(answer))?;
        }
        let load = self.handle.load();
        if load != self.said.load {
            self.said.load = load;
            self.say(&FromReplica::Load(load))?;
        }
        Ok(None)
    }

    fn say(&mut self, message: &FromReplica) -> io::Result<()> {
        wire::write(&mut self.out, message)?;
        self.out.flush()
    }
}
