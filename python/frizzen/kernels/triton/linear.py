"""Products with few rows: bound by the bytes of the weight, which is read once.

One token goes through multiply-add on whole rows of the weight: their loads are under way before the inputs
exist, and many programs fit on a processor. The RMS norm before such a product can be part of it
(``prepare_normed``): every program adds up the squares itself and divides its sums in the end, so no program
waits for another.

Up to :data:`FEW` tokens go through the tensor cores. Where the rows of the weight do not make enough
programs, its columns are cut as well, for few tokens so finely that programs hold all of a weight before the
inputs exist; the last program of a block of rows (it knows by a counter, which it sets back to zero) adds up
the cuts in their order. More tokens are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from frizzen.kernels.facts import Facts
from frizzen.kernels.triton.launch import (
    Target,
    await_inputs,
    multiply_add,
    precision,
    release_next,
    round_up_power,
)
from frizzen.kernels.triton.norm import RmsNorm

__all__ = ["FEW", "LmHead", "Skinny", "SkinnyLinear", "TiedHead", "Tile"]

FEW = 64
"""Most tokens that the kernels here serve."""


class Tile(NamedTuple):
    """How a program's slice of the weight is cut."""

    rows: int
    columns: int
    warps: int
    stages: int
    splits: int = 1


class Norm(NamedTuple):
    """The RMS norm before a product, and the residual to add first."""

    weight: Tensor
    eps: float
    residual: Tensor | None


@triton.jit
def _inputs(x_at, residual, updated, at, gain, mask, first, NORM: tl.constexpr, ADD: tl.constexpr):
    """Inputs of a product, and their squares if they are to be normed.

    The first program stores the updated residual.
    """
    dtype: tl.constexpr = x_at.dtype.element_ty
    values = tl.load(x_at, mask=mask, other=0.0)
    squares = tl.zeros(values.shape, dtype=tl.float32)
    if NORM:
        y = values.to(tl.float32)
        if ADD:
            y += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
            rounded = y.to(dtype)
            tl.store(updated + at, rounded, mask=mask & first)
            y = rounded.to(tl.float32)
        squares = y * y
        values = (y * gain).to(dtype)
    return values.to(tl.float32), squares


