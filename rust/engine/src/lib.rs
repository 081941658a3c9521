//! The engine: one loop, on one thread, over one worker.
//!
//! * [`engine`]: the loop.
//! * [`worker`]: the trait the loop drives, and what a worker says of itself.
//! * [`handle`]: the front end's side; [`mailbox`]: how outputs travel.
//! * [`pause`]: holding requests back. [`watchdog`]: whether the loop goes on.
//! * [`arena`]: a step as flat arrays, for workers on the other side of a language border.
//! * [`remote`]: engines in processes of their own, behind one front end.
//! * [`speculation_options`]: what flags and library options say about drafts.
//! * `options`: what an owner decides; `publish`: what a step's events mean for streams and metrics.
//! * `speculation`: when drafts are proposed and who is told what came of them.
//! * `masks`: the masks of a step, on several threads.
//! * `compatibility`: which drafter goes with what.
//! * `cost_cache`: measured step times from one start to the next.
//! * [`mock`]: a worker without a model, for everything that can be tested and measured without one.

pub mod arena;
mod compatibility;
mod cost_cache;
pub mod engine;
pub mod handle;
pub mod mailbox;
mod masks;
pub mod mock;
mod options;
pub mod pause;
mod publish;
pub mod remote;
mod speculation;
pub mod speculation_options;
pub mod watchdog;
pub mod worker;

pub use engine::{Engine, EngineSeat, Turn, seat};
pub use handle::{ControlAnswer, EngineHandle, Health, Load, ReplicaStatus};
pub use mailbox::{Mailbox, OutputStream};
pub use options::EngineOptions;
pub use pause::PauseMode;
pub use speculation_options::{ResolvedSpeculation, SpeculationOptions};
pub use worker::{Experts, Worker, WorkerDrafter, WorkerError, WorkerInfo};
