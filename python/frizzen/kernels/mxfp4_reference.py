"""The reference of ``moe.experts.mxfp4``, and what torch's plain operators make of it.

The reference expands the weights in every call; the other once, which in bfloat16 makes 3.8 times the bytes.
"""

from __future__ import annotations

from torch import Tensor

from frizzen.kernels import grouped_mm
from frizzen.kernels.expanded_experts import ExpandedExperts, ExpandingExperts
from frizzen.kernels.facts import Facts
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.plan import Candidate
from frizzen.quantize.mxfp4 import Mxfp4Weight

__all__ = ["CANDIDATES", "ORACLES"]


class _ExpandedExperts(ExpandedExperts):
    __slots__ = ()

    def extra_bytes(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> int:
        """What the expanded weights take besides the bytes that they replace."""
        return sum(
            weight.data.numel() * (2 * self.dtype.itemsize - 1) - weight.scale.numel() for weight in (w13, w2)
        )


def _anywhere(_: Facts) -> None:
    """The reference serves everything."""


(_GROUPED_MM,) = grouped_mm.CANDIDATES

ORACLES = (Candidate(MOE_EXPERTS_MXFP4.name, "reference", 0, _anywhere, ExpandingExperts.build),)
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
