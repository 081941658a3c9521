//! Pausing: new requests are held back, and those that run end, or stand still.
//!
//! Invariants: a request that was taken is neither lost nor reordered by a pause; whoever asked for a pause is answered
//! when nothing moves any more, or the pause is over; a request that ends while it is held back is forgotten.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use frizzen_core::{Request, RequestId};
use serde::{Deserialize, Serialize};

/// What becomes of the requests that run when a pause begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PauseMode {
    /// They are aborted.
    #[default]
    Abort,
    /// They go on to their end.
    Wait,
    /// They stand still, and go on afterwards.
    Keep,
}

/// The loop's side of a pause.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    mode: Option<PauseMode>,
    held: Vec<(RequestId, Arc<Request>)>,
    asking: Vec<Sender<()>>,
}

impl Pause {
    /// Begins a pause, or changes its mode.
    pub(crate) fn begin(&mut self, mode: PauseMode, answer: Sender<()>) {
        self.mode = Some(mode);
        self.asking.push(answer);
    }

    /// Ends a pause; the requests to take now, oldest first.
    pub(crate) fn end(&mut self) -> Vec<(RequestId, Arc<Request>)> {
        self.mode = None;
        // Whoever still waits for the pause learns that it is over.
        self.settle();
        std::mem::take(&mut self.held)
    }

    /// True if running requests stand still.
    pub(crate) fn freezes(&self) -> bool {
        self.mode == Some(PauseMode::Keep)
    }

    /// Holds a new request back; gives it back if there is no pause.
    pub(crate) fn hold(&mut self, id: RequestId, request: Arc<Request>) -> Option<Arc<Request>> {
        if self.mode.is_none() {
            return Some(request);
        }
        self.held.push((id, request));
        None
    }

    /// Forgets a request.
    pub(crate) fn forget(&mut self, id: RequestId) {
        self.held.retain(|(held, _)| *held != id);
    }

    /// Requests that are held back.
    pub(crate) const fn held(&self) -> usize {
        self.held.len()
    }

    /// Nothing moves.
    pub(crate) fn settle(&mut self) {
        for asking in self.asking.drain(..) {
            // Whoever asked may have left.
            let _ = asking.send(());
        }
    }
}
