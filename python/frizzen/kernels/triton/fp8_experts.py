"""Experts with weights in FP8: the kernels of ``experts`` and ``grouped``, with scales.

For few tokens one launch rounds the inputs and lists every expert's pairs, so that the programs of the
products, which are over in microseconds, need not search for them. The activation is rounded where it is
computed, with a scale for the rows of a program. For many tokens it is stored as it is and rounded by a
launch of its own. One token is never rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.experts import activate
from frizzen.kernels.triton.fp8 import to_fp8, weigh_groups
from frizzen.kernels.triton.grouped import tile_of
from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next
from frizzen.kernels.triton.listed import first_of_list, list_group
from frizzen.kernels.triton.tails import store_down

__all__ = [
    "down_few",
    "down_many",
    "down_one",
    "gate_up_few",
    "gate_up_many",
    "gate_up_one",
    "prepare_few",
]


@triton.jit
def gate_up_one(
    x, w13, s13, b13, ids, act, H, I, expert_scales, scale_stride, clamp, alpha, beta,
    BIAS: tl.constexpr, CLAMP: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, STEPS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token: ``act [k, I]`` of its experts."""
    place = tl.program_id(1)
    group = tl.arange(0, GROUPS)
    column = (group * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    inside = column < H
    release_next(PDL)
    await_inputs(PDL)
    expert = tl.load(ids + place).to(tl.int64)
    if expert < 0:
        return
    values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)[None, :, :]
    weight = w13 + expert * 2 * I * H + column[None, :, :]
    scale = s13 + expert * expert_scales
    for step in tl.range(0, STEPS, num_stages=STAGES):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        exists = row < I
        mask = exists[:, None, None] & inside[None, :, :]
        gate_scale = scale + row // BLOCK_ROWS * scale_stride
        up_scale = scale + (I + row) // BLOCK_ROWS * scale_stride
        if BLOCK_COLUMNS > 0:
            gate_scale = gate_scale[:, None] + group[None, :]
            up_scale = up_scale[:, None] + group[None, :]
        there = group * GROUP < H
        gate_at = weight + row[:, None, None] * H
        gate = weigh_groups(gate_at, gate_scale, values, exists, there, mask, BLOCK_COLUMNS)
        up = weigh_groups(gate_at + I * H, up_scale, values, exists, there, mask, BLOCK_COLUMNS)
        if BIAS:
            gate += tl.load(b13 + expert * 2 * I + row, mask=exists, other=0.0).to(tl.float32)
            up += tl.load(b13 + expert * 2 * I + I + row, mask=exists, other=0.0).to(tl.float32)
        y = activate(gate, up, clamp, alpha, beta, CLAMP)
        tl.store(act + place * I + row, y.to(act.dtype.element_ty), mask=exists)


