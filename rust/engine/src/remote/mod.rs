//! Engines in processes of their own, behind one front end.
//!
//! A *replica* is a whole engine: loop, worker, KV cache, metrics, no HTTP. The front end keeps the one
//! [`EngineHandle`](crate::EngineHandle) that it always has; what sits in its seat is a [`Dispatcher`] in place of an
//! engine. So nothing in the server knows how many engines there are.
//!
//! ```text
//!   handle ── commands ──► dispatcher ──► socket ──► replica: handle.submit
//!   mailboxes ◄── a reader per replica ◄── socket ◄── replica: streams
//! ```
//!
//! * [`wire`]: the messages, one typed protocol for both ends, which are always the same program.
//! * [`dispatcher`]: the front end's side, `reader` what it hears, `questions` what it asks. * [`affinity`]: which replica a prompt goes to.
//! * [`replica`]: the engine's side.
//! * [`supervisor`]: starts the processes, and starts them again.
//!
//! Invariants: a request is in exactly one replica; the death of a replica ends its requests with an error and no
//! others; a replica whose front end is gone ends itself; the front end fails only when no replica is left.

pub mod affinity;
pub mod dispatcher;
mod questions;
mod reader;
pub mod replica;
pub mod supervisor;
pub mod wire;

pub use dispatcher::Dispatcher;
pub use replica::Replica;
pub use supervisor::{Supervisor, SupervisorOptions};
