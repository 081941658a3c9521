"""``linear.fp8``: which kernels serve how many tokens, and with which tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.triton.fp8 import (
    fp8_precision,
    linear_few,
    linear_many,
    linear_one,
    quantize_rows,
    scale_constants,
)
from frizzen.kernels.triton.launch import Target, round_up_power
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
            if tokens <= FEW:
                tile = few_tile(tokens, self.in_features, self.out_features, self.target.processors)
                return self.few(x, weight, bias, tile)
            return self.many(x, weight, bias, many_tile(tokens, self.out_features, self.target.processors))

        return linear

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

    def few(self, x: Tensor, weight: Fp8Weight, bias: Tensor | None, tile: FewTile) -> Tensor:
        """Up to :data:`FEW` tokens."""
        numbers, scales = quantize_rows(x, self.target)
        out = torch.empty(len(x), self.out_features, dtype=x.dtype, device=x.device)
        width = round_up_power(len(x), 16)
        share = triton.cdiv(triton.cdiv(self.in_features, tile.splits), GROUP) * GROUP
        splits = triton.cdiv(self.in_features, share)
        blocks = triton.cdiv(self.out_features, tile.rows)
        partial = None
        if splits > 1:
            partial = torch.empty(blocks * splits * tile.rows * width, dtype=torch.float32, device=x.device)
        linear_few[(blocks, splits)](
            numbers, scales, weight.data, weight.scale, bias, out, partial, self.counters, len(x),
            self.in_features, self.out_features, weight.scale.stride(0), scales.stride(0), share,
            BIAS=bias is not None, SPLITS=splits, TOKENS=width, ROWS=tile.rows,
            EVEN=self.in_features % GROUP == 0, PRECISION=fp8_precision(), num_warps=tile.warps,
            num_stages=tile.stages, **scale_constants(weight), **self.target.options(),
        )  # fmt: skip
        return out

    def many(self, x: Tensor, weight: Fp8Weight, bias: Tensor | None, tile: ManyTile) -> Tensor:
        """Any number of tokens."""
        numbers, scales = quantize_rows(x, self.target)
        out = torch.empty(len(x), self.out_features, dtype=x.dtype, device=x.device)
        grid = triton.cdiv(len(x), tile.m) * triton.cdiv(self.out_features, tile.rows)
        linear_many[(grid,)](
            numbers, scales, weight.data, weight.scale, bias, out, len(x), self.in_features,
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
