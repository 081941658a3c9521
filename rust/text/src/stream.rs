//! Tokens to text for one request: detokeniser and stop strings composed. This is what the server feeds.
//!
//! Invariant: after any sequence of [`TextStream::push`], the text given out is that of exactly the tokens released so
//! far (cut at a stop string if one was found). A caller that keeps one log-probability entry per token therefore takes
//! [`TextDelta::tokens_released`] entries from the front with each delta, and drops the rest when it stops.

use std::sync::Arc;

use frizzen_core::{Result, TokenId};

use crate::parse::{Format, Setup, StopScope};
use crate::stop::{Piece, StopMatcher, TextDelta};
use crate::{Detokenizer, Tokenizer};

/// What the request asks of its text.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Stop strings; none of them empty.
    pub stop: Vec<String>,
    /// The matched stop string is part of the text.
    pub include_stop_in_output: bool,
    /// Hide special tokens.
    pub skip_special_tokens: bool,
    /// Text of the first so many tokens neither contains nor begins a match.
    pub min_tokens: u32,
    /// The text continues the prompt ([`Detokenizer::continuing`]).
    pub continues_text: bool,
    /// Special tokens that are shown although the others are hidden ([`Format::marker_tokens`]).
    pub shown_special: Arc<[TokenId]>,
    /// Ignore stop strings in the reasoning of a text of this format that is read like this.
    pub stop_outside: Option<(Format, Setup)>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            stop: Vec::new(),
            include_stop_in_output: false,
            skip_special_tokens: true,
            min_tokens: 0,
            continues_text: false,
            shown_special: Arc::default(),
            stop_outside: None,
        }
    }
}

/// The text of one request's output.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    /// Tokens still to come in which stop strings are not searched for.
    unsearched: u32,
}

impl TextStream {
    /// Fails with the field `stop` if a stop string is empty or over the limits.
    pub fn new(tokenizer: Arc<Tokenizer>, options: &StreamOptions) -> Result<Self> {
        let mut matcher = StopMatcher::new(&options.stop, options.include_stop_in_output)?;
        if let Some(scope) =
            options.stop_outside.as_ref().and_then(|(format, setup)| StopScope::new(*format, setup))
        {
            matcher = matcher.within(scope);
        }
        let skip_special = options.skip_special_tokens;
        let detokenizer = if options.continues_text {
            Detokenizer::continuing(tokenizer, skip_special)
        } else {
            Detokenizer::new(tokenizer, skip_special)
        };
        let detokenizer = detokenizer.showing(Arc::clone(&options.shown_special));
        Ok(Self { detokenizer, matcher, unsearched: options.min_tokens })
    }

    /// Takes the tokens of one step and returns the text that may be shown. When a stop string is completed inside the
    /// run, the tokens after the one that completed it are dropped: they are neither shown nor counted.
    pub fn push(&mut self, tokens: &[TokenId]) -> TextDelta {
        let mut delta = TextDelta::default();
        for token in tokens {
            if self.matcher.is_stopped() {
                break;
            }
            let searched = self.unsearched == 0;
            self.unsearched = self.unsearched.saturating_sub(1);
            let (text, aligned) = self.detokenizer.step(*token);
            self.matcher.feed(Piece { text, tokens: 1, aligned, searched }, &mut delta);
        }
        delta
    }

    /// Counts the token that ended the request (an end-of-sequence or stop token) without showing its text.
    pub fn push_hidden(&mut self) -> TextDelta {
        let mut delta = TextDelta::default();
        let aligned = self.detokenizer.is_aligned();
        self.matcher.feed(Piece { text: "", tokens: 1, aligned, searched: false }, &mut delta);
        delta
    }

    /// Releases everything held back: the engine has ended the request. U+FFFD stands for a character that never became
    /// complete. Gives nothing after a stop string, and nothing the second time.
    pub fn finish(&mut self) -> TextDelta {
        let mut delta = TextDelta::default();
        let text = self.detokenizer.finish();
        let searched = self.unsearched == 0;
        self.matcher.feed(Piece { text, tokens: 0, aligned: true, searched }, &mut delta);
        self.matcher.finish(&mut delta);
        delta
    }

    /// True after a stop string was matched.
    pub fn is_stopped(&self) -> bool {
        self.matcher.is_stopped()
    }
}
