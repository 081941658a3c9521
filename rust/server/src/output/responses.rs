//! Responses: named events with gap-free sequence numbers, and the response object that the last of them holds.
//!
//! The whole answer is the object of the last event of a stream, made by the same machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use frizzen_text::Tokenizer;
use frizzen_text::parse::Delta;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::json;
use crate::output::attribution::Attribution;
use crate::output::blocks::{Block, Blocks, Kind, Step};
use crate::output::delta::{ChoiceDelta, Finish};
use crate::output::message::Reader;
use crate::output::pieces::Pieces;
use crate::output::usage::Usage;
use crate::output::writer::{Begun, Writer};
use crate::state::unix_time;
use crate::store::Keep;

/// Writes a response.
pub struct Responses {
    /// The members that do not change: the id, the model, what is repeated of the request.
    head: Map<String, Value>,
    /// The ids of items end like this.
    name: Arc<str>,
    reader: Reader,
    blocks: Blocks,
    logprobs: Logprobs,
    tokenizer: Arc<Tokenizer>,
    /// Where the finished response goes, if it is kept.
    keep: Option<Keep>,
    sequence: u64,
    begun: bool,
    finish: Option<Finish>,
}

/// Log-probabilities of the tokens of text, as the entries of lists.
#[derive(Debug, Default)]
struct Logprobs {
    /// `None` if they were not asked for.
    asked: Option<Attribution>,
    /// Of tokens that no event has shown yet.
    pending: Vec<u8>,
    /// By block.
    all: BTreeMap<usize, Vec<u8>>,
}

impl Logprobs {
    fn take(&mut self, part: &Delta) {
        match (&mut self.asked, part) {
            (Some(asked), Delta::Content(text)) => asked.take(text, &mut self.pending),
            (Some(asked), Delta::Reasoning(text)) => asked.skip(text),
            _ => {}
        }
    }

    /// The entries by which a block has grown.
    fn grow(&mut self, block: usize) -> Vec<u8> {
        let grown = std::mem::take(&mut self.pending);
        if !grown.is_empty() {
            let all = self.all.entry(block).or_default();
            if !all.is_empty() {
                all.push(b',');
            }
            all.extend_from_slice(&grown);
        }
        grown
    }

    /// Those of a whole block.
    fn of(&self, block: usize) -> Value {
        let all = self.all.get(&block).map_or(&[][..], Vec::as_slice);
        serde_json::from_slice(&[b"[", all, b"]"].concat()).expect("entries are written as JSON")
    }
}

impl Responses {
    /// The same writer, which shows log-probabilities with this many alternatives.
    #[must_use]
    pub fn with_logprobs(mut self, asked: Option<(Pieces, usize)>) -> Self {
        self.logprobs.asked = asked.map(|(pieces, top)| Attribution::new(pieces, top));
        self
    }

    /// A writer. `echo` are members of the response object that repeat the request.
    pub fn new(
        (name, model): (&Arc<str>, &str),
        echo: Map<String, Value>,
        reader: Reader,
        tokenizer: Arc<Tokenizer>,
        keep: Option<Keep>,
    ) -> Self {
        let Value::Object(mut head) = json!({
            "id": format!("resp_{name}"),
            "object": "response",
            "created_at": unix_time(),
            "model": model,
            "truncation": "disabled",
            "store": keep.is_some(),
            "error": null,
            "incomplete_details": null,
            "usage": null,
        }) else {
            unreachable!("an object was written");
        };
        head.extend(echo);
        Self {
            head,
            name: Arc::clone(name),
            reader,
            blocks: Blocks::default(),
            logprobs: Logprobs::default(),
            tokenizer,
            keep,
            sequence: 0,
            begun: false,
            finish: None,
        }
    }

    /// The response object in this state.
    fn object(&self, status: &str, members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
        let mut object = self.head.clone();
        object.insert("status".to_owned(), status.into());
        let output: Vec<Value> = self
            .blocks
            .all()
            .iter()
            .enumerate()
            .map(|(index, block)| item(&self.name, index, block, &self.logprobs))
            .collect();
        object.insert("output".to_owned(), output.into());
        object.extend(members.into_iter().map(|(name, value)| (name.to_owned(), value)));
        object.into()
    }

    /// The finished response, and the name of the event that brings it.
    fn finished(&self, usage: &Usage) -> (&'static str, Value) {
        let (name, mut response) = self.ended(("usage", self.usage(usage)));
        if let Some(timings) = usage.timings_json() {
            response["timings"] = timings;
        }
        (name, response)
    }

