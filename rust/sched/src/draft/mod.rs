//! Drafters that need no model: they propose what followed the same tokens before.
//!
//! A drafter follows each request's text by being told its tokens once, in order. What it proposes can only cost or
//! save time: every draft is verified. No threads, no clock; equal histories give equal proposals.

mod corpus;
mod ngram;
mod suffix;

pub use ngram::{Ngram, NgramConfig};
pub use suffix::{Suffix, SuffixConfig};

use std::fmt::Debug;

use frizzen_core::{RequestId, TokenId};

/// Proposes the next tokens of requests.
pub trait Drafter: Debug + Send {
    /// The name that selects it.
    fn name(&self) -> &'static str;

    /// Begins to follow a request. Only if `shared` may its output serve other requests, and theirs it.
    fn start(&mut self, request: RequestId, prompt: &[TokenId], shared: bool);

    /// Appends tokens to the text of a request; one that was never started is ignored.
    fn observe(&mut self, request: RequestId, tokens: &[TokenId]);

    /// Writes at most `k` drafts to `drafts` (emptied first). Returns the length of the match that they follow; 0 if
    /// there is none.
    fn propose(&mut self, request: RequestId, k: usize, drafts: &mut Vec<TokenId>) -> u32;

    /// The request has ended.
    fn finish(&mut self, request: RequestId);
}
