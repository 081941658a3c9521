//! What became known about one choice.

use std::sync::Arc;

use frizzen_core::{TokenId, TokenLogprobs};

use crate::json;

/// What made a choice stop, as `stop_reason` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StopDetail {
    /// The model's end-of-sequence token, or no stop at all: `null`.
    #[default]
    None,
    /// One of `stop_token_ids`.
    Token(TokenId),
    /// One of the stop strings.
    Text(String),
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// `stop`, `length` or `abort`.
    pub reason: &'static str,
    /// What made it stop.
    pub stop: StopDetail,
}

impl Finish {
    /// The model ended its text, by its own token or by one of the request's.
    pub(crate) const fn is_by_the_model(&self) -> bool {
        matches!(self.reason.as_bytes(), b"stop") && !matches!(self.stop, StopDetail::Text(_))
    }

    /// Appends the members `finish_reason` and `stop_reason`.
    pub(crate) fn write(finish: Option<&Self>, out: &mut Vec<u8>) {
        let Some(finish) = finish else {
            out.extend_from_slice(b",\"finish_reason\":null");
            return;
        };
        out.extend_from_slice(b",\"finish_reason\":");
        json::string(out, finish.reason);
        out.extend_from_slice(b",\"stop_reason\":");
        match &finish.stop {
            StopDetail::None => out.extend_from_slice(b"null"),
            StopDetail::Token(id) => json::integer(out, u64::from(*id)),
            StopDetail::Text(text) => json::string(out, text),
        }
    }
}

/// The prompt, for a choice that repeats it.
#[derive(Clone, Debug, PartialEq)]
pub struct Echo {
    /// Its text.
    pub text: Arc<str>,
    /// Its ids.
    pub tokens: Arc<[TokenId]>,
}

/// What became known about one choice since its last delta. The text, the tokens and the log-probabilities of one
/// delta belong together: a token is released with the text that it completes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChoiceDelta {
    /// Index of the choice.
    pub index: usize,
    /// New text.
    pub text: String,
    /// New tokens.
    pub tokens: Vec<TokenId>,
    /// One entry per token of `tokens` if they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// True if the last one of `tokens` ended the choice and stands for no text.
    pub silent_end: bool,
    /// The prompt, in the first delta with tokens of a choice that repeats it.
    pub echo: Option<Echo>,
    /// Entry `i` is about prompt token `i + 1`; all of them in the first delta with tokens, if they were asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// In the last delta.
    pub finish: Option<Finish>,
}

impl ChoiceDelta {
    /// Appends a later delta of the same choice.
    pub fn merge(&mut self, later: Self) {
        self.text.push_str(&later.text);
        self.tokens.extend(later.tokens);
        self.logprobs.extend(later.logprobs);
        self.silent_end = later.silent_end;
        self.echo = self.echo.take().or(later.echo);
        self.prompt_logprobs.extend(later.prompt_logprobs);
        self.finish = later.finish.or(self.finish.take());
    }
}
