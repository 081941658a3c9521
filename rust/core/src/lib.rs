//! Types that every other crate shares. No async, no HTTP, no Python.
//!
//! * [`id`]: newtypes for requests, worker rows, KV blocks and steps.
//! * [`params`]: [`SamplingParams`] and its one validation, used by HTTP and by the Python library alike.
//! * [`request`]: what a caller hands to the engine.
//! * [`constraint`]: what the engine needs of a constraint on a request's tokens.
//! * [`banned`]: sequences of tokens that an output may not hold.
//! * [`pooling`]: requests whose result is a vector, and the arithmetic on it.
//! * [`reasoning`]: what an output may hold before the part that a constraint binds.
//! * [`output`]: what the engine hands back, delta by delta.
//! * [`speculation`]: what a request may say about drafts, and what it is told about them.
//! * [`error`]: the one error enum; a transport maps it, it knows no status codes.
//! * [`clock`]: time is injected, so that schedulers and mocks are deterministic.

pub mod banned;
pub mod clock;
pub mod constraint;
pub mod error;
pub mod id;
pub mod output;
pub mod params;
pub mod pooling;
pub mod reasoning;
pub mod request;
pub mod speculation;

pub use banned::BannedSequences;
pub use clock::{Clock, ManualClock, SystemClock};
pub use constraint::{Constraint, FreeText, TokenMatcher};
pub use error::{Error, Result};
pub use id::{BlockId, RequestId, RowId, StepId, TokenId};
pub use output::{FinishReason, OutputDelta, PrefillStats, StopReason, Timing, TokenLogprobs};
pub use params::{ParamLimits, SamplingParams};
pub use pooling::{Activation, Pooling, PoolingInfo, PoolingTask};
pub use reasoning::{Marker, Reasoning, ReasoningMarkers};
pub use request::Request;
pub use speculation::{Speculation, SpeculationReason, SpeculationUsage};
