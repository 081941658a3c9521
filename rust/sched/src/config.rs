//! The scheduler's limits.

/// In which order requests are admitted, and which one is preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// By arrival.
    #[default]
    Fcfs,
    /// By the request's priority (smaller first), then by arrival.
    Priority,
}

/// Fixed for the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Most requests in the worker's batch.
    pub max_num_seqs: u32,
    /// Most tokens of a step.
    pub max_num_batched_tokens: u32,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks, the null block included.
    pub num_blocks: u32,
    /// Share the blocks of equal prefixes.
    pub prefix_caching: bool,
    /// Compute a prompt in one step or not at all: its tokens attend to each other in both directions.
    pub whole_prompts: bool,
    /// Most tokens of one prompt in a step while other requests are there; 0 is no limit.
    pub long_prefill_threshold: u32,
    /// Admission and preemption order.
    pub policy: Policy,
    /// Seed of the block hashes: drawn per process, so that nobody can craft a colliding prefix.
    pub hash_seed: u64,
    /// What the admissions of one step may carry; see [`Self::admission_limits`].
    pub admissions: AdmissionLimits,
}

/// Capacity of the sections that admissions share. One admission alone always fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Block-table changes of a step.
    pub block_deltas: u32,
    /// Token history of rows with penalties.
    pub history: u32,
    /// Token rules (biases, allowed, suppressed and scored tokens).
    pub rules: u32,
}

impl AdmissionLimits {
    /// Limits under which any single request fits, and a usual step's admissions all do.
    pub const fn for_engine(
        max_num_seqs: u32,
        max_num_batched_tokens: u32,
        max_model_len: u32,
        block_size: u32,
        vocab_size: u32,
    ) -> Self {
        let blocks_per_request = max_model_len.div_ceil(block_size);
        Self {
            // Computed tokens open at most one block each block_size, plus a started one per row; the rest is hits.
            block_deltas: max_num_batched_tokens.div_ceil(block_size) + max_num_seqs + 4 * blocks_per_request,
            history: max_model_len + max_num_batched_tokens,
            // A bias, an allowance, a suppression and a score per token of the vocabulary are the most one request can say.
            rules: 4 * vocab_size + 1024,
        }
    }
}

impl SchedulerConfig {
    /// Most blocks that one request can need.
    pub const fn blocks_per_request(&self) -> u32 {
        self.max_model_len.div_ceil(self.block_size)
    }
}
