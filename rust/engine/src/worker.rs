//! The seam between the loop and whatever computes: a torch worker, a mock, later a remote rank.

use frizzen_core::{PoolingInfo, TokenId};
use frizzen_sched::{StepOutput, StepPlan};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a worker is, known once it is built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Name under which the model is served if none is given.
    pub model: String,
    /// Size of the logits, and the bound of every token id.
    pub vocab_size: u32,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// Rows of the persistent batch.
    pub max_num_seqs: u32,
    /// Most tokens of one step.
    pub max_num_batched_tokens: u32,
    /// KV blocks, the null block included.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Most alternatives per token that the worker can return.
    pub max_logprobs: u32,
    /// Most drafts per row.
    #[serde(default)]
    pub max_drafts: u32,
    /// Tokens that end a request unless `ignore_eos`.
    pub eos_token_ids: Vec<TokenId>,
    /// What its vectors are, if the model pools; such a model generates nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<PoolingInfo>,
    /// `cpu`, `cuda:0`, ...
    pub device: String,
    /// `float32`, `bfloat16`, ...
    pub dtype: String,
    /// The kernel plan as JSON (what serves each layer, and why not something faster).
    #[serde(default)]
    pub plan: serde_json::Value,
}

/// A worker's failure. Never carries a foreign exception object: the text is made where it was raised.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WorkerError {
    /// Out of memory in a step. The loop preempts and retries once.
    #[error("out of memory: {message}")]
    OutOfMemory {
        /// First line.
        message: String,
        /// Where it happened, for the log only.
        detail: String,
    },
    /// Anything else: the engine stops.
    #[error("{message}")]
    Fatal {
        /// First line, `Type: text`.
        message: String,
        /// Traceback, for the log only.
        detail: String,
    },
}

/// Computes steps, strictly in the order in which they are submitted.
///
/// In-order execution is what lets the scheduler reuse blocks and rows of a finished request at once: a step that
/// still writes to them runs before any step that was planned later.
pub trait Worker {
    /// What this worker is.
    fn info(&self) -> &WorkerInfo;

    /// Starts a step. Returns when the plan has been taken over; the plan may then be reused.
    ///
    /// A step with mask rows goes as far as it can without its masks, and on with [`Self::sample`].
    fn submit(&mut self, plan: &StepPlan) -> Result<(), WorkerError>;

    /// Goes on with the step that was submitted last, whose plan has mask rows and whose masks are filled now. Called
    /// before anything else is submitted or collected. An error means that nothing of the step counts.
    fn sample(&mut self, plan: &StepPlan) -> Result<(), WorkerError>;

    /// Waits for the oldest submitted step and writes its results. `plan` is the plan of that step.
    fn collect(&mut self, plan: &StepPlan, output: &mut StepOutput) -> Result<(), WorkerError>;

    /// Ends the worker. Called once, on the thread that built it.
    fn shutdown(&mut self) {}
}
