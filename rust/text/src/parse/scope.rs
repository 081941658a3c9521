//! Where stop strings are looked for: not in reasoning, and not in the markup around it.

use super::message::{MessageParser, Setup};
use super::registry::Format;

/// Follows a text and says of each character whether it may belong to a stop string. It is the message's own parser, so
/// that both see the same reasoning.
#[derive(Debug)]
pub struct StopScope(MessageParser);

impl StopScope {
    /// A scope at the beginning of a text that is read like this; `None` if the format has no reasoning.
    pub fn new(format: Format, setup: &Setup) -> Option<Self> {
        let thinks = format.tag_pair().is_some() || format.is_harmony();
        thinks.then(|| Self(MessageParser::new(format, setup)))
    }

    /// Takes the next character; true if it may belong to a stop string.
    pub fn admits(&mut self, c: char) -> bool {
        self.0.admits(c)
    }
}
