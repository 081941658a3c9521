//! Stream parsers: a model's text becomes a message of reasoning, content and tool calls, while it arrives.
//!
//! Invariants (every fixture and the property tests hold them):
//!
//! * the message is a function of the text alone, however it is cut: a [`StreamParser`] takes one character at a time,
//!   so it cannot see where a piece ended;
//! * no part of a marker is shown while it may still become one;
//! * nothing is lost: text that looked like a call and is none comes back as content, and what was given out before
//!   stays; a call whose arguments have begun keeps them, whatever follows. What a limit cut off before it was a call, behind
//!   a marker or where a bare format could still have become one, is markup, and no content;
//! * text inside a string argument never ends a call, and where a value is JSON, text inside its strings never ends it;
//! * what opens reasoning opens it in content only, never in a call;
//! * arguments are given out as the JSON text that they are, and a call is `complete` only if that text is a JSON object;
//! * memory is bounded: by the held head of a call, one buffered value, and the nesting of JSON.
//!
//! [`MessageParser`] is what callers use; [`registry`] has the formats by name and finds them by a chat template. A
//! format is a row of data over one of a few machines ([`formats`]); [`frame`] holds what all tool formats share.

mod args;
mod call_object;
mod formats;
mod frame;
mod json;
mod message;
mod output;
mod params;
pub mod plugin;
pub mod registry;
mod scan;
mod schema;
mod scope;
mod syntax;
mod tags;
mod value;

use std::fmt;

pub use message::{Message, MessageParser, Setup, Start, ToolCall, parse};
pub(crate) use output::Output;
pub use output::{Delta, IdStyle};
pub(crate) use registry::TagPair;
pub use registry::{Format, ReasoningFormat, ToolFormat};
pub use schema::ToolSchemas;
pub use scope::StopScope;
pub use syntax::{ArgumentSyntax, CallSyntax, EachSyntax};

/// Most bytes that are held back: the head of a call, one buffered value.
pub(crate) const MAX_HELD: usize = 1 << 18;

/// Why a text that began like a tool call is none. Not an error of the request: the text is content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

/// Text that was held back when it turned out not to be a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uncommitted {
    /// All of it: content.
    pub(crate) text: String,
    /// Where in it the part begins that may hold the beginning of a call, and is to be fed again.
    pub(crate) again: usize,
}

impl Uncommitted {
    /// Everything but the last character, the one at fault, is known to be content.
    pub(crate) fn head(text: String) -> Self {
        let again = text.char_indices().next_back().map_or(0, |(at, _)| at);
        Self { text, again }
    }
}

/// One format's state machine.
///
/// What it wrote to the output is committed and survives an error; what it did not is given back by
/// [`reset`](Self::reset), with the character at fault as its last one, and the machine is then in its content state.
pub(crate) trait StreamParser: fmt::Debug + Send {
    /// Takes the next character.
    fn feed(&mut self, c: char, out: &mut Output) -> Result<(), Malformed>;

    /// The text has ended: releases what is held. Either everything is written or, with an error, nothing is.
    fn finish(&mut self, out: &mut Output) -> Result<(), Malformed>;

    /// Back to the content state; the text that was not committed.
    fn reset(&mut self) -> Uncommitted;

    /// True where stop strings do not belong: in reasoning and in markup.
    fn hides(&self) -> bool {
        false
    }

    /// True in the content state, where reasoning may begin.
    fn is_idle(&self) -> bool;

    /// True in what has begun like a call, by a marker or in a bare format, and is none yet.
    fn is_in_head(&self) -> bool {
        false
    }

    /// Reasoning begins here, in the content state: what is held for the sake of a marker is content.
    fn pause(&mut self, out: &mut Output);
}
