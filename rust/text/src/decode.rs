//! Incremental detokenisation.
//!
//! Invariants (each is a property test):
//!
//! * the deltas of [`Detokenizer::push`] and [`Detokenizer::finish`], joined, equal
//!   [`Tokenizer::decode`](crate::Tokenizer::decode) of all the ids, whatever the ids;
//! * an incomplete UTF-8 sequence is held back until it is complete, found invalid, or the text ends: never half a
//!   character, never a U+FFFD that later bytes would have avoided;
//! * the work per token is in proportion to its own bytes: nothing is decoded twice;
//! * only pushed tokens are shown: the prompt is never part of the text.

use std::sync::Arc;

use frizzen_core::TokenId;

use crate::Tokenizer;
use crate::tokenizer::{Lead, TokenTable};

/// Bytes to text with the lossy rule of `String::from_utf8_lossy`, across any splits.
#[derive(Debug, Default)]
struct Utf8Stream {
    /// A prefix of a valid sequence, so at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            let incomplete = push_lossy(bytes, out);
            self.pending.extend_from_slice(&bytes[bytes.len() - incomplete..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let incomplete = push_lossy(&self.pending, out);
            self.pending.drain(..self.pending.len() - incomplete);
        }
    }

    fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends the text of `bytes`, with U+FFFD for each invalid sequence. Returns the length of an incomplete sequence at
/// the end, which is not part of the text.
fn push_lossy(bytes: &[u8], out: &mut String) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(text) => {
                out.push_str(text);
                return 0;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                out.push_str(std::str::from_utf8(valid).expect("valid_up_to ends a valid prefix"));
                let Some(invalid) = error.error_len() else { return after.len() };
                out.push(char::REPLACEMENT_CHARACTER);
                rest = &after[invalid..];
            }
        }
    }
}

/// Token bytes to text: the lead rule, then UTF-8.
#[derive(Debug)]
pub(crate) struct Decoder {
    lead: Lead,
    utf8: Utf8Stream,
}

impl Decoder {
    pub(crate) fn new(lead: Lead) -> Self {
        Self { lead, utf8: Utf8Stream::default() }
    }

    /// Appends the text that `id` completes.
    pub(crate) fn push(&mut self, table: &TokenTable, id: TokenId, out: &mut String) {
        match self.lead {
            Lead::Keep => self.utf8.push(table.bytes(id), out),
            Lead::FirstToken => {
                self.utf8.push(table.first_bytes(id), out);
                if table.has_token(id) {
                    self.lead = Lead::Keep;
                }
            }
            Lead::Strip { content, count } => {
                let start = out.len();
                self.utf8.push(table.bytes(id), out);
                self.strip(content, count, start, out);
            }
        }
    }

    /// Drops what is left to drop from `out[start..]`, the next characters of the text.
    fn strip(&mut self, content: char, count: usize, start: usize, out: &mut String) {
        let drop = out[start..].chars().take(count).take_while(|c| *c == content).count();
        out.replace_range(start..start + drop * content.len_utf8(), "");
        self.lead = if out.len() > start || drop == count {
            Lead::Keep
        } else {
            Lead::Strip { content, count: count - drop }
        };
    }

    /// Bytes that wait for the rest of their character.
    pub(crate) fn pending(&self) -> usize {
        self.utf8.pending.len()
    }

    pub(crate) fn finish(&mut self, out: &mut String) {
        self.utf8.finish(out);
    }
}

/// Text of one request, token by token.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// Special tokens that are shown although the others are hidden.
    shown: Arc<[TokenId]>,
    decoder: Decoder,
    delta: String,
}

impl Detokenizer {
    /// Text as [`Tokenizer::decode`] gives it, at the start of a text: a chat answer.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let lead = tokenizer.table().lead();
        Self::with_lead(tokenizer, skip_special, lead)
    }

    /// Text that continues another one: a completion of a prompt. The rule for the beginning of a text does not apply,
    /// so a first token `▁there` is ` there`. It differs from [`Detokenizer::new`] only for tokenizers with such a rule.
    pub fn continuing(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self::with_lead(tokenizer, skip_special, Lead::Keep)
    }

    fn with_lead(tokenizer: Arc<Tokenizer>, skip_special: bool, lead: Lead) -> Self {
        let shown = Arc::default();
        Self { tokenizer, skip_special, shown, decoder: Decoder::new(lead), delta: String::new() }
    }

    /// Shows these special tokens although the others are hidden: markers that a parser must see.
    #[must_use]
    pub fn showing(mut self, shown: Arc<[TokenId]>) -> Self {
        self.shown = shown;
        self
    }

    /// The text that `token` completes; empty while a character is incomplete and for hidden special tokens.
    pub fn push(&mut self, token: TokenId) -> &str {
        self.step(token).0
    }

    /// [`push`](Self::push), and then [`is_aligned`](Self::is_aligned).
    pub(crate) fn step(&mut self, token: TokenId) -> (&str, bool) {
        self.delta.clear();
        let hidden = self.skip_special && self.tokenizer.is_special(token) && !self.shown.contains(&token);
        if !hidden {
            self.decoder.push(self.tokenizer.table(), token, &mut self.delta);
        }
        (&self.delta, self.decoder.pending() == 0)
    }

    /// True if all pushed bytes have become text: the text so far is that of exactly the tokens so far.
    pub fn is_aligned(&self) -> bool {
        self.decoder.pending() == 0
    }

    /// The text that was still held back: U+FFFD for a character that never became complete. Idempotent.
    pub fn finish(&mut self) -> &str {
        self.delta.clear();
        self.decoder.finish(&mut self.delta);
        &self.delta
    }
}
