//! `/generate`: SGLang's form. A stream repeats in every event all that is known of a choice so far.

use std::sync::Arc;
use std::time::Instant;

use frizzen_core::{TokenId, TokenLogprobs};

use crate::error::ApiError;
use crate::json;
use crate::output::delta::{ChoiceDelta, Finish, StopDetail};
use crate::output::pieces::Pieces;
use crate::output::usage::Usage;
use crate::output::writer::{Envelope, Writer, write_ids};

/// What an answer shows.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The name of the request.
    pub id: Arc<str>,
    /// The answer is a list.
    pub is_list: bool,
    /// Alternatives per token, if log-probabilities were asked for.
    pub logprobs: Option<usize>,
    /// Those of the prompt too, from this token on.
    pub logprob_start: Option<usize>,
    /// Tokens have their text in log-probabilities.
    pub with_text: bool,
}

/// Writes `text`, `output_ids` and `meta_info`.
#[derive(Debug)]
pub struct Native {
    shown: Shown,
    pieces: Pieces,
    prompts: Vec<Arc<[TokenId]>>,
    /// Samples per prompt.
    samples: usize,
    /// What is known of each choice so far.
    known: Vec<ChoiceDelta>,
    started: Instant,
}

impl Native {
    /// A writer for `samples` choices per prompt.
    pub fn new(shown: Shown, pieces: Pieces, prompts: Vec<Arc<[TokenId]>>, samples: usize) -> Self {
        let known = vec![ChoiceDelta::default(); prompts.len() * samples];
        Self { shown, pieces, prompts, samples, known, started: Instant::now() }
    }

    fn write(&self, choice: &ChoiceDelta, usage: &Usage, out: &mut Vec<u8>) {
        let prompt = &self.prompts[choice.index / self.samples];
        out.extend_from_slice(b"{\"text\":");
        json::string(out, &choice.text);
        write_ids("output_ids", &choice.tokens, out);
        out.extend_from_slice(b",\"meta_info\":{\"id\":");
        json::string(out, &self.shown.id);
        out.extend_from_slice(b",\"finish_reason\":");
        write_finish(choice, out);
        for (name, value) in
            [("prompt_tokens", prompt.len() as u64), ("completion_tokens", choice.tokens.len() as u64)]
        {
            member(name, out);
            json::integer(out, value);
        }
        // What is counted for all prompts together says nothing about one of several.
        if self.prompts.len() == 1 {
            member("cached_tokens", out);
            json::integer(out, usage.cached);
        }
        if choice.finish.is_some() {
            member("e2e_latency", out);
            out.extend_from_slice(format!("{:.6}", self.started.elapsed().as_secs_f64()).as_bytes());
        }
        if let Some(top) = self.shown.logprobs {
            self.logprobs("output", choice.tokens.iter().zip(choice.logprobs.iter().map(Some)), top, out);
            if let Some(start) = self.shown.logprob_start {
                // Nothing comes before the first token, so nothing could predict it.
                let logprobs = std::iter::once(None).chain(choice.prompt_logprobs.iter().map(Some));
                self.logprobs("input", prompt.iter().zip(logprobs).skip(start), top, out);
            }
        }
        out.extend_from_slice(b"}}");
    }

    fn logprobs<'a>(
        &self,
        side: &str,
        entries: impl Iterator<Item = (&'a TokenId, Option<&'a TokenLogprobs>)> + Clone,
        top: usize,
        out: &mut Vec<u8>,
    ) {
        member(&format!("{side}_token_logprobs"), out);
        json::list(out, entries.clone(), |out, (id, logprobs)| {
            self.entry(*id, logprobs.map(|logprobs| logprobs.logprob), out);
        });
        if top > 0 {
            member(&format!("{side}_top_logprobs"), out);
            json::list(out, entries, |out, (_, logprobs)| match logprobs {
                Some(logprobs) => json::list(out, logprobs.top.iter().take(top), |out, (id, logprob)| {
                    self.entry(*id, Some(*logprob), out);
                }),
                None => out.extend_from_slice(b"null"),
            });
        }
    }

    /// `[logprob, id, text]`
    fn entry(&self, id: TokenId, logprob: Option<f32>, out: &mut Vec<u8>) {
        out.push(b'[');
        match logprob {
            Some(logprob) => json::logprob(out, logprob),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b',');
        json::integer(out, u64::from(id));
        out.push(b',');
        if self.shown.with_text {
            self.pieces.write_name(id, out);
        } else {
            out.extend_from_slice(b"null");
        }
        out.push(b']');
    }
}

fn member(name: &str, out: &mut Vec<u8>) {
    out.push(b',');
    json::string(out, name);
    out.push(b':');
}

fn write_finish(choice: &ChoiceDelta, out: &mut Vec<u8>) {
    let Some(Finish { reason, stop }) = &choice.finish else { return out.extend_from_slice(b"null") };
    out.extend_from_slice(b"{\"type\":");
    json::string(out, reason);
    match stop {
        StopDetail::Text(text) => {
            member("matched", out);
            json::string(out, text);
        }
        StopDetail::Token(id) => {
            member("matched", out);
            json::integer(out, u64::from(*id));
        }
        // The token that ended it is the last one.
        StopDetail::None if *reason == "stop" && choice.silent_end => {
            if let Some(id) = choice.tokens.last() {
                member("matched", out);
                json::integer(out, u64::from(*id));
            }
        }
        StopDetail::None if *reason == "length" => {
            member("length", out);
            json::integer(out, choice.tokens.len() as u64);
        }
        StopDetail::None => {}
    }
    out.push(b'}');
}

impl Writer for Native {
    fn events(&mut self, delta: &ChoiceDelta, usage: &Usage, out: &mut Vec<u8>) {
        if delta.text.is_empty() && delta.tokens.is_empty() && delta.finish.is_none() {
            return;
        }
        let index = delta.index;
        self.known[index].index = index;
        self.known[index].merge(delta.clone());
        out.extend_from_slice(b"data: ");
        self.write(&self.known[index], usage, out);
        if self.shown.is_list {
            // Before the brace that ends the object.
            out.pop();
            member("index", out);
            json::integer(out, index as u64);
            out.push(b'}');
        }
        out.extend_from_slice(b"\n\n");
    }

    fn end(&mut self, _: &Usage, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        Envelope::failed(error, out);
    }

    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>) {
        if self.shown.is_list {
            json::list(out, choices, |out, choice| self.write(choice, usage, out));
        } else {
            self.write(&choices[0], usage, out);
        }
    }
}
