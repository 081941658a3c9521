//! The front end's side: what sits in the seat of a handle whose engines are other processes.
//!
//! The dispatcher's thread routes commands and keeps the books; a reader per replica brings outputs straight to the
//! mailboxes. A write that does not get through in [`WRITE_TIMEOUT`] is a lost replica, so one that hangs cannot hold
//! the others up.

use std::io::{self, BufWriter, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use frizzen_core::{Error, FinishReason, Request, RequestId, StopReason};

use super::affinity::Affinity;
use super::questions::{Question, Questions};
use super::reader::{OpenRequests, Reader, greet, lock};
use super::wire::{self, Ending, FromReplica, RemoteRequest, ToReplica};
use crate::engine::EngineSeat;
use crate::handle::{Command, Health, Load, ReplicaStatus, Shared};
use crate::pause::PauseMode;
use crate::worker::WorkerInfo;

/// How long a replica may leave the connection full.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) enum Event {
    Command(Command),
    /// Every handle is gone.
    Unattended,
    /// A replica has said hello.
    Connected(u32, UnixStream),
    /// Over the connection with this number.
    Said(u32, u64, FromReplica),
    /// The connection with this number is closed.
    Lost(u32, u64),
    /// A replica will not come back.
    GaveUp(u32, String),
}

/// Tells a dispatcher what becomes of its processes.
#[derive(Clone)]
pub struct Notices(Sender<Event>);

impl std::fmt::Debug for Notices {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Notices").finish()
    }
}

impl Notices {
    /// Replica `rank` will not be started again, for this reason.
    pub fn gave_up(&self, rank: u32, reason: String) {
        // A dispatcher that has ended needs no news.
        let _ = self.0.send(Event::GaveUp(rank, reason));
    }
}

/// One connection.
struct Link {
    /// Counted over all replicas, so that late news of an old connection are known as such.
    number: u64,
    out: BufWriter<UnixStream>,
}

#[derive(Default)]
struct Member {
    link: Option<Link>,
    /// Its worker's sizes, while it takes requests.
    info: Option<Arc<WorkerInfo>>,
    open: OpenRequests,
    load: Load,
    metrics: String,
    /// What it said last of itself.
    report: Arc<str>,
    connections: u32,
    /// What it does while it loads; why it is gone.
    note: String,
    given_up: bool,
}

/// Routes the requests of one handle to several replicas.
pub struct Dispatcher {
    shared: Arc<Shared>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    members: Vec<Member>,
    affinity: Affinity,
    questions: Questions,
    /// A replica that comes later is told too.
    paused: Option<PauseMode>,
    connections: u64,
    ready: bool,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Dispatcher").field("replicas", &self.members.len()).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// Takes the seat of an engine, for `replicas` processes that will connect to `listener`.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn new(seat: EngineSeat, replicas: u32, listener: UnixListener) -> io::Result<Self> {
        let (sender, events) = channel();
        let EngineSeat { shared, commands } = seat;
        let forward = sender.clone();
        thread::Builder::new().name("commands".to_owned()).spawn(move || {
            for command in commands {
                if forward.send(Event::Command(command)).is_err() {
                    return;
                }
            }
            let _ = forward.send(Event::Unattended);
        })?;
        let accept = sender.clone();
        // Ends with the process: a listener cannot be woken, and it holds nothing.
        thread::Builder::new().name("replicas".to_owned()).spawn(move || {
            for stream in listener.incoming().flatten() {
                match greet(stream) {
                    Ok((rank, stream)) => {
                        if accept.send(Event::Connected(rank, stream)).is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(%error, "somebody connected who is no replica"),
                }
            }
        })?;
        let members: Vec<Member> = (0..replicas).map(|_| Member::default()).collect();
        let mut dispatcher = Self {
            shared,
            events,
            sender,
            members,
            affinity: Affinity::default(),
            questions: Questions::default(),
            paused: None,
            connections: 0,
            ready: false,
        };
        dispatcher.publish();
        Ok(dispatcher)
    }

