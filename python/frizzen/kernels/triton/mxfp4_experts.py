"""Experts with weights in MXFP4: the kernels of ``experts`` and ``grouped`` on units of four numbers.

A weight is the left operand of every product, so that its numbers go from memory to registers, become
bfloat16 there, and on to the tensor cores; sums stand ``[rows, tokens]``. A step takes 128 columns: the first
numbers of all units, then the second, the third and the fourth, which the tokens' columns follow.

One token would leave most multiprocessors with few rows. So its columns are cut into parts that take the
places of tokens, and those of a weight into as many parts that take the places of rows: of the products of
all parts with all, those of a part with its own are added.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.experts import activate, group_tokens, pack_tokens
from frizzen.kernels.triton.grouped import tile_of
from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next
from frizzen.kernels.triton.mxfp4 import factors, unpack
from frizzen.kernels.triton.tails import store_down, store_gate_up

__all__ = ["down_few", "down_many", "down_one", "gate_up_few", "gate_up_many", "gate_up_one"]


@triton.jit
def _behind(first, second):
    """``[ROWS, N]`` twice -> ``[ROWS, 2 * N]``."""
    return tl.reshape(tl.trans(tl.join(first, second), 0, 2, 1), (first.shape[0], 2 * first.shape[1]))


@triton.jit
def _load(units_at, words_at, exists, left, start, EVEN: tl.constexpr, PRECISION: tl.constexpr):
    """The four numbers of the units of 128 columns: four times ``[ROWS, 32]``."""
    unit = tl.arange(0, 32)
    mask = exists[:, None]
    words_mask = exists
    if not EVEN:
        mask = mask & (start + (unit // 8 * 32)[None, :] < left[:, None])
        words_mask = words_mask & (start < left)
    units = tl.load(
        units_at[:, None] + (start // 4 + unit)[None, :], mask=mask, other=0, eviction_policy="evict_first"
    )
    words = tl.load(words_at + start // 128, mask=words_mask, other=0)
    return unpack(units, factors(words, PRECISION == "native"), PRECISION == "native")


@triton.jit
def _multiply(
    total_a, total_b, tokens_at, present, units_at, words_at, to_b, words_to_b, exists, SIZE,
    PAIR: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds one or two blocks of a weight times tokens, to ``[ROWS, M]``: one product for 128 columns."""
    # The first numbers of all units, then the second, ...
    number = tl.arange(0, 128)
    column = number // 8 % 4 * 32 + number // 32 * 8 + number % 8
    x_at = tokens_at[None, :] + column[:, None]
    left = tl.full(exists.shape, SIZE, tl.int32)
    for start in range(0, SIZE, 128):
        mask = present[None, :]
        if not EVEN:
            mask = mask & (start + column < SIZE)[:, None]
        values = tl.load(x_at + start, mask=mask, other=0.0)
        a, b, c, d = _load(units_at, words_at, exists, left, start, EVEN, PRECISION)
        total_a = multiply_add(_behind(_behind(a, b), _behind(c, d)), values, total_a, PRECISION)
        if PAIR:
            a, b, c, d = _load(units_at + to_b, words_at + words_to_b, exists, left, start, EVEN, PRECISION)
            total_b = multiply_add(_behind(_behind(a, b), _behind(c, d)), values, total_b, PRECISION)
    return total_a, total_b


