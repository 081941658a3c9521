//! The engine: one loop, on one thread, over one worker.
//!
//! * [`worker`]: the trait the loop drives, and what a worker says of itself.
//! * [`handle`]: the front end's side; [`mailbox`]: how outputs travel.

pub mod handle;
pub mod mailbox;
pub mod worker;

pub use handle::{EngineHandle, Health, Load};
pub use mailbox::{Mailbox, OutputStream};
pub use worker::{Worker, WorkerError, WorkerInfo};
