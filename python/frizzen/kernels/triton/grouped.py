"""Experts for many tokens: pairs sorted by expert, whole tiles for each, two grouped products.

Bound by arithmetic. The first product gathers its rows from ``x`` and stores the activation in the order of
``sorting``; the second reads that and stores each pair at its own place, from where ``experts.combine`` adds
up every token. Tiles of whole matrices are read through descriptors: by the copy engine, where the device
has one, which leaves the registers to the sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.experts import activate
from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next

__all__ = ["down_many", "gate_up_many", "tile_of"]


@triton.jit
def tile_of(blocks, most_tiles, BAND: tl.constexpr):
    """Tile of rows and block of columns of a program.

    Bands of neighbouring tiles go through all columns together, so that an expert's weight is read from
    memory once, and its rows stay in the L2 cache.
    """
    program = tl.program_id(0)
    band = program // (BAND * blocks)
    height = tl.minimum(most_tiles - band * BAND, BAND)
    within = program % (BAND * blocks)
    return band * BAND + within % height, within // height


@triton.jit(do_not_specialize=["most_tiles"])
def gate_up_many(
    x, w13, b13, order, tile_experts, act, most_tiles, x_stride, H, I, clamp, alpha, beta,
    K: tl.constexpr, BIAS: tl.constexpr, CLAMP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, EVEN: tl.constexpr, BAND: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``act [places, I]`` in sorted order: the first product and the activation.

    ``w13`` is a descriptor of ``[E * 2 * I, H]``.
    """
    tile, block = tile_of(tl.cdiv(I, ROWS), most_tiles, BAND)
    await_inputs(PDL)
    expert = tl.load(tile_experts + tile)
    if expert < 0:
        return
    place = tile * M + tl.arange(0, M)
    pair = tl.load(order + place)
    present = pair >= 0
    column = tl.arange(0, COLUMNS)
    x_at = x + (pair // K).to(tl.int64)[:, None] * x_stride + column[None, :]
    # A block that sticks out of the gate reads rows of something else; their results are not stored.
    gate_row = expert * 2 * I + block * ROWS
    gate = tl.zeros([M, ROWS], dtype=tl.float32)
    up = tl.zeros([M, ROWS], dtype=tl.float32)
    for start in range(0, H, COLUMNS):
        mask = present[:, None]
        if not EVEN:
            mask = mask & (start + column < H)[None, :]
        values = tl.load(x_at + start, mask=mask, other=0.0)
        gate = multiply_add(values, w13.load([gate_row, start]).T, gate, PRECISION)
        up = multiply_add(values, w13.load([gate_row + I, start]).T, up, PRECISION)
    release_next(PDL)
    row = block * ROWS + tl.arange(0, ROWS)
    exists = row < I
    if BIAS:
        gate += tl.load(b13 + expert * 2 * I + row, mask=exists, other=0.0).to(tl.float32)[None, :]
        up += tl.load(b13 + expert * 2 * I + I + row, mask=exists, other=0.0).to(tl.float32)[None, :]
    y = activate(gate, up, clamp, alpha, beta, CLAMP)
    act_at = act + place.to(tl.int64)[:, None] * I + row[None, :]
    tl.store(act_at, y.to(act.dtype.element_ty), mask=exists[None, :])


@triton.jit(do_not_specialize=["most_tiles"])
def down_many(
    act, w2, b2, weights, order, tile_experts, partial, most_tiles, H, I,
    BIAS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BAND: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``partial [T * k, H]``: the second product of every pair, times the pair's weight, at the pair's place.

    ``act`` is a descriptor of ``[places, I]``, ``w2`` of ``[E * H, I]``: what lies past a border is zero.
    """
    tile, block = tile_of(tl.cdiv(H, ROWS), most_tiles, BAND)
    await_inputs(PDL)
    expert = tl.load(tile_experts + tile)
    if expert < 0:
        return
    y = tl.zeros([M, ROWS], dtype=tl.float32)
    for start in range(0, I, COLUMNS):
        weight = w2.load([expert * H + block * ROWS, start])
        y = multiply_add(act.load([tile * M, start]), weight.T, y, PRECISION)
    release_next(PDL)
    row = block * ROWS + tl.arange(0, ROWS)
    exists = row < H
    pair = tl.load(order + tile * M + tl.arange(0, M))
    present = pair >= 0
    if BIAS:
        y += tl.load(b2 + expert * H + row, mask=exists, other=0.0).to(tl.float32)[None, :]
    y *= tl.load(weights + pair, mask=present, other=0.0)[:, None]
    partial_at = partial + pair.to(tl.int64)[:, None] * H + row[None, :]
    tl.store(partial_at, y.to(partial.dtype.element_ty), mask=present[:, None] & exists[None, :])
