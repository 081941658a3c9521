"""The reference of ``moe.experts.mxfp4``, and what torch's plain operators make of it.

The reference expands the weights in every call; the other once, which in bfloat16 makes 3.8 times the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels import grouped_mm, moe_reference
from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.plan import Candidate
from frizzen.quantize.mxfp4 import Mxfp4Weight

__all__ = ["CANDIDATES", "ORACLES"]


@dataclass(frozen=True, slots=True)
class _Experts:
    plain: Any
    """The reference of ``moe.experts``."""

    def prepare(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> Experts:
        def experts(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            expanded = (weight.expand(torch.float32) for weight in (w13, w2))
            run: Experts = self.plain.prepare(*expanded, b13, b2)
            return run(x, weights, ids)

        return experts


@dataclass(frozen=True, slots=True)
class _ExpandedExperts:
    plain: Any
    """A kernel of ``moe.experts``."""
    dtype: torch.dtype

    def extra_bytes(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> int:
        """What the expanded weights take besides the bytes that they replace."""
        return sum(
            weight.data.numel() * (2 * self.dtype.itemsize - 1) - weight.scale.numel() for weight in (w13, w2)
        )

    def prepare(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> Experts:
        run: Experts = self.plain.prepare(w13.expand(self.dtype), w2.expand(self.dtype), b13, b2)
        return run


def _anywhere(_: Facts) -> None:
    """The reference serves everything."""


(_GROUPED_MM,) = grouped_mm.CANDIDATES
_PLAIN = next(entry for entry in moe_reference.CANDIDATES if entry.op == MOE_EXPERTS.name)

ORACLES = (
    Candidate(MOE_EXPERTS_MXFP4.name, "reference", 0, _anywhere, lambda facts: _Experts(_PLAIN.build(facts))),
)
CANDIDATES = (
    *ORACLES,
    Candidate(
        MOE_EXPERTS_MXFP4.name,
        "torch_grouped_mm_expanded",
        10,
        _GROUPED_MM.requires,
        lambda facts: _ExpandedExperts(_GROUPED_MM.build(facts), facts.dtype),
    ),
)
