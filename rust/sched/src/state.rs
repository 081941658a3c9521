//! What the scheduler knows about one request.

use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{BlockId, Request, RequestId, RowId, TokenId};

use crate::constrained::Constrained;
use crate::pool::BlockHash;

/// A request from arrival to end. It is waiting iff it has no row.
#[derive(Debug)]
pub(crate) struct State {
    pub id: RequestId,
    pub request: Arc<Request>,
    pub seed: u64,
    /// Ids that end the request; none of them is sampled before `min_tokens`.
    pub stops: Arc<[TokenId]>,
    /// How many of `stops`, at the front, are the model's end-of-sequence ids.
    pub num_eos: usize,
    /// Order of arrival; a preempted request keeps it, so it returns to the front of its class.
    pub arrival: u64,
    /// Prompt, then outputs.
    pub tokens: Vec<TokenId>,
    /// The request's constraint, moved past its outputs.
    pub constrained: Option<Constrained>,
    /// Drafts to verify in the next step.
    pub drafts: Vec<TokenId>,
    /// Length at which the request ends: prompt plus `max_tokens`, within the context.
    pub max_total: u32,
    /// Tokens whose KV exists once every submitted step has run; drafts included.
    pub computed: u32,
    /// Submitted steps that will return a token for this request; each stands for one unknown token.
    pub placeholders: u32,
    /// Drafts in submitted steps. While there are any, the length after those steps is unknown.
    pub drafts_in_flight: u32,
    pub row: Option<RowId>,
    pub epoch: u32,
    pub blocks: Vec<BlockId>,
    /// Hash of each full block of `tokens`, as far as they were needed.
    pub hashes: Vec<BlockHash>,
    /// Leading blocks that the pool has been told the hash of.
    pub published: usize,
    /// Prompt tokens taken from the cache at the first admission; `None` before it.
    pub cached: Option<u32>,
    /// It has not sampled since it got its row, or has none.
    pub prefills: bool,
    /// Prompt positions scored so far.
    pub prompt_scored: u32,
    /// Leading tokens whose vectors have been handed out.
    pub vectors_sent: u32,
    pub timing: Times,
}

/// When things happened first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub queued: Duration,
    pub scheduled: Option<Duration>,
    pub first_token: Option<Duration>,
    pub last_token: Option<Duration>,
    pub preemptions: u32,
    pub lost_to_prefill: Duration,
}

impl State {
    pub fn prompt_len(&self) -> u32 {
        self.request.prompt.len() as u32
    }

    /// True if the result is a vector.
    pub fn pools(&self) -> bool {
        self.request.pooling.is_some()
    }

    /// True if the result is a vector of every token.
    pub fn pools_tokens(&self) -> bool {
        self.request.pooling.is_some_and(|pooling| pooling.per_token)
    }

    pub fn num_outputs(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt_len()
    }

    /// Tokens there are once every submitted step has returned, drafts not counted.
    pub fn known(&self) -> u32 {
        self.tokens.len() as u32 + self.placeholders
    }

    /// True once the first output token has been sampled or is being sampled.
    pub fn is_decoding(&self) -> bool {
        self.known() > self.prompt_len()
    }

    /// Drafts that may be verified now: none while others are in flight, and none that could pass the end.
    pub fn usable_drafts(&self) -> u32 {
        // Tokens without KV, beside the last one, come first: the prompt's, or what a constraint has forced.
        if self.placeholders > 0 || self.drafts_in_flight > 0 || self.computed + 1 < self.known() {
            return 0;
        }
        let room = self.max_total.saturating_sub(self.known() + 1);
        (self.drafts.len() as u32).min(room)
    }

    /// Tokens that a step without limits would compute for this request.
    pub fn wanted(&self) -> u32 {
        // Without the first test a step could be planned past `max_tokens` (vLLM #27922); without the second its
        // positions would be guesses.
        if self.known() >= self.max_total || self.drafts_in_flight > 0 {
            return 0;
        }
        // The mask of the next token depends on the one in flight.
        if self.constrained.is_some() && self.placeholders > 0 {
            return 0;
        }
        self.known() + self.usable_drafts() - self.computed
    }

    /// Key of the admission order: smaller is served first; the largest is preempted first.
    pub fn order(&self, by_priority: bool) -> (i32, u64) {
        (if by_priority { self.request.priority } else { 0 }, self.arrival)
    }
}