    /// For whoever starts the processes.
    pub fn notices(&self) -> Notices {
        Notices(self.sender.clone())
    }

    /// Routes until shutdown. Every stream has ended when this returns.
    pub fn run(&mut self) {
        while let Ok(event) = self.events.recv() {
            match event {
                Event::Command(Command::Shutdown) | Event::Unattended => break,
                Event::Command(command) => self.obey(command),
                Event::Connected(rank, stream) => self.connect(rank, stream),
                Event::Said(rank, number, message) => {
                    if self.is_current(rank, number) {
                        self.hear(rank, message);
                    }
                }
                Event::Lost(rank, number) => {
                    if self.is_current(rank, number) {
                        self.lose(rank, "its connection is closed");
                    }
                }
                Event::GaveUp(rank, reason) => self.give_up(rank, &reason),
            }
        }
        for rank in 0..self.members.len() as u32 {
            self.tell(rank, &ToReplica::Shutdown);
        }
        self.shared.finish_all(&FinishReason::Abort);
    }

    fn member(&mut self, rank: u32) -> &mut Member {
        &mut self.members[rank as usize]
    }

    fn is_current(&self, rank: u32, number: u64) -> bool {
        self.members[rank as usize].link.as_ref().is_some_and(|link| link.number == number)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add(id, request) => self.add(id, &request),
            Command::End(id, reason) => {
                let owner = self.members.iter().position(|member| lock(&member.open).remove(&id));
                let ending = match reason {
                    FinishReason::Stop(StopReason::Text) => Ending::StopString,
                    _ => Ending::Abort,
                };
                // One that has ended is in no book any more: its replica waits to hear how, and the others ignore it.
                let ranks = owner.map_or(0..self.members.len(), |rank| rank..rank + 1);
                for rank in ranks {
                    self.tell(rank as u32, &ToReplica::End(id, ending));
                }
            }
            Command::ResetPrefixCache(answer) => {
                self.affinity = Affinity::default();
                self.ask(Question::ResetPrefixCache(answer), &ToReplica::ResetPrefixCache);
            }
            Command::Pause(mode, answer) => {
                self.paused = Some(mode);
                self.ask(Question::Pause(answer), &ToReplica::Pause(mode));
            }
            Command::Resume => {
                self.paused = None;
                for rank in 0..self.members.len() as u32 {
                    self.tell(rank, &ToReplica::Resume);
                }
            }
            Command::Control(name, argument, answer) => {
                self.ask(Question::Control(answer, Vec::new()), &ToReplica::Control { name, argument });
            }
            Command::Shutdown => {}
        }
    }

    fn add(&mut self, id: RequestId, request: &Request) {
        let constraint = request.constraint.as_ref().map(|constraint| constraint.source());
        let message = if constraint == Some(None) {
            Err(Error::unsupported("structured_outputs", "this constraint cannot be sent to a replica"))
        } else {
            let loads: Vec<Option<usize>> = self
                .members
                .iter()
                .map(|member| member.info.is_some().then(|| lock(&member.open).len()))
                .collect();
            let chosen = self.affinity.choose(&request.prompt, request.cache_salt.as_deref(), &loads);
            chosen.ok_or_else(|| Error::Busy { message: "no replica is ready".to_owned() })
        };
        let rank = match message {
            Ok(rank) => rank as u32,
            Err(error) => return self.end(id, error),
        };
        // In the books first: should the replica be lost, its requests are known.
        lock(&self.members[rank as usize].open).insert(id);
        let request = RemoteRequest {
            id,
            prompt: request.prompt.to_vec(),
            params: request.params.clone(),
            constraint: constraint.flatten(),
            pooling: request.pooling,
            priority: request.priority,
            cache_salt: request.cache_salt.as_deref().map(str::to_owned),
            external_id: request.external_id.to_string(),
        };
        self.tell(rank, &ToReplica::Add(Box::new(request)));
    }

    fn end(&self, id: RequestId, error: Error) {
        let mailbox = self.shared.registry().remove(&id);
        if let Some(mailbox) = mailbox {
            let waiting = mailbox.append(|delta| delta.finish = Some(FinishReason::Error(error)));
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    fn tell(&mut self, rank: u32, message: &ToReplica) {
        let Some(link) = &mut self.members[rank as usize].link else { return };
        let sent = wire::write(&mut link.out, message).and_then(|()| link.out.flush());
        if let Err(error) = sent {
            tracing::warn!(engine = rank, %error, "a replica does not take messages");
            // Half a message may have gone out. The reader reports the loss.
            let _ = link.out.get_ref().shutdown(std::net::Shutdown::Both);
        }
    }

    fn connect(&mut self, rank: u32, stream: UnixStream) {
        let count = self.members.len();
        if rank as usize >= count {
            tracing::warn!(engine = rank, "a replica of a higher rank than the {count} expected ones");
            return;
        }
        if self.members[rank as usize].link.is_some() {
            self.lose(rank, "another process took its place");
        }
        self.connections += 1;
        let number = self.connections;
        let connected = stream.set_write_timeout(Some(WRITE_TIMEOUT)).and_then(|()| {
            let input = stream.try_clone()?;
            let reader = Reader {
                rank,
                number,
                shared: Arc::clone(&self.shared),
                open: Arc::clone(&self.members[rank as usize].open),
                events: self.sender.clone(),
            };
            thread::Builder::new().name(format!("replica-{rank}")).spawn(move || reader.run(input))
        });
        if let Err(error) = connected {
            tracing::error!(engine = rank, %error, "a replica cannot be read");
            return;
        }
        let member = self.member(rank);
        member.link = Some(Link { number, out: BufWriter::new(stream) });
        member.connections += 1;
        self.publish();
    }

    fn hear(&mut self, rank: u32, message: FromReplica) {
        match message {
            FromReplica::Loading(what) => self.member(rank).note = what,
            FromReplica::Ready { info } => match serde_json::from_str::<WorkerInfo>(&info) {
                Ok(info) => self.join(rank, info),
                Err(error) => self.lose(rank, &format!("it does not say what it is: {error}")),
            },
            FromReplica::Load(load) => self.member(rank).load = load,
            FromReplica::Metrics(text) => {
                self.member(rank).metrics = text;
                let texts = self.members.iter().map(|member| member.metrics.clone());
                self.shared.set_remote_metrics(texts.filter(|text| !text.is_empty()).collect());
                return;
            }
            FromReplica::Report(text) => self.member(rank).report = text.into(),
            FromReplica::Answered(answer) => self.questions.worker_answered(rank, answer),
            FromReplica::PrefixCacheReset(done) => {
                self.questions
                    .answered(rank, done, |question| matches!(question, Question::ResetPrefixCache(_)));
            }
            FromReplica::Paused => {
                self.questions.answered(rank, true, |question| matches!(question, Question::Pause(_)));
            }
            FromReplica::Failed(reason) => {
                self.lose(rank, &reason);
                return;
            }
            // The reader takes these itself.
            FromReplica::Hello { .. } | FromReplica::Deltas { .. } => {}
        }
        self.publish();
    }

    /// A replica takes requests from now on. The first time that all do, so does the front end.
    fn join(&mut self, rank: u32, info: WorkerInfo) {
        if let Some(known) = self.shared.info.get() {
            let same = known.vocab_size == info.vocab_size && known.max_model_len <= info.max_model_len;
            if !same {
                let (vocab, len) = (info.vocab_size, info.max_model_len);
                return self.lose(
                    rank,
                    &format!(
                        "it came back with a vocabulary of {vocab} and max_model_len {len}, the others have {} and {}",
                        known.vocab_size, known.max_model_len
                    ),
                );
            }
        }
        let member = self.member(rank);
        member.note.clear();
        member.info = Some(Arc::new(info));
        tracing::info!(engine = rank, "a replica is ready");
        if let Some(mode) = self.paused {
            self.tell(rank, &ToReplica::Pause(mode));
        }
        let infos: Vec<&WorkerInfo> =
            self.members.iter().filter_map(|member| member.info.as_deref()).collect();
        if self.ready || infos.len() < self.members.len() {
            return;
        }
        self.ready = true;
        let mut all = infos[0].clone();
        // What fits everywhere: memory may differ between devices.
        all.max_model_len = infos.iter().map(|info| info.max_model_len).min().unwrap_or(all.max_model_len);
        if infos.iter().any(|info| info.vocab_size != all.vocab_size) {
            let message = "the replicas serve models with different vocabularies".to_owned();
            return self.shared.fail(Error::Engine { message });
        }
        // Set once: `ready` was false until now.
        let _ = self.shared.info.set(all);
        self.shared.set_phase(Health::Ready);
    }

    fn lose(&mut self, rank: u32, reason: &str) {
        let member = self.member(rank);
        let Some(link) = member.link.take() else { return };
        let _ = link.out.get_ref().shutdown(std::net::Shutdown::Both);
        member.info = None;
        member.load = Load::default();
        reason.clone_into(&mut member.note);
        let mut open: Vec<RequestId> = lock(&member.open).drain().collect();
        open.sort_unstable();
        tracing::error!(engine = rank, requests = open.len(), reason, "a replica is lost");
        for id in open {
            let message = format!("engine {rank}, which computed this request, was lost: {reason}");
            self.end(id, Error::Request { message });
        }
        self.affinity.forget(rank as usize);
        // It has no cache any more, and nothing moves in it.
        while self.questions.answered(rank, true, |_| true) {}
        self.member(rank).report = Arc::default();
        self.publish();
    }

    fn give_up(&mut self, rank: u32, reason: &str) {
        self.lose(rank, reason);
        let member = self.member(rank);
        member.given_up = true;
        reason.clone_into(&mut member.note);
        // A server that was asked for N engines does not begin with fewer; one that has begun goes on with the rest.
        let any_left = self.members.iter().any(|member| !member.given_up);
        if !self.ready || !any_left {
            let message = format!("engine {rank} will not be started again: {reason}");
            self.shared.fail(Error::Engine { message });
        }
        self.publish();
    }

    fn ask(&mut self, question: Question, message: &ToReplica) {
        let ranks = 0..self.members.len() as u32;
        let live: Vec<u32> = ranks.filter(|rank| self.members[*rank as usize].info.is_some()).collect();
        for rank in &live {
            self.tell(*rank, message);
        }
        self.questions.ask(question, live);
    }

    /// Brings what the handle shows up to date.
    fn publish(&mut self) {
        let mut total = Load::default();
        let statuses: Vec<ReplicaStatus> = (0..)
            .zip(&self.members)
            .map(|(rank, member)| {
                total.running += member.load.running;
                total.waiting += member.load.waiting;
                total.used_blocks += member.load.used_blocks;
                total.total_blocks += member.load.total_blocks;
                ReplicaStatus {
                    rank,
                    ready: member.info.is_some(),
                    given_up: member.given_up,
                    note: member.note.clone(),
                    starts: member.connections,
                    open: lock(&member.open).len(),
                    load: member.load,
                    info: member.info.clone(),
                    report: Arc::clone(&member.report),
                }
            })
            .collect();
        let shared = &self.shared;
        shared.running.store(total.running, Ordering::Relaxed);
        shared.waiting.store(total.waiting, Ordering::Relaxed);
        shared.used_blocks.store(total.used_blocks, Ordering::Relaxed);
        shared.total_blocks.store(total.total_blocks, Ordering::Relaxed);
        if !self.ready {
            let waiting = statuses.iter().find(|status| !status.ready);
            let text = waiting.map_or_else(String::new, |status| {
                let note = if status.note.is_empty() { "starting" } else { &status.note };
                format!("engine {}: {note}", status.rank)
            });
            shared.set_phase(Health::Loading(text));
        }
        shared.set_replicas(statuses);
    }
}