@triton.jit
def down_one(
    act, w2, s2, b2, weights, ids, out, H, I, expert_scales, scale_stride,
    K: tl.constexpr, BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    TOP: tl.constexpr, STEPS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token: ``out [H]``, its experts weighted and added; a step takes one row of every expert."""
    place = tl.arange(0, TOP)
    group = tl.arange(0, GROUPS)
    column = (group * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    inside = column < I
    release_next(PDL)
    await_inputs(PDL)
    expert = tl.load(ids + place, mask=place < K, other=-1).to(tl.int64)
    present = expert >= 0
    gain = tl.load(weights + place, mask=present, other=0.0)
    mask = present[:, None, None] & inside[None, :, :]
    # An absent expert's activation was never written.
    act_at = act + place[:, None, None] * I + column[None, :, :]
    values = tl.load(act_at, mask=mask, other=0.0).to(tl.float32)
    weight = w2 + expert[:, None, None] * H * I + column[None, :, :]
    for step in tl.range(0, STEPS, num_stages=STAGES):
        row = tl.program_id(0) * STEPS + step
        exists = present & (row < H)
        scale_at = s2 + expert * expert_scales + row // BLOCK_ROWS * scale_stride
        if BLOCK_COLUMNS > 0:
            scale_at = scale_at[:, None] + group[None, :]
        of_expert = weigh_groups(
            weight + row * I, scale_at, values, exists, group * GROUP < I, mask & (row < H), BLOCK_COLUMNS
        )
        if BIAS:
            of_expert += tl.load(b2 + expert * H + row, mask=exists, other=0.0).to(tl.float32)
        y = tl.sum(of_expert * gain, axis=0)
        tl.store(out + row, y.to(out.dtype.element_ty), mask=row < H)


@triton.jit(do_not_specialize=["tokens", "groups"])
def prepare_few(
    x, numbers, scales, ids, experts, counts, pairs, tokens, groups, x_stride, H, x_groups,
    K: tl.constexpr, PAIRWISE: tl.constexpr, TOKENS: tl.constexpr, TOP: tl.constexpr, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first ``groups`` programs list pairs, ``pairs [groups, T]``; the others round inputs.

    A group is an expert or, if ``PAIRWISE``, a pair, as in ``experts``; ``counts`` is 0 if it has nothing to
    do.
    """
    program = tl.program_id(0)
    # At once: what follows touches nothing before it waits.
    release_next(PDL)
    await_inputs(PDL)
    if program < groups:
        expert = list_group(ids, program, counts, pairs, tokens, K, PAIRWISE, TOKENS, TOP)
        if PAIRWISE:
            tl.store(experts + program, expert.to(tl.int32))
    else:
        row = ((program - groups) // SLICES).to(tl.int64)
        group = (program - groups) % SLICES * GROUPS + tl.arange(0, GROUPS)
        column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = column < H
        values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        rounded, scale = to_fp8(values, tl.max(tl.abs(values), axis=1))
        tl.store(numbers + row * H + column, rounded, mask=inside)
        tl.store(scales + row * x_groups + group, scale, mask=group * GROUP < H)


@triton.jit(do_not_specialize=["tokens"])
def gate_up_few(
    x, x_scale, w13, w13_tiles, s13, b13, experts, counts, pairs, act, act_scale, tokens, H, I, expert_scales,
    scale_stride, x_groups, act_groups, clamp, alpha, beta,
    K: tl.constexpr, PAIRWISE: tl.constexpr, BIAS: tl.constexpr, CLAMP: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr,
    COPIED: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``act [T * k, I]`` in FP8 with a scale for every ``ROWS``: the first product and the activation.

    If ``COPIED``, the copy engine reads the weight by its descriptor ``w13_tiles [E * 2 * I, H]``.
    """
    block = tl.program_id(0)
    group = tl.program_id(1)
    row = block * ROWS + tl.arange(0, ROWS)
    exists = row < I
    column = tl.arange(0, GROUP)
    pairs += group * tokens
    await_inputs(PDL)
    # All that is listed is read at once, whether it exists or not.
    count = tl.load(counts + group)
    place = first_of_list(pairs, 0, tokens, M)
    expert = group.to(tl.int64)
    if PAIRWISE:
        expert = tl.load(experts + group).to(tl.int64)
    release_next(PDL)
    if count == 0:
        return
    weight = w13 + (expert * 2 * I + row)[:, None] * H + column[None, :]
    from_row = (expert * 2 * I).to(tl.int32) + block * ROWS
    gate_scale = s13 + expert * expert_scales + row // BLOCK_ROWS * scale_stride
    up_scale = s13 + expert * expert_scales + (I + row) // BLOCK_ROWS * scale_stride
    for first in range(0, count, M):
        present = first + tl.arange(0, M) < count
        place = tl.where(present, place, 0)
        x_at = x + (place // K).to(tl.int64)[None, :] * H + column[:, None]
        x_scale_at = x_scale + place // K * x_groups
        gate = tl.zeros([ROWS, M], dtype=tl.float32)
        up = tl.zeros([ROWS, M], dtype=tl.float32)
        for start in range(0, H, GROUP):
            rows_mask = present[None, :]
            mask = exists[:, None]
            if not EVEN:
                rows_mask = rows_mask & (start + column < H)[:, None]
                mask = mask & (start + column < H)[None, :]
            step = start // BLOCK_COLUMNS if BLOCK_COLUMNS > 0 else 0
            values = tl.load(x_at + start, mask=rows_mask, other=0.0)
            of_row = tl.load(x_scale_at + start // GROUP, mask=present, other=0.0)[None, :]
            if COPIED:
                a = w13_tiles.load([from_row, start])
                b = w13_tiles.load([from_row + I, start])
            else:
                a = tl.load(weight + start, mask=mask, other=0.0, eviction_policy="evict_first")
                b = tl.load(weight + I * H + start, mask=mask, other=0.0, eviction_policy="evict_first")
            zeros = tl.zeros([ROWS, M], dtype=tl.float32)
            factor = tl.load(gate_scale + step, mask=exists, other=0.0)
            gate += multiply_add(a, values, zeros, PRECISION) * factor[:, None] * of_row
            factor = tl.load(up_scale + step, mask=exists, other=0.0)
            up += multiply_add(b, values, zeros, PRECISION) * factor[:, None] * of_row
        gate = tl.trans(gate)
        up = tl.trans(up)
        if BIAS:
            bias_at = b13 + expert * 2 * I + row
            gate += tl.load(bias_at, mask=exists, other=0.0).to(tl.float32)[None, :]
            up += tl.load(bias_at + I, mask=exists, other=0.0).to(tl.float32)[None, :]
        # Rows past the last would have a part in the scale.
        y = tl.where(exists[None, :], activate(gate, up, clamp, alpha, beta, CLAMP), 0.0)
        numbers, act_factor = to_fp8(y, tl.max(tl.abs(y), axis=1))
        act_at = act + place.to(tl.int64)[:, None] * I + row[None, :]
        tl.store(act_at, numbers, mask=present[:, None] & exists[None, :])
        tl.store(act_scale + place * act_groups + block, act_factor, mask=present)
        place = first_of_list(pairs, first + M, tokens, M)


@triton.jit(do_not_specialize=["tokens"])
def down_few(
    act, act_scale, w2, w2_tiles, s2, b2, weights, experts, counts, pairs, partial, tokens, H, I,
    expert_scales, scale_stride, act_groups,
    PAIRWISE: tl.constexpr, BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    M: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, COPIED: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``partial [T * k, H]``: the second product of every pair, times the pair's weight.

    A program takes ``BLOCKS`` neighbouring blocks of the weight in one loop, so that the copies of one are
    under way while the one before is stored. ``COPIED``: as in ``gate_up_few``.
    """
    group = tl.program_id(1)
    block = tl.program_id(0) * BLOCKS
    within = tl.arange(0, ROWS)
    column = tl.arange(0, GROUP)
    pairs += group * tokens
    await_inputs(PDL)
    count = tl.load(counts + group)
    place = first_of_list(pairs, 0, tokens, M)
    expert = group.to(tl.int64)
    if PAIRWISE:
        expert = tl.load(experts + group).to(tl.int64)
    release_next(PDL)
    if count == 0:
        return
    weight = w2 + (expert * H + within)[:, None] * I + column[None, :]
    scale = s2 + expert * expert_scales
    blocks = tl.minimum(tl.cdiv(H, ROWS) - block, BLOCKS)
    of_expert = (expert * H).to(tl.int32)
    for first in range(0, count, M):
        present = first + tl.arange(0, M) < count
        place = tl.where(present, place, 0)
        gain = tl.load(weights + place, mask=present, other=0.0)
        act_at = act + place.to(tl.int64)[None, :] * I + column[:, None]
        act_scale_at = act_scale + place * act_groups
        start = 0
        from_row = block * ROWS
        total = tl.zeros([ROWS, M], dtype=tl.float32)
        for _ in range(blocks * tl.cdiv(I, GROUP)):
            row = from_row + within
            exists = row < H
            rows_mask = present[None, :]
            mask = exists[:, None]
            if not EVEN:
                rows_mask = rows_mask & (start + column < I)[:, None]
                mask = mask & (start + column < I)[None, :]
            step = start // BLOCK_COLUMNS if BLOCK_COLUMNS > 0 else 0
            values = tl.load(act_at + start, mask=rows_mask, other=0.0)
            of_row = tl.load(act_scale_at + start // GROUP, mask=present, other=0.0)[None, :]
            if COPIED:
                a = w2_tiles.load([of_expert + from_row, start])
            else:
                a = tl.load(
                    weight + from_row * I + start, mask=mask, other=0.0, eviction_policy="evict_first"
                )
            factor = tl.load(scale + row // BLOCK_ROWS * scale_stride + step, mask=exists, other=0.0)
            zeros = tl.zeros([ROWS, M], dtype=tl.float32)
            total += multiply_add(a, values, zeros, PRECISION) * factor[:, None] * of_row
            start += GROUP
            if BLOCKS > 1:
                # What the next loads need must not wait for the sums: it stands outside of the branch.
                ends = start >= I
                from_row += tl.where(ends, ROWS, 0)
                start = tl.where(ends, 0, start)
                if ends:
                    store_down(total, b2, gain, partial, expert, place, present, row, H, BIAS)
                    total = tl.zeros([ROWS, M], dtype=tl.float32)
        if BLOCKS == 1:
            store_down(total, b2, gain, partial, expert, place, present, block * ROWS + within, H, BIAS)
        place = first_of_list(pairs, first + M, tokens, M)


@triton.jit(do_not_specialize=["most_tiles"])
def gate_up_many(
    x, x_scale, w13, s13, b13, order, tile_experts, act, most_tiles, H, I, expert_scales, scale_stride,
    x_groups, clamp, alpha, beta,
    K: tl.constexpr, BIAS: tl.constexpr, CLAMP: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr, BAND: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``act [places, I]`` in sorted order, unrounded: the first product and the activation."""
    tile, block = tile_of(tl.cdiv(I, ROWS), most_tiles, BAND)
    await_inputs(PDL)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    place = tile * M + tl.arange(0, M)
    pair = tl.load(order + place)
    present = pair >= 0
    token = tl.where(present, pair // K, 0)
    row = block * ROWS + tl.arange(0, ROWS)
    exists = row < I
    column = tl.arange(0, GROUP)
    x_at = x + token.to(tl.int64)[:, None] * H + column[None, :]
    gate_at = w13 + (expert * 2 * I + row)[None, :] * H + column[:, None]
    scale = s13 + expert * expert_scales
    gate_scale = scale + row // BLOCK_ROWS * scale_stride
    up_scale = scale + (I + row) // BLOCK_ROWS * scale_stride
    gate = tl.zeros([M, ROWS], dtype=tl.float32)
    up = tl.zeros([M, ROWS], dtype=tl.float32)
    for start in range(0, H, GROUP):
        mask = present[:, None]
        weight_mask = exists[None, :]
        if not EVEN:
            mask = mask & (start + column < H)[None, :]
            weight_mask = weight_mask & (start + column < H)[:, None]
        values = tl.load(x_at + start, mask=mask, other=0.0)
        of_token = tl.load(x_scale + token * x_groups + start // GROUP, mask=present, other=0.0)[:, None]
        step = start // GROUP * (BLOCK_COLUMNS > 0)
        zeros = tl.zeros([M, ROWS], dtype=tl.float32)
        w = tl.load(gate_at + start, mask=weight_mask, other=0.0)
        factor = tl.load(gate_scale + step, mask=exists, other=0.0)[None, :]
        gate += multiply_add(values, w, zeros, PRECISION) * of_token * factor
        w = tl.load(gate_at + I * H + start, mask=weight_mask, other=0.0)
        factor = tl.load(up_scale + step, mask=exists, other=0.0)[None, :]
        up += multiply_add(values, w, zeros, PRECISION) * of_token * factor
    release_next(PDL)
    if BIAS:
        gate += tl.load(b13 + expert * 2 * I + row, mask=exists, other=0.0).to(tl.float32)[None, :]
        up += tl.load(b13 + expert * 2 * I + I + row, mask=exists, other=0.0).to(tl.float32)[None, :]
    y = activate(gate, up, clamp, alpha, beta, CLAMP)
    act_at = act + place.to(tl.int64)[:, None] * I + row[None, :]
    tl.store(act_at, y.to(act.dtype.element_ty), mask=exists[None, :])


@triton.jit(do_not_specialize=["most_tiles"])
def down_many(
    act, act_scale, w2, s2, b2, weights, order, tile_experts, partial, most_tiles, H, I, expert_scales,
    scale_stride, act_groups,
    BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, M: tl.constexpr,
    ROWS: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr, BAND: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``partial [T * k, H]``: the second product of every pair, times its weight, at the pair's place."""
    tile, block = tile_of(tl.cdiv(H, ROWS), most_tiles, BAND)
    await_inputs(PDL)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    place = tile * M + tl.arange(0, M)
    row = block * ROWS + tl.arange(0, ROWS)
    exists = row < H
    column = tl.arange(0, GROUP)
    act_at = act + place.to(tl.int64)[:, None] * I + column[None, :]
    w_at = w2 + (expert * H + row)[None, :] * I + column[:, None]
    scale_at = s2 + expert * expert_scales + row // BLOCK_ROWS * scale_stride
    y = tl.zeros([M, ROWS], dtype=tl.float32)
    for start in range(0, I, GROUP):
        if EVEN:
            values = tl.load(act_at + start)
            w = tl.load(w_at + start, mask=exists[None, :], other=0.0)
        else:
            inside = start + column < I
            values = tl.load(act_at + start, mask=inside[None, :], other=0.0)
            w = tl.load(w_at + start, mask=exists[None, :] & inside[:, None], other=0.0)
        of_row = tl.load(act_scale + place * act_groups + start // GROUP)[:, None]
        factor = tl.load(scale_at + start // GROUP * (BLOCK_COLUMNS > 0), mask=exists, other=0.0)[None, :]
        y += multiply_add(values, w, tl.zeros([M, ROWS], dtype=tl.float32), PRECISION) * of_row * factor
    release_next(PDL)
    pair = tl.load(order + place)
    present = pair >= 0
    if BIAS:
        y += tl.load(b2 + expert * H + row, mask=exists, other=0.0).to(tl.float32)[None, :]
    y *= tl.load(weights + pair, mask=present, other=0.0)[:, None]
    partial_at = partial + pair.to(tl.int64)[:, None] * H + row[None, :]
    tl.store(partial_at, y.to(partial.dtype.element_ty), mask=present[:, None] & exists[None, :])
