"""``moe.experts.fp8``: which kernels serve how many tokens, and with which tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Experts
from frizzen.kernels.triton import fp8_experts as kernels
from frizzen.kernels.triton.fp8 import fp8_precision, quantize_rows, scale_constants
from frizzen.kernels.triton.launch import round_up_power
from frizzen.kernels.triton.moe import FEW, MoeExperts, OneTile, one_tiles
from frizzen.kernels.triton.sorting import sort_pairs
from frizzen.quantize.fp8 import FP8, GROUP, Fp8Weight

__all__ = [
    "FEW",
    "ONE_TILES",
    "FewTile",
    "Fp8Experts",
    "Layer",
    "ManyTile",
    "OneTile",
    "few_tiles",
    "many_tiles",
]


class FewTile(NamedTuple):
    """Tile of a product with few tokens; ``rows`` of the first share a scale of the activation."""

    m: int
    rows: int
    warps: int
    stages: int
    blocks: int = 1
    """Blocks of rows that a program of the second product takes one after the other."""
    copied: bool = False
    """Whether the copy engine reads the weight."""


ONE_TILES = OneTile(2, 4, 4, 3), OneTile(1, 4, 4, 3)
"""Tiles of both products with one token, from what was fastest on an H200."""


class ManyTile(NamedTuple):
    """Tile of a product with many tokens."""

    rows: int
    band: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights."""

    w13: Fp8Weight
    w2: Fp8Weight
    b13: Tensor | None
    b2: Tensor | None


