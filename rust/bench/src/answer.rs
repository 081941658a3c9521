//! From an exchange to a [`Sample`], after the clock has stopped.
//!
//! Nothing here runs while an answer is on its way: the times are those of the reads (`http::Mark`), so however slow the
//! parsing is, it cannot move them.

use std::fmt::{self, Formatter};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::failure::Failure;
use crate::http::{Exchange, Mark};
use crate::load::Job;
use crate::sample::{Sample, Tokens, share_out};
use crate::sse;

/// How an answer is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A stream of completion chunks.
    Stream,
    /// One JSON object with `usage`.
    Json,
    /// Bytes that nobody looks at, with the usage in the header `metadata`.
    Bytes,
    /// Bytes that nobody looks at, without usage.
    BytesOnly,
}

impl Reading {
    /// Whether the body is kept; if not, it is only counted as it passes.
    pub fn keeps_body(self) -> bool {
        matches!(self, Self::Stream | Self::Json)
    }

    /// What the exchange showed. `origin` is the start of the run.
    pub fn sample(
        self,
        exchange: &Exchange,
        job: &Job,
        origin: Instant,
        late: Duration,
    ) -> Result<Sample, Failure> {
        let since = |at: Instant| at.saturating_duration_since(origin);
        let (pieces, usage) = match self {
            Self::Stream => stream(exchange)?,
            Self::Json => (Vec::new(), json(&exchange.body)?),
            Self::Bytes => (Vec::new(), header(exchange.metadata.as_deref())?),
            Self::BytesOnly => (Vec::new(), None),
        };
        let usage = usage.unwrap_or_default();
        let streamed = self == Self::Stream;
        let output_tokens = usage.completion_tokens.unwrap_or(pieces.len() as u64);
        let output = if streamed {
            let counted: Vec<_> = pieces.iter().map(|piece| piece.running_total).collect();
            let shares = share_out(output_tokens, &counted);
            pieces.iter().zip(shares).map(|(piece, count)| Tokens { at: since(piece.at), count }).collect()
        } else {
            vec![Tokens { at: since(exchange.ended), count: output_tokens }]
        };
        Ok(Sample {
            sent: since(exchange.sent),
            ended: since(exchange.ended),
            late,
            output,
            streamed,
            prompt_tokens: usage.prompt_tokens.unwrap_or(job.prompt_tokens),
            output_tokens,
            // An embedding has no completion to be counted.
            counted_by_server: usage.prompt_tokens.is_some()
                && (usage.completion_tokens.is_some() || !streamed),
            inputs: job.inputs,
        })
    }
}

/// A server's count.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

/// Generated text, and how many tokens there were with it, if the server said so.
struct Piece {
    at: Instant,
    running_total: Option<u64>,
}

/// One event of a stream, of completions or of chat.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Value>,
    /// `error`, in the form that some servers have without an `error` member.
    #[serde(default)]
    object: Option<String>,
    #[serde(default)]
    message: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Present,
    #[serde(default)]
    token_ids: Present,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Present,
}

/// The role is none of them: it is not generated.
#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Present,
    #[serde(default)]
    reasoning: Present,
    #[serde(default)]
    reasoning_content: Present,
    #[serde(default)]
    refusal: Present,
    #[serde(default)]
    tool_calls: Present,
    #[serde(default)]
    function_call: Present,
}

impl Choice {
    fn generated(&self) -> bool {
        let in_delta = self.delta.as_ref().is_some_and(|delta| {
            delta.content.0
                || delta.reasoning.0
                || delta.reasoning_content.0
                || delta.refusal.0
                || delta.tool_calls.0
                || delta.function_call.0
        });
        self.text.0 || self.token_ids.0 || in_delta
    }
}

/// Whether a member is there and is not null or empty; its value is passed over.
#[derive(Clone, Copy, Default)]
struct Present(bool);

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look).map(Self)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = bool;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        Ok(!text.is_empty())
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        let mut any = false;
        while seq.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(any)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut any = false;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(any)
    }
}

/// The time at which the first `end` bytes of a body were there; `at` is where to look from, and moves on.
fn arrival(marks: &[Mark], at: &mut usize, end: usize) -> Option<Instant> {
    *at += marks[*at..].iter().take_while(|mark| mark.end < end).count();
    marks.get(*at).map(|mark| mark.at)
}

fn stream(exchange: &Exchange) -> Result<(Vec<Piece>, Option<Usage>), Failure> {
    let (mut pieces, mut usage, mut ended, mut at) = (Vec::new(), None, false, 0);
    for event in sse::events(&exchange.body) {
        if &*event.data == b"[DONE]" {
            ended = true;
            break;
        }
        let chunk: Chunk = parse(&event.data)?;
        if let Some(error) = chunk.error {
            return Err(Failure::ErrorEvent(error.to_string()));
        }
        if chunk.object.as_deref() == Some("error") {
            return Err(Failure::ErrorEvent(chunk.message.unwrap_or_default().to_string()));
        }
        usage = chunk.usage.or(usage);
        ended |= chunk.choices.iter().any(|choice| choice.finish_reason.0);
        if chunk.choices.iter().any(Choice::generated) {
            let at = arrival(&exchange.marks, &mut at, event.end).unwrap_or(exchange.ended);
            pieces.push(Piece { at, running_total: chunk.usage.and_then(|usage| usage.completion_tokens) });
        }
    }
    if ended { Ok((pieces, usage)) } else { Err(Failure::NoEnd) }
}

fn parse<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| {
        let start = String::from_utf8_lossy(&text[..text.len().min(100)]).into_owned();
        Failure::Malformed(format!("{error} in '{start}'"))
    })
}

/// The part of a whole answer that is looked at.
#[derive(Deserialize)]
struct Whole {
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Value>,
}

fn json(body: &[u8]) -> Result<Option<Usage>, Failure> {
    let whole: Whole = parse(body)?;
    match whole.error {
        Some(error) => Err(Failure::ErrorEvent(error.to_string())),
        None => Ok(whole.usage),
    }
}

fn header(metadata: Option<&str>) -> Result<Option<Usage>, Failure> {
    metadata.map_or(Ok(None), |metadata| json(metadata.as_bytes()))
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
