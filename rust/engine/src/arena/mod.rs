//! The step arena: one flat buffer per step in flight, which Python allocates and Rust writes.
//!
//! A step crosses the language border as arrays, never as objects. The layout is computed once from the limits of
//! the engine and is data ([`ArenaLayout::sections`]): Python builds its views from the same table, so the two sides
//! cannot disagree about an offset. Plan sections are written by [`Arena::encode`] before `submit`; result sections
//! are written by the worker and read by [`Arena::decode`] after `collect`.
//!
//! A worker with a drafter of its own writes `num_proposed` of every row in every step, and as many `proposed` and
//! `proposed_confidence`: at most the header's `PROPOSE`, and 0 for a row that sampled nothing. The drafts of a row in
//! a later plan are a prefix of what was proposed when it sampled last. `next_tokens` has the token after the row's last
//! one where that is known already (a chunk of a prompt), else -1. A worker without a drafter leaves all of it alone.
//!
//! Everything here works on byte slices and is safe; the pointers are turned into slices in the `py` crate.

mod codec;

pub use codec::Arena;

use crate::worker::WorkerInfo;

/// Version of the layout, in the header's first word.
pub const VERSION: i64 = 6;

/// Element type of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit signed integers.
    I32,
    /// 64-bit signed integers.
    I64,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Dtype {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// The name that torch and numpy use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }
}

/// The limits that the layout follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaLimits {
    /// Rows of a step, and of the persistent batch.
    pub max_rows: usize,
    /// Tokens of a step.
    pub max_tokens: usize,
    /// Drafts of one row.
    pub max_drafts: usize,
    /// Alternatives per position.
    pub max_logprobs: usize,
    /// Block-table changes of one step.
    pub max_block_deltas: usize,
    /// Token history that the admissions of one step may carry.
    pub max_history: usize,
    /// Token rules that the admissions of one step may carry.
    pub max_rules: usize,
    /// Logits of the model.
    pub vocab_size: usize,
    /// Numbers of a pooled vector; 0 if the model generates.
    pub pooled_size: usize,
}

/// One array of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name, the key on both sides.
    pub name: &'static str,
    /// Its element type.
    pub dtype: Dtype,
    /// Its capacity, row-major.
    pub shape: Vec<usize>,
    /// Bytes from the start of the arena; a multiple of 64.
    pub offset: usize,
}

impl Section {
    /// Elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if the section has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bytes(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len() * self.dtype.size()
    }
}

macro_rules! sections {
    ($($name:ident),* $(,)?) => {
        /// Index of each section in [`ArenaLayout::sections`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(non_camel_case_types, reason = "the names are the keys that both languages use")]
        enum S { $($name),* }
        const ALL: &[(S, &str)] = &[$((S::$name, stringify!($name))),*];
    };
}

sections!(
    header,
    input_ids,
    positions,
    slots,
    rows,
    query_start,
    seq_lens,
    num_drafts,
    next_tokens,
    sample_tokens,
    sample_rows,
    uniforms,
    prompt_tokens,
    prompt_rows,
    prompt_targets,
    block_rows,
    block_columns,
    block_ids,
    admit_rows,
    admit_ints,
    admit_floats,
    admit_seeds,
    rule_kinds,
    rule_tokens,
    rule_values,
    history,
    num_sampled,
    sampled,
    row_status,
    pooled,
    num_proposed,
    proposed,
    proposed_confidence,
    logprobs,
    ranks,
    top_tokens,
    top_logprobs,
    prompt_logprobs,
    prompt_ranks,
    prompt_top_tokens,
    prompt_top_logprobs,
    mask_rows,
    masks,
    token_vectors,
);

