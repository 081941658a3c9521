//! Data sets: what is asked, how long the answers are to be, and when, if the data say so.

mod file;
mod random;
mod texts;
mod trace;

use std::time::Duration;

pub use file::ConversationFile;
pub use random::Random;
pub use texts::Texts;
pub use trace::{Playing, Trace};

use crate::prompt::Prompt;

/// One request of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What is asked.
    pub prompt: Prompt,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// When it is due, if the data set is a record of arrivals.
    pub due: Option<Duration>,
}
