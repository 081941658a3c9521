//! The only door between Rust threads and the interpreter.
//!
//! Rules that make the door safe: no lock of ours is held while attaching; a thread that computes keeps one outermost
//! attachment for life and detaches inside it, so that Python's and torch's thread-locals survive; nothing else in
//! the workspace can attach, because no other crate depends on pyo3.

use pyo3::prelude::*;

/// Runs `body` attached to the interpreter. Nested inside [`detached`] this re-enters the thread's own state.
#[expect(clippy::disallowed_methods, reason = "this is the one place that attaches")]
pub(crate) fn attached<R>(body: impl FnOnce(Python<'_>) -> R) -> R {
    Python::attach(body)
}

/// Runs `body` without the interpreter, so that other Python threads go on.
#[expect(clippy::disallowed_methods, reason = "this is the one place that detaches")]
pub(crate) fn detached<R: Send>(py: Python<'_>, body: impl FnOnce() -> R + Send) -> R {
    py.detach(body)
}