@dataclass(frozen=True, slots=True)
class Fp8Experts:
    """See ``moe.experts.fp8``."""

    plain: MoeExperts
    """The same with plain weights: it sorts, and adds up every token's experts."""

    @classmethod
    def build(cls, facts: Facts) -> Fp8Experts:
        """The kernels for one shape of experts."""
        return cls(MoeExperts.build(facts))

    def prepare(self, w13: Fp8Weight, w2: Fp8Weight, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """Keeps the weights as they are."""
        layer, plain = Layer(w13, w2, b13, b2), self.plain
        fits = one_tiles(plain.hidden, plain.intermediate, plain.top_k) is not None

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            tokens = len(x)
            if tokens == 0:
                return torch.empty_like(x)
            if tokens == 1 and fits:
                return self.one(layer, x, weights, ids, *ONE_TILES)
            if tokens <= FEW:
                return self.few(layer, x, weights, ids, *few_tiles(tokens, plain.top_k, plain.experts))
            return self.many(layer, x, weights, ids, *many_tiles(tokens, plain.top_k, plain.experts))

        return run

    def one(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, up: OneTile, down: OneTile
    ) -> Tensor:
        """One token, unrounded."""
        plain, options = self.plain, self.plain.target.options()
        H, I, k = plain.hidden, plain.intermediate, plain.top_k
        act = torch.empty(k, I, dtype=x.dtype, device=x.device)
        out = torch.empty(1, H, dtype=x.dtype, device=x.device)
        kernels.gate_up_one[(triton.cdiv(I, up.rows * up.steps), k)](
            x, layer.w13.data, layer.w13.scale, layer.b13, ids, act, H, I, *_strides(layer.w13),
            *plain.scalars(), **self._up_constants(layer), ROWS=up.rows, STEPS=up.steps,
            GROUPS=_groups(H), STAGES=up.stages, num_warps=up.warps, **options,
        )  # fmt: skip
        kernels.down_one[(triton.cdiv(H, down.steps),)](
            act, layer.w2.data, layer.w2.scale, layer.b2, weights, ids, out, H, I, *_strides(layer.w2),
            K=k, BIAS=layer.b2 is not None, TOP=round_up_power(k), STEPS=down.steps, GROUPS=_groups(I),
            STAGES=down.stages, num_warps=down.warps, **scale_constants(layer.w2), **options,
        )  # fmt: skip
        return out

    def few(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, up: FewTile, down: FewTile
    ) -> Tensor:
        """Up to :data:`FEW` tokens."""
        plain, tokens = self.plain, len(x)
        H, I, k = plain.hidden, plain.intermediate, plain.top_k
        numbers = torch.empty(tokens, H, dtype=FP8, device=x.device)
        scales = torch.empty(tokens, triton.cdiv(H, GROUP), dtype=torch.float32, device=x.device)
        act = torch.empty(tokens * k, I, dtype=FP8, device=x.device)
        act_scale = torch.empty(tokens * k, triton.cdiv(I, up.rows), dtype=torch.float32, device=x.device)
        partial = torch.empty(tokens * k, H, dtype=x.dtype, device=x.device)
        pairwise, groups = tokens * k < plain.experts, min(tokens * k, plain.experts)
        lists = torch.empty(groups * (tokens + 2), dtype=torch.int32, device=x.device)
        listed = torch.split(lists, [groups, groups, groups * tokens])
        several = min(_groups(H), 8)
        slices = triton.cdiv(scales.shape[1], several)
        kernels.prepare_few[(groups + tokens * slices,)](
            x, numbers, scales, ids, *listed, tokens, groups, x.stride(0), H, scales.stride(0),
            K=k, PAIRWISE=pairwise, TOP=round_up_power(k),
            TOKENS=next(size for size in (16, 64, FEW) if tokens <= size), SLICES=slices, GROUPS=several,
            GROUP=GROUP, num_warps=4, **plain.target.options(),
        )  # fmt: skip
        shared = {"PAIRWISE": pairwise, "PRECISION": fp8_precision(), **plain.target.options()}
        w13_tiles, w2_tiles = _described(layer.w13, up, GROUP), _described(layer.w2, down, up.rows)
        kernels.gate_up_few[(triton.cdiv(I, up.rows), groups)](
            numbers, scales, layer.w13.data, w13_tiles, layer.w13.scale, layer.b13, *listed, act, act_scale,
            tokens, H, I, *_strides(layer.w13), scales.stride(0), act_scale.stride(0), *plain.scalars(),
            **self._up_constants(layer), K=k, M=up.m, ROWS=up.rows, COPIED=w13_tiles is not None,
            EVEN=H % GROUP == 0, num_warps=up.warps, num_stages=up.stages, **shared,
        )  # fmt: skip
        kernels.down_few[(triton.cdiv(H, down.rows * down.blocks), groups)](
            act, act_scale, layer.w2.data, w2_tiles, layer.w2.scale, layer.b2, weights, *listed, partial,
            tokens, H, I, *_strides(layer.w2), act_scale.stride(0), BIAS=layer.b2 is not None, M=down.m,
            ROWS=down.rows, BLOCKS=down.blocks, COPIED=w2_tiles is not None, EVEN=I % up.rows == 0,
            num_warps=down.warps, num_stages=down.stages, **shared,
            **(scale_constants(layer.w2) | {"GROUP": up.rows}),
        )  # fmt: skip
        return plain.combine(partial, ids, tokens)

    def many(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, m: int, up: ManyTile, down: ManyTile
    ) -> Tensor:
        """Any number of tokens; ``m`` is the height of a tile."""
        plain, tokens, options = self.plain, len(x), self.plain.target.options()
        H, I, k = plain.hidden, plain.intermediate, plain.top_k
        found = sort_pairs(ids, plain.experts, m, plain.target)
        order, tile_experts, most_tiles = found.order, found.tile_experts, len(found.tile_experts)
        numbers, scales = quantize_rows(x, plain.target)
        act = torch.empty(most_tiles * m, I, dtype=x.dtype, device=x.device)
        kernels.gate_up_many[(most_tiles * triton.cdiv(I, up.rows),)](
            numbers, scales, layer.w13.data, layer.w13.scale, layer.b13, order, tile_experts, act, most_tiles,
            H, I, *_strides(layer.w13), scales.stride(0), *plain.scalars(), **self._up_constants(layer),
            K=k, M=m, EVEN=H % GROUP == 0, **_many_constants(up), **options,
        )  # fmt: skip
        numbers, scales = quantize_rows(act, plain.target)
        partial = torch.empty(tokens * k, H, dtype=x.dtype, device=x.device)
        kernels.down_many[(most_tiles * triton.cdiv(H, down.rows),)](
            numbers, scales, layer.w2.data, layer.w2.scale, layer.b2, weights, order, tile_experts, partial,
            most_tiles, H, I, *_strides(layer.w2), scales.stride(0), BIAS=layer.b2 is not None, M=m,
            EVEN=I % GROUP == 0, **scale_constants(layer.w2), **_many_constants(down), **options,
        )  # fmt: skip
        return plain.combine(partial, ids, tokens)

    def _up_constants(self, layer: Layer) -> dict[str, Any]:
        return {
            "BIAS": layer.b13 is not None,
            "CLAMP": self.plain.activation.clamp > 0,
            **scale_constants(layer.w13),
        }


def _described(weight: Fp8Weight, tile: FewTile, columns: int) -> TensorDescriptor | None:
    """``weight [E, N, K]`` in tiles, if the copy engine is to read it; its rows must be whole 16 bytes."""
    if not tile.copied or weight.data.shape[2] % 16:
        return None
    return TensorDescriptor.from_tensor(weight.data.view(-1, weight.data.shape[2]), [tile.rows, columns])


def _groups(size: int) -> int:
    return round_up_power(triton.cdiv(size, GROUP))


def _strides(weight: Fp8Weight) -> tuple[int, int]:
    """Between the scales of experts, and of blocks of rows."""
    return weight.scale.stride(0), weight.scale.stride(1)


def _many_constants(tile: ManyTile) -> dict[str, Any]:
    return {
        "ROWS": tile.rows,
        "BAND": tile.band,
        "PRECISION": fp8_precision(),
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def few_tiles(tokens: int, top_k: int, experts: int) -> tuple[FewTile, FewTile]:
    """Tiles of both products, from what was fastest on an H200."""
    if tokens * top_k <= 8 * experts:
        return FewTile(16, GROUP, 4, 3, copied=True), FewTile(16, GROUP, 4, 3)
    return FewTile(32, GROUP, 4, 3), FewTile(32, GROUP, 4, 4, blocks=4, copied=True)


def many_tiles(tokens: int, top_k: int, experts: int) -> tuple[int, ManyTile, ManyTile]:
    """Height of the tiles and the rest of both."""
    if tokens * top_k < 128 * experts:
        return 64, ManyTile(64, 16, 4, 3), ManyTile(64, 8, 4, 3)
    return 128, ManyTile(64, 16, 8, 3), ManyTile(64, 16, 4, 3)