@triton.jit
def _multiply_parts(
    total_a, total_b, parts_at, parts_left, present, units_at, words_at, to_b, words_to_b, left, exists,
    SPAN: tl.constexpr, PAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same with parts of one token, of ``SPAN`` columns: four products for 128 columns, which is faster.

    Of a part ``parts_left`` columns are there, of one of a row ``left``.
    """
    unit = tl.arange(0, 32)
    column = unit // 8 * 32 + unit % 8
    x_at = parts_at[None, :] + column[:, None]
    for start in range(0, SPAN, 128):
        mask = present[None, :] & (start + column[:, None] < parts_left[None, :])
        first = tl.load(x_at + start, mask=mask, other=0.0)
        second = tl.load(x_at + start + 8, mask=mask, other=0.0)
        third = tl.load(x_at + start + 16, mask=mask, other=0.0)
        fourth = tl.load(x_at + start + 24, mask=mask, other=0.0)
        a, b, c, d = _load(units_at, words_at, exists, left, start, False, PRECISION)
        total_a = multiply_add(a, first, total_a, PRECISION)
        total_a = multiply_add(b, second, total_a, PRECISION)
        total_a = multiply_add(c, third, total_a, PRECISION)
        total_a = multiply_add(d, fourth, total_a, PRECISION)
        if PAIR:
            a, b, c, d = _load(units_at + to_b, words_at + words_to_b, exists, left, start, False, PRECISION)
            total_b = multiply_add(a, first, total_b, PRECISION)
            total_b = multiply_add(b, second, total_b, PRECISION)
            total_b = multiply_add(c, third, total_b, PRECISION)
            total_b = multiply_add(d, fourth, total_b, PRECISION)
    return total_a, total_b


@triton.jit
def _own(products, PARTS: tl.constexpr):
    """Of products of every part with every part, ``[ROWS * PARTS, M]``, those with itself: ``[ROWS, M]``."""
    M: tl.constexpr = products.shape[1]
    own = tl.arange(0, PARTS)[None, :, None] == tl.arange(0, M)[None, None, :]
    return tl.sum(tl.where(own, tl.reshape(products, (products.shape[0] // PARTS, PARTS, M)), 0.0), axis=1)


@triton.jit
def gate_up_one(
    x, w13, s13, b13, ids, act, H, I, clamp, alpha, beta,
    BIAS: tl.constexpr, CLAMP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    SPAN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token: ``act [k, I]`` of its experts; every row in ``PARTS`` parts of ``SPAN`` columns."""
    place = tl.program_id(1)
    await_inputs(PDL)
    release_next(PDL)
    expert = tl.load(ids + place).to(tl.int64)
    if expert < 0:
        return
    part = tl.arange(0, M)
    of_row = tl.arange(0, ROWS * PARTS)
    row = tl.program_id(0) * ROWS + of_row // PARTS
    begin = of_row % PARTS * SPAN
    words = tl.cdiv(H, 128)
    gate = tl.zeros([ROWS * PARTS, M], dtype=tl.float32)
    up = tl.zeros([ROWS * PARTS, M], dtype=tl.float32)
    gate, up = _multiply_parts(
        gate, up, x + part * SPAN, H - part * SPAN, part < PARTS,
        w13 + (expert * 2 * I + row) * (H // 4) + begin // 4,
        s13 + (expert * 2 * I + row) * words + begin // 128,
        I * (H // 4), I * words, H - begin, row < I, SPAN, True, PRECISION,
    )  # fmt: skip
    gate = tl.sum(_own(gate, PARTS), axis=1)
    up = tl.sum(_own(up, PARTS), axis=1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < I
    if BIAS:
        gate += tl.load(b13 + expert * 2 * I + row, mask=exists, other=0.0).to(tl.float32)
        up += tl.load(b13 + expert * 2 * I + I + row, mask=exists, other=0.0).to(tl.float32)
    y = activate(gate, up, clamp, alpha, beta, CLAMP)
    tl.store(act + place * I + row, y.to(act.dtype.element_ty), mask=exists)


@triton.jit
def down_one(
    act, w2, s2, b2, weights, ids, out, H, I,
    K: tl.constexpr, BIAS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, TOP: tl.constexpr,
    PARTS: tl.constexpr, SPAN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token: ``out [H]``, its experts weighted and added; every row of each in ``PARTS`` parts."""
    await_inputs(PDL)
    release_next(PDL)
    ALL: tl.constexpr = TOP * PARTS
    part = tl.arange(0, M)
    place = part // PARTS
    present = tl.load(ids + place, mask=place < K, other=-1) >= 0
    of_row = tl.arange(0, ROWS * ALL)
    row = tl.program_id(0) * ROWS + of_row // ALL
    expert = tl.load(ids + of_row % ALL // PARTS, mask=of_row % ALL // PARTS < K, other=-1).to(tl.int64)
    begin = of_row % PARTS * SPAN
    words = tl.cdiv(I, 128)
    y = tl.zeros([ROWS * ALL, M], dtype=tl.float32)
    # An absent expert's activation was never written.
    y, _ = _multiply_parts(
        y, y, act + place * I + part % PARTS * SPAN, I - part % PARTS * SPAN, present,
        w2 + (expert * H + row) * (I // 4) + begin // 4, s2 + (expert * H + row) * words + begin // 128, 0, 0,
        I - begin, (row < H) & (expert >= 0), SPAN, False, PRECISION,
    )  # fmt: skip
    gain = tl.load(weights + place, mask=present, other=0.0)
    y = tl.sum(_own(y, ALL) * gain[None, :], axis=1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < H
    if BIAS:
        for choice in tl.static_range(K):
            chosen = tl.load(ids + choice).to(tl.int64)
            bias = tl.load(b2 + chosen * H + row, mask=exists & (chosen >= 0), other=0.0).to(tl.float32)
            y += bias * tl.load(weights + choice, mask=chosen >= 0, other=0.0)
    tl.store(out + row, y.to(out.dtype.element_ty), mask=exists)


@triton.jit
def _gate_up(
    tokens_at, place, present, w13, s13, b13, act, expert, block, H, I, clamp, alpha, beta,
    BIAS: tl.constexpr, CLAMP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The activation of some tokens and a block of rows, in rows ``place`` of ``act``."""
    row = block * ROWS + tl.arange(0, ROWS)
    words = tl.cdiv(H, 128)
    gate = tl.zeros([ROWS, M], dtype=tl.float32)
    up = tl.zeros([ROWS, M], dtype=tl.float32)
    gate, up = _multiply(
        gate, up, tokens_at, present, w13 + (expert * 2 * I + row) * (H // 4),
        s13 + (expert * 2 * I + row) * words, I * (H // 4), I * words, row < I, H, True, EVEN, PRECISION,
    )  # fmt: skip
    store_gate_up(gate, up, b13, act, expert, place, present, row, I, clamp, alpha, beta, BIAS, CLAMP)


@triton.jit
def _down(
    act_at, pair, present, w2, s2, b2, weights, partial, expert, block, H, I,
    BIAS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The weighted result of some pairs and a block of rows, in rows ``pair`` of ``partial``."""
    row = block * ROWS + tl.arange(0, ROWS)
    gains = tl.load(weights + pair, mask=present, other=0.0)
    y = tl.zeros([ROWS, M], dtype=tl.float32)
    y, _ = _multiply(
        y, y, act_at, present, w2 + (expert * H + row) * (I // 4), s2 + (expert * H + row) * tl.cdiv(I, 128),
        0, 0, row < H, I, False, EVEN, PRECISION,
    )  # fmt: skip
    store_down(y, b2, gains, partial, expert, pair, present, row, H, BIAS)


@triton.jit(do_not_specialize=["tokens"])
def gate_up_few(
    x, w13, s13, b13, ids, act, tokens, x_stride, H, I, clamp, alpha, beta,
    K: tl.constexpr, PAIRWISE: tl.constexpr, BIAS: tl.constexpr, CLAMP: tl.constexpr, TOKENS: tl.constexpr,
    TOP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``act [T * k, I]``: the first product and the activation of every pair."""
    await_inputs(PDL)
    expert, found, at, before = group_tokens(ids, tl.program_id(1), tokens, K, PAIRWISE, TOKENS, TOP)
    count = tl.sum(found, axis=0)
    if count == 0:
        return
    release_next(PDL)
    for first in range(0, count, M):
        place = pack_tokens(found, at, before, first, M)
        present = first + tl.arange(0, M) < count
        _gate_up(
            x + (place // K).to(tl.int64) * x_stride, place, present, w13, s13, b13, act, expert,
            tl.program_id(0), H, I, clamp, alpha, beta, BIAS, CLAMP, M, ROWS, EVEN, PRECISION,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def down_few(
    act, w2, s2, b2, weights, ids, partial, tokens, H, I,
    K: tl.constexpr, PAIRWISE: tl.constexpr, BIAS: tl.constexpr, TOKENS: tl.constexpr, TOP: tl.constexpr,
    M: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``partial [T * k, H]``: the second product of every pair, times the pair's weight."""
    await_inputs(PDL)
    expert, found, at, before = group_tokens(ids, tl.program_id(1), tokens, K, PAIRWISE, TOKENS, TOP)
    count = tl.sum(found, axis=0)
    if count == 0:
        return
    release_next(PDL)
    for first in range(0, count, M):
        place = pack_tokens(found, at, before, first, M)
        present = first + tl.arange(0, M) < count
        _down(
            act + place.to(tl.int64) * I, place, present, w2, s2, b2, weights, partial, expert,
            tl.program_id(0), H, I, BIAS, M, ROWS, EVEN, PRECISION,
        )  # fmt: skip


@triton.jit(do_not_specialize=["most_tiles"])
def gate_up_many(
    x, w13, s13, b13, order, tile_experts, act, most_tiles, x_stride, H, I, clamp, alpha, beta,
    K: tl.constexpr, BIAS: tl.constexpr, CLAMP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr, BAND: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``act [places, I]`` in sorted order: the first product and the activation."""
    tile, block = tile_of(tl.cdiv(I, ROWS), most_tiles, BAND)
    await_inputs(PDL)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    place = tile * M + tl.arange(0, M)
    pair = tl.load(order + place)
    present = pair >= 0
    _gate_up(
        x + (pair // K).to(tl.int64) * x_stride, place, present, w13, s13, b13, act, expert, block, H, I,
        clamp, alpha, beta, BIAS, CLAMP, M, ROWS, EVEN, PRECISION,
    )  # fmt: skip
    release_next(PDL)


@triton.jit(do_not_specialize=["most_tiles"])
def down_many(
    act, w2, s2, b2, weights, order, tile_experts, partial, most_tiles, H, I,
    BIAS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr,
    BAND: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``partial [T * k, H]``: the second product of every pair, times its weight, at the pair's place."""
    tile, block = tile_of(tl.cdiv(H, ROWS), most_tiles, BAND)
    await_inputs(PDL)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    place = tile * M + tl.arange(0, M)
    pair = tl.load(order + place)
    present = pair >= 0
    _down(
        act + place.to(tl.int64) * I, pair, present, w2, s2, b2, weights, partial, expert, block, H, I, BIAS,
        M, ROWS, EVEN, PRECISION,
    )  # fmt: skip
    release_next(PDL)
