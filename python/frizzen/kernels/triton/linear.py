"""Products with few rows: bound by the bytes of the weight, which is read once, in one wave of programs.

One token goes through multiply-add on whole rows of the weight (nothing to stage, many loads in flight); up to
:data:`FEW` tokens go through the tensor cores. More are torch's. Before its inputs exist a program asks for its slice of
the weight to be brought into the L2 cache: the memory bus works while small kernels (norms, rotation, attention of
short contexts) keep only the multiprocessors busy.
"""
# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.triton.launch import Target, await_inputs, multiply_add, precision, prefetch, round_up_power

__all__ = ["FEW", "LmHead", "SkinnyLinear", "Tile", "TiedHead", "skinny"]

FEW = 64
"""Most tokens that the kernels here serve."""


class Tile(NamedTuple):
    """How a program's slice of the weight is cut."""

    rows: int
    columns: int
    warps: int
    stages: int
    prefetch: bool


@triton.jit
def _gemv(
    x,
    weight,
    bias,
    out,
    K,
    N,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < N
    if PREFETCH:
        first = tl.program_id(0).to(tl.int64) * ROWS
        size = tl.minimum(ROWS, N - first).to(tl.int32) * K * (weight.dtype.element_ty.primitive_bitwidth // 8)
        prefetch(weight + first * K, size)
    await_inputs(PDL)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in tl.range(0, K, COLUMNS, num_stages=STAGES):
        column = start + tl.arange(0, COLUMNS)
        inside = column < K
        w = tl.load(
            weight + row[:, None] * K + column[None, :],
            mask=exists[:, None] & inside[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        total += w.to(tl.float32) * values[None, :]
    y = tl.sum(total, axis=1)
    if BIAS:
        y += tl.load(bias + row, mask=exists, other=0.0).to(tl.float32)
    tl.store(out + row, y.to(out.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["tokens"])
def _few(
    x,
    weight,
    bias,
    out,
    tokens,
    x_stride,
    K,
    N,
    BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    # The weight is the left operand: its rows fill the tensor cores' tiles, and the tokens are the narrow side.
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < N
    token = tl.arange(0, TOKENS)
    present = token < tokens
    if PREFETCH:
        first = tl.program_id(0).to(tl.int64) * ROWS
        size = tl.minimum(ROWS, N - first).to(tl.int32) * K * (weight.dtype.element_ty.primitive_bitwidth // 8)
        prefetch(weight + first * K, size)
    await_inputs(PDL)
    column = tl.arange(0, COLUMNS)
    weight_at = weight + row[:, None] * K + column[None, :]
    x_at = x + token[None, :] * x_stride + column[:, None]
    total = tl.zeros([ROWS, TOKENS], dtype=tl.float32)
    for start in range(0, K, COLUMNS):
        inside = start + column < K if not EVEN else column < COLUMNS
        w = tl.load(weight_at + start, mask=exists[:, None] & inside[None, :], other=0.0, eviction_policy="evict_first")
        values = tl.load(x_at + start, mask=present[None, :] & inside[:, None], other=0.0)
        total = multiply_add(w, values, total, PRECISION)
    if BIAS:
        total += tl.load(bias + row, mask=exists, other=0.0).to(tl.float32)[:, None]
    out_at = out + token[None, :].to(tl.int64) * N + row[:, None]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=exists[:, None] & present[None, :])


def tile_for(tokens: int, in_features: int, out_features: int, processors: int) -> Tile:
    """The tile for a product, from what was fastest on an H200."""
    if tokens == 1:
        return Tile(4, min(round_up_power(in_features), 2048), 4, 1, prefetch=True)
    rows = 16 if out_features <= 64 * processors else 64
    return Tile(rows, 256 if rows == 16 else 128, 4, 4, prefetch=True)


def skinny(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, target: Target, tile: Tile) -> Tensor:
    """``x [T, K] @ weight [N, K].T + bias [N]`` into ``out [T, N]``, for T up to :data:`FEW`."""
    tokens, (size_out, size_in) = len(x), weight.shape
    grid = (triton.cdiv(size_out, tile.rows),)
    # A prefetch moves whole 16-byte pieces.
    ahead = tile.prefetch and target.dependent and size_in * weight.itemsize % 16 == 0
    constants = {"BIAS": bias is not None, "ROWS": tile.rows, "PREFETCH": ahead, **target.options()}
    if tokens == 1:
        _gemv[grid](
            x,
            weight,
            bias,
            out,
            size_in,
            size_out,
            COLUMNS=tile.columns,
            STAGES=tile.stages,
            num_warps=tile.warps,
            **constants,
        )
        return out
    columns = min(tile.columns, round_up_power(size_in, 16))
    _few[grid](
        x,
        weight,
        bias,
        out,
        tokens,
        x.stride(0),
        size_in,
        size_out,
        TOKENS=round_up_power(tokens, 16),
        COLUMNS=columns,
        EVEN=size_in % columns == 0,
        PRECISION=precision(x.dtype),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **constants,
    )
    return out


@dataclass(frozen=True, slots=True)
class SkinnyLinear:
    """See ``linear``."""

    in_features: int
    out_features: int
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> SkinnyLinear:
        """The kernel for one weight shape."""
        return cls(facts.size("in_features"), facts.size("out_features"), Target.of(facts))

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""

        def linear(x: Tensor) -> Tensor:
            tokens = len(x)
            if not 0 < tokens <= FEW:
                return F.linear(x, weight, bias)
            tile = tile_for(tokens, self.in_features, self.out_features, self.target.processors)
            out = torch.empty(tokens, self.out_features, dtype=x.dtype, device=x.device)
            return skinny(x, weight, bias, out, self.target, tile)

        return linear


@dataclass(frozen=True, slots=True)
class LmHead:
    """See ``lm_head``: float32 sums are stored as they are, never rounded to the weight's type on the way."""

    in_features: int
    out_features: int
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> LmHead:
        """The kernel for one head."""
        return cls(facts.size("in_features"), facts.size("out_features"), Target.of(facts))

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""

        def head(hidden: Tensor) -> Tensor:
            tokens = len(hidden)
            if not 0 < tokens <= FEW:
                if hidden.device.type == "cuda" and hidden.dtype != torch.float32 and tokens:
                    logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
                    return logits if bias is None else logits.add_(bias)
                return F.linear(hidden, weight, bias).float()
            tile = tile_for(tokens, self.in_features, self.out_features, self.target.processors)
            logits = torch.empty(tokens, self.out_features, dtype=torch.float32, device=hidden.device)
            return skinny(hidden, weight, bias, logits, self.target, tile)

        return head


@dataclass(frozen=True, slots=True)
class TiedHead:
    """See ``lm_head.tied``."""

    head: LmHead

    @classmethod
    def build(cls, facts: Facts) -> TiedHead:
        """The kernel for one head."""
        return cls(LmHead.build(facts))

    def prepare(self, weight: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """Keeps the weight as it is."""
        return lambda ids: F.embedding(ids, weight), self.head.prepare(weight, None)
