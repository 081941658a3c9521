//! Chat completions: role, content, finish, usage.
//!
//! The order is fixed by construction: a choice's role chunk comes with its first delta, so not before its first
//! token; then content; then one chunk with an empty delta and the reason.

use std::sync::Arc;

use frizzen_core::TokenId;

use crate::json;
use crate::output::delta::{ChoiceDelta, Finish};
use crate::output::logprobs;
use crate::output::pieces::Pieces;
use crate::output::usage::Usage;
use crate::output::writer::{Envelope, Writer, write_ids};

/// Writes chat completions.
#[derive(Debug)]
pub struct Chat {
    envelope: Envelope,
    pieces: Pieces,
    prompt: Arc<[TokenId]>,
    /// Alternatives per token, if they were asked for.
    logprobs: Option<usize>,
    /// Alternatives per prompt token, if they were asked for.
    prompt_logprobs: Option<usize>,
    /// Whether each choice's role was sent.
    begun: Vec<bool>,
}

impl Chat {
    /// A writer for `choices` choices.
    pub fn new(
        envelope: Envelope,
        pieces: Pieces,
        prompt: Arc<[TokenId]>,
        logprobs: Option<usize>,
        prompt_logprobs: Option<usize>,
        choices: usize,
    ) -> Self {
        Self { envelope, pieces, prompt, logprobs, prompt_logprobs, begun: vec![false; choices] }
    }

    fn write_logprobs(&self, delta: &ChoiceDelta, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"logprobs\":");
        match self.logprobs.filter(|_| !delta.logprobs.is_empty()) {
            Some(top) => logprobs::chat(&self.pieces, delta, top, out),
            None => out.extend_from_slice(b"null"),
        }
    }

    /// What goes with the tokens of a delta beside their text.
    fn write_token_members(&self, delta: &ChoiceDelta, out: &mut Vec<u8>) {
        self.write_logprobs(delta, out);
        if self.envelope.shown().token_ids {
            write_ids("token_ids", &delta.tokens, out);
        }
    }

    fn begin(&mut self, index: usize, usage: &Usage, out: &mut Vec<u8>) {
        let first = !self.begun.contains(&true);
        if std::mem::replace(&mut self.begun[index], true) {
            return;
        }
        let prompt = (first && self.envelope.shown().token_ids).then_some(&*self.prompt);
        let role =
            b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null";
        self.envelope.event(index, usage, prompt, out, |out| out.extend_from_slice(role));
    }
}

impl Writer for Chat {
    fn events(&mut self, delta: &ChoiceDelta, usage: &Usage, out: &mut Vec<u8>) {
        self.begin(delta.index, usage, out);
        let shows_tokens =
            !delta.tokens.is_empty() && (self.logprobs.is_some() || self.envelope.shown().token_ids);
        let content = !delta.text.is_empty() || (shows_tokens && delta.finish.is_none());
        if content {
            self.envelope.event(delta.index, usage, None, out, |out| {
                out.extend_from_slice(b",\"delta\":{\"content\":");
                json::string(out, &delta.text);
                out.push(b'}');
                self.write_token_members(delta, out);
                Finish::write(None, out);
            });
        }
        if delta.finish.is_some() {
            self.envelope.event(delta.index, usage, None, out, |out| {
                out.extend_from_slice(b",\"delta\":{}");
                if content {
                    out.extend_from_slice(b",\"logprobs\":null");
                } else {
                    self.write_token_members(delta, out);
                }
                Finish::write(delta.finish.as_ref(), out);
            });
        }
    }

    fn usage_event(&self, usage: &Usage, out: &mut Vec<u8>) {
        self.envelope.usage_event(usage, out);
    }

    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>) {
        let choice = |out: &mut Vec<u8>, delta: &ChoiceDelta| {
            out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
            json::string(out, &delta.text);
            out.extend_from_slice(b",\"refusal\":null}");
            self.write_token_members(delta, out);
            Finish::write(delta.finish.as_ref(), out);
        };
        self.envelope.answer(choices, usage, out, choice, |out| {
            if let (Some(top), Some(first)) = (self.prompt_logprobs, choices.first()) {
                out.extend_from_slice(b",\"prompt_logprobs\":");
                logprobs::prompt(&self.pieces, &self.prompt, &first.prompt_logprobs, top, out);
            }
            if self.envelope.shown().token_ids {
                write_ids("prompt_token_ids", &self.prompt, out);
            }
        });
    }
}
