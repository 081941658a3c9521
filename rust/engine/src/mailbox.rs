//! One request's output slot: the engine appends, the request's task takes everything at once.
//!
//! Not a queue: a slow reader finds fewer, larger deltas, and memory is bounded by the request's own tokens.
//! Invariants: nothing is lost or reordered; after a delta with `finish` nothing more is accepted; dropping the
//! [`OutputStream`] before that aborts the request.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use frizzen_core::{FinishReason, OutputDelta, RequestId, StopReason};

use crate::handle::EngineHandle;

#[derive(Debug, Default)]
struct Slot {
    pending: Option<OutputDelta>,
    closed: bool,
    waker: Option<Waker>,
}

/// A reader that is a thread. To the engine all readers are wakers: one kind, and no system call for those that do not wait.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The shared slot. The engine side of an [`OutputStream`].
#[derive(Debug, Default)]
pub struct Mailbox {
    slot: Mutex<Slot>,
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

    /// Lets `append` extend what is pending. Returns the reader, if it waits: to be woken after all requests of a step were
    /// appended to.
    #[must_use = "a reader that is not woken waits for ever"]
    pub fn append(&self, append: impl FnOnce(&mut OutputDelta)) -> Option<Waker> {
        let mut slot = self.lock();
        if slot.closed {
            return None;
        }
        let pending = slot.pending.get_or_insert_default();
        append(pending);
        slot.closed = pending.finish.is_some();
        slot.waker.take()
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
}

/// A request's outputs. Dropping it before the last delta aborts the request.
#[derive(Debug)]
pub struct OutputStream {
    id: RequestId,
    mailbox: Arc<Mailbox>,
    engine: EngineHandle,
    finished: bool,
    /// Its end by length is counted when this says that it was one.
    settles: bool,
}

impl OutputStream {
    pub(crate) fn new(id: RequestId, mailbox: Arc<Mailbox>, engine: EngineHandle, settles: bool) -> Self {
        Self { id, mailbox, engine, finished: false, settles }
    }

    /// Whether it has to be kept until whoever looks for stop strings has said how the request ended.
    pub(crate) const fn settles(&self) -> bool {
        self.settles
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
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The next delta if there is one, else a wake-up by `context` once there may be.
    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<OutputDelta>> {
        self.mailbox.poll_take(context).map(|delta| self.note(delta))
    }

    /// What is pending right now, without waiting.
    pub fn try_next(&mut self) -> Option<OutputDelta> {
        let delta = self.mailbox.lock().pending.take()?;
        self.note(Some(delta))
    }

    /// The next delta, blocking the thread; `None` once the last one was returned.
    pub fn blocking_next(&mut self) -> Option<OutputDelta> {
        let waker = Arc::new(Parked(thread::current())).into();
        let context = Context::from_waker(&waker);
        loop {
            match self.poll_next(&context) {
                Poll::Ready(delta) => return delta,
                // May return for no reason, or for an unpark of somebody else.
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl OutputStream {
    /// Ends the request because the text so far holds one of its stop strings: it counts as stopped, not as aborted.
    pub fn stop(mut self) {
        self.end(FinishReason::Stop(StopReason::Text), FinishReason::Stop(StopReason::Text));
    }

    /// Ends the request, or says how it has ended.
    fn end(&mut self, open: FinishReason, ended: FinishReason) {
        let ends = !self.finished && self.engine.end(self.id, open);
        if self.settles && !ends {
            self.engine.settle(self.id, ended);
        }
        (self.finished, self.settles) = (true, false);
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        self.end(FinishReason::Abort, FinishReason::Length);
    }
}
