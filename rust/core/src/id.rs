//! Newtypes, so that a row cannot be passed where a block is meant.

use serde::{Deserialize, Serialize};

/// A vocabulary id. Always below the model's `vocab_size`; range-checked where it enters.
pub type TokenId = u32;

/// A request inside one engine. Never reused within a process, so late messages about a finished request are harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// A slot of the worker's persistent batch, in `0..max_num_seqs`. A request keeps its row while it is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(pub u32);

impl RowId {
    /// The row as an index into per-row arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A KV-cache block. Block 0 is the null block: it is never allocated, and padding points at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The block that padding refers to and that no request owns.
    pub const NULL: Self = Self(0);

    /// The block as an index into per-block arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a step, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u64);
