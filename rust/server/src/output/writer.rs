//! The seam between what was generated and how a dialect says it.

use std::sync::Arc;

use frizzen_core::TokenId;
use serde_json::Value;

use crate::error::ApiError;
use crate::json;
use crate::output::{ChoiceDelta, ShownPrompt, Usage};
use crate::request::Shown;
use crate::store::{Keep, Work};

/// One dialect's way of writing deltas: as chunks of a stream, or merged as one answer.
///
/// Both are made from the same deltas, so joined chunks and the whole answer cannot differ.
pub trait Writer: Send {
    /// Appends the events of one delta; none if it shows nothing.
    fn events(&mut self, delta: &ChoiceDelta, usage: &Usage, out: &mut Vec<u8>);

    /// Appends what a stream ends with, after the last delta of every choice.
    fn end(&mut self, usage: &Usage, out: &mut Vec<u8>);

    /// Appends what a stream ends with that breaks off.
    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>);

    /// What is answered before there is anything, and takes the answer in; `None` where an answer comes only when it is
    /// there.
    fn begun(&mut self) -> Option<Begun> {
        None
    }

    /// Appends the whole answer; `choices` are merged deltas in the order of their indexes.
    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>);
}

/// An answer that is made after it was given.
pub struct Begun {
    /// What it is until then.
    pub response: Value,
    /// The events that it begins with, if it is streamed.
    pub events: Vec<u8>,
    /// Takes it to the store.
    pub keep: Keep,
    /// How it is made.
    pub work: Arc<Work>,
}

/// Ends a stream of events without names.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// What every chunk of an answer begins and ends with; serialised once.
#[derive(Debug)]
pub struct Envelope {
    /// `{"id":...,"object":...,"created":...,"model":...,"choices":[` of a chunk.
    chunk: Vec<u8>,
    /// The same of a whole answer.
    whole: Vec<u8>,
    shown: Shown,
}

/// Who answers, and when.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// The answer's id.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The name of the model.
    pub model: &'a str,
    /// The name of the request, where it is shown beside the id.
    pub request_id: Option<&'a str>,
    /// Whether every part of the grammar that was asked for is enforced; `None` if none was.
    pub grammar_enforced: Option<bool>,
}

impl Envelope {
    /// The envelope of an answer; `chunk` and `whole` are the two values of `object`.
    pub fn new(header: &Header<'_>, chunk: &str, whole: &str, shown: Shown) -> Self {
        let head = |object: &str| {
            let mut head = b"{\"id\":".to_vec();
            json::string(&mut head, header.id);
            head.extend_from_slice(b",\"object\":");
            json::string(&mut head, object);
            head.extend_from_slice(b",\"created\":");
            json::integer(&mut head, header.created);
            head.extend_from_slice(b",\"model\":");
            json::string(&mut head, header.model);
            if let Some(name) = header.request_id {
                head.extend_from_slice(b",\"request_id\":");
                json::string(&mut head, name);
            }
            if let Some(enforced) = header.grammar_enforced {
                head.extend_from_slice(b",\"grammar_enforced\":");
                head.extend_from_slice(if enforced { b"true" } else { b"false" });
            }
            head.extend_from_slice(b",\"choices\":[");
            head
        };
        Self { chunk: head(chunk), whole: head(whole), shown }
    }

    /// How outputs are shown.
    pub const fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Appends one event with one choice, whose members after `index` are written by `members`; `prompt` is what to
    /// show of it beside.
    pub fn event(
        &self,
        index: usize,
        usage: &Usage,
        prompt: Option<&ShownPrompt>,
        out: &mut Vec<u8>,
        members: impl FnOnce(&mut Vec<u8>),
    ) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&self.chunk);
        out.extend_from_slice(b"{\"index\":");
        json::integer(out, index as u64);
        members(out);
        out.extend_from_slice(b"}]");
        if let Some(prompt) = prompt {
            prompt.write(out);
        }
        if self.shown.continuous_usage {
            out.extend_from_slice(b",\"usage\":");
            usage.write(out);
        } else if self.shown.include_usage {
            out.extend_from_slice(b",\"usage\":null");
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// Appends an error, and the end of the stream.
    pub fn failed(error: &ApiError, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        error.write_json(out);
        out.extend_from_slice(b"\n\n");
        out.extend_from_slice(DONE);
    }

    /// Appends the event of usage and times, with no choice, if either was asked for, and the end of the stream.
    pub fn end(&self, usage: &Usage, out: &mut Vec<u8>) {
        if self.shown.include_usage || usage.timings.is_some() {
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(&self.chunk);
            out.push(b']');
            if self.shown.include_usage {
                out.extend_from_slice(b",\"usage\":");
                usage.write(out);
            }
            usage.write_timings(out);
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(DONE);
    }

    /// Appends the whole answer: `choice` writes the members of each choice after `index`, `members` those after
    /// `usage`.
    pub fn answer(
        &self,
        choices: &[ChoiceDelta],
        usage: &Usage,
        out: &mut Vec<u8>,
        mut choice: impl FnMut(&mut Vec<u8>, &ChoiceDelta),
        members: impl FnOnce(&mut Vec<u8>),
    ) {
        out.extend_from_slice(&self.whole);
        for (position, delta) in choices.iter().enumerate() {
            out.extend_from_slice(if position == 0 { b"{\"index\":" } else { b",{\"index\":" });
            json::integer(out, delta.index as u64);
            choice(out, delta);
            out.push(b'}');
        }
        out.extend_from_slice(b"],\"usage\":");
        usage.write(out);
        usage.write_timings(out);
        members(out);
        out.push(b'}');
    }
}

/// Appends a list of ids under `name` as a further member.
pub(crate) fn write_ids(name: &str, ids: &[TokenId], out: &mut Vec<u8>) {
    out.push(b',');
    json::string(out, name);
    out.push(b':');
    json::list(out, ids, |out, id| json::integer(out, u64::from(*id)));
}
