"""The reference of the ops with FP8 weights, and of what torch's plain operators make of them.

Neither rounds activations. The reference expands the weights in every call, and computes in float32; the
others expand them once, which doubles their bytes, and leave the rest to the best plain operator of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.kernels import grouped_mm
from frizzen.kernels.expanded_experts import ExpandedExperts, ExpandingExperts
from frizzen.kernels.facts import Facts
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.plan import Candidate
from frizzen.quantize.fp8 import Fp8Weight

__all__ = ["CANDIDATES", "ORACLES"]


class _Linear:
    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        def linear(x: Tensor) -> Tensor:
            out = x.float() @ weight.expand(torch.float32).T
            return (out if bias is None else out + bias.float()).to(x.dtype)

        return linear


@dataclass(frozen=True, slots=True)
class _ExpandedLinear:
    dtype: torch.dtype

    def extra_bytes(self, weight: Fp8Weight, bias: Tensor | None) -> int:
        """What the expanded weight takes besides the bytes that it replaces."""
        return weight.data.numel() * (self.dtype.itemsize - 1)

    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        expanded = weight.expand(self.dtype)
        return lambda x: functional.linear(x, expanded, bias)


class _ExpandedExperts(ExpandedExperts):
    __slots__ = ()

    def extra_bytes(self, w13: Fp8Weight, w2: Fp8Weight, b13: Tensor | None, b2: Tensor | None) -> int:
        """As :class:`_ExpandedLinear`."""
        return (w13.data.numel() + w2.data.numel()) * (self.dtype.itemsize - 1)


def _anywhere(_: Facts) -> None:
    """Torch's operators serve every device and dtype here."""


(_GROUPED_MM,) = grouped_mm.CANDIDATES

ORACLES = (
    Candidate(LINEAR_FP8.name, "reference", 0, _anywhere, lambda _: _Linear()),
    Candidate(MOE_EXPERTS_FP8.name, "reference", 0, _anywhere, ExpandingExperts.build),
)
CANDIDATES = (
    *ORACLES,
    Candidate(LINEAR_FP8.name, "torch_expanded", 10, _anywhere, lambda facts: _ExpandedLinear(facts.dtype)),
    Candidate(
        MOE_EXPERTS_FP8.name,
        "torch_grouped_mm_expanded",
        10,
        _GROUPED_MM.requires,
        lambda facts: _ExpandedExperts(_GROUPED_MM.build(facts), facts.dtype),
    ),
)
