//! The scheduler. Synchronous and deterministic: same inputs, same plan; no threads, no Python, no wall time.
//!
//! * [`plan`]: the step as data, and its results.
//! * [`scheduler`]: requests and their queues; [`Scheduler::plan`] moves each request's computed tokens
//!   towards its known ones under a token budget; [`commit`] takes results over.
//! * [`pool`]: KV blocks and the prefix cache.
//! * `pace`: what decoding takes without prefill beside it.
//! * `residency`: how long a sample of the blocks live.
//! * [`draft`]: what may come next, by what followed the same tokens before.
//! * [`window`]: where a constraint begins to bind; one request's masks are made from it.
//! * [`draw`]: random draws as a function of (seed, position).
//! * [`speculation`]: who gets how many drafts, what they cost and what they gained.
//! * [`sim`]: a stand-in for a model, whose text is wrong as soon as a block or a token is.

pub mod commit;
pub mod config;
mod constrained;
pub mod draft;
pub mod draw;
mod failure;
mod pace;
pub mod plan;
mod planner;
pub mod pool;
mod residency;
pub mod scheduler;
pub mod sim;
pub mod speculation;
mod state;
pub mod window;

pub use commit::{Finish, FirstToken, RowEvent};
pub use config::{AdmissionLimits, Policy, SchedulerConfig};
pub use plan::{
    Admission, BlockDelta, LAST_SAMPLED, PlannedRow, PositionLogprobs, PromptPosition, Proposals, ScoredRow,
    StepOutput, StepPlan,
};
pub use residency::Residency;
pub use scheduler::{MaskJob, Scheduler, SchedulerCounters};
pub use window::{Allowed, ConstraintScope, ConstraintStart, ReasoningBoundary};
