//! Outputs: from the engine's deltas to the bytes of an answer.
//!
//! * [`generation`]: merges the samples of a request; tokens become text here.
//! * [`delta`]: what became known about one choice. * [`usage`]: what is counted.
//! * [`writer`]: the seam; [`chat`] and [`completion`] write deltas as chunks, or the merged deltas as one answer.
//! * [`message`]: what a choice's text says: reasoning, content, tool calls.
//! * [`waterfall`]: where the time went.
//! * [`attribution`]: which tokens a part of a message was made of.
//! * [`prompt`]: what is shown of a prompt. * [`pieces`], [`logprobs`]: tokens as text and bytes. * [`stream`]: the event stream.

pub mod attribution;
pub mod blocks;
pub mod chat;
pub mod completion;
pub mod delta;
#[cfg(test)]
mod fuzz;
pub mod generation;
pub mod logprobs;
pub mod message;
pub mod messages;
pub mod native;
pub mod pieces;
pub mod prompt;
pub mod responses;
pub mod stream;
pub mod tokens;
pub mod usage;
pub mod waterfall;
pub mod writer;

pub use delta::{ChoiceDelta, Echo, Finish, StopDetail};
pub use generation::Generation;
pub use pieces::Pieces;
pub use prompt::ShownPrompt;
pub use usage::Usage;
pub use waterfall::Waterfall;
pub use writer::{Envelope, Writer};
