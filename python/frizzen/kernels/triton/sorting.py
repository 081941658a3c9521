"""Sorts pairs of tokens and experts by expert, each expert's part in whole tiles: a stable counting sort.

Three launches: every block of pairs counts its own, the counts become places, every block places its own. No
atomic operation: the same ids give the same places.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.triton.launch import Target, await_inputs, release_next, round_up_power

__all__ = ["SortedPairs", "most_tiles", "sort_pairs"]

_BLOCK = 256
"""Pairs of a program. Each is compared with all others, to know how many of its expert come before it."""
_COUNTS = 8192
"""Numbers that a program of the second launch reads at a time; it is responsible for half as many."""


class SortedPairs(NamedTuple):
    """Where pairs are; a *place* is a row of a product."""

    order: Tensor
    """``[tiles * height]`` int32: the pair of every place, -1 where there is none."""
    places: Tensor
    """``[T * k]`` int32: the place of every pair; what stands there for an absent expert means nothing."""
    tile_experts: Tensor
    """``[tiles]`` int32: the expert of every tile, -1 past the last."""
    used: Tensor
    """``[3]`` int32: tiles with an expert, which come first; then zeros, for kernels that count up."""


@triton.jit(do_not_specialize=["pairs"])
def _count(
    ids, counts, pairs, E: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """``counts [blocks, E]``."""
    block = tl.program_id(0)
    pair = block * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    expert = tl.load(ids + pair, mask=pair < pairs, other=-1)
    release_next(PDL)
    found = tl.histogram(tl.maximum(expert, 0), EXPERTS, mask=expert >= 0)
    number = tl.arange(0, EXPERTS)
    tl.store(counts + block * E + number, found, mask=number < E)


@triton.jit(do_not_specialize=["blocks", "tiles"])
def _place(
    counts, starts, order, tile_experts, used, blocks, tiles, E: tl.constexpr, EXPERTS: tl.constexpr,
    HEIGHT: tl.constexpr, PLACES: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``starts [blocks, E]``: where a block's pairs of an expert begin. Also clears ``order``."""
    program = tl.program_id(0)
    number = tl.arange(0, EXPERTS)
    total = tl.zeros([EXPERTS], dtype=tl.int32)
    before = tl.zeros([EXPERTS], dtype=tl.int32)
    await_inputs(PDL)
    for first in range(0, blocks, ROWS):
        block = first + tl.arange(0, ROWS)
        mask = (block < blocks)[:, None] & (number < E)[None, :]
        found = tl.load(counts + block[:, None] * E + number[None, :], mask=mask, other=0)
        total += tl.sum(found, axis=0)
        before += tl.sum(tl.where((block < program * SPAN)[:, None], found, 0), axis=0)
    release_next(PDL)
    parts = (total + HEIGHT - 1) // HEIGHT
    ends = tl.cumsum(parts, axis=0)
    before += (ends - parts) * HEIGHT

    block = program * SPAN + tl.arange(0, SPAN)
    at = block[:, None] * E + number[None, :]
    mask = (block < blocks)[:, None] & (number < E)[None, :]
    found = tl.load(counts + at, mask=mask, other=0)
    tl.store(starts + at, before[None, :] + tl.cumsum(found, axis=0) - found, mask=mask)

    tile = program * SPAN + tl.arange(0, SPAN)
    expert = tl.sum((ends[None, :] <= tile[:, None]).to(tl.int32), axis=1)
    tl.store(tile_experts + tile, tl.where(expert < EXPERTS, expert, -1), mask=tile < tiles)
    within = tl.arange(0, PLACES)[None, :]
    place = tile[:, None] * HEIGHT + within
    mask = (tile < tiles)[:, None] & (within < HEIGHT)
    tl.store(order + place, tl.full([SPAN, PLACES], -1, tl.int32), mask=mask)
    if program == 0:
        tl.store(used, tl.sum(parts, axis=0))
        tl.store(used + 1, 0)
        tl.store(used + 2, 0)


@triton.jit(do_not_specialize=["pairs"])
def _scatter(ids, starts, order, places, pairs, E: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Every pair to its place; pairs of one expert stay in their order."""
    block = tl.program_id(0)
    within = tl.arange(0, BLOCK)
    pair = block * BLOCK + within
    await_inputs(PDL)
    expert = tl.load(ids + pair, mask=pair < pairs, other=-1)
    present = expert >= 0
    again = tl.load(ids + pair, mask=pair < pairs, other=-1)
    release_next(PDL)
    equal = (expert[:, None] == again[None, :]) & (within[:, None] > within[None, :])
    place = tl.load(starts + block * E + expert, mask=present, other=0) + tl.sum(equal.to(tl.int32), axis=1)
    tl.store(order + place, pair, mask=present)
    tl.store(places + pair, place, mask=present)


def most_tiles(pairs: int, experts: int, height: int) -> int:
    """Tiles that ``pairs`` can fill at most."""
    return (pairs + min(pairs, experts) * (height - 1)) // height


def sort_pairs(ids: Tensor, experts: int, height: int, target: Target) -> SortedPairs:
    """``ids [T, k]`` int32."""
    pairs, device, options = ids.numel(), ids.device, target.options()
    tiles, blocks = most_tiles(pairs, experts, height), triton.cdiv(pairs, _BLOCK)
    counts, starts = torch.empty(2, blocks, experts, dtype=torch.int32, device=device)
    order = torch.empty(tiles * height, dtype=torch.int32, device=device)
    places = torch.empty(pairs, dtype=torch.int32, device=device)
    tile_experts = torch.empty(tiles, dtype=torch.int32, device=device)
    used = torch.empty(3, dtype=torch.int32, device=device)
    width = round_up_power(experts, 16)
    rows = min(max(_COUNTS // width, 16), 64)
    span = rows // 2
    _count[(blocks,)](ids, counts, pairs, E=experts, EXPERTS=width, BLOCK=_BLOCK, **options)
    _place[(triton.cdiv(max(tiles, blocks), span),)](
        counts, starts, order, tile_experts, used, blocks, tiles,
        E=experts, EXPERTS=width, HEIGHT=height, PLACES=round_up_power(height), SPAN=span, ROWS=rows,
        num_warps=8, **options,
    )  # fmt: skip
    _scatter[(blocks,)](ids, starts, order, places, pairs, E=experts, BLOCK=_BLOCK, **options)
    return SortedPairs(order, places, tile_experts, used)
