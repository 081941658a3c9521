"""``linear.fp8``: which kernels serve how many tokens, and with which tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import triton
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.triton.fp8 import (
    fp8_precision,
    linear_few,
    linear_many,
    linear_one,
    norm_rows,
    quantize_rows,
    scale_constants,
)
from frizzen.kernels.triton.launch import Target, round_up_power
from frizzen.kernels.triton.norm import RmsNorm
from frizzen.quantize.fp8 import GROUP, Fp8Weight

__all__ = ["FEW", "FewTile", "Fp8Linear", "ManyTile", "few_tile", "many_tile"]

FEW = 64
"""Most tokens whose product is bound by the bytes of the weight."""
_ROWS = 64


class FewTile(NamedTuple):
    """Tile of a product with few tokens."""

    rows: int
    warps: int
    stages: int
    splits: int


class ManyTile(NamedTuple):
    """Tile of a product with many tokens."""

    m: int
    rows: int
    band: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """See ``linear.fp8``."""

    folds: ClassVar[type] = RmsNorm
    """Whose norm ``prepare_normed`` is equal to."""

    in_features: int
    out_features: int
    target: Target
    counters: Tensor
    """Of the blocks of rows; layers share them, since they run one after the other."""

    @classmethod
    def build(cls, facts: Facts) -> Fp8Linear:
        """The kernels for one shape."""
        size_out = facts.size("out_features")
        return cls(
            facts.size("in_features"),
            size_out,
            Target.of(facts, shared_memory=200_000),
            torch.zeros(triton.cdiv(size_out, _ROWS), dtype=torch.int32, device=facts.device),
        )

    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""

        def linear(x: Tensor) -> Tensor:
            tokens = len(x)
            if tokens == 0:
                return torch.empty(0, self.out_features, dtype=x.dtype, device=x.device)
            if tokens == 1:
                return self.one(x, weight, bias)
            return self.rounded(*quantize_rows(x, self.target), weight, bias, x.dtype)

        return linear

    def prepare_normed(
        self, norm: Tensor, eps: float, weight: Fp8Weight, bias: Tensor | None
    ) -> Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]:
        """``norm.rms`` and this product together, of several tokens: see ``linear.SkinnyLinear``."""
        separate = RmsNorm(self.in_features, self.target).prepare(norm, eps)
        linear = self.prepare(weight, bias)

        def normed(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
            updated = x if residual is None else residual
            if len(x) <= 1:
                return linear(separate(x, residual)), updated
            numbers, scales = norm_rows(x, residual, norm, eps, self.target)
            return self.rounded(numbers, scales, weight, bias, x.dtype), updated

        return normed

    def rounded(
        self, numbers: Tensor, scales: Tensor, weight: Fp8Weight, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """The product of several tokens, rounded already."""
        tokens, processors = len(numbers), self.target.processors
        if tokens <= FEW:
            few = few_tile(tokens, self.in_features, self.out_features, processors)
            return self.few(numbers, scales, weight, bias, few, dtype)
        return self.many(
            numbers, scales, weight, bias, many_tile(tokens, self.out_features, processors), dtype
        )

    def one(self, x: Tensor, weight: Fp8Weight, bias: Tensor | None) -> Tensor:
        """One token, unrounded."""
        out = torch.empty(1, self.out_features, dtype=x.dtype, device=x.device)
        groups = min(round_up_power(triton.cdiv(self.in_features, GROUP)), 32)
        # A program holds 8 KB of weights in registers.
        rows = max(64 // groups, 1)
        linear_one[(triton.cdiv(self.out_features, rows),)](
            x, weight.data, weight.scale, bias, out, self.in_features, self.out_features,
            weight.scale.stride(0), BIAS=bias is not None, ROWS=rows, GROUPS=groups, num_warps=4,
            **scale_constants(weight), **self.target.options(),
        )  # fmt: skip
        return out

    def few(
        self,
        numbers: Tensor,
        scales: Tensor,
        weight: Fp8Weight,
        bias: Tensor | None,
        tile: FewTile,
        dtype: torch.dtype,
    ) -> Tensor:
        """Up to :data:`FEW` tokens, rounded."""
        tokens, device = len(numbers), numbers.device
        out = torch.empty(tokens, self.out_features, dtype=dtype, device=device)
        width = round_up_power(tokens, 16)
        share = triton.cdiv(triton.cdiv(self.in_features, tile.splits), GROUP) * GROUP
        splits = triton.cdiv(self.in_features, share)
        blocks = triton.cdiv(self.out_features, tile.rows)
        partial = None
        if splits > 1:
            partial = torch.empty(blocks * splits * tile.rows * width, dtype=torch.float32, device=device)
        linear_few[(blocks, splits)](
            numbers, scales, weight.data, weight.scale, bias, out, partial, self.counters, tokens,
            self.in_features, self.out_features, weight.scale.stride(0), scales.stride(0), share,
            BIAS=bias is not None, SPLITS=splits, TOKENS=width, ROWS=tile.rows,
            EVEN=self.in_features % GROUP == 0, PRECISION=fp8_precision(), num_warps=tile.warps,
            num_stages=tile.stages, **scale_constants(weight), **self.target.options(),
        )  # fmt: skip
        return out

    def many(
        self,
        numbers: Tensor,
        scales: Tensor,
        weight: Fp8Weight,
        bias: Tensor | None,
        tile: ManyTile,
        dtype: torch.dtype,
    ) -> Tensor:
        """Any number of tokens, rounded."""
        tokens = len(numbers)
        out = torch.empty(tokens, self.out_features, dtype=dtype, device=numbers.device)
        grid = triton.cdiv(tokens, tile.m) * triton.cdiv(self.out_features, tile.rows)
        linear_many[(grid,)](
            numbers, scales, weight.data, weight.scale, bias, out, tokens, self.in_features,
            self.out_features, weight.scale.stride(0), scales.stride(0),
            BIAS=bias is not None, M=tile.m, ROWS=tile.rows, BAND=tile.band,
            EVEN=self.in_features % GROUP == 0, PRECISION=fp8_precision(), num_warps=tile.warps,
            num_stages=tile.stages, **scale_constants(weight), **self.target.options(),
        )  # fmt: skip
        return out


def few_tile(tokens: int, in_features: int, out_features: int, processors: int) -> FewTile:
    """The tile for few tokens, from what was fastest on an H200; columns are cut as well."""
    blocks = triton.cdiv(out_features, _ROWS)
    most = max(min(2 * processors // blocks, in_features // (2 * GROUP), 8), 1)
    return FewTile(_ROWS, 4, 4, 1 << most.bit_length() - 1)


def many_tile(tokens: int, out_features: int, processors: int) -> ManyTile:
    """The tile for many tokens, from what was fastest on an H200."""
    if triton.cdiv(tokens, 64) * triton.cdiv(out_features, 128) < 4 * processors:
        return ManyTile(64, 64, 8, 4, 4)
    return ManyTile(64, 128, 8, 4, 4)
