//! Chat completions: role, content, finish, usage.
//!
//! The order is fixed by construction: a choice's role chunk comes with its first delta, so not before its first
//! token; then what the choice's [`Reader`] makes of its text; then one chunk with an empty delta and the reason.

use frizzen_text::parse::{Delta, Message};

use crate::error::ApiError;
use crate::output::delta::{ChoiceDelta, Finish};
use crate::output::logprobs;
use crate::output::message::{Parts, Reader, Shape};
use crate::output::pieces::Pieces;
use crate::output::prompt::ShownPrompt;
use crate::output::usage::Usage;
use crate::output::writer::{Envelope, Writer, write_ids};

/// Writes chat completions.
#[derive(Debug)]
pub struct Chat {
    envelope: Envelope,
    pieces: Pieces,
    prompt: ShownPrompt,
    /// Alternatives per token, if they were asked for.
    logprobs: Option<usize>,
    /// Alternatives per prompt token, if they were asked for.
    prompt_logprobs: Option<usize>,
    choices: Vec<Choice>,
    shape: Shape,
}

#[derive(Debug)]
struct Choice {
    reader: Reader,
    /// Its role was sent.
    begun: bool,
}

impl Chat {
    /// A writer for as many choices as there are readers.
    pub fn new(
        envelope: Envelope,
        pieces: Pieces,
        prompt: ShownPrompt,
        logprobs: Option<usize>,
        prompt_logprobs: Option<usize>,
        readers: Vec<Reader>,
        shape: Shape,
    ) -> Self {
        let choices = readers.into_iter().map(|reader| Choice { reader, begun: false }).collect();
        Self { envelope, pieces, prompt, logprobs, prompt_logprobs, choices, shape }
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
        let first = !self.choices.iter().any(|choice| choice.begun);
        if std::mem::replace(&mut self.choices[index].begun, true) {
            return;
        }
        let prompt = Some(&self.prompt).filter(|prompt| first && prompt.is_shown());
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
        // Tokens without text are shown beside none.
        let bare = shows_tokens && delta.finish.is_none();
        let parts = self.choices[delta.index].reader.parts(delta);
        let reader = &self.choices[delta.index].reader;
        // The tokens of a delta are shown once, with whatever comes first.
        let mut tokens = true;
        let mut members = |out: &mut Vec<u8>, finish: Option<&Finish>| {
            if std::mem::take(&mut tokens) {
                self.write_token_members(delta, out);
            } else {
                out.extend_from_slice(b",\"logprobs\":null");
            }
            Finish::write(finish, out);
        };
        let mut event = |out: &mut Vec<u8>, write: &dyn Fn(&mut Vec<u8>)| {
            self.envelope.event(delta.index, usage, None, out, |out| {
                out.extend_from_slice(b",\"delta\":{");
                write(out);
                out.push(b'}');
                members(out, None);
            });
        };
        match &parts {
            Parts::Content if delta.text.is_empty() && !bare => {}
            Parts::Content => event(out, &|out| Reader::write_content(&delta.text, out)),
            Parts::Read(parts) => {
                let shown = || parts.iter().filter(|part| !matches!(part, Delta::CallEnd { .. }));
                shown().for_each(|part| event(out, &|out| reader.write_delta(part, out)));
                if bare && shown().next().is_none() {
                    event(out, &|out| Reader::write_content("", out));
                }
            }
        }
        if let Some(finish) = &delta.finish {
            let finish = Finish { reason: reader.finish_reason(finish.reason), ..finish.clone() };
            self.envelope.event(delta.index, usage, None, out, |out| {
                out.extend_from_slice(b",\"delta\":{}");
                members(out, Some(&finish));
            });
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        self.envelope.end(usage, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        Envelope::failed(error, out);
    }

    fn answer(&mut self, choices: &[ChoiceDelta], usage: &Usage, out: &mut Vec<u8>) {
        let read = |delta: &ChoiceDelta, choice: &mut Choice| {
            let mut message = Message::default();
            choice.reader.read(delta).into_iter().for_each(|part| message.apply(part));
            message
        };
        let messages: Vec<Message> =
            choices.iter().zip(&mut self.choices).map(|(delta, choice)| read(delta, choice)).collect();
        let choice = |out: &mut Vec<u8>, delta: &ChoiceDelta| {
            out.extend_from_slice(b",\"message\":");
            self.shape.write_message(&messages[delta.index], out);
            self.write_token_members(delta, out);
            let reader = &self.choices[delta.index].reader;
            let finish = delta.finish.clone();
            let finish =
                finish.map(|finish| Finish { reason: reader.finish_reason(finish.reason), ..finish });
            Finish::write(finish.as_ref(), out);
        };
        self.envelope.answer(choices, usage, out, choice, |out| {
            if let (Some(top), Some(first)) = (self.prompt_logprobs, choices.first()) {
                out.extend_from_slice(b",\"prompt_logprobs\":");
                logprobs::prompt(&self.pieces, &self.prompt.tokens, &first.prompt_logprobs, top, out);
            }
            self.prompt.write(out);
        });
    }
}