@triton.jit
def _one(
    x, residual, updated, norm, weight, bias, out, K, N, eps,
    BIAS: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < N
    column = tl.arange(0, COLUMNS)
    weight_at = weight + row[:, None] * K + column[None, :]
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    square = tl.zeros([COLUMNS], dtype=tl.float32)
    gain = tl.zeros([COLUMNS], dtype=tl.float32)
    release_next(PDL)
    if WHOLE:
        # One step, and its weights are on their way before the inputs are there.
        inside = column < K
        w = tl.load(
            weight_at, mask=exists[:, None] & inside[None, :], other=0.0, eviction_policy="evict_first"
        )
        if NORM:
            gain = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
        await_inputs(PDL)
        values, square = _inputs(x + column, residual, updated, column, gain, inside, program == 0, NORM, ADD)
        total = w.to(tl.float32) * values[None, :]
    else:
        await_inputs(PDL)
        for start in range(0, K, COLUMNS):
            at = start + column
            inside = at < K
            w = tl.load(
                weight_at + start,
                mask=exists[:, None] & inside[None, :],
                other=0.0,
                eviction_policy="evict_first",
            )
            if NORM:
                gain = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
            values, squares = _inputs(x + at, residual, updated, at, gain, inside, program == 0, NORM, ADD)
            square += squares
            total += w.to(tl.float32) * values[None, :]
    y = tl.sum(total, axis=1)
    if NORM:
        y *= tl.rsqrt(tl.sum(square, axis=0) / K + eps)
    if BIAS:
        y += tl.load(bias + row, mask=exists, other=0.0).to(tl.float32)
    tl.store(out + row, y.to(out.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["tokens"])
def _few(
    x, weight, bias, out, partial, counters, tokens, x_stride, K, N, share,
    BIAS: tl.constexpr, SPLITS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # The weight is the left operand: its rows fill the tensor cores' tiles, the tokens are the narrow side.
    program = tl.program_id(0)
    split = tl.program_id(1)
    within = tl.arange(0, ROWS)
    row = program.to(tl.int64) * ROWS + within
    exists = row < N
    token = tl.arange(0, TOKENS)
    present = token < tokens
    column = tl.arange(0, COLUMNS)
    weight_at = weight + row[:, None] * K + column[None, :]
    x_at = x + token[None, :] * x_stride + column[:, None]
    total = tl.zeros([ROWS, TOKENS], dtype=tl.float32)
    first = split * share
    if WHOLE:
        release_next(PDL)
        # One step, and its weights are on their way before the inputs are there.
        inside = first + column < K
        w = tl.load(
            weight_at + first,
            mask=exists[:, None] & inside[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        await_inputs(PDL)
        values = tl.load(x_at + first, mask=present[None, :] & inside[:, None], other=0.0)
        total = multiply_add(w, values, total, PRECISION)
    else:
        await_inputs(PDL)
        for start in range(first, tl.minimum(first + share, K), COLUMNS):
            mask = present[None, :]
            weight_mask = exists[:, None]
            if not EVEN:
                mask = mask & (start + column < K)[:, None]
                weight_mask = weight_mask & (start + column < K)[None, :]
            w = tl.load(weight_at + start, mask=weight_mask, other=0.0, eviction_policy="evict_first")
            values = tl.load(x_at + start, mask=mask, other=0.0)
            total = multiply_add(w, values, total, PRECISION)
        release_next(PDL)
    if SPLITS > 1:
        mine = partial + program * (SPLITS * ROWS * TOKENS) + within[:, None] * TOKENS + token[None, :]
        tl.store(mine + split * (ROWS * TOKENS), total)
        # All threads have stored before the one that counts does.
        tl.debug_barrier()
        if tl.atomic_add(counters + program, 1, sem="acq_rel") != SPLITS - 1:
            return
        tl.store(counters + program, 0)
        total = tl.zeros([ROWS, TOKENS], dtype=tl.float32)
        for other in tl.static_range(SPLITS):
            # Other programs wrote these: past the first-level cache, which does not see them.
            total += tl.load(mine + other * (ROWS * TOKENS), cache_modifier=".cg")
    if BIAS:
        total += tl.load(bias + row, mask=exists, other=0.0).to(tl.float32)[:, None]
    out_at = out + token[None, :].to(tl.int64) * N + row[:, None]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=exists[:, None] & present[None, :])


def tile_for(tokens: int, in_features: int, out_features: int, dtype: torch.dtype, processors: int) -> Tile:
    """The tile of a product, from what was fastest on an H200."""
    if tokens == 1:
        columns = min(round_up_power(in_features), _WHOLE)
        # A program holds 16 KB of weights in registers.
        return Tile(max(8192 // columns // (dtype.itemsize // 2), 1), columns, 4, 1)
    if dtype == torch.float32:
        return Tile(32, 32, 4, 2)
    blocks, held = triton.cdiv(out_features, _ROWS), triton.cdiv(in_features, _HELD)
    if tokens <= 16 and 2 * blocks <= processors and blocks * held <= 4 * processors:
        # All of the weight fits into the device's registers, 32 KB a program. Two rounds of it take longer.
        return Tile(_ROWS, _HELD, 4, 1, held)
    most = max(min(processors // blocks, in_features // (4 * _COLUMNS), 8), 1)
    # Several blocks on a processor wait for memory in turn; fewer must each have more on the way.
    stages = 3 if blocks >= 4 * processors else 6 if tokens <= 32 else 4
    return Tile(_ROWS, _COLUMNS, 4, stages, 1 << most.bit_length() - 1)


_ROWS, _COLUMNS = 64, 128
"""Tile of the weight for several tokens."""
_HELD = 256
"""Columns of a tile that a program holds before its inputs are there."""
_WHOLE = 4096
"""Longest row of a weight that a program takes in one step."""
_ADDED = 1024
"""Fewest tokens whose product adds the residual; what that does to steps of fewer was not measured."""


@dataclass(frozen=True, slots=True)
class Skinny:
    """A product of one shape with up to :data:`FEW` tokens."""

    in_features: int
    out_features: int
    target: Target
    counters: Tensor

    @classmethod
    def of(cls, in_features: int, out_features: int, target: Target, device: str) -> Skinny:
        """Makes the counters of the blocks of rows, which all layers share: they run one after the other."""
        counters = torch.zeros(triton.cdiv(out_features, _ROWS), dtype=torch.int32, device=device)
        return cls(in_features, out_features, target, counters)

    def tile(self, x: Tensor) -> Tile:
        """The tile for these tokens."""
        return tile_for(len(x), self.in_features, self.out_features, x.dtype, self.target.processors)

    def one(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tile: Tile, norm: Norm | None
    ) -> Tensor:
        """``x [1, K] @ weight [N, K].T + bias [N]`` into ``out [1, N]``; maybe of ``norm(x + residual)``.

        Returns the updated residual: a fresh tensor, or ``x`` if there was none.
        """
        residual = norm.residual if norm else None
        updated = x if residual is None else torch.empty_like(residual)
        _one[(triton.cdiv(self.out_features, tile.rows),)](
            x, residual, updated, norm and norm.weight, weight, bias, out,
            self.in_features, self.out_features, norm.eps if norm else 0.0,
            BIAS=bias is not None, NORM=norm is not None, ADD=residual is not None, ROWS=tile.rows,
            COLUMNS=tile.columns, WHOLE=self.in_features <= tile.columns, num_warps=tile.warps,
            **self.target.options(),
        )  # fmt: skip
        return updated

    def few(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tile: Tile) -> None:
        """``x [T, K] @ weight [N, K].T + bias [N]`` into ``out [T, N]``."""
        width = round_up_power(len(x), 16)
        columns = min(tile.columns, round_up_power(self.in_features, 16))
        share = triton.cdiv(triton.cdiv(self.in_features, tile.splits), columns) * columns
        splits = triton.cdiv(self.in_features, share)
        blocks = triton.cdiv(self.out_features, tile.rows)
        partial = None
        if splits > 1:
            partial = torch.empty(blocks * splits * tile.rows * width, dtype=torch.float32, device=x.device)
        _few[(blocks, splits)](
            x, weight, bias, out, partial, self.counters, len(x), x.stride(0), self.in_features,
            self.out_features, share,
            BIAS=bias is not None, SPLITS=splits, TOKENS=width, ROWS=tile.rows, COLUMNS=columns,
            WHOLE=share == columns, EVEN=self.in_features % columns == 0, PRECISION=precision(x.dtype),
            num_warps=tile.warps, num_stages=tile.stages, **self.target.options(),
        )  # fmt: skip

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The product as a new tensor of ``dtype``."""
        out = torch.empty(len(x), self.out_features, dtype=dtype, device=x.device)
        if len(x) == 1:
            self.one(x, weight, bias, out, self.tile(x), None)
        else:
            self.few(x, weight, bias, out, self.tile(x))
        return out


@dataclass(frozen=True, slots=True)
class SkinnyLinear:
    """See ``linear``."""

    folds: ClassVar[type] = RmsNorm
    """Whose norm ``prepare_normed`` is equal to."""

    skinny: Skinny

    @classmethod
    def build(cls, facts: Facts) -> SkinnyLinear:
        """The kernel for one weight shape."""
        return cls(
            Skinny.of(
                facts.size("in_features"),
                facts.size("out_features"),
                Target.of(facts, shared_memory=150_000),
                facts.device,
            )
        )

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""

        def linear(x: Tensor) -> Tensor:
            if not 0 < len(x) <= FEW:
                return functional.linear(x, weight, bias)
            return self.skinny.run(x, weight, bias, x.dtype)

        return linear

    def prepare_added(
        self, weight: Tensor, bias: Tensor | None
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]:
        """This product and the addition to the residual stream, together for many tokens.

        Returns ``(x [T, K], residual [T, out])`` to two tensors whose sum is the new stream, or to the stream
        and None. The residual may be changed.
        """
        linear = self.prepare(weight, bias)

        def added(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor | None]:
            if len(x) < _ADDED or bias is not None:
                return linear(x), residual
            return residual.addmm_(x, weight.T), None

        return added

    def prepare_normed(
        self, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None
    ) -> Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]:
        """``norm.rms`` and this product together.

        Returns ``(x [T, H], residual [T, H] | None) -> (y [T, out], residual' [T, H])``, where ``residual'``
        is the updated residual: the same tensor or a fresh one, or ``x`` if there was none.
        """
        separate = RmsNorm(self.skinny.in_features, self.skinny.target).prepare(norm, eps)
        linear = self.prepare(weight, bias)

        def normed(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
            if len(x) != 1:
                return linear(separate(x, residual)), x if residual is None else residual
            out = torch.empty(1, self.skinny.out_features, dtype=x.dtype, device=x.device)
            updated = self.skinny.one(x, weight, bias, out, self.skinny.tile(x), Norm(norm, eps, residual))
            return out, updated

        return normed


@dataclass(frozen=True, slots=True)
class LmHead:
    """See ``lm_head``: float32 sums are stored as they are, never rounded to the weight's type on the way."""

    skinny: Skinny

    @classmethod
    def build(cls, facts: Facts) -> LmHead:
        """The kernel for one head."""
        return cls(
            Skinny.of(
                facts.size("in_features"),
                facts.size("out_features"),
                Target.of(facts, shared_memory=150_000),
                facts.device,
            )
        )

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""

        def head(hidden: Tensor) -> Tensor:
            if 0 < len(hidden) <= FEW:
                return self.skinny.run(hidden, weight, bias, torch.float32)
            if hidden.device.type == "cuda" and hidden.dtype != torch.float32 and len(hidden):
                logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
                return logits if bias is None else logits.add_(bias)
            return functional.linear(hidden, weight, bias).float()

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
        return lambda ids: functional.embedding(ids, weight), self.head.prepare(weight, None)
