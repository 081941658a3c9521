//! CPU kernels of a decoder-only transformer, in single precision and bfloat16.
//!
//! They are called with raw tensor memory by the `py` crate; here they take views ([`Rows`], [`Packed`]) whose
//! constructors state what must hold.
//!
//! Invariants: sums are single precision; a row's result depends on that row, its context and the machine, never on
//! the other rows of the batch, the chunking of its prefill or the number of threads.
#![allow(unsafe_code, reason = "vector instructions, and rows shared out between threads")]
#![allow(
    clippy::inline_always,
    reason = "what is not inlined is compiled for the generic target: see `simd`"
)]
#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

mod attention;
mod buffer;
mod cache;
mod decoder;
mod dot;
mod element;
mod linear;
mod math;
mod norm;
mod packed;
mod parallel;
mod rope;
mod rows;
mod simd;

pub use attention::{Attention, QueryTile, attention, tiles};
pub use buffer::Buffer;
pub use cache::{Cache, CacheShape, MAX_HEAD_DIM};
pub use decoder::{DecoderStep, Layer, decode};
pub use element::{Bf16, Element};
pub use linear::{GatedLinear, Linear, Output, gated_linear, linear};
pub use norm::{RmsNorm, rms_norm};
pub use packed::{Packed, PackedShape, embed, pack};
pub use parallel::{Executor, Team};
pub use rope::{Rope, rope};
pub use rows::{Rows, RowsMut};
pub use simd::{GRANULE, Level};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