/// Words of the header, by index. `header` is `int64[16]`.
pub mod header {
    /// Layout version.
    pub const VERSION: usize = 0;
    /// Step number.
    pub const STEP: usize = 1;
    /// Rows `B`.
    pub const NUM_ROWS: usize = 2;
    /// Rows of exactly one token; they come first.
    pub const NUM_SINGLE: usize = 3;
    /// Tokens `T`.
    pub const NUM_TOKENS: usize = 4;
    /// Sampled positions `S`.
    pub const NUM_SAMPLES: usize = 5;
    /// Scored prompt positions `P`.
    pub const NUM_PROMPT: usize = 6;
    /// Block-table changes `K`.
    pub const NUM_BLOCKS: usize = 7;
    /// Admissions `A`.
    pub const NUM_ADMITS: usize = 8;
    /// Longest query of the step.
    pub const MAX_QUERY: usize = 9;
    /// Longest context of the step, its own tokens included.
    pub const MAX_CONTEXT: usize = 10;
    /// Rows of `masks`: the step waits for them before it samples.
    pub const NUM_MASKS: usize = 11;
    /// The most drafts per row that the worker's drafter is to propose after it sampled; 0: it only keeps its context.
    pub const PROPOSE: usize = 12;
    /// Written by the worker: not 0 if the step's time says nothing about the next one like it.
    pub const IRREGULAR: usize = 13;
    /// 1 if the step's tokens are to have a vector each.
    pub const TOKEN_VECTORS: usize = 14;
    /// Number of words.
    pub const LEN: usize = 16;
}

/// Columns of `admit_ints`, `int32[A, 8]`.
pub mod admit_int {
    /// Top-k, 0 = off.
    pub const TOP_K: usize = 0;
    /// Alternatives per generated token, -1 = no log-probabilities.
    pub const LOGPROBS: usize = 1;
    /// Alternatives per prompt token, -1 = none.
    pub const PROMPT_LOGPROBS: usize = 2;
    /// Prompt length.
    pub const PROMPT_LEN: usize = 3;
    /// Tokens before which the suppressed ids may not be sampled.
    pub const MIN_TOKENS: usize = 4;
    /// This admission's entries in the rule sections.
    pub const NUM_RULES: usize = 5;
    /// This admission's entries in `history` (0 unless a penalty is on).
    pub const NUM_HISTORY: usize = 6;
    /// Index of the first token of the second text of a pair, 0 = one text.
    pub const SECOND_START: usize = 7;
    /// Number of columns.
    pub const LEN: usize = 8;
}

/// Columns of `admit_floats`, `float32[A, 8]`.
pub mod admit_float {
    /// Temperature, 0 = greedy.
    pub const TEMPERATURE: usize = 0;
    /// Top-p.
    pub const TOP_P: usize = 1;
    /// Min-p.
    pub const MIN_P: usize = 2;
    /// Presence penalty.
    pub const PRESENCE: usize = 3;
    /// Frequency penalty.
    pub const FREQUENCY: usize = 4;
    /// Repetition penalty.
    pub const REPETITION: usize = 5;
    /// Number of columns.
    pub const LEN: usize = 8;
}

/// Values of `rule_kinds`.
pub mod rule {
    /// `rule_values` is added to the token's logit.
    pub const BIAS: i32 = 0;
    /// The token is allowed; a row with any such rule may sample no other.
    pub const ALLOW: i32 = 1;
    /// The token may not be sampled before `min_tokens`.
    pub const SUPPRESS: i32 = 2;
    /// The token's log-probability is reported at every sampled position.
    pub const SCORE: i32 = 3;
}

/// Values of `row_status`.
pub mod status {
    /// The row is fine.
    pub const OK: i32 = 0;
    /// The row's logits were not finite; nothing was sampled for it.
    pub const NOT_FINITE: i32 = 1;
}

/// Values of `num_proposed` below 0.
pub mod proposed {
    /// The drafter failed, for this row or for all; [`Worker`](crate::Worker) says why.
    pub const FAILED: i32 = -1;
}

