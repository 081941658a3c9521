"""``moe.experts``: which kernels serve how many tokens, and with which tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Experts
from frizzen.kernels.moe_reference import Activation
from frizzen.kernels.triton import experts as few
from frizzen.kernels.triton import grouped as many
from frizzen.kernels.triton import listed
from frizzen.kernels.triton.launch import Target, precision, round_up_power
from frizzen.kernels.triton.sorting import sort_pairs

__all__ = [
    "FEW",
    "Layer",
    "ManyTile",
    "MoeExperts",
    "OneTile",
    "Tile",
    "few_tiles",
    "many_tiles",
    "one_tiles",
]

FEW = 256
"""Most tokens that are served without sorting."""
_UNLISTED = 64
"""Most tokens whose experts every program searches for itself."""


class OneTile(NamedTuple):
    """How the programs of a product with one token stream a weight: ``rows`` at a time, in ``steps``."""

    rows: int
    steps: int
    warps: int
    stages: int


class Tile(NamedTuple):
    """Tile of a product with few tokens."""

    swap: bool
    m: int
    rows: int
    columns: int
    warps: int
    stages: int


class ManyTile(NamedTuple):
    """Tile of a product with many tokens."""

    rows: int
    columns: int
    band: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights."""

    w13: Tensor
    w2: Tensor
    b13: Tensor | None
    b2: Tensor | None


