//! All layers of a dense decoder in one parallel region.
//!
//! The same kernels as one call per operator, with a barrier of a fraction of a microsecond between them in place of a
//! call through Python and a new region. In bfloat16 there is one rounding less: a product is added to the residual
//! stream before it is rounded.

use crate::attention::{Attention, QueryTile, attention};
use crate::cache::Cache;
use crate::element::Element;
use crate::linear::{GatedLinear, Linear, Output, gated_linear, linear};
use crate::norm::{RmsNorm, rms_norm};
use crate::packed::Packed;
use crate::parallel::Team;
use crate::rope::{Rope, rope};
use crate::rows::{Rows, RowsMut};
use crate::simd::Level;

/// One pre-norm layer: attention and gated feed-forward, each added to the residual stream.
#[derive(Clone, Copy)]
pub struct Layer<'a, E> {
    /// `[H]`, before attention.
    pub input_norm: &'a [E],
    /// `[(N + 2M) * D, H]`.
    pub qkv: Packed<'a, E>,
    /// `[(N + 2M) * D]`.
    pub qkv_bias: Option<&'a [E]>,
    /// `[D]` each, of queries and keys.
    pub head_norms: Option<(&'a [E], &'a [E])>,
    /// `[H, N * D]`.
    pub out: Packed<'a, E>,
    /// `[H]`.
    pub out_bias: Option<&'a [E]>,
    /// `[H]`, before the feed-forward.
    pub mlp_norm: &'a [E],
    /// `[I, H]`.
    pub gate: Packed<'a, E>,
    /// `[I, H]`.
    pub up: Packed<'a, E>,
    /// `[I]` each, of gate and up.
    pub gate_up_bias: Option<(&'a [E], &'a [E])>,
    /// `[H, I]`.
    pub down: Packed<'a, E>,
    /// `[H]`.
    pub down_bias: Option<&'a [E]>,
    /// Keys and values.
    pub cache: Cache<'a, E>,
    /// Factor of `q . k`.
    pub scale: f32,
    /// See [`Attention::window`].
    pub window: usize,
    /// See [`Attention::sinks`].
    pub sinks: Option<&'a [E]>,
}

/// What all layers of a step share.
#[derive(Clone, Copy)]
pub struct DecoderStep<'a, E> {
    /// `[T, R / 2]`.
    pub cos: Rows<'a, f32>,
    /// `[T, R / 2]`.
    pub sin: Rows<'a, f32>,
    /// `[T]`, distinct.
    pub slots: &'a [i64],
    /// `[B, blocks]`.
    pub block_table: Rows<'a, i32>,
    /// See [`crate::tiles`].
    pub tiles: &'a [QueryTile],
    /// Of every norm.
    pub eps: f32,
    /// `[H]`, the norm after the last layer.
    pub final_norm: &'a [E],
    /// `[T, H]`: the embeddings; afterwards the residual stream of the last layer.
    pub residual: RowsMut<'a, E>,
    /// `[T, H]`: the result. Holds normed rows in between.
    pub hidden: RowsMut<'a, E>,
    /// `[T, (N + 2M) * D]`, overwritten.
    pub qkv: RowsMut<'a, E>,
    /// `[T, N * D]`, overwritten.
    pub attended: RowsMut<'a, E>,
    /// `[T, I]`, overwritten.
    pub gated: RowsMut<'a, E>,
}

/// Runs all layers and the final norm on a team.
///
/// # Panics
/// If shapes differ or a slot is out of range.
pub fn decode<'a, E: Element>(
    level: Level,
    team: Team<'_>,
    layers: impl Iterator<Item = Layer<'a, E>>,
    step: &DecoderStep<'a, E>,
) {
    for layer in layers {
        attend(level, team, &layer, step);
        feed_forward(level, team, &layer, step);
    }
    norm(level, team, step.final_norm, step);
}

fn norm<E: Element>(level: Level, team: Team<'_>, weight: &[E], step: &DecoderStep<'_, E>) {
    let job = RmsNorm { x: None, residual: Some(step.residual), weight, eps: step.eps, out: step.hidden };
    rms_norm(level, team, &job);
}

fn attend<E: Element>(level: Level, team: Team<'_>, layer: &Layer<'_, E>, step: &DecoderStep<'_, E>) {
    norm(level, team, layer.input_norm, step);
    // SAFETY: each kernel ends with a barrier, so what it wrote is only read from here on. The same below.
    let x = unsafe { step.hidden.read() };
    let (weight, bias) = (layer.qkv, layer.qkv_bias);
    linear(level, team, &Linear { x, weight, bias, out: Output::Store(step.qkv) });
    let job = Rope {
        qkv: step.qkv,
        cos: step.cos,
        sin: step.sin,
        slots: step.slots,
        norms: layer.head_norms,
        eps: step.eps,
        cache: layer.cache,
    };
    rope(level, team, &job);
    let job = Attention {
        // SAFETY: as above.
        q: unsafe { step.qkv.read() }.columns(0..step.attended.cols()),
        cache: layer.cache,
        block_table: step.block_table,
        tiles: step.tiles,
        scale: layer.scale,
        window: layer.window,
        sinks: layer.sinks,
        out: step.attended,
    };
    attention(level, team, &job);
    // SAFETY: as above.
    let x = unsafe { step.attended.read() };
    let (weight, bias) = (layer.out, layer.out_bias);
    linear(level, team, &Linear { x, weight, bias, out: Output::Add(step.residual) });
}

fn feed_forward<E: Element>(level: Level, team: Team<'_>, layer: &Layer<'_, E>, step: &DecoderStep<'_, E>) {
    norm(level, team, layer.mlp_norm, step);
    // SAFETY: as in `attend`.
    let x = unsafe { step.hidden.read() };
    let Layer { gate, up, gate_up_bias: bias, .. } = *layer;
    gated_linear(level, team, &GatedLinear { x, gate, up, bias, out: step.gated });
    // SAFETY: as in `attend`.
    let x = unsafe { step.gated.read() };
    let (weight, bias) = (layer.down, layer.down_bias);
    linear(level, team, &Linear { x, weight, bias, out: Output::Add(step.residual) });
}
