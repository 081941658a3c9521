"""Experts for few tokens: no sorting, one launch per product.

Bound by the bytes of the experts that are hit, each of which is read once. Programs are laid out over (group,
block of weight rows). A group is an expert, or, when there are fewer (token, expert) pairs than experts, a
pair; of the pairs of one expert the first serves all. A program finds its expert's tokens in ``ids`` itself
and packs them into tiles, which costs less than a launch that sorts. Results stand at the pair's place,
``token * k + column``, so that every token adds its experts in its own order whatever else is in the batch.

One token has its own kernels: multiply-add on whole rows of the weights, streamed by one wave of programs,
and a second product that adds the experts up in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next

__all__ = [
    "activate",
    "combine",
    "down_few",
    "down_one",
    "gate_up_few",
    "gate_up_one",
    "group_tokens",
    "pack_tokens",
]


@triton.jit
def activate(gate, up, clamp, alpha, beta, CLAMP: tl.constexpr):
    """The gated activation of ``moe.experts``."""
    if CLAMP:
        gate = tl.minimum(gate, clamp)
        up = tl.minimum(tl.maximum(up, -clamp), clamp)
    return gate * tl.sigmoid(alpha * gate) * (up + beta)


@triton.jit
def gate_up_one(
    x, w13, b13, ids, act, H, I, clamp, alpha, beta,
    BIAS: tl.constexpr, CLAMP: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token: ``act [k, I]`` of its experts."""
    place = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    inside = column < H
    await_inputs(PDL)
    # Not earlier: the second product reads the ids before it waits.
    release_next(PDL)
    # Both wait for memory together.
    values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    expert = tl.load(ids + place).to(tl.int64)
    if expert < 0:
        return
    weight = w13 + expert * 2 * I * H + column[None, :]
    for step in tl.range(0, STEPS, num_stages=STAGES):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        exists = row < I
        mask = exists[:, None] & inside[None, :]
        w_gate = tl.load(weight + row[:, None] * H, mask=mask, other=0.0, eviction_policy="evict_first")
        w_up = tl.load(weight + (I + row)[:, None] * H, mask=mask, other=0.0, eviction_policy="evict_first")
        gate = tl.sum(w_gate.to(tl.float32) * values, axis=1)
        up = tl.sum(w_up.to(tl.float32) * values, axis=1)
        if BIAS:
            gate += tl.load(b13 + expert * 2 * I + row, mask=exists, other=0.0).to(tl.float32)
            up += tl.load(b13 + expert * 2 * I + I + row, mask=exists, other=0.0).to(tl.float32)
        y = activate(gate, up, clamp, alpha, beta, CLAMP)
        tl.store(act + place * I + row, y.to(act.dtype.element_ty), mask=exists)


