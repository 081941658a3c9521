"""Experts for a few hundred tokens: the kernels of ``experts``, with the pairs of every expert listed once.

With more tokens, searching ``ids`` in every program takes longer than a launch that does it for all. What is
listed is read at once, whether it exists or not, so that a program waits for memory once before it knows its
rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.experts import group_tokens
from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next
from frizzen.kernels.triton.tails import store_down, store_gate_up

__all__ = ["down_listed", "first_of_list", "gate_up_listed", "list_group", "list_pairs"]


@triton.jit
def list_group(
    ids, group, counts, pairs, tokens,
    K: tl.constexpr, PAIRWISE: tl.constexpr, TOKENS: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """Writes a group's pairs, ``pairs [groups, T]``, and their number; returns its expert."""
    expert, found, at, before = group_tokens(ids, group, tokens, K, PAIRWISE, TOKENS, TOP)
    tl.store(pairs + group * tokens + before, at, mask=found > 0)
    tl.store(counts + group, tl.sum(found, axis=0))
    return expert


@triton.jit(do_not_specialize=["tokens"])
def list_pairs(
    ids, counts, pairs, tokens, K: tl.constexpr, TOKENS: tl.constexpr, TOP: tl.constexpr, PDL: tl.constexpr
):
    """The pairs of one expert."""
    # At once: what follows touches nothing before it waits.
    release_next(PDL)
    await_inputs(PDL)
    list_group(ids, tl.program_id(0), counts, pairs, tokens, K, False, TOKENS, TOP)


@triton.jit
def first_of_list(pairs, first, tokens, M: tl.constexpr):
    """Pairs number ``first`` to ``first + M`` of a list; past its end anything, which must not be used."""
    number = first + tl.arange(0, M)
    return tl.load(pairs + number, mask=number < tokens, other=0)


@triton.jit
def _multiply(
    total_a, total_b, rows_at, present, weight, to_b, exists, column, SIZE,
    PAIR: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds one or two blocks of a weight times rows, to ``[ROWS, M]``."""
    for start in range(0, SIZE, COLUMNS):
        rows_mask = present[:, None]
        mask = exists[:, None]
        if not EVEN:
            rows_mask = rows_mask & (start + column < SIZE)[None, :]
            mask = mask & (start + column < SIZE)[None, :]
        values = tl.load(rows_at + start, mask=rows_mask, other=0.0)
        a = tl.load(weight + start, mask=mask, other=0.0, eviction_policy="evict_first")
        total_a = multiply_add(a, tl.trans(values), total_a, PRECISION)
        if PAIR:
            b = tl.load(weight + to_b + start, mask=mask, other=0.0, eviction_policy="evict_first")
            total_b = multiply_add(b, tl.trans(values), total_b, PRECISION)
    return total_a, total_b


@triton.jit(do_not_specialize=["tokens"])
def gate_up_listed(
    x, w13, b13, counts, pairs, act, tokens, x_stride, H, I, clamp, alpha, beta,
    K: tl.constexpr, BIAS: tl.constexpr, CLAMP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``act [T * k, I]``: the first product and the activation of every pair."""
    expert = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < I
    column = tl.arange(0, COLUMNS)
    pairs += expert * tokens
    weight = w13 + (expert * 2 * I + row)[:, None] * H + column[None, :]
    await_inputs(PDL)
    count = tl.load(counts + expert)
    place = first_of_list(pairs, 0, tokens, M)
    release_next(PDL)
    if count == 0:
        return
    for first in range(0, count, M):
        present = first + tl.arange(0, M) < count
        place = tl.where(present, place, 0)
        x_at = x + (place // K).to(tl.int64)[:, None] * x_stride + column[None, :]
        gate = tl.zeros([ROWS, M], dtype=tl.float32)
        up = tl.zeros([ROWS, M], dtype=tl.float32)
        gate, up = _multiply(
            gate, up, x_at, present, weight, I * H, exists, column, H, True, COLUMNS, EVEN, PRECISION
        )
        store_gate_up(gate, up, b13, act, expert, place, present, row, I, clamp, alpha, beta, BIAS, CLAMP)
        place = first_of_list(pairs, first + M, tokens, M)


@triton.jit(do_not_specialize=["tokens"])
def down_listed(
    act, w2, b2, weights, counts, pairs, partial, tokens, H, I,
    BIAS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``partial [T * k, H]``: the second product of every pair, times the pair's weight."""
    expert = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < H
    column = tl.arange(0, COLUMNS)
    pairs += expert * tokens
    weight = w2 + (expert * H + row)[:, None] * I + column[None, :]
    await_inputs(PDL)
    count = tl.load(counts + expert)
    place = first_of_list(pairs, 0, tokens, M)
    release_next(PDL)
    if count == 0:
        return
    for first in range(0, count, M):
        present = first + tl.arange(0, M) < count
        place = tl.where(present, place, 0)
        gain = tl.load(weights + place, mask=present, other=0.0)
        act_at = act + place.to(tl.int64)[:, None] * I + column[None, :]
        total = tl.zeros([ROWS, M], dtype=tl.float32)
        total, _ = _multiply(
            total, total, act_at, present, weight, 0, exists, column, I, False, COLUMNS, EVEN, PRECISION
        )
        store_down(total, b2, gain, partial, expert, place, present, row, H, BIAS)
        place = first_of_list(pairs, first + M, tokens, M)
