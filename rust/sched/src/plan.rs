//! The step: what the scheduler asks of a worker, and what comes back.
//!
//! Both are structures of arrays that are reused from step to step, so that a steady decode allocates nothing.
//! `T` is the number of tokens of the step, `B` the number of its rows, `S` the number of sampled positions.

use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{BlockId, Request, RequestId, RowId, StepId, TokenId};

/// Stands in `input_ids` for a token that only the worker knows yet: the one it sampled last for that row.
pub const LAST_SAMPLED: i32 = -1;

/// One request's share of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedRow {
    /// The request that this row belongs to.
    pub request: RequestId,
    /// Its slot in the worker's persistent batch.
    pub row: RowId,
    /// Grows whenever the request loses its row; an output of an older epoch is dropped.
    pub epoch: u32,
    /// Tokens of the request whose KV exists before this step.
    pub start: u32,
    /// Tokens of this step, drafts included; at least 1.
    pub num_tokens: u32,
    /// How many of them, at the end, are drafts to be verified.
    pub num_drafts: u32,
    /// False for a prefill chunk that does not reach the last known token: nothing is sampled. A request that pools has its
    /// result where another would sample.
    pub samples: bool,
    /// The token after the row's last one, if it is known already (`samples` is false), else -1.
    pub next_token: i32,
    /// True until the request first samples after it got its row: what it computes is its prompt, or what it lost by a
    /// preemption.
    pub prefills: bool,
    /// How many of its tokens, the last ones, are to have a vector each.
    pub num_vectors: u32,
}

/// A request that takes a row in this step, for the first time or after a preemption.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The row it takes.
    pub row: RowId,
    /// Its prompt and sampling parameters.
    pub request: Arc<Request>,
    /// Seed of its random draws.
    pub seed: u64,
    /// Tokens that no sampling may return before `min_tokens`: the model's end-of-sequence ids and the request's stop ids.
    pub suppressed: Arc<[TokenId]>,
    /// Tokens generated before a preemption; empty on a first admission.
    pub outputs: Vec<TokenId>,
}

impl Admission {
    /// Tokens of history that the worker needs: all of them if a penalty is on, else none.
    pub fn num_history(&self) -> usize {
        if self.request.params.needs_history() { self.request.prompt.len() + self.outputs.len() } else { 0 }
    }

    /// Token rules that the worker needs.
    pub fn num_rules(&self) -> usize {
        let params = &self.request.params;
        let suppressed = if params.min_tokens > 0 { self.suppressed.len() } else { 0 };
        let allowed = params.allowed_token_ids.as_ref().map_or(0, Vec::len);
        params.logit_bias.len() + allowed + suppressed + params.logprob_token_ids.len()
    }
}

/// One new entry of the worker's block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDelta {
    /// Row of the table.
    pub row: RowId,
    /// Column: the block's ordinal within the request.
    pub column: u32,
    /// The block that stands there from now on.
    pub block: BlockId,
}

/// A prompt position whose log-probabilities were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptPosition {
    /// Index into the step's tokens of the position whose logits judge the target.
    pub token: u32,
    /// Index into the step's rows.
    pub row: u32,
    /// The prompt token that follows.
    pub target: TokenId,
    /// How many alternatives were asked for.
    pub alternatives: u32,
}

/// A row whose sampled tokens' log-probabilities were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredRow {
    /// Index into the step's rows.
    pub row: u32,
    /// How many of the most likely tokens.
    pub best: u32,
    /// How many tokens of its own choice, which follow those; one that is among them stands there only.
    pub listed: u32,
}

/// One step, in the order in which the worker lays it out: rows of one token first, then the longer ones.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Number of the step.
    pub step: StepId,
    /// `[B]` the rows.
    pub rows: Vec<PlannedRow>,
    /// How many of them, at the front, have exactly one token.
    pub num_single: usize,
    /// `[T]` token ids, or [`LAST_SAMPLED`].
    pub input_ids: Vec<i32>,
    /// `[T]` positions within the request.
    pub positions: Vec<i32>,
    /// `[T]` where the KV of each token goes: block times block size plus offset.
    pub slots: Vec<i64>,
    /// `[S]` index into the tokens of each position whose logits are sampled; rows in order, `num_drafts + 1` each.
    pub sample_tokens: Vec<i32>,
    /// `[S]` index into the rows.
    pub sample_rows: Vec<i32>,
    /// `[S]` a uniform draw in `[0, 1)` from (seed, position): the worker needs no random generator.
    pub uniforms: Vec<f64>,
    /// Rows that sample and want log-probabilities.
    pub logprob_rows: Vec<ScoredRow>,
    /// Sampled positions, by index into `sample_tokens`, whose choice is restricted; ascending.
    pub mask_rows: Vec<u32>,
    /// `[mask_rows, words]` which tokens each of them may choose, bit `id % 32` of word `id / 32`. Empty until
    /// [`Scheduler::fill_masks`](crate::Scheduler::fill_masks), which may run while the model does.
    pub masks: Vec<u32>,
    /// Prompt positions to score.
    pub prompt_positions: Vec<PromptPosition>,
    /// Requests that take a row in this step.
    pub admissions: Vec<Admission>,
    /// Changes of the block table, to be applied before the step.
    pub blocks: Vec<BlockDelta>,
    /// The most drafts per row that the worker's drafter is to propose after this step; with 0 it only keeps its context.
    pub propose: u32,
    /// When it was planned.
    pub planned: Duration,
}

