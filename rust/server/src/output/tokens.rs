//! Token in, token out: ids and log-probabilities, no text.

use std::sync::Arc;

use frizzen_core::TokenId;

use crate::error::ApiError;
use crate::output::delta::{ChoiceDelta, Finish};
use crate::output::logprobs;
use crate::output::pieces::Pieces;
use crate::output::usage::Usage;
use crate::output::writer::{Envelope, Writer, write_ids};

/// Writes ids.
#[derive(Debug)]
pub struct Tokens {
    envelope: Envelope,
    pieces: Pieces,
    prompt: Arc<[TokenId]>,
    /// Alternatives per token, if they were asked for.
    logprobs: Option<usize>,
    /// Alternatives per prompt token, if they were asked for.
    prompt_logprobs: Option<usize>,
}

impl Tokens {
    /// A writer.
    pub const fn new(
        envelope: Envelope,
        pieces: Pieces,
        prompt: Arc<[TokenId]>,
        logprobs: Option<usize>,
        prompt_logprobs: Option<usize>,
    ) -> Self {
        Self { envelope, pieces, prompt, logprobs, prompt_logprobs }
    }

    fn write_choice(&self, delta: &ChoiceDelta, out: &mut Vec<u8>) {
        write_ids("token_ids", &delta.tokens, out);
        out.extend_from_slice(b",\"logprobs\":");
        match self.logprobs.filter(|_| !delta.logprobs.is_empty()) {
            Some(top) => logprobs::chat(&self.pieces, delta, top, out),
            None => out.extend_from_slice(b"null"),
        }
        Finish::write(delta.finish.as_ref(), out);
    }
}

impl Writer for Tokens {
    fn events(&mut self, delta: &ChoiceDelta, usage: &Usage, out: &mut Vec<u8>) {
        if !delta.tokens.is_empty() || delta.finish.is_some() {
            self.envelope.event(delta.index, usage, None, out, |out| self.write_choice(delta, out));
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        self.envelope.end(usage, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        Envelope::failed(error, out);
    }

    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>) {
        let choice = |out: &mut Vec<u8>, delta: &ChoiceDelta| self.write_choice(delta, out);
        self.envelope.answer(choices, usage, out, choice, |out| {
            out.extend_from_slice(b",\"prompt_logprobs\":");
            match (self.prompt_logprobs, choices.first()) {
                (Some(top), Some(first)) => {
                    logprobs::prompt(&self.pieces, &self.prompt, &first.prompt_logprobs, top, out);
                }
                _ => out.extend_from_slice(b"null"),
            }
        });
    }
}