impl S {
    fn shape(self, limits: &ArenaLimits) -> (Dtype, Vec<usize>) {
        use Dtype::{F32, F64, I32, I64};
        let (rows, tokens, alternatives) = (limits.max_rows, limits.max_tokens, limits.max_logprobs);
        let width = limits.max_drafts + 1;
        // A step samples at most one position per token.
        let samples = tokens.min(rows * width);
        match self {
            S::header => (I64, vec![header::LEN]),
            S::input_ids
            | S::positions
            | S::prompt_tokens
            | S::prompt_rows
            | S::prompt_targets
            | S::prompt_ranks => (I32, vec![tokens]),
            S::slots => (I64, vec![tokens]),
            S::rows
            | S::seq_lens
            | S::num_drafts
            | S::next_tokens
            | S::admit_rows
            | S::num_sampled
            | S::row_status
            | S::num_proposed => (I32, vec![rows]),
            S::proposed => (I32, vec![rows, limits.max_drafts]),
            S::proposed_confidence => (F32, vec![rows, limits.max_drafts]),
            S::query_start => (I32, vec![rows + 1]),
            S::sample_tokens | S::sample_rows | S::mask_rows => (I32, vec![samples]),
            S::masks => (I32, vec![samples, limits.vocab_size.div_ceil(32)]),
            S::uniforms => (F64, vec![samples]),
            S::block_rows | S::block_columns | S::block_ids => (I32, vec![limits.max_block_deltas]),
            S::admit_ints => (I32, vec![rows, admit_int::LEN]),
            S::admit_floats => (F32, vec![rows, admit_float::LEN]),
            S::admit_seeds => (I64, vec![rows]),
            S::rule_kinds | S::rule_tokens => (I32, vec![limits.max_rules]),
            S::rule_values => (F32, vec![limits.max_rules]),
            S::history => (I32, vec![limits.max_history]),
            S::pooled => (F32, vec![rows, limits.pooled_size]),
            S::token_vectors => (F32, vec![tokens, limits.pooled_size]),
            S::sampled | S::ranks => (I32, vec![rows, width]),
            S::logprobs => (F32, vec![rows, width]),
            S::top_tokens => (I32, vec![rows, width, alternatives]),
            S::top_logprobs => (F32, vec![rows, width, alternatives]),
            S::prompt_logprobs => (F32, vec![tokens]),
            S::prompt_top_tokens => (I32, vec![tokens, alternatives]),
            S::prompt_top_logprobs => (F32, vec![tokens, alternatives]),
        }
    }
}

impl ArenaLimits {
    /// The limits that follow from a worker's sizes.
    pub fn for_worker(info: &WorkerInfo) -> Self {
        let admissions = info.admission_limits();
        Self {
            max_rows: info.max_num_seqs as usize,
            max_tokens: info.max_num_batched_tokens as usize,
            max_drafts: info.max_drafts as usize,
            max_logprobs: info.max_logprobs as usize,
            max_block_deltas: admissions.block_deltas as usize,
            max_history: admissions.history as usize,
            max_rules: admissions.rules as usize,
            vocab_size: info.vocab_size as usize,
            pooled_size: info.pooling.as_ref().map_or(0, |pooling| pooling.size as usize),
        }
    }
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    limits: ArenaLimits,
    sections: Vec<Section>,
    bytes: usize,
}

impl ArenaLayout {
    /// The layout for these limits.
    pub fn new(limits: ArenaLimits) -> Self {
        let mut bytes = 0;
        let mut sections = Vec::with_capacity(ALL.len());
        for (section, name) in ALL {
            let (dtype, shape) = section.shape(&limits);
            let section = Section { name, dtype, shape, offset: bytes };
            // 64 bytes: a cache line, and enough for any copy engine.
            bytes = section.bytes().end.next_multiple_of(64);
            sections.push(section);
        }
        Self { limits, sections, bytes }
    }

    /// Every section, in order.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Size of one arena.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    fn section(&self, section: S) -> &Section {
        &self.sections[section as usize]
    }

    /// The limits it was made for.
    pub const fn limits(&self) -> &ArenaLimits {
        &self.limits
    }
}
