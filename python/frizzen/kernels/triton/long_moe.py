"""Experts on Hopper: many tokens by ``long_experts`` and ``long_mxfp4``, others by the kernels for few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Experts
from frizzen.kernels.triton.long_experts import BLOCK, COLUMNS, GROUP, PLACES, down_long, gate_up_long
from frizzen.kernels.triton.long_mxfp4 import down_packed, gate_up_packed
from frizzen.kernels.triton.moe import FEW, MoeExperts
from frizzen.kernels.triton.mxfp4_moe import Layer, Mxfp4Experts
from frizzen.kernels.triton.places import Places
from frizzen.kernels.triton.sorting import sort_pairs
from frizzen.quantize.mxfp4 import Mxfp4Weight

__all__ = ["LongExperts", "LongMxfp4Experts"]

_LEAST = int(GROUP.value)
"""Fewest pairs per expert, on average; one group of warps has as many places."""
_BAND = 16
"""Tiles that go through all blocks of a weight together."""
_STAGES = 4
_REGISTERS = 168
"""Per thread before the groups of warps divide them."""


@dataclass(frozen=True, slots=True)
class LongExperts:
    """See ``moe.experts``."""

    few: MoeExperts
    """The kernels of other steps."""
    places: Places
    """Adds up every token's experts."""

    @classmethod
    def build(cls, facts: Facts) -> LongExperts:
        """The kernels for one shape of experts."""
        few = MoeExperts.build(facts)
        places = Places(few.hidden, few.intermediate, few.experts, few.top_k, few.activation, few.target)
        return cls(few, places)

    def prepare(self, w13: Tensor, w2: Tensor, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """Keeps the weights as they are."""
        few, block = self.few.prepare(w13, w2, b13, b2), int(BLOCK.value)
        gates = described(w13.view(-1, self.few.hidden), block, COLUMNS.value)
        downs = described(w2.view(-1, self.few.intermediate), 2 * block, COLUMNS.value)
        products = self.products(gate_up_long, (gates, b13), down_long, (downs, b2))

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            if len(x) <= FEW or ids.numel() < self.few.experts * _LEAST:
                return few(x, weights, ids)
            return products(x, weights, ids)

        return run

    def products(self, gate_up: Any, w13: tuple[Any, ...], down: Any, w2: tuple[Any, ...]) -> Experts:
        """Both products by the kernels ``gate_up`` and ``down``; the last of each weight is its bias."""
        few, hidden, inner = self.few, self.few.hidden, self.few.intermediate
        block, group, chosen = int(BLOCK.value), int(GROUP.value), self.few.activation
        options = {"BAND": _BAND, "STAGES": _STAGES, "num_warps": 4, "maxnreg": _REGISTERS}

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            found = sort_pairs(ids, few.experts, int(PLACES.value), few.target)
            rows, tiles, programs = len(found.order), len(found.tile_experts), few.target.processors
            act = torch.empty(rows, inner, dtype=x.dtype, device=x.device)
            gate_up[(min(programs, tiles * triton.cdiv(inner, block)),)](
                x, *w13, found.order, found.tile_experts, found.used, described(act, group, block),
                x.stride(0), inner, chosen.clamp, chosen.alpha, chosen.beta, H=hidden, TOP=few.top_k,
                BIAS=w13[-1] is not None, CLAMP=chosen.clamp > 0, **options,
            )  # fmt: skip
            out = torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
            down[(min(programs, tiles * triton.cdiv(hidden, 2 * block)),)](
                described(act, group, COLUMNS.value), *w2, found.order, found.tile_experts, found.used,
                described(out, group, COLUMNS.value), hidden, I=inner, BIAS=w2[-1] is not None, **options,
            )  # fmt: skip
            return self.places.add_up(out, found.places, weights, ids)

        return run


def described(rows: Tensor, height: int, columns: int) -> TensorDescriptor:
    """Of ``rows [R, C]``, copied in tiles."""
    layout = gl.NVMMASharedLayout(128, 8 * rows.itemsize, 2)
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [height, columns], layout)


@dataclass(frozen=True, slots=True)
class LongMxfp4Experts:
    """See ``moe.experts.mxfp4``."""

    few: Mxfp4Experts
    """The kernels of other steps."""
    long: LongExperts

    @classmethod
    def build(cls, facts: Facts) -> LongMxfp4Experts:
        """The kernels for one shape of experts."""
        return cls(Mxfp4Experts.build(facts), LongExperts.build(facts))

    def extra_bytes(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> int:
        """What scales in whole words take besides their own bytes."""
        return self.few.extra_bytes(w13, w2, b13, b2)

    def prepare(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """Rearranges the weights in place, whatever their scales are."""
        layer = Layer.rearranged(w13, w2, b13, b2)
        few = self.few.bind(layer)
        gates = layer.w13, layer.s13.view(torch.uint8), b13
        downs = layer.w2, layer.s2.view(torch.uint8), b2
        products = layer.enlarged(self.long.products(gate_up_packed, gates, down_packed, downs))

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            return few(x, weights, ids) if len(x) <= FEW else products(x, weights, ids)

        return run
