//! Chat messages: what a choice's text says, read by the model's parsers, and its JSON.

use frizzen_text::parse::{Delta, Format, Message, MessageParser, Setup, ToolCall};
use serde_json::Value;

use crate::json;
use crate::output::delta::{ChoiceDelta, Finish};

/// How messages are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Reasoning is a member of messages.
    pub reasoning: bool,
    /// Under its older name too.
    pub reasoning_content: bool,
    /// More than one call may be shown.
    pub parallel: bool,
}

/// What a delta brings.
pub(crate) enum Parts {
    /// Its text, which is content.
    Content,
    /// What the parser made of it.
    Read(Vec<Delta>),
}

/// Reads the text of one choice.
///
/// Invariant: the finish reason is `tool_calls` exactly if the model stopped by itself, there are calls, and all of them
/// are complete.
#[derive(Debug)]
pub struct Reader {
    /// `None` if the text is the content.
    parser: Option<MessageParser>,
    shape: Shape,
    /// Calls end an answer with `stop`: the client has named the function.
    stops: bool,
    calls: usize,
    complete: usize,
}

impl Reader {
    /// A reader at the beginning of a text.
    pub fn new(format: Format, setup: &Setup, shape: Shape) -> Self {
        let parser = (!format.is_plain()).then(|| MessageParser::new(format, setup));
        Self { parser, shape, stops: false, calls: 0, complete: 0 }
    }

    /// Calls are what the client forced by name, so that the model's stop is shown as it is, as in OpenAI's answers.
    #[must_use]
    pub fn stopping_at_calls(mut self) -> Self {
        self.stops = true;
        self
    }

    /// What the next delta of the choice brings.
    pub fn read(&mut self, delta: &ChoiceDelta) -> Vec<Delta> {
        match self.parts(delta) {
            Parts::Content if delta.text.is_empty() => Vec::new(),
            Parts::Content => vec![Delta::Content(delta.text.clone())],
            Parts::Read(parts) => parts,
        }
    }

    /// The same, without a copy of a text that is content as it is.
    pub(crate) fn parts(&mut self, delta: &ChoiceDelta) -> Parts {
        if self.parser.is_none() {
            return Parts::Content;
        }
        let mut parts = self.push(&delta.text);
        parts.extend(delta.finish.as_ref().map(|finish| self.finish(finish)).unwrap_or_default());
        Parts::Read(parts)
    }

    /// True if a parser reads the text.
    pub(crate) const fn parses(&self) -> bool {
        self.parser.is_some()
    }

    /// What a parser makes of more of the text; nothing without one.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Delta> {
        let parts = self.parser.as_mut().map(|parser| parser.push(text));
        self.counted(parts.unwrap_or_default())
    }

    /// What a parser held back when the text ended like this; nothing without one.
    pub(crate) fn finish(&mut self, finish: &Finish) -> Vec<Delta> {
        let Some(parser) = &mut self.parser else { return Vec::new() };
        let parts = if finish.is_by_the_model() { parser.finish() } else { parser.cut_off() };
        for note in parser.notes() {
            tracing::debug!("what began like a tool call is none: {note}");
        }
        self.counted(parts)
    }

    /// The parts that are shown.
    fn counted(&mut self, mut parts: Vec<Delta>) -> Vec<Delta> {
        let shape = self.shape;
        parts.retain(|part| match part {
            Delta::Reasoning(_) => shape.reasoning,
            Delta::Content(_) => true,
            Delta::CallStart { index, .. }
            | Delta::CallArguments { index, .. }
            | Delta::CallEnd { index, .. } => shape.parallel || *index == 0,
        });
        for part in &parts {
            match part {
                Delta::CallStart { .. } => self.calls += 1,
                Delta::CallEnd { complete: true, .. } => self.complete += 1,
                _ => {}
            }
        }
        parts
    }

    /// The reason to show for the engine's.
    pub fn finish_reason(&self, reason: &'static str) -> &'static str {
        let called = self.calls > 0 && self.calls == self.complete && !self.stops;
        if reason == "stop" && called { "tool_calls" } else { reason }
    }

    /// Appends the member of a streamed `delta` object that shows this content.
    pub(crate) fn write_content(text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"content\":");
        json::string(out, text);
    }

    /// Appends the member of a streamed `delta` object that shows `part`; nothing for the end of a call.
    pub fn write_delta(&self, part: &Delta, out: &mut Vec<u8>) {
        match part {
            Delta::Content(text) => Self::write_content(text, out),
            Delta::Reasoning(text) => self.shape.write_reasoning(text, out),
            Delta::CallStart { index, id, name } => {
                out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
                json::integer(out, *index as u64);
                out.push(b',');
                write_call(out, id, name, "");
                out.extend_from_slice(b"}]");
            }
            Delta::CallArguments { index, text } => {
                out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
                json::integer(out, *index as u64);
                out.extend_from_slice(b",\"function\":{\"arguments\":");
                json::string(out, text);
                out.extend_from_slice(b"}}]");
            }
            Delta::CallEnd { .. } => {}
        }
    }
}

impl Shape {
    fn write_reasoning(self, text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"reasoning\":");
        json::string(out, text);
        if self.reasoning_content {
            out.extend_from_slice(b",\"reasoning_content\":");
            json::string(out, text);
        }
    }

    /// A whole message as a value.
    pub fn message(self, message: &Message) -> Value {
        let mut out = Vec::new();
        self.write_message(message, &mut out);
        serde_json::from_slice(&out).expect("a message is written as JSON")
    }

    /// Appends a whole message. Content that is empty beside something else is `null`, as in OpenAI's answers.
    pub fn write_message(self, message: &Message, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"role\":\"assistant\",\"content\":");
        if message.content.is_empty() && !(message.calls.is_empty() && message.reasoning.is_empty()) {
            out.extend_from_slice(b"null");
        } else {
            json::string(out, &message.content);
        }
        out.extend_from_slice(b",\"refusal\":null");
        if !message.reasoning.is_empty() {
            out.push(b',');
            self.write_reasoning(&message.reasoning, out);
        }
        if !message.calls.is_empty() {
            out.extend_from_slice(b",\"tool_calls\":");
            json::list(out, &message.calls, |out, ToolCall { id, name, arguments, .. }| {
                out.push(b'{');
                write_call(out, id, name, arguments);
                out.push(b'}');
            });
        }
        out.push(b'}');
    }
}

fn write_call(out: &mut Vec<u8>, id: &str, name: &str, arguments: &str) {
    out.extend_from_slice(b"\"id\":");
    json::string(out, id);
    out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
    json::string(out, name);
    out.extend_from_slice(b",\"arguments\":");
    json::string(out, arguments);
    out.push(b'}');
}
