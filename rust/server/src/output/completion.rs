//! Completions: text, and the reason in the chunk that brings the last of it.

use crate::error::ApiError;
use crate::json;
use crate::output::delta::{ChoiceDelta, Finish};
use crate::output::logprobs::{self, Offsets};
use crate::output::pieces::Pieces;
use crate::output::prompt::ShownPrompt;
use crate::output::usage::Usage;
use crate::output::writer::{Envelope, Writer, write_ids};

/// Writes completions.
#[derive(Debug)]
pub struct Completion {
    envelope: Envelope,
    pieces: Pieces,
    /// One prompt per group of samples.
    prompts: Vec<ShownPrompt>,
    samples: usize,
    /// Alternatives per token, if they were asked for.
    logprobs: Option<usize>,
    /// Alternatives per prompt token, if they were asked for.
    prompt_logprobs: Option<usize>,
    /// How far each choice's text has come; `None` before its first event.
    offsets: Vec<Option<Offsets>>,
}

impl Completion {
    /// A writer for `samples` choices per prompt.
    pub fn new(
        envelope: Envelope,
        pieces: Pieces,
        prompts: Vec<ShownPrompt>,
        samples: usize,
        logprobs: Option<usize>,
        prompt_logprobs: Option<usize>,
    ) -> Self {
        let offsets = vec![None; prompts.len() * samples];
        Self { envelope, pieces, prompts, samples, logprobs, prompt_logprobs, offsets }
    }

    fn prompt(&self, choice: usize) -> &ShownPrompt {
        &self.prompts[choice / self.samples]
    }

    /// The members of a choice after its index. `first` is true if nothing of the choice was shown before.
    fn write_choice(&self, delta: &ChoiceDelta, offsets: &mut Offsets, first: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"text\":");
        match &delta.echo {
            Some(echo) => json::string(out, &format!("{}{}", echo.text, delta.text)),
            None => json::string(out, &delta.text),
        }
        out.extend_from_slice(b",\"logprobs\":");
        match self.logprobs {
            Some(top) if logprobs::has_any(delta) => {
                logprobs::completion(&self.pieces, delta, top, offsets, out);
            }
            _ => out.extend_from_slice(b"null"),
        }
        if self.envelope.shown().token_ids {
            write_ids("token_ids", &delta.tokens, out);
        }
        if first {
            self.prompt(delta.index).write(out);
        }
        Finish::write(delta.finish.as_ref(), out);
    }
}

impl Writer for Completion {
    fn events(&mut self, delta: &ChoiceDelta, usage: &Usage, out: &mut Vec<u8>) {
        let shows_tokens =
            !delta.tokens.is_empty() && (self.logprobs.is_some() || self.envelope.shown().token_ids);
        if delta.text.is_empty() && delta.echo.is_none() && delta.finish.is_none() && !shows_tokens {
            return;
        }
        let index = delta.index;
        let first = self.offsets[index].is_none();
        let mut offsets = self.offsets[index].take().unwrap_or_default();
        self.envelope
            .event(index, usage, None, out, |out| self.write_choice(delta, &mut offsets, first, out));
        self.offsets[index] = Some(offsets);
    }

    fn end(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        self.envelope.end(usage, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        Envelope::failed(error, out);
    }

    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>) {
        let choice = |out: &mut Vec<u8>, delta: &ChoiceDelta| {
            self.write_choice(delta, &mut Offsets::default(), true, out);
            if let Some(top) = self.prompt_logprobs {
                out.extend_from_slice(b",\"prompt_logprobs\":");
                logprobs::prompt(
                    &self.pieces,
                    &self.prompt(delta.index).tokens,
                    &delta.prompt_logprobs,
                    top,
                    out,
                );
            }
        };
        self.envelope.answer(choices, usage, out, choice, |_| {});
    }
}
