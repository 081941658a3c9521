//! The seam between the loop and whatever computes: a torch worker, a mock, later a remote rank.

use frizzen_core::{PoolingInfo, TokenId};
pub use frizzen_sched::speculation::Experts;
use frizzen_sched::{AdmissionLimits, StepOutput, StepPlan};
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
    /// The drafter that the worker carries, if it has one.
    #[serde(default)]
    pub drafter: Option<WorkerDrafter>,
    /// Experts of the model, if it has any.
    #[serde(default)]
    pub experts: Option<Experts>,
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
    /// What its start took: `phase` and `seconds`, in order.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub start: serde_json::Value,
}

impl WorkerInfo {
    /// What the admissions of one step may carry.
    pub const fn admission_limits(&self) -> AdmissionLimits {
        AdmissionLimits::for_engine(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.max_model_len,
            self.block_size,
            self.vocab_size,
        )
    }

    /// Whether the caller's thread is free while a step is computed.
    pub fn computes_on_its_own(&self) -> bool {
        self.device.starts_with("cuda")
    }

    /// Refuses a shape in which a single request could not finish.
    pub fn validate(&self) -> std::result::Result<(), String> {
        let needed = self.max_model_len.div_ceil(self.block_size.max(1));
        let usable = self.num_blocks.saturating_sub(1);
        if self.max_num_seqs == 0 || self.max_num_batched_tokens == 0 || self.block_size == 0 {
            return Err("max_num_seqs, max_num_batched_tokens and block_size must be at least 1".to_owned());
        }
        if self.max_model_len < 2 {
            return Err(format!(
                "max_model_len must be at least 2, one token of prompt and one of output, got {}",
                self.max_model_len
            ));
        }
        let whole = self.pooling.as_ref().is_some_and(|pooling| pooling.whole_prompts);
        if whole && self.max_num_batched_tokens < self.max_model_len {
            let (step, len) = (self.max_num_batched_tokens, self.max_model_len);
            return Err(format!(
                "max_num_batched_tokens must be at least max_model_len {len}, since this model computes a prompt in one \
                 step; got {step}"
            ));
        }
        if needed > usable {
            let (len, fits) = (self.max_model_len, usable * self.block_size);
            return Err(format!(
                "max_model_len {len} needs {needed} KV blocks and there are {usable}: {fits} tokens fit"
            ));
        }
        Ok(())
    }
}

/// A drafter inside a worker: it proposes after sampling, in the same step (see [`crate::arena`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDrafter {
    /// `draft_model`, `mtp`, `eagle3` or `dspark`.
    pub name: String,
    /// Most drafts of a row.
    pub max_drafts: u32,
    /// Whether its proposals come with a chance of each draft.
    pub has_confidence: bool,
    /// Whether it follows the text by steps of its own: then every step costs it time, with drafts or without.
    pub needs_context: bool,
    /// Positions past a row's last one for which it writes KV into the row's blocks while it drafts. They are
    /// allocated where blocks are free; elsewhere the block table has the null block, whose KV nobody reads.
    #[serde(default)]
    pub lookahead: u32,
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

    /// Does one short piece of work that makes later steps faster, and says whether there is more. Called while there
    /// is no request.
    fn idle(&mut self) -> Result<bool, WorkerError> {
        Ok(false)
    }

    /// Answers a question outside of the steps, JSON in and out.
    ///
    /// # Errors
    /// A sentence for whoever asked; the worker goes on.
    fn control(&mut self, name: &str, _argument: &str) -> Result<String, String> {
        Err(format!("the worker has no command {name:?}"))
    }

    /// Ends the worker. Called once, on the thread that built it.
    fn shutdown(&mut self) {}
}
