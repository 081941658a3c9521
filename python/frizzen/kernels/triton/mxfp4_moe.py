"""``moe.experts.mxfp4``: which kernels serve how many tokens, and with which tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Experts
from frizzen.kernels.triton import mxfp4_experts as kernels
from frizzen.kernels.triton.launch import precision, round_up_power
from frizzen.kernels.triton.moe import FEW, MoeExperts
from frizzen.kernels.triton.mxfp4 import padding_bytes, rearrange
from frizzen.kernels.triton.sorting import sort_pairs
from frizzen.quantize.mxfp4 import Mxfp4Weight

__all__ = [
    "ONE_TILES",
    "FewTile",
    "Layer",
    "ManyTile",
    "Mxfp4Experts",
    "OneTile",
    "few_tiles",
    "many_tiles",
]

_COLUMNS = 128
"""Of a step."""
_PARTS = 8
"""Into which the columns of one token are cut."""
_NARROWEST = 16
"""Fewest tokens of a product whose left operand stands in registers."""


class OneTile(NamedTuple):
    """Tile of a product with one token; ``height`` is its rows times parts."""

    height: int
    warps: int
    stages: int


class FewTile(NamedTuple):
    """Tile of a product with few tokens."""

    m: int
    rows: int
    warps: int
    stages: int
    registers: int | None = None
    """Most of a thread, so that more programs fit; None for as many as it takes."""


class ManyTile(NamedTuple):
    """Tile of a product with many tokens."""

    rows: int
    band: int
    warps: int
    stages: int


ONE_TILES = OneTile(64, 4, 3), OneTile(64, 4, 3)
"""Tiles of both products with one token, from what was fastest on an H200."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights: units and scales as ``mxfp4`` has them."""

    w13: Tensor
    s13: Tensor
    w2: Tensor
    s2: Tensor
    b13: Tensor | None
    b2: Tensor | None

    excess: tuple[int, int]
    """The weights are so many powers of two too small, as ``Rearranged`` has them; so is ``b2``."""

    @classmethod
    def rearranged(cls, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> Layer:
        """In the bytes of what is given."""
        up, down = rearrange(w13), rearrange(w2)
        if b2 is not None:
            b2.mul_(2.0**-down.excess)
        return cls(up.units, up.words, down.units, down.words, b13, b2, (up.excess, down.excess))

    def enlarged(self, run: Experts) -> Experts:
        """``run`` on these weights, with inputs that make up for what is too small.

        Powers of two round nothing. A token would have to be of 2 ** (128 - up) to become infinite by it,
        where its product with the weight's largest number is infinite too.
        """
        up, down = self.excess
        if not up and not down:
            return run
        return lambda x, weights, ids: run(x * 2.0**up, weights * 2.0**down, ids)


@dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """See ``moe.experts.mxfp4``."""

    plain: MoeExperts
    """The same with plain weights: it adds up every token's experts."""

    @classmethod
    def build(cls, facts: Facts) -> Mxfp4Experts:
        """The kernels for one shape of experts."""
        return cls(MoeExperts.build(facts))

    def extra_bytes(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> int:
        """What scales in whole words take besides their own bytes."""
        return padding_bytes(w13) + padding_bytes(w2)

    def prepare(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """Rearranges the weights in place, whatever their scales are."""
        return self.bind(Layer.rearranged(w13, w2, b13, b2))

    def bind(self, layer: Layer) -> Experts:
        """The kernels for one layer's weights."""
        plain = self.plain

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            tokens = len(x)
            if tokens == 0:
                return torch.empty_like(x)
            if tokens == 1 and plain.top_k <= _PARTS:
                return self.one(layer, x, weights, ids, *ONE_TILES)
            if tokens <= FEW:
                tiles = few_tiles(tokens, plain.top_k, plain.experts, plain.dtype)
                return self.few(layer, x, weights, ids, *tiles)
            return self.many(layer, x, weights, ids, *many_tiles(plain.dtype))

        return layer.enlarged(run)

    def one(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, up: OneTile, down: OneTile
    ) -> Tensor:
        """One token."""
        plain, options = self.plain, self.plain.target.options()
        H, I, k = plain.hidden, plain.intermediate, plain.top_k
        act = torch.empty(k, I, dtype=x.dtype, device=x.device)
        out = torch.empty(1, H, dtype=x.dtype, device=x.device)
        rows, parts = up.height // _PARTS, _PARTS
        kernels.gate_up_one[(triton.cdiv(I, rows), k)](
            x, layer.w13, layer.s13, layer.b13, ids, act, H, I, *plain.scalars(),
            BIAS=layer.b13 is not None, CLAMP=plain.activation.clamp > 0, M=_NARROWEST, ROWS=rows,
            PARTS=parts, SPAN=_span(H, parts), PRECISION=precision(plain.dtype), num_warps=up.warps,
            num_stages=up.stages, **options,
        )  # fmt: skip
        top = round_up_power(k)
        parts = max(_PARTS // top, 1)
        rows = down.height // (top * parts)
        kernels.down_one[(triton.cdiv(H, rows),)](
            act, layer.w2, layer.s2, layer.b2, weights, ids, out, H, I,
            K=k, BIAS=layer.b2 is not None, M=_NARROWEST, ROWS=rows, TOP=top, PARTS=parts,
            SPAN=_span(I, parts), PRECISION=precision(plain.dtype),
            num_warps=down.warps, num_stages=down.stages, **options,
        )  # fmt: skip
        return out

    def few(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, up: FewTile, down: FewTile
    ) -> Tensor:
        """Up to :data:`FEW` tokens."""
        plain, tokens = self.plain, len(x)
        H, I, k = plain.hidden, plain.intermediate, plain.top_k
        act = torch.empty(tokens * k, I, dtype=x.dtype, device=x.device)
        partial = torch.empty(tokens * k, H, dtype=x.dtype, device=x.device)
        groups = min(tokens * k, plain.experts)
        shared = {
            "K": k,
            "PAIRWISE": tokens * k < plain.experts,
            "TOKENS": next(size for size in (16, 64, FEW) if tokens <= size),
            "TOP": round_up_power(k),
        }
        kernels.gate_up_few[(triton.cdiv(I, up.rows), groups)](
            x, layer.w13, layer.s13, layer.b13, ids, act, tokens, x.stride(0), H, I, *plain.scalars(),
            BIAS=layer.b13 is not None, CLAMP=plain.activation.clamp > 0, M=up.m, **shared,
            **self._constants(up, H),
        )  # fmt: skip
        kernels.down_few[(triton.cdiv(H, down.rows), groups)](
            act, layer.w2, layer.s2, layer.b2, weights, ids, partial, tokens, H, I,
            BIAS=layer.b2 is not None, M=down.m, **shared, **self._constants(down, I),
        )  # fmt: skip
        return plain.combine(partial, ids, tokens)

    def many(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, m: int, up: ManyTile, down: ManyTile
    ) -> Tensor:
        """Any number of tokens; ``m`` is the height of a tile."""
        plain, tokens = self.plain, len(x)
        H, I, k = plain.hidden, plain.intermediate, plain.top_k
        found = sort_pairs(ids, plain.experts, m, plain.target)
        order, tile_experts, most_tiles = found.order, found.tile_experts, len(found.tile_experts)
        act = torch.empty(most_tiles * m, I, dtype=x.dtype, device=x.device)
        partial = torch.empty(tokens * k, H, dtype=x.dtype, device=x.device)
        kernels.gate_up_many[(most_tiles * triton.cdiv(I, up.rows),)](
            x, layer.w13, layer.s13, layer.b13, order, tile_experts, act, most_tiles, x.stride(0), H, I,
            *plain.scalars(), K=k, BIAS=layer.b13 is not None, CLAMP=plain.activation.clamp > 0, M=m,
            BAND=up.band, **self._constants(up, H),
        )  # fmt: skip
        kernels.down_many[(most_tiles * triton.cdiv(H, down.rows),)](
            act, layer.w2, layer.s2, layer.b2, weights, order, tile_experts, partial, most_tiles, H, I,
            BIAS=layer.b2 is not None, M=m, BAND=down.band, **self._constants(down, I),
        )  # fmt: skip
        return plain.combine(partial, ids, tokens)

    def _constants(self, tile: FewTile | ManyTile, size: int) -> dict[str, Any]:
        return {
            "ROWS": tile.rows,
            "EVEN": size % _COLUMNS == 0,
            "PRECISION": precision(self.plain.dtype),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            "maxnreg": tile.registers if isinstance(tile, FewTile) else None,
            **self.plain.target.options(),
        }


def few_tiles(tokens: int, top_k: int, experts: int, dtype: torch.dtype) -> tuple[FewTile, FewTile]:
    """Tiles of both products, from what was fastest on an H200."""
    if dtype == torch.float32:
        return FewTile(16, 32, 4, 2), FewTile(16, 32, 4, 2)
    if tokens * top_k <= 8 * experts:
        return FewTile(16, 64, 4, 3, 128), FewTile(16, 128, 4, 3, 168)
    return FewTile(32, 64, 4, 3, 168), FewTile(32, 128, 4, 3)


def many_tiles(dtype: torch.dtype) -> tuple[int, ManyTile, ManyTile]:
    """Height of the tiles and the rest of both, from what was fastest on an H200."""
    if dtype == torch.float32:
        return 32, ManyTile(32, 8, 4, 2), ManyTile(32, 8, 4, 2)
    return 128, ManyTile(128, 16, 8, 3), ManyTile(128, 16, 8, 3)


def _span(size: int, parts: int) -> int:
    """Columns of a part, in whole steps."""
    return -(-size // (parts * _COLUMNS)) * _COLUMNS
