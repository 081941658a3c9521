"""Rows of one token each: norms, rotation, cache write and attention in one launch.

A program takes a key-value head of a row; it turns its own queries, and its token's key and value go
from registers into the sum. Nobody else may read what is written here: of no other row of the step is a key
that this row writes. The keys of the tokens before were there when the step began: a program loads the first
of them before it waits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.attention import LOG2E, _attend_keys, mean
from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next
from frizzen.kernels.triton.rope import to_cache

__all__ = ["attend_turned"]


@triton.jit
def _turn(own, pair, gain, pair_gain, cosine, sine, D, eps, NORM: tl.constexpr):
    """Heads ``own [.., D]``, normed and turned, in float32; ``pair`` has the other element of each pair."""
    y = own.to(tl.float32)
    other = pair.to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(y * y, axis=1) / D + eps)[:, None]
        y = y * inverse * gain
        other = other * inverse * pair_gain
    return y * cosine + other * sine


@triton.jit
def _attend_held(
    q, k, v, own_key, own_value, there, exists, scale, softcap, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Softmax over the keys ``k [D, N]`` that are ``there`` and, if it ``exists``, the token's own."""
    factor = LOG2E if SOFTCAP else scale
    score = multiply_add(q, k, tl.zeros([q.shape[0], k.shape[1]], tl.float32), PRECISION)
    own_score = tl.sum(q.to(tl.float32) * own_key.to(tl.float32), axis=1)
    if SOFTCAP:
        score = softcap * (1 - 2 / (tl.exp2(2 * scale * score / softcap) + 1))
        own_score = softcap * (1 - 2 / (tl.exp2(2 * scale * own_score / softcap) + 1))
    score = tl.where(there[None, :], score, float("-inf"))
    own_score = tl.where(exists, own_score * factor, float("-inf"))
    peak = tl.maximum(tl.max(score, axis=1) * factor, own_score)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weight = tl.exp2(score * factor - base[:, None])
    own_weight = tl.exp2(own_score - base)
    own = own_weight.to(q.dtype).to(tl.float32)[:, None] * own_value.to(tl.float32)
    total = multiply_add(weight.to(q.dtype), v, own, PRECISION)
    return total, peak, tl.sum(weight, axis=1) + own_weight


@triton.jit(
    do_not_specialize=["columns", "blocks_stride"],
    do_not_specialize_on_alignment=["slots", "cos", "sin", "seq_lens", "block_table"],
)
def attend_turned(
    qkv, cos, sin, slots, keys, values, q_norm, k_norm, sinks, out, seq_lens, block_table, columns,
    qkv_stride, angle_stride, blocks_stride, block_stride, token_stride, head_stride, scale, softcap, eps,
    GROUP: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr, BLOCK_SIZE: tl.constexpr, NORM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One row's heads of one key-value head; ``scale`` has the factor of the base-2 softmax in it."""
    kv_head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    token = tl.program_id(1).to(tl.int64)
    if EARLY:
        release_next(PDL)
    qkv += token * qkv_stride
    cos += token * angle_stride
    sin += token * angle_stride
    out += token * kv_heads * GROUP * D
    block_table += token * blocks_stride
    context = tl.load(seq_lens + token)
    last = context - 1
    start = 0
    if WINDOW > 0:
        start = tl.maximum(context - WINDOW, 0) // BLOCK_N * BLOCK_N

    keys += kv_head * head_stride
    values += kv_head * head_stride
    column = tl.arange(0, BLOCK_D)
    wide = column < D
    position = start + tl.arange(0, BLOCK_N)
    there = position < last
    # By the table's width, so that this does not wait for the length.
    block = tl.load(block_table + position // BLOCK_SIZE, mask=position < columns * BLOCK_SIZE, other=0)
    at = block.to(tl.int64) * block_stride + position % BLOCK_SIZE * token_stride
    k = tl.load(keys + at[None, :] + column[:, None], mask=there[None, :] & wide[:, None], other=0.0)
    v = tl.load(values + at[:, None] + column[None, :], mask=there[:, None] & wide[None, :], other=0.0)

    # The other element of each pair, and what it is multiplied by.
    first_half = column < HALF
    turned = column < 2 * HALF
    pair = tl.where(first_half, column + HALF, tl.where(turned, column - HALF, column))
    angle = tl.where(first_half, column, column - HALF)
    q_gain = tl.full([1, BLOCK_D], 1.0, tl.float32)
    q_pair_gain = q_gain
    k_gain = q_gain
    k_pair_gain = q_gain
    if NORM:
        q_gain = tl.load(q_norm + column, mask=wide, other=0.0).to(tl.float32)[None, :]
        q_pair_gain = tl.load(q_norm + pair, mask=wide, other=0.0).to(tl.float32)[None, :]
        k_gain = tl.load(k_norm + column, mask=wide, other=0.0).to(tl.float32)[None, :]
        k_pair_gain = tl.load(k_norm + pair, mask=wide, other=0.0).to(tl.float32)[None, :]
    await_inputs(PDL)

    row = tl.arange(0, BLOCK_M)
    real = row < GROUP
    head = kv_head * GROUP + row
    mask = real[:, None] & wide[None, :]
    q_at = qkv + head[:, None] * D
    own_at = qkv + (kv_heads * GROUP + kv_head) * D
    # All loads first, so that they wait together.
    q = tl.load(q_at + column[None, :], mask=mask, other=0.0)
    q_pair = tl.load(q_at + pair[None, :], mask=mask, other=0.0)
    own_key = tl.load(own_at + column[None, :], mask=wide[None, :], other=0.0)
    own_pair = tl.load(own_at + pair[None, :], mask=wide[None, :], other=0.0)
    own_value = tl.load(own_at + kv_heads * D + column[None, :], mask=wide[None, :], other=0.0)
    cosine = tl.load(cos + angle, mask=turned, other=1.0)[None, :]
    sine = tl.load(sin + angle, mask=turned, other=0.0)
    slot = tl.load(slots + token).to(tl.int64)
    sine = tl.where(first_half, -sine, sine)[None, :]
    q = _turn(q, q_pair, q_gain, q_pair_gain, cosine, sine, D, eps, NORM).to(qkv.dtype.element_ty)
    own_key = _turn(own_key, own_pair, k_gain, k_pair_gain, cosine, sine, D, eps, NORM)
    cached_key = to_cache(own_key, keys.dtype.element_ty)
    cached_value = to_cache(own_value.to(tl.float32), keys.dtype.element_ty)
    to = slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * token_stride + column[None, :]
    tl.store(keys + to, cached_key, mask=wide[None, :])
    tl.store(values + to, cached_value, mask=wide[None, :])

    if WINDOW > 0:
        there = there & (position > last - WINDOW)
    total, peak, norm = _attend_held(
        q, k.to(q.dtype), v.to(q.dtype), cached_key.to(q.dtype), cached_value.to(q.dtype), there, context > 0,
        scale, softcap, SOFTCAP, PRECISION,
    )  # fmt: skip
    total, peak, norm = _attend_keys(
        q, total, peak, norm, tl.zeros([BLOCK_M], tl.int32) + last, keys, values, block_table,
        start + BLOCK_N, last, last, block_stride, token_stride, scale, softcap,
        D, WINDOW, SOFTCAP, True, False, BLOCK_SIZE, BLOCK_N, BLOCK_D, PRECISION,
    )  # fmt: skip

    if not EARLY:
        release_next(PDL)
    sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) if SINKS else norm
    found = mean(total, peak, norm, sink, SINKS)
    tl.store(out + head[:, None] * D + column[None, :], found.to(out.dtype.element_ty), mask=mask)
