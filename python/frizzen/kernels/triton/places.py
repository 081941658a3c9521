"""Pairs of tokens and experts for grouped products from outside: sorted, gathered, activated, added up.

A *place* is a row of such a product. Every expert has a part of the places, in whole tiles or of one
capacity; ``order`` has the pair of each place, -1 where there is none, and ``places`` the place of each pair.
What stands in places without a pair is never read, so it is never written either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.moe_reference import Activation
from frizzen.kernels.triton.experts import activate
from frizzen.kernels.triton.fp8 import to_fp8
from frizzen.kernels.triton.launch import Target, await_inputs, release_next, round_up_power
from frizzen.kernels.triton.sorting import sort_pairs
from frizzen.quantize.fp8 import FP8, GROUP

__all__ = ["Places", "Rows", "Sorted"]


class Rows(NamedTuple):
    """Rows of a product: plain, or FP8 numbers with scales ``[R, ceil(K / 128)]`` by column."""

    data: Tensor
    scale: Tensor | None


class Sorted(NamedTuple):
    """Where pairs are."""

    order: Tensor
    """``[R]`` int32."""
    places: Tensor
    """``[T * k]`` int32; what stands there for an absent expert means nothing."""
    counts: Tensor | None
    """``[E]`` int32, pairs of every expert; None in tiles."""
    experts: Tensor | None
    """``[R]`` int32: the expert of every place in its tile, -1 past the last tile; None by capacity."""


@triton.jit(do_not_specialize=["pairs"])
def _place_pairs(ids, cursors, order, places, pairs, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    expert = tl.load(ids + pair, mask=pair < pairs, other=-1)
    place = tl.atomic_add(cursors + expert, 1, mask=expert >= 0, sem="relaxed")
    release_next(PDL)
    tl.store(order + place, pair, mask=expert >= 0)
    tl.store(places + pair, place, mask=expert >= 0)


@triton.jit
def _store_group(
    y, inside, row, group, numbers, scales, scale_stride, group_stride, K, GROUP, ROUND: tl.constexpr
):
    """Groups ``[G, 128]`` of a row, rounded to FP8 or as they are."""
    column = group[:, None] * GROUP + tl.arange(0, y.shape[1])[None, :]
    at = numbers + row * K + column
    if ROUND:
        found, scale = to_fp8(y, tl.max(tl.abs(y), axis=1))
        tl.store(at, found, mask=inside)
        tl.store(scales + row * scale_stride + group * group_stride, scale, mask=group * GROUP < K)
    else:
        tl.store(at, y.to(numbers.dtype.element_ty), mask=inside)


@triton.jit
def _gather(
    x, order, numbers, scales, x_stride, scale_stride, group_stride, K,
    TOP: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < K
    await_inputs(PDL)
    pair = tl.load(order + row)
    release_next(PDL)
    if pair < 0:
        return
    values = tl.load(x + (pair // TOP).to(tl.int64) * x_stride + column, mask=inside, other=0.0)
    _store_group(
        values.to(tl.float32),
        inside,
        row,
        group,
        numbers,
        scales,
        scale_stride,
        group_stride,
        K,
        GROUP,
        ROUND,
    )


@triton.jit
def _activate_rows(
    gate_up, order, numbers, scales, scale_stride, group_stride, I, clamp, alpha, beta,
    CLAMP: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < I
    await_inputs(PDL)
    pair = tl.load(order + row)
    release_next(PDL)
    if pair < 0:
        return
    gate = tl.load(gate_up + row * 2 * I + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * I + I + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.where(inside, activate(gate, up, clamp, alpha, beta, CLAMP), 0.0)
    _store_group(y, inside, row, group, numbers, scales, scale_stride, group_stride, I, GROUP, ROUND)


@triton.jit
def _add_up(
    y, places, weights, ids, out, H, K: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < H
    await_inputs(PDL)
    release_next(PDL)
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for position in tl.static_range(K):
        pair = token * K + position
        present = tl.load(ids + pair) >= 0
        place = tl.load(places + pair, mask=present, other=0).to(tl.int64)
        gain = tl.load(weights + pair, mask=present, other=0.0)
        total += gain * tl.load(y + place * H + column, mask=inside & present, other=0.0).to(tl.float32)
    tl.store(out + token * H + column, total.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Places:
    """The steps around two grouped products, for one shape of experts."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    activation: Activation
    target: Target

    def in_tiles(self, ids: Tensor, height: int) -> Sorted:
        """Pairs by expert, each expert's part in whole tiles of ``height`` places."""
        found = sort_pairs(ids, self.experts, height, self.target)
        experts = found.tile_experts.unsqueeze(1).expand(-1, height).flatten()
        return Sorted(found.order, found.places, None, experts)

    def by_capacity(self, ids: Tensor, capacity: int) -> Sorted:
        """Every expert has ``capacity`` places, as many as there are tokens."""
        pairs, device = ids.numel(), ids.device
        starts = torch.arange(self.experts, dtype=torch.int32, device=device) * capacity
        cursors = starts.clone()
        order = torch.full((self.experts * capacity,), -1, dtype=torch.int32, device=device)
        places = torch.empty(pairs, dtype=torch.int32, device=device)
        _place_pairs[(triton.cdiv(pairs, 1024),)](
            ids, cursors, order, places, pairs, BLOCK=1024, **self.target.options()
        )
        return Sorted(order, places, cursors - starts, None)

    def gather(self, x: Tensor, found: Sorted, *, rounded: bool) -> Rows:
        """The token of every place: ``x [T, H]`` -> ``[R, H]``."""
        rows = self._rows(len(found.order), self.hidden, x, rounded=rounded)
        groups = triton.cdiv(self.hidden, GROUP)
        several = min(round_up_power(groups), 16)
        _gather[(len(found.order), triton.cdiv(groups, several))](
            x, found.order, rows.data, rows.scale, x.stride(0), *_strides(rows), self.hidden, TOP=self.top_k,
            GROUPS=several, GROUP=GROUP, ROUND=rounded, num_warps=4, **self.target.options(),
        )  # fmt: skip
        return rows

    def activate(self, gate_up: Tensor, found: Sorted, *, rounded: bool) -> Rows:
        """``gate_up [R, 2 * I]`` -> ``[R, I]``."""
        rows = self._rows(len(found.order), self.intermediate, gate_up, rounded=rounded)
        groups = triton.cdiv(self.intermediate, GROUP)
        several = min(round_up_power(groups), 8)
        chosen = self.activation
        _activate_rows[(len(found.order), triton.cdiv(groups, several))](
            gate_up, found.order, rows.data, rows.scale, *_strides(rows), self.intermediate, chosen.clamp,
            chosen.alpha, chosen.beta, CLAMP=chosen.clamp > 0, GROUPS=several, GROUP=GROUP, ROUND=rounded,
            num_warps=4, **self.target.options(),
        )  # fmt: skip
        return rows

    def add_up(self, y: Tensor, places: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """``y [R, H]`` -> ``[T, H]``: every token's experts, weighted, in the order of its choice.

        ``places [T * k]``: see :class:`Sorted`.
        """
        out = torch.empty(len(ids), self.hidden, dtype=y.dtype, device=y.device)
        columns = min(round_up_power(self.hidden), 1024)
        _add_up[(len(ids), triton.cdiv(self.hidden, columns))](
            y, places, weights, ids, out, self.hidden, K=self.top_k, COLUMNS=columns, num_warps=4,
            **self.target.options(),
        )  # fmt: skip
        return out

    def _rows(self, count: int, size: int, like: Tensor, *, rounded: bool) -> Rows:
        if not rounded:
            return Rows(torch.empty(count, size, dtype=like.dtype, device=like.device), None)
        groups, padded = triton.cdiv(size, GROUP), triton.cdiv(count, 4) * 4
        scale = torch.empty(groups, padded, dtype=torch.float32, device=like.device).T[:count]
        return Rows(torch.empty(count, size, dtype=FP8, device=like.device), scale)


def _strides(rows: Rows) -> tuple[int, int]:
    return (0, 0) if rows.scale is None else (rows.scale.stride(0), rows.scale.stride(1))
