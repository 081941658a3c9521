//! How formats write calls, for whoever makes a grammar of it. Each format's own parser reads what its syntax writes,
//! and a test replays one through the other.

use std::sync::Arc;

use frizzen_core::{Marker, ReasoningMarkers, TokenId};

use crate::Tokenizer;

use super::registry::{Format, ToolFormat};

/// The texts around the calls of a message, around a call's name, and around its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSyntax {
    /// Before the first call.
    pub open: &'static str,
    /// After the last one.
    pub close: &'static str,
    /// Between two calls; `None` if a message has one.
    pub separator: Option<&'static str>,
    /// Before the function's name.
    pub before_name: &'static str,
    /// After the name, before a number that the model counts up.
    pub number: Option<&'static str>,
    /// After the name or its number, before the arguments.
    pub after_name: &'static str,
    /// The arguments.
    pub arguments: ArgumentSyntax,
    /// After the arguments.
    pub end: &'static str,
    /// Where this stands in a text, calls begin. `None` if only the place tells them from content.
    pub trigger: Option<&'static str>,
}

/// How arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentSyntax {
    /// As one JSON object.
    Json,
    /// One after the other.
    Each(EachSyntax),
}

/// The texts around one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EachSyntax {
    /// Before the key.
    pub before_key: &'static str,
    /// After the key, where a value follows as JSON.
    pub before_json: &'static str,
    /// After the key, where a string follows as it is; `None` if strings are JSON too.
    pub before_text: Option<&'static str>,
    /// Ends a value, and cannot stand in a string.
    pub value_end: &'static str,
    /// Stands between a value and its end, and belongs to neither.
    pub frame: &'static str,
    /// After the end of a value.
    pub after_value: &'static str,
    /// Between two arguments.
    pub separator: &'static str,
}

impl CallSyntax {
    /// Calls without anything around them, each on a line, with JSON arguments.
    pub(super) const DEFAULT: Self = Self {
        open: "",
        close: "",
        separator: Some("\n"),
        before_name: "",
        number: None,
        after_name: "",
        arguments: ArgumentSyntax::Json,
        end: "",
        trigger: None,
    };
}

impl ToolFormat {
    /// How the model of this tokenizer writes calls: a family may have changed its form with its vocabulary.
    pub fn syntax(&self, tokenizer: &Tokenizer) -> CallSyntax {
        (self.syntax)(&|token| tokenizer.token_id(token).is_some())
    }
}

impl Format {
    /// The markers of reasoning as machines over the tokens of `tokenizer`. `None` without reasoning between tags.
    pub fn reasoning_markers(&self, tokenizer: &Tokenizer) -> Option<Arc<ReasoningMarkers>> {
        let (open, close) = self.reasoning?.tags()?;
        let vocabulary = (0..tokenizer.vocab_size()).map(|id| (id, tokenizer.token_bytes(id)));
        let spelled = |text: &str| -> Option<Arc<[TokenId]>> {
            tokenizer.token_id(text).map_or_else(
                || tokenizer.encode(text, false).ok().map(Into::into),
                |token| Some([token].into()),
            )
        };
        let close_tokens = spelled(close).filter(|tokens| !tokens.is_empty())?;
        let end = Marker::of_text(close, vocabulary);
        Some(Arc::new(ReasoningMarkers { begin: spelled(open), end, close: close_tokens }))
    }

    /// True if reasoning is a channel among others, with an end of its own for each message.
    pub fn has_channels(&self) -> bool {
        self.is_harmony()
    }
}
