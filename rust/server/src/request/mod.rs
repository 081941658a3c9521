//! Request bodies: parsed, checked, typed. Nothing here knows HTTP or the engine.
//!
//! * [`parity`]: which fields exist, as data, with [`dialects`] and `pooling_fields`. * [`fields`]: typed access to a body.
//! * [`common`]: what both dialects share, [`constraint`] among it. * [`chat`], [`completion`]: the dialects.
//!   [`tools`]: which tools may be called.
//! * [`responses`], [`messages`]: dialects that are translated into a chat ([`translate`])
//!   [`tokens`], [`native`]: some that are translated into a completion.

pub mod chat;
pub mod common;
pub mod completion;
pub mod constraint;
pub mod dialects;
pub mod fields;
pub mod messages;
pub mod native;
pub mod parity;
mod pooling_fields;
pub mod responses;
pub mod schema;
pub mod tokens;
pub mod tools;
mod translate;

#[cfg(test)]
mod tests;

pub use chat::ChatRequest;
pub use common::{Common, Limits, Shown, TruncationSide};
pub use completion::{CompletionRequest, Prompt};
pub use constraint::RequestedGrammar;
pub use fields::{Fields, Unused};
pub use parity::Dialect;
pub use responses::ResponsesRequest;
pub use tools::ToolChoice;
