//! What parsers write: deltas of a message. White space around markup is markup, and is dropped here once for all
//! formats: newlines at both ends of reasoning and after it, and white space between content and calls.

use std::mem::take;

/// White space that is held back until it is known whether text follows, in bytes; longer runs are text.
const MAX_SPACE: usize = 1024;

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of its answer.
    Content(String),
    /// A call begins; its arguments follow under the same index.
    CallStart {
        /// Position among the calls of the message.
        index: usize,
        /// Never empty, stable for the call.
        id: String,
        /// The function.
        name: String,
    },
    /// More of a call's arguments, as JSON text.
    CallArguments {
        /// Position among the calls of the message.
        index: usize,
        /// Never empty.
        text: String,
    },
    /// A call has ended.
    CallEnd {
        /// Position among the calls of the message.
        index: usize,
        /// Its arguments are a JSON object.
        complete: bool,
    },
}

/// What the ids of calls look like. A format whose calls name themselves needs none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdStyle {
    /// `call_` and 24 letters and digits.
    #[default]
    Standard,
    /// Nine letters and digits: some chat templates refuse any other.
    Nine,
}

impl IdStyle {
    /// The id of call `index`: a function of its arguments.
    fn id(self, seed: u64, index: usize) -> String {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let (mut id, length) = match self {
            Self::Standard => ("call_".to_owned(), 24),
            Self::Nine => (String::new(), 9),
        };
        // SplitMix64, a stream of its own for every call.
        let mut state = seed ^ (index as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
        for _ in 0..length {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            id.push(char::from(DIGITS[((z ^ (z >> 31)) % 62) as usize]));
        }
        id
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    Reasoning,
    #[default]
    Content,
}

/// White space that is dropped until something else comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Skip {
    #[default]
    Nothing,
    Newlines,
    WhiteSpace,
}

/// Where parsers write.
#[derive(Debug, Default)]
pub struct Output {
    deltas: Vec<Delta>,
    style: IdStyle,
    seed: u64,
    calls: usize,
    /// The last call has not ended; true in the inside if it has arguments.
    open: Option<bool>,
    kind: Kind,
    /// White space of `kind` that is shown if more of it follows.
    space: String,
    skip: Skip,
}

impl Output {
    /// An output whose calls get ids of this style, all of them functions of `seed`.
    pub fn new(style: IdStyle, seed: u64) -> Self {
        Self { style, seed, ..Self::default() }
    }

    /// What was written since the last time.
    pub fn take(&mut self) -> Vec<Delta> {
        take(&mut self.deltas)
    }

    /// Reasoning begins; white space before it is none of the content.
    pub fn begin_reasoning(&mut self) {
        self.space.clear();
        self.kind = Kind::Reasoning;
        self.skip = Skip::Newlines;
    }

    /// More reasoning.
    pub fn reasoning(&mut self, c: char) {
        self.text(c, c == '\n');
    }

    /// Reasoning ends.
    pub fn end_reasoning(&mut self) {
        self.space.clear();
        self.kind = Kind::Content;
        self.skip = Skip::Newlines;
    }

    /// More content.
    pub fn content(&mut self, c: char) {
        self.text(c, c.is_whitespace());
    }

    fn text(&mut self, c: char, is_space: bool) {
        match self.skip {
            Skip::Newlines if c == '\n' => return,
            Skip::WhiteSpace if is_space => return,
            _ => self.skip = Skip::Nothing,
        }
        if is_space && self.space.len() < MAX_SPACE {
            self.space.push(c);
            return;
        }
        self.flush();
        self.append(c);
    }

    fn append(&mut self, c: char) {
        match (self.kind, self.deltas.last_mut()) {
            (Kind::Reasoning, Some(Delta::Reasoning(text))) | (Kind::Content, Some(Delta::Content(text))) => {
                text.push(c);
            }
            (Kind::Reasoning, _) => self.deltas.push(Delta::Reasoning(c.to_string())),
            (Kind::Content, _) => self.deltas.push(Delta::Content(c.to_string())),
        }
    }

    fn flush(&mut self) {
        for c in take(&mut self.space).chars() {
            self.append(c);
        }
    }

    /// True between a call's start and its end.
    pub fn in_call(&self) -> bool {
        self.open.is_some()
    }

    /// How many calls have begun.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// True in a call without arguments so far.
    pub fn is_call_empty(&self) -> bool {
        self.open == Some(false)
    }

    /// A call begins, with the id that the model gave it if it did.
    pub fn start_call(&mut self, name: &str, id: Option<String>) {
        debug_assert!(!self.in_call(), "calls follow one another");
        self.space.clear();
        let index = self.calls;
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.style.id(self.seed, index));
        self.deltas.push(Delta::CallStart { index, id, name: name.to_owned() });
        self.calls += 1;
        self.open = Some(false);
    }

    /// More of the open call's arguments.
    pub fn argument(&mut self, c: char) {
        self.arguments(c.encode_utf8(&mut [0; 4]));
    }

    /// More of the open call's arguments.
    pub fn arguments(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        self.open = Some(true);
        match self.deltas.last_mut() {
            Some(Delta::CallArguments { text, .. }) => text.push_str(more),
            _ => self.deltas.push(Delta::CallArguments { index: self.calls - 1, text: more.to_owned() }),
        }
    }

    /// The open call ends. One that is complete and wrote no arguments has none.
    pub fn end_call(&mut self, complete: bool) {
        let Some(has_arguments) = self.open else { return };
        if complete && !has_arguments {
            self.arguments("{}");
        }
        self.open = None;
        self.deltas.push(Delta::CallEnd { index: self.calls - 1, complete });
        self.skip = Skip::WhiteSpace;
    }

    /// The text has ended: white space at its end is text.
    pub fn finish(&mut self) {
        self.flush();
    }
}