impl StepPlan {
    /// Tokens of the step.
    pub fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Tokens of the step that belong to rows in prefill.
    pub fn prefill_tokens(&self) -> usize {
        self.rows.iter().filter(|row| row.prefills).map(|row| row.num_tokens as usize).sum()
    }

    /// True if some tokens are to have a vector each.
    pub fn wants_token_vectors(&self) -> bool {
        self.rows.iter().any(|row| row.num_vectors > 0)
    }

    /// Drafts of the step.
    pub fn num_drafts(&self) -> usize {
        self.rows.iter().map(|row| row.num_drafts as usize).sum()
    }

    /// Longest context of the step, its own tokens included.
    pub fn max_context(&self) -> usize {
        self.rows.iter().map(|row| (row.start + row.num_tokens) as usize).max().unwrap_or(0)
    }

    /// Empties every array and keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.num_single = 0;
        self.input_ids.clear();
        self.positions.clear();
        self.slots.clear();
        self.sample_tokens.clear();
        self.sample_rows.clear();
        self.uniforms.clear();
        self.logprob_rows.clear();
        self.mask_rows.clear();
        self.masks.clear();
        self.prompt_positions.clear();
        self.admissions.clear();
        self.blocks.clear();
        self.propose = 0;
        self.planned = Duration::ZERO;
    }
}

/// Log-probabilities of one position as the worker reports them; `top` is a range of [`StepOutput::top`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PositionLogprobs {
    /// Log-probability of the token at hand.
    pub logprob: f32,
    /// Its rank, 1 = most likely.
    pub rank: u32,
    /// First alternative in [`StepOutput::top`].
    pub top_start: u32,
    /// Number of alternatives.
    pub top_len: u32,
}

/// What a worker returns for a step. Rows are those of the plan, in the same order.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// `[B]` tokens of each row in [`Self::tokens`]: 0 where nothing was sampled, else accepted drafts + 1.
    pub num_sampled: Vec<u32>,
    /// The sampled tokens, row after row.
    pub tokens: Vec<TokenId>,
    /// Parallel to `tokens`; rows that did not ask hold defaults. Empty if no row asked.
    pub logprobs: Vec<PositionLogprobs>,
    /// Parallel to the plan's `prompt_positions`.
    pub prompt_logprobs: Vec<PositionLogprobs>,
    /// The alternatives that `logprobs` and `prompt_logprobs` point into.
    pub top: Vec<(TokenId, f32)>,
    /// Numbers per vector of `pooled`; 0 if nothing pools.
    pub pooled_size: usize,
    /// A vector for each row that `samples`, in order, where the model pools; those of failed rows mean nothing.
    pub pooled: Vec<f32>,
    /// A vector for each of the rows' `num_vectors` tokens, in order.
    pub token_vectors: Vec<f32>,
    /// Rows that failed on their own (say, logits that are not finite), with the reason.
    pub failed: Vec<(RowId, String)>,
    /// What the worker's drafter proposes for the next step; empty without one.
    pub proposals: Proposals,
    /// The step's time says nothing about the next one like it: the worker made something once that it will keep.
    pub irregular: bool,
}

/// Drafts that a worker proposed after it sampled a step. The drafts of the next plan are a prefix of them, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposals {
    /// `[B]` drafts of each row in [`Self::tokens`].
    pub counts: Vec<u32>,
    /// The drafts, row after row.
    pub tokens: Vec<TokenId>,
    /// Parallel to `tokens`: the estimated chance that the draft is right if those before it are; NaN is no estimate.
    pub confidences: Vec<f32>,
    /// The drafter failed, and why; it proposes nothing any more.
    pub failed: Option<String>,
}

impl Proposals {
    /// Empties every array and keeps the memory.
    pub fn clear(&mut self) {
        self.counts.clear();
        self.tokens.clear();
        self.confidences.clear();
        self.failed = None;
    }
}

impl StepOutput {
    /// Empties every array and keeps the memory.
    pub fn clear(&mut self) {
        self.num_sampled.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.prompt_logprobs.clear();
        self.top.clear();
        self.pooled_size = 0;
        self.pooled.clear();
        self.token_vectors.clear();
        self.failed.clear();
        self.proposals.clear();
        self.irregular = false;
    }
}
