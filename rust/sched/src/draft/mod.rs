//! Drafters: those that need no model propose what followed the same tokens before, [`Proposed`] hands on what a model
//! in the worker proposed.
//!
//! A drafter follows each request's text by being told its tokens once, in order. What it proposes can only cost or
//! save time: every draft is verified. No threads, no clock; equal histories give equal proposals.

mod corpus;
mod ngram;
mod proposed;
mod suffix;

pub use ngram::{Ngram, NgramConfig};
pub use proposed::Proposed;
pub use suffix::{Suffix, SuffixConfig};

use std::fmt::Debug;

use frizzen_core::{RequestId, TokenId};

use crate::plan::{Proposals, StepPlan};

/// What speaks for a proposal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// It follows a match of this many tokens; 0 is none.
    Match(u32),
    /// A model made it.
    #[default]
    Model,
}

/// Proposes the next tokens of requests.
pub trait Drafter: Debug + Send {
    /// The name that selects it.
    fn name(&self) -> &'static str;

    /// Begins to follow a request. Only if `shared` may its output serve other requests, and theirs it.
    fn start(&mut self, request: RequestId, prompt: &[TokenId], shared: bool);

    /// Appends tokens to the text of a request; one that was never started is ignored.
    fn observe(&mut self, request: RequestId, tokens: &[TokenId]);

    /// Writes at most `k` drafts to `drafts` (emptied first). Returns what speaks for them.
    fn propose(&mut self, request: RequestId, k: usize, drafts: &mut Vec<TokenId>) -> Evidence;

    /// The estimated chance of each draft of the last proposal for a request, given those before it; empty if there is no
    /// estimate.
    fn confidences(&self, _request: RequestId) -> &[f32] {
        &[]
    }

    /// Takes over what the worker proposed after it sampled `plan`.
    fn receive(&mut self, _plan: &StepPlan, _proposals: &Proposals) {}

    /// The request has ended.
    fn finish(&mut self, request: RequestId);
}