    fn ended(&self, usage: (&'static str, Value)) -> (&'static str, Value) {
        match self.finish.as_ref().map(|finish| finish.reason) {
            Some("length") => {
                let why = ("incomplete_details", json!({"reason": "max_output_tokens"}));
                ("response.incomplete", self.object("incomplete", [usage, why]))
            }
            Some("abort") => {
                let why = json!({"code": "server_error", "message": "the request was aborted"});
                ("response.failed", self.object("failed", [usage, ("error", why)]))
            }
            _ => {
                let members = [usage, ("completed_at", unix_time().into())];
                ("response.completed", self.object("completed", members))
            }
        }
    }

    /// Tokens of reasoning are those of its text: markers, and what parsers take off, belong to none.
    fn usage(&self, usage: &Usage) -> Value {
        let reasoning = self.blocks.reasoning();
        let reasoning = self.tokenizer.encode(&reasoning, false).map_or(0, |ids| ids.len() as u64);
        json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": reasoning.min(usage.completion)},
            "total_tokens": usage.prompt + usage.completion,
        })
    }

    /// Reads a delta, and writes the events of what it brings if there is somewhere to.
    fn read(&mut self, delta: &ChoiceDelta, mut out: Option<&mut Vec<u8>>) {
        let (name, sequence, logprobs) = (&self.name, &mut self.sequence, &mut self.logprobs);
        if let Some(asked) = &mut logprobs.asked {
            asked.push(delta);
        }
        let mut emit = |logprobs: &mut Logprobs, index: usize, block: &Block, step: Step<'_>| {
            let grows = matches!(step, Step::Grow(_)) && block.kind == Kind::Text;
            let grown = if grows { logprobs.grow(index) } else { Vec::new() };
            if let Some(out) = out.as_deref_mut() {
                write_step(out, sequence, name, (index, block), step, (logprobs, &grown));
            }
        };
        for part in self.reader.read(delta) {
            logprobs.take(&part);
            self.blocks.push(part, &mut |index, block, step| emit(logprobs, index, block, step));
        }
        if let Some(finish) = &delta.finish {
            let reason = self.reader.finish_reason(finish.reason);
            let complete = matches!(reason, "stop" | "tool_calls");
            self.blocks.end(complete, &mut |index, block, step| emit(logprobs, index, block, step));
            self.finish = Some(Finish { reason, ..finish.clone() });
        }
    }

    /// Writes the events before any item.
    fn open(&mut self, out: &mut Vec<u8>) {
        self.begun = true;
        let response = self.object("in_progress", []);
        for name in ["response.created", "response.in_progress"] {
            write_event(out, &mut self.sequence, name, &json!({"response": response}));
        }
    }

    fn keep(&mut self, response: &Value) {
        if let Some(keep) = self.keep.take() {
            keep.save(response, self.blocks.all());
        }
    }
}

impl Writer for Responses {
    fn events(&mut self, delta: &ChoiceDelta, _: &Usage, out: &mut Vec<u8>) {
        if !self.begun {
            self.open(out);
        }
        self.read(delta, Some(out));
    }

    fn end(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        let (name, response) = self.finished(usage);
        write_event(out, &mut self.sequence, name, &json!({"response": response}));
        self.keep(&response);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let why = json!({"code": "server_error", "message": error.message});
        let response = self.object("failed", [("error", why.clone())]);
        if let Some(keep) = &self.keep {
            keep.fail(&response, &why);
        }
        write_event(out, &mut self.sequence, "response.failed", &json!({"response": response}));
    }

    fn begun(&mut self) -> Option<Begun> {
        let keep = self.keep.clone()?;
        let work = keep.work.clone()?;
        let mut events = Vec::new();
        if work.events.is_some() {
            self.open(&mut events);
        }
        Some(Begun { response: self.object("in_progress", []), events, keep, work })
    }

    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>) {
        for delta in choices {
            self.read(delta, None);
        }
        let (_, response) = self.finished(usage);
        out.extend_from_slice(response.to_string().as_bytes());
        self.keep(&response);
    }
}

fn item_id(name: &str, index: usize, block: &Block) -> String {
    let kind = match block.kind {
        Kind::Reasoning => "rs",
        Kind::Text => "msg",
        Kind::Call { .. } => "fc",
    };
    format!("{kind}_{name}_{index}")
}