@dataclass(frozen=True, slots=True)
class MoeExperts:
    """See ``moe.experts``."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    activation: Activation
    dtype: torch.dtype
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> MoeExperts:
        """The kernels for one shape of experts."""
        return cls(
            facts.size("hidden"),
            facts.size("intermediate"),
            facts.size("experts"),
            facts.size("top_k"),
            Activation.of(facts),
            facts.dtype,
            Target.of(facts, shared_memory=200_000),
        )

    def prepare(self, w13: Tensor, w2: Tensor, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """Keeps the weights as they are."""
        layer = Layer(w13, w2, b13, b2)
        tiles = one_tiles(self.hidden, self.intermediate, self.top_k)

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            tokens = len(x)
            if tokens == 0:
                return torch.empty_like(x)
            if tokens == 1 and tiles is not None:
                return self.one(layer, x, weights, ids, *tiles)
            if tokens <= FEW:
                return self.few(
                    layer, x, weights, ids, *few_tiles(tokens, self.top_k, self.experts, self.dtype)
                )
            return self.many(
                layer, x, weights, ids, *many_tiles(tokens, self.top_k, self.experts, self.dtype)
            )

        return run

    def one(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, up: OneTile, down: OneTile
    ) -> Tensor:
        """One token."""
        H, I, k = self.hidden, self.intermediate, self.top_k
        act = torch.empty(k, I, dtype=x.dtype, device=x.device)
        out = torch.empty(1, H, dtype=x.dtype, device=x.device)
        options = self.target.options()
        few.gate_up_one[(triton.cdiv(I, up.rows * up.steps), k)](
            x, layer.w13, layer.b13, ids, act, H, I, *self.scalars(),
            BIAS=layer.b13 is not None, CLAMP=self.activation.clamp > 0, ROWS=up.rows, STEPS=up.steps,
            COLUMNS=round_up_power(H, 16), STAGES=up.stages, num_warps=up.warps, **options,
        )  # fmt: skip
        few.down_one[(triton.cdiv(H, down.steps),)](
            act, layer.w2, layer.b2, weights, ids, out, H, I,
            K=k, BIAS=layer.b2 is not None, TOP=round_up_power(k), STEPS=down.steps,
            COLUMNS=round_up_power(I, 16), STAGES=down.stages, num_warps=down.warps, **options,
        )  # fmt: skip
        return out

    def few(self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, up: Tile, down: Tile) -> Tensor:
        """Up to :data:`FEW` tokens."""
        H, I, k, tokens = self.hidden, self.intermediate, self.top_k, len(x)
        act = torch.empty(tokens * k, I, dtype=x.dtype, device=x.device)
        partial = torch.empty(tokens * k, H, dtype=x.dtype, device=x.device)
        pairwise = tokens * k < self.experts
        groups = min(tokens * k, self.experts)
        if tokens > _UNLISTED and not pairwise and up.swap and down.swap:
            return self._listed(layer, x, weights, ids, up, down)
        shared = {
            "K": k,
            "PAIRWISE": pairwise,
            "TOKENS": next(size for size in (16, 64, FEW) if tokens <= size),
            "TOP": round_up_power(k),
        }
        few.gate_up_few[(triton.cdiv(I, up.rows), groups)](
            x, layer.w13, layer.b13, ids, act, tokens, x.stride(0), H, I, *self.scalars(),
            BIAS=layer.b13 is not None, CLAMP=self.activation.clamp > 0,
            SWAP=up.swap, **shared, **self._few_constants(up, H),
        )  # fmt: skip
        few.down_few[(triton.cdiv(H, down.rows), groups)](
            act, layer.w2, layer.b2, weights, ids, partial, tokens, H, I,
            BIAS=layer.b2 is not None, SWAP=down.swap, **shared, **self._few_constants(down, I),
        )  # fmt: skip
        return self.combine(partial, ids, tokens)

    def _listed(self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, up: Tile, down: Tile) -> Tensor:
        H, I, k, tokens = self.hidden, self.intermediate, self.top_k, len(x)
        act = torch.empty(tokens * k, I, dtype=x.dtype, device=x.device)
        partial = torch.empty(tokens * k, H, dtype=x.dtype, device=x.device)
        lists = torch.empty(self.experts * (tokens + 1), dtype=torch.int32, device=x.device)
        counts, pairs = torch.split(lists, [self.experts, self.experts * tokens])
        listed.list_pairs[(self.experts,)](
            ids, counts, pairs, tokens, K=k, TOKENS=FEW, TOP=round_up_power(k), num_warps=4,
            **self.target.options(),
        )  # fmt: skip
        listed.gate_up_listed[(triton.cdiv(I, up.rows), self.experts)](
            x, layer.w13, layer.b13, counts, pairs, act, tokens, x.stride(0), H, I, *self.scalars(),
            K=k, BIAS=layer.b13 is not None, CLAMP=self.activation.clamp > 0, **self._few_constants(up, H),
        )  # fmt: skip
        listed.down_listed[(triton.cdiv(H, down.rows), self.experts)](
            act, layer.w2, layer.b2, weights, counts, pairs, partial, tokens, H, I,
            BIAS=layer.b2 is not None, **self._few_constants(down, I),
        )  # fmt: skip
        return self.combine(partial, ids, tokens)

    def many(
        self, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor, m: int, up: ManyTile, down: ManyTile
    ) -> Tensor:
        """Any number of tokens; ``m`` is the height of a tile."""
        H, I, k, tokens = self.hidden, self.intermediate, self.top_k, len(x)
        found = sort_pairs(ids, self.experts, m, self.target)
        order, tile_experts, most_tiles = found.order, found.tile_experts, len(found.tile_experts)
        act = torch.empty(most_tiles * m, I, dtype=x.dtype, device=x.device)
        partial = torch.empty(tokens * k, H, dtype=x.dtype, device=x.device)
        up_constants, down_constants = self._many_constants(up, H), self._many_constants(down, I)
        columns = down_constants["COLUMNS"]
        w13 = TensorDescriptor.from_tensor(layer.w13.view(-1, H), [up.rows, up_constants["COLUMNS"]])
        w2 = TensorDescriptor.from_tensor(layer.w2.view(-1, I), [down.rows, columns])
        many.gate_up_many[(most_tiles * triton.cdiv(I, up.rows),)](
            x, w13, layer.b13, order, tile_experts, act, most_tiles, x.stride(0), H, I, *self.scalars(),
            K=k, BIAS=layer.b13 is not None, CLAMP=self.activation.clamp > 0, M=m,
            EVEN=H % up_constants["COLUMNS"] == 0, **up_constants,
        )  # fmt: skip
        many.down_many[(most_tiles * triton.cdiv(H, down.rows),)](
            TensorDescriptor.from_tensor(act, [m, columns]), w2, layer.b2, weights, order, tile_experts,
            partial, most_tiles, H, I, BIAS=layer.b2 is not None, M=m, **down_constants,
        )  # fmt: skip
        return self.combine(partial, ids, tokens)

    def combine(self, partial: Tensor, ids: Tensor, tokens: int) -> Tensor:
        """``partial [T * k, H]`` -> ``[T, H]``."""
        out = torch.empty(tokens, self.hidden, dtype=partial.dtype, device=partial.device)
        columns = min(round_up_power(self.hidden), 1024)
        few.combine[(tokens, triton.cdiv(self.hidden, columns))](
            partial, ids, out, self.hidden, K=self.top_k, COLUMNS=columns,
            num_warps=4, **self.target.options(),
        )  # fmt: skip
        return out

    def scalars(self) -> tuple[float, float, float]:
        """Of the activation."""
        return self.activation.clamp, self.activation.alpha, self.activation.beta

    def _few_constants(self, tile: Tile, size: int) -> dict[str, Any]:
        columns = min(tile.columns, round_up_power(size, 16))
        return {
            "M": tile.m,
            "ROWS": tile.rows,
            "COLUMNS": columns,
            "EVEN": size % columns == 0,
            "PRECISION": precision(self.dtype),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            **self.target.options(),
        }

    def _many_constants(self, tile: ManyTile, size: int) -> dict[str, Any]:
        return {
            "ROWS": tile.rows,
            "COLUMNS": min(tile.columns, round_up_power(size, 16)),
            "BAND": tile.band,
            "PRECISION": precision(self.dtype),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            **self.target.options(),
        }


def one_tiles(hidden: int, intermediate: int, top_k: int) -> tuple[OneTile, OneTile] | None:
    """Tiles of both products with one token; None if their rows do not fit into registers."""
    wide, tall = round_up_power(hidden), round_up_power(intermediate) * round_up_power(top_k)
    if wide > 8192 or tall > 32768:
        return None
    return OneTile(1, 2, 4, 2), OneTile(1, 4, 4 if tall <= 8192 else 8, 3)


def few_tiles(tokens: int, top_k: int, experts: int, dtype: torch.dtype) -> tuple[Tile, Tile]:
    """Tiles of both products, from what was fastest on an H200."""
    if dtype == torch.float32:
        return Tile(False, 16, 32, 32, 4, 2), Tile(False, 16, 32, 32, 4, 2)
    deep = Tile(True, 16 if tokens * top_k <= 8 * experts else 32, 64, 64, 4, 5)
    wide = Tile(True, 16, 64, 128, 4, 3)
    return (wide if deep.m == 16 else deep._replace(stages=3)), (wide if tokens <= 16 else deep)


def many_tiles(tokens: int, top_k: int, experts: int, dtype: torch.dtype) -> tuple[int, ManyTile, ManyTile]:
    """Height of the tiles and the rest of both, from what was fastest on an H200."""
    if dtype == torch.float32:
        return 32, ManyTile(32, 32, 8, 4, 2), ManyTile(32, 32, 8, 4, 2)
    if tokens * top_k < 128 * experts:
        return 64, ManyTile(64, 64, 16, 4, 3), ManyTile(128, 64, 8, 4, 3)
    return 128, ManyTile(128, 64, 16, 8, 4), ManyTile(256, 64, 16, 8, 4)
