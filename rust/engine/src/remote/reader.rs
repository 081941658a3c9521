//! Brings what replicas say to the front end.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use frizzen_core::{OutputDelta, RequestId};
use rustc_hash::FxHashSet;

use super::dispatcher::Event;
use super::wire::{self, FromReplica, VERSION};
use crate::handle::Shared;

/// How long somebody who connects may take to say who it is.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// The requests that a replica has.
pub(super) type OpenRequests = Arc<Mutex<FxHashSet<RequestId>>>;

pub(super) fn lock(open: &OpenRequests) -> MutexGuard<'_, FxHashSet<RequestId>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rank of whoever connected.
pub(super) fn greet(mut stream: UnixStream) -> io::Result<(u32, UnixStream)> {
    stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
    let hello: Option<FromReplica> = wire::read(&mut stream)?;
    stream.set_read_timeout(None)?;
    match hello {
        Some(FromReplica::Hello { version: VERSION, rank }) => Ok((rank, stream)),
        Some(FromReplica::Hello { version, .. }) => {
            Err(io::Error::other(format!("it speaks version {version}, this is version {VERSION}")))
        }
        _ => Err(io::Error::other("its first message was no greeting")),
    }
}

/// Brings the outputs of one connection to their mailboxes.
pub(super) struct Reader {
    pub rank: u32,
    pub number: u64,
    pub shared: Arc<Shared>,
    pub open: OpenRequests,
    pub events: Sender<Event>,
}

impl Reader {
    pub fn run(self, stream: UnixStream) {
        let mut input = BufReader::new(stream);
        let lost = loop {
            match wire::read(&mut input) {
                Ok(Some(FromReplica::Deltas { now, deltas })) => self.deliver(now, deltas),
                Ok(Some(message)) => {
                    if self.events.send(Event::Said(self.rank, self.number, message)).is_err() {
                        return;
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = lost {
            tracing::debug!(engine = self.rank, %error, "the connection to a replica broke");
        }
        let _ = self.events.send(Event::Lost(self.rank, self.number));
    }

    fn deliver(&self, there: Duration, deltas: Vec<(RequestId, OutputDelta)>) {
        let here = self.shared.clock.now();
        let mut waiting = Vec::with_capacity(deltas.len());
        for (id, mut delta) in deltas {
            let ended = delta.finish.is_some();
            delta.timing = delta.timing.map(|timing| timing.on_clock(there, here));
            if ended {
                lock(&self.open).remove(&id);
            }
            let mailbox = {
                let mut registry = self.shared.registry();
                if ended { registry.remove(&id) } else { registry.get(&id).cloned() }
            };
            // The front end may have given the request up.
            if let Some(mailbox) = mailbox {
                waiting.extend(mailbox.append(|pending| pending.merge(delta)));
            }
        }
        waiting.into_iter().for_each(Waker::wake);
    }
}
