//! Messages: named events around blocks of content, and the message that they add up to.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::json;
use crate::output::blocks::{Block, Blocks, Kind, Step};
use crate::output::delta::{ChoiceDelta, Finish, StopDetail};
use crate::output::message::Reader;
use crate::output::usage::Usage;
use crate::output::writer::Writer;

/// Writes a message.
#[derive(Debug)]
pub struct Messages {
    name: Arc<str>,
    model: String,
    /// Whether every part of the grammar that was asked for is enforced; `None` if none was.
    grammar_enforced: Option<bool>,
    reader: Reader,
    blocks: Blocks,
    begun: bool,
    finish: Option<Finish>,
}

impl Messages {
    /// A writer.
    pub fn new(name: &Arc<str>, model: &str, grammar_enforced: Option<bool>, reader: Reader) -> Self {
        let (name, model) = (Arc::clone(name), model.to_owned());
        Self { name, model, grammar_enforced, reader, blocks: Blocks::default(), begun: false, finish: None }
    }

    fn message(&self, content: &[Value], usage: &Usage) -> Value {
        let (reason, sequence) = stop(self.finish.as_ref());
        let mut message = json!({
            "id": format!("msg_{}", self.name),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": Self::usage(usage),
        });
        if let Some(enforced) = self.grammar_enforced {
            message["grammar_enforced"] = enforced.into();
        }
        if let Some(timings) = usage.timings_json() {
            message["timings"] = timings;
        }
        message
    }

    /// Here, unlike everywhere else, tokens from the cache are not among those of the input.
    fn usage(usage: &Usage) -> Value {
        json!({
            "input_tokens": usage.prompt.saturating_sub(usage.cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
        })
    }

    fn read(&mut self, delta: &ChoiceDelta, mut out: Option<&mut Vec<u8>>) {
        let mut emit = |index: usize, block: &Block, step: Step<'_>| {
            if let Some(out) = out.as_deref_mut() {
                write_step(out, index, block, step);
            }
        };
        for part in self.reader.read(delta) {
            self.blocks.push(part, &mut emit);
        }
        if let Some(finish) = &delta.finish {
            let reason = self.reader.finish_reason(finish.reason);
            self.blocks.end(matches!(reason, "stop" | "tool_calls"), &mut emit);
            self.finish = Some(Finish { reason, ..finish.clone() });
        }
    }
}

impl Writer for Messages {
    fn events(&mut self, delta: &ChoiceDelta, usage: &Usage, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            // The first delta's tokens belong to what follows.
            let usage = Usage { completion: 0, timings: None, ..usage.clone() };
            write_event(out, "message_start", &json!({"message": self.message(&[], &usage)}));
        }
        self.read(delta, Some(out));
    }

    fn end(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        if self.finish.as_ref().is_some_and(|finish| finish.reason == "abort") {
            return self.failed(&ApiError::aborted(), out);
        }
        let (reason, sequence) = stop(self.finish.as_ref());
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let mut members = json!({"delta": delta, "usage": Self::usage(usage)});
        if let Some(timings) = usage.timings_json() {
            members["timings"] = timings;
        }
        write_event(out, "message_delta", &members);
        write_event(out, "message_stop", &json!({}));
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        out.extend_from_slice(b"event: error\ndata: ");
        error.write_anthropic(None, out);
        out.extend_from_slice(b"\n\n");
    }

    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>) {
        for delta in choices {
            self.read(delta, None);
        }
        let content: Vec<Value> = self.blocks.all().iter().map(|block| content(block, &block.text)).collect();
        out.extend_from_slice(self.message(&content, usage).to_string().as_bytes());
    }
}

/// `stop_reason` and `stop_sequence`.
fn stop(finish: Option<&Finish>) -> (Value, Value) {
    let Some(finish) = finish else { return (Value::Null, Value::Null) };
    match (finish.reason, &finish.stop) {
        ("tool_calls", _) => ("tool_use".into(), Value::Null),
        ("length", _) => ("max_tokens".into(), Value::Null),
        (_, StopDetail::Text(text)) => ("stop_sequence".into(), text.as_str().into()),
        _ => ("end_turn".into(), Value::Null),
    }
}

/// A block with this much of its text. Input that was cut off is no object yet, and shown as an empty one: the message
/// says that it was cut.
fn content(block: &Block, text: &str) -> Value {
    match &block.kind {
        Kind::Reasoning => json!({"type": "thinking", "thinking": text, "signature": ""}),
        Kind::Text => json!({"type": "text", "text": text}),
        Kind::Call { id, name } => {
            let input = serde_json::from_str(text).ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
            json!({"type": "tool_use", "id": id, "name": name, "input": input})
        }
    }
}

fn write_event(out: &mut Vec<u8>, name: &str, members: &Value) {
    begin_event(out, name);
    for (key, value) in members.as_object().into_iter().flatten() {
        out.push(b',');
        json::string(out, key);
        out.push(b':');
        out.extend_from_slice(value.to_string().as_bytes());
    }
    out.extend_from_slice(b"}\n\n");
}

fn begin_event(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: {\"type\":\"");
    out.extend_from_slice(name.as_bytes());
    out.push(b'"');
}

fn write_step(out: &mut Vec<u8>, index: usize, block: &Block, step: Step<'_>) {
    match step {
        Step::Open => {
            let start = json!({"index": index, "content_block": content(block, "")});
            write_event(out, "content_block_start", &start);
        }
        Step::Grow(text) => {
            begin_event(out, "content_block_delta");
            out.extend_from_slice(b",\"index\":");
            json::integer(out, index as u64);
            out.extend_from_slice(match block.kind {
                Kind::Reasoning => b",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":".as_slice(),
                Kind::Text => b",\"delta\":{\"type\":\"text_delta\",\"text\":",
                Kind::Call { .. } => b",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":",
            });
            json::string(out, text);
            out.extend_from_slice(b"}}\n\n");
        }
        Step::Close => write_event(out, "content_block_stop", &json!({"index": index})),
    }
}
