//! One request's output slot: the engine appends, the request's task takes everything at once.
//!
//! Not a queue: a slow reader finds fewer, larger deltas, and memory is bounded by the request's own tokens.
//! Invariants: nothing is lost or reordered; after a delta with `finish` nothing more is accepted; dropping the
//! [`OutputStream`] before that aborts the request.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use frizzen_core::{FinishReason, OutputDelta, RequestId, StopReason};

use crate::handle::EngineHandle;

#[derive(Debug, Default)]
struct Slot {
    pending: Option<OutputDelta>,
    closed: bool,
    waker: Option<Waker>,
}

/// The shared slot. The engine side of an [`OutputStream`].
#[derive(Debug, Default)]
pub struct Mailbox {
    slot: Mutex<Slot>,
    arrived: Condvar,
    /// The caller's name for the request.
    name: Arc<str>,
}

impl Mailbox {
    /// The mailbox of a request with this name.
    pub fn named(name: &Arc<str>) -> Self {
        Self { name: Arc::clone(name), ..Self::default() }
    }

    /// The caller's name for the request.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        // A panic while holding the lock leaves a whole delta or none: the data is usable either way.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `append` extend what is pending. Does not wake: see [`Self::wake`].
    pub fn append(&self, append: impl FnOnce(&mut OutputDelta)) {
        let mut slot = self.lock();
        if slot.closed {
            return;
        }
        let pending = slot.pending.get_or_insert_default();
        append(pending);
        slot.closed = pending.finish.is_some();
    }

    /// Wakes the reader, if it waits. Called for all requests of a step after all of them were appended to.
    pub fn wake(&self) {
        let waker = {
            let mut slot = self.lock();
            if slot.pending.is_none() {
                return;
            }
            slot.waker.take()
        };
        self.arrived.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll_take(&self, context: &Context<'_>) -> Poll<Option<OutputDelta>> {
        let mut slot = self.lock();
        if let Some(delta) = slot.pending.take() {
            return Poll::Ready(Some(delta));
        }
        if slot.closed {
            return Poll::Ready(None);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn blocking_take(&self) -> Option<OutputDelta> {
        let mut slot = self.lock();
        loop {
            if let Some(delta) = slot.pending.take() {
                return Some(delta);
            }
            if slot.closed {
                return None;
            }
            slot = self.arrived.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A request's outputs. Dropping it before the last delta aborts the request.
#[derive(Debug)]
pub struct OutputStream {
    id: RequestId,
    mailbox: Arc<Mailbox>,
    engine: EngineHandle,
    finished: bool,
}

impl OutputStream {
    pub(crate) fn new(id: RequestId, mailbox: Arc<Mailbox>, engine: EngineHandle) -> Self {
        Self { id, mailbox, engine, finished: false }
    }

    /// The engine's id of the request.
    pub const fn id(&self) -> RequestId {
        self.id
    }

    fn note(&mut self, delta: Option<OutputDelta>) -> Option<OutputDelta> {
        self.finished |= delta.as_ref().is_none_or(|delta| delta.finish.is_some());
        delta
    }

    /// The next delta; `None` once the last one was returned. Works on any executor.
    pub async fn next(&mut self) -> Option<OutputDelta> {
        let mailbox = Arc::clone(&self.mailbox);
        let delta = poll_fn(move |context| mailbox.poll_take(context)).await;
        self.note(delta)
    }

    /// The next delta if there is one, else a wake-up by `context` once there may be.
    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<OutputDelta>> {
        let polled = self.mailbox.poll_take(context);
        match polled {
            Poll::Ready(delta) => Poll::Ready(self.note(delta)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// What is pending right now, without waiting.
    pub fn try_next(&mut self) -> Option<OutputDelta> {
        let delta = self.mailbox.lock().pending.take()?;
        self.note(Some(delta))
    }

    /// The next delta, blocking the thread; `None` once the last one was returned.
    pub fn blocking_next(&mut self) -> Option<OutputDelta> {
        let delta = self.mailbox.blocking_take();
        self.note(delta)
    }
}

impl OutputStream {
    /// Ends the request because the text so far holds one of its stop strings: it counts as stopped, not as aborted.
    pub fn stop(mut self) {
        self.finished = true;
        self.engine.end(self.id, FinishReason::Stop(StopReason::Text));
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        if !self.finished {
            self.engine.abort(self.id);
        }
    }
}
