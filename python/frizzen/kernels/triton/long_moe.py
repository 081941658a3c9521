"""``moe.experts`` on Hopper: many tokens by ``long_experts``, others by the kernels of ``moe``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Experts
from frizzen.kernels.triton.long_experts import BLOCK, COLUMNS, GROUP, PLACES, down_long, gate_up_long
from frizzen.kernels.triton.moe import FEW, MoeExperts
from frizzen.kernels.triton.places import Places
from frizzen.kernels.triton.sorting import sort_pairs

__all__ = ["LongExperts"]

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
        few, hidden, inner = self.few.prepare(w13, w2, b13, b2), self.few.hidden, self.few.intermediate
        layout = gl.NVMMASharedLayout(128, 8 * w13.itemsize, 2)
        block, group = int(BLOCK.value), int(GROUP.value)

        def described(rows: Tensor, height: int, columns: int) -> TensorDescriptor:
            return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [height, columns], layout)

        gates = described(w13.view(-1, hidden), block, COLUMNS.value)
        downs = described(w2.view(-1, inner), 2 * block, COLUMNS.value)
        chosen, programs = self.few.activation, self.few.target.processors

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            if len(x) <= FEW or ids.numel() < self.few.experts * _LEAST:
                return few(x, weights, ids)
            found = sort_pairs(ids, self.few.experts, int(PLACES.value), self.few.target)
            rows, tiles = len(found.order), len(found.tile_experts)
            act = torch.empty(rows, inner, dtype=x.dtype, device=x.device)
            gate_up_long[(min(programs, tiles * triton.cdiv(inner, block)),)](
                x, gates, found.order, found.tile_experts, found.used, described(act, group, block),
                x.stride(0), inner, chosen.clamp, chosen.alpha, chosen.beta,
                H=hidden, TOP=self.few.top_k, CLAMP=chosen.clamp > 0, BAND=_BAND, STAGES=_STAGES,
                num_warps=4, maxnreg=_REGISTERS,
            )  # fmt: skip
            out = torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
            down_long[(min(programs, tiles * triton.cdiv(hidden, 2 * block)),)](
                described(act, group, COLUMNS.value), downs, found.order, found.tile_experts, found.used,
                described(out, group, COLUMNS.value), hidden,
                I=inner, BAND=_BAND, STAGES=_STAGES, num_warps=4, maxnreg=_REGISTERS,
            )  # fmt: skip
            return self.places.add_up(out, found.places, weights, ids)

        return run