@triton.jit
def down_one(
    act, w2, b2, weights, ids, out, H, I,
    K: tl.constexpr, BIAS: tl.constexpr, TOP: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token: ``out [H]``, its experts weighted and added; a step takes one row of every expert."""
    place = tl.arange(0, TOP)
    column = tl.arange(0, COLUMNS)
    inside = column < I
    first = tl.program_id(0) * STEPS
    release_next(PDL)
    # The router had ended when the first product let this one start. Past the first-level cache, which may
    # hold an older layer's.
    expert = tl.load(ids + place, mask=place < K, other=-1, cache_modifier=".cg").to(tl.int64)
    present = expert >= 0
    gain = tl.load(weights + place, mask=present, other=0.0, cache_modifier=".cg")
    mask = present[:, None] & inside[None, :]
    weight = w2 + expert[:, None] * H * I + column[None, :]
    # The first row is on its way before the activations are there.
    w = tl.load(weight + first * I, mask=mask & (first < H), other=0.0, eviction_policy="evict_first")
    await_inputs(PDL)
    # An absent expert's activation was never written.
    values = tl.load(act + place[:, None] * I + column[None, :], mask=mask, other=0.0).to(tl.float32)
    values *= gain[:, None]
    _store_down(w, values, gain, b2, expert, present, out, first, H, BIAS)
    for step in tl.range(1, STEPS, num_stages=STAGES):
        row = first + step
        w = tl.load(weight + row * I, mask=mask & (row < H), other=0.0, eviction_policy="evict_first")
        _store_down(w, values, gain, b2, expert, present, out, row, H, BIAS)


@triton.jit
def _store_down(w, values, gain, b2, expert, present, out, row, H, BIAS: tl.constexpr):
    """One row of every expert times its activation, weighted and added."""
    y = tl.sum(tl.sum(w.to(tl.float32) * values, axis=1), axis=0)
    if BIAS:
        bias = tl.load(b2 + expert * H + row, mask=present & (row < H), other=0.0).to(tl.float32)
        y += tl.sum(bias * gain, axis=0)
    tl.store(out + row, y.to(out.dtype.element_ty), mask=row < H)


@triton.jit
def _find_tokens(ids, expert, tokens, K: tl.constexpr, TOKENS: tl.constexpr, TOP: tl.constexpr):
    """For every token: whether it goes to the expert, its place, and how many before it go there."""
    token = tl.arange(0, TOKENS)
    column = tl.arange(0, TOP)
    place = token[:, None] * K + column[None, :]
    mask = (token[:, None] < tokens) & (column[None, :] < K)
    hit = (tl.load(ids + place, mask=mask, other=-1) == expert) & mask
    found = tl.sum(hit.to(tl.int32), axis=1)
    at = tl.sum(tl.where(hit, place, 0), axis=1)
    return found, at, tl.cumsum(found, axis=0) - found


@triton.jit
def group_tokens(
    ids, group, tokens, K: tl.constexpr, PAIRWISE: tl.constexpr, TOKENS: tl.constexpr, TOP: tl.constexpr
):  # fmt: skip
    """Expert of a group and, as :func:`_find_tokens`, its tokens; none if another group serves them."""
    expert = group.to(tl.int64)
    if PAIRWISE:
        expert = tl.load(ids + group).to(tl.int64)
    found, at, before = _find_tokens(ids, expert, tokens, K, TOKENS, TOP)
    if PAIRWISE:
        first = tl.min(tl.where(found > 0, at, 0x7FFFFFFF), axis=0)
        found = tl.where((expert >= 0) & (first == group), found, 0)
    return expert, found, at, before


@triton.jit
def pack_tokens(found, at, before, first, M: tl.constexpr):
    """Places of the expert's pairs number ``first`` to ``first + M``; 0 past the last."""
    wanted = first + tl.arange(0, M)
    match = (before[None, :] == wanted[:, None]) & (found[None, :] > 0)
    return tl.sum(tl.where(match, at[None, :], 0), axis=1)


@triton.jit
def _multiply(
    total_a, total_b, rows_at, rows_exist, weight_a, weight_b, exists, SIZE,
    PAIR: tl.constexpr, SWAP: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds rows times one or two blocks of a weight.

    Swapped, the weight is the left operand, whose rows fill the tensor cores' tiles; sums stand ``[N, M]``.
    """
    for start in range(0, SIZE, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        rows_mask = rows_exist[:, None]
        mask = exists[:, None]
        if not EVEN:
            rows_mask = rows_mask & (column < SIZE)[None, :]
            mask = mask & (column < SIZE)[None, :]
        values = tl.load(rows_at[:, None] + column[None, :], mask=rows_mask, other=0.0)
        a = tl.load(weight_a[:, None] + column[None, :], mask=mask, other=0.0, eviction_policy="evict_first")
        if SWAP:
            total_a = multiply_add(a, tl.trans(values), total_a, PRECISION)
        else:
            total_a = multiply_add(values, tl.trans(a), total_a, PRECISION)
        if PAIR:
            b = tl.load(
                weight_b[:, None] + column[None, :], mask=mask, other=0.0, eviction_policy="evict_first"
            )
            if SWAP:
                total_b = multiply_add(b, tl.trans(values), total_b, PRECISION)
            else:
                total_b = multiply_add(values, tl.trans(b), total_b, PRECISION)
    return total_a, total_b


@triton.jit(do_not_specialize=["tokens"])
def gate_up_few(
    x, w13, b13, ids, act, tokens, x_stride, H, I, clamp, alpha, beta,
    K: tl.constexpr, PAIRWISE: tl.constexpr, BIAS: tl.constexpr, CLAMP: tl.constexpr, SWAP: tl.constexpr,
    TOKENS: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``act [T * k, I]``: the first product and the activation of every pair."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    exists = row < I
    await_inputs(PDL)
    expert, found, at, before = group_tokens(ids, group, tokens, K, PAIRWISE, TOKENS, TOP)
    count = tl.sum(found, axis=0)
    if count == 0:
        return
    release_next(PDL)
    weight = w13 + (expert * 2 * I + row) * H
    for first in range(0, count, M):
        place = pack_tokens(found, at, before, first, M)
        present = first + tl.arange(0, M) < count
        shape: tl.constexpr = (ROWS, M) if SWAP else (M, ROWS)
        gate = tl.zeros(shape, dtype=tl.float32)
        up = tl.zeros(shape, dtype=tl.float32)
        gate, up = _multiply(
            gate, up, x + (place // K).to(tl.int64) * x_stride, present, weight, weight + I * H,
            exists, H, True, SWAP, COLUMNS, EVEN, PRECISION,
        )  # fmt: skip
        if SWAP:
            gate = tl.trans(gate)
            up = tl.trans(up)
        if BIAS:
            gate += tl.load(b13 + expert * 2 * I + row, mask=exists, other=0.0).to(tl.float32)[None, :]
            up += tl.load(b13 + expert * 2 * I + I + row, mask=exists, other=0.0).to(tl.float32)[None, :]
        y = activate(gate, up, clamp, alpha, beta, CLAMP)
        act_at = act + place.to(tl.int64)[:, None] * I + row[None, :]
        tl.store(act_at, y.to(act.dtype.element_ty), mask=present[:, None] & exists[None, :])


@triton.jit(do_not_specialize=["tokens"])
def down_few(
    act, w2, b2, weights, ids, partial, tokens, H, I,
    K: tl.constexpr, PAIRWISE: tl.constexpr, BIAS: tl.constexpr, SWAP: tl.constexpr,
    TOKENS: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``partial [T * k, H]``: the second product of every pair, times the pair's weight."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    exists = row < H
    await_inputs(PDL)
    expert, found, at, before = group_tokens(ids, group, tokens, K, PAIRWISE, TOKENS, TOP)
    count = tl.sum(found, axis=0)
    if count == 0:
        return
    release_next(PDL)
    weight = w2 + (expert * H + row) * I
    for first in range(0, count, M):
        place = pack_tokens(found, at, before, first, M)
        present = first + tl.arange(0, M) < count
        shape: tl.constexpr = (ROWS, M) if SWAP else (M, ROWS)
        y = tl.zeros(shape, dtype=tl.float32)
        y, _ = _multiply(
            y, y, act + place.to(tl.int64) * I, present, weight, weight, exists, I,
            False, SWAP, COLUMNS, EVEN, PRECISION,
        )  # fmt: skip
        if SWAP:
            y = tl.trans(y)
        if BIAS:
            y += tl.load(b2 + expert * H + row, mask=exists, other=0.0).to(tl.float32)[None, :]
        y *= tl.load(weights + place, mask=present, other=0.0)[:, None]
        partial_at = partial + place.to(tl.int64)[:, None] * H + row[None, :]
        tl.store(partial_at, y.to(partial.dtype.element_ty), mask=present[:, None] & exists[None, :])


@triton.jit
def combine(partial, ids, out, H, K: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr):
    """``out [T, H]``: every token adds up its pairs, in float32, in the order of its choice."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < H
    await_inputs(PDL)
    release_next(PDL)
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for position in tl.static_range(K):
        place = token * K + position
        # What no expert wrote is not read.
        present = inside & (tl.load(ids + place) >= 0)
        total += tl.load(partial + place * H + column, mask=present, other=0.0).to(tl.float32)
    tl.store(out + token * H + column, total.to(out.dtype.element_ty), mask=inside)