fn part(block: &Block, text: &str, logprobs: &Value) -> Value {
    match block.kind {
        Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
        _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}),
    }
}

/// An item that has ended.
fn item(name: &str, index: usize, block: &Block, logprobs: &Logprobs) -> Value {
    let status = if block.complete { "completed" } else { "incomplete" };
    shell(name, index, block, status, &block.text, &[part(block, &block.text, &logprobs.of(index))])
}

fn shell(name: &str, index: usize, block: &Block, status: &str, arguments: &str, content: &[Value]) -> Value {
    let id = item_id(name, index, block);
    match &block.kind {
        Kind::Reasoning => {
            json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
        }
        Kind::Text => {
            json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
        }
        Kind::Call { id: call_id, name } => {
            json!({"id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments,
                "status": status})
        }
    }
}

/// An event by itself.
pub(crate) fn event(mut sequence: u64, name: &str, members: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write_event(&mut out, &mut sequence, name, members);
    out
}

/// Appends an event that is sent a few times per response.
fn write_event(out: &mut Vec<u8>, sequence: &mut u64, name: &str, members: &Value) {
    begin_event(out, sequence, name);
    for (key, value) in members.as_object().into_iter().flatten() {
        out.push(b',');
        json::string(out, key);
        out.push(b':');
        out.extend_from_slice(value.to_string().as_bytes());
    }
    out.extend_from_slice(b"}\n\n");
}

fn begin_event(out: &mut Vec<u8>, sequence: &mut u64, name: &str) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: {\"type\":\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\",\"sequence_number\":");
    json::integer(out, *sequence);
    *sequence += 1;
}

/// Names of the events of a block: more of it, and all of it.
const fn names(kind: &Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Reasoning => ("response.reasoning_text.delta", "response.reasoning_text.done"),
        Kind::Text => ("response.output_text.delta", "response.output_text.done"),
        Kind::Call { .. } => {
            ("response.function_call_arguments.delta", "response.function_call_arguments.done")
        }
    }
}

fn write_step(
    out: &mut Vec<u8>,
    sequence: &mut u64,
    name: &str,
    (index, block): (usize, &Block),
    step: Step<'_>,
    (logprobs, grown): (&Logprobs, &[u8]),
) {
    let (more, done) = names(&block.kind);
    let id = item_id(name, index, block);
    let in_parts = !matches!(block.kind, Kind::Call { .. });
    match step {
        Step::Open => {
            let item = shell(name, index, block, "in_progress", "", &[]);
            let added = json!({"output_index": index, "item": item});
            write_event(out, sequence, "response.output_item.added", &added);
            if in_parts {
                let place = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part(block, "", &json!([]))});
                write_event(out, sequence, "response.content_part.added", &place);
            }
        }
        // Once per token, and so written by hand.
        Step::Grow(text) => {
            begin_event(out, sequence, more);
            out.extend_from_slice(b",\"item_id\":");
            json::string(out, &id);
            out.extend_from_slice(b",\"output_index\":");
            json::integer(out, index as u64);
            if in_parts {
                out.extend_from_slice(b",\"content_index\":0");
            }
            if block.kind == Kind::Text {
                out.extend_from_slice(b",\"logprobs\":[");
                out.extend_from_slice(grown);
                out.push(b']');
            }
            out.extend_from_slice(b",\"delta\":");
            json::string(out, text);
            out.extend_from_slice(b"}\n\n");
        }
        Step::Close => {
            let all = match &block.kind {
                Kind::Reasoning => json!({"content_index": 0, "text": block.text}),
                Kind::Text => json!({"content_index": 0, "text": block.text, "logprobs": logprobs.of(index)}),
                Kind::Call { name, .. } => json!({"name": name, "arguments": block.text}),
            };
            let place = [("item_id", id.as_str().into()), ("output_index", index.into())];
            let mut members = Map::from_iter(place.map(|(key, value)| (key.to_owned(), value)));
            members.extend(all.as_object().cloned().unwrap_or_default());
            write_event(out, sequence, done, &members.into());
            if in_parts {
                let part = part(block, &block.text, &logprobs.of(index));
                let place = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
                write_event(out, sequence, "response.content_part.done", &place);
            }
            let done = json!({"output_index": index, "item": item(name, index, block, logprobs)});
            write_event(out, sequence, "response.output_item.done", &done);
        }
    }
}
