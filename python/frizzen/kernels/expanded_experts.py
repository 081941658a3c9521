"""Experts whose weights are stored in fewer bits, by kernels of ``moe.experts``, which take plain ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from frizzen.kernels import moe_reference
from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts

__all__ = ["Expandable", "ExpandedExperts", "ExpandingExperts"]

_PLAIN = next(entry for entry in moe_reference.CANDIDATES if entry.op == MOE_EXPERTS.name)


class Expandable(Protocol):
    """A weight in fewer bits."""

    def expand(self, dtype: torch.dtype) -> Tensor:
        """``[..., N, K]``, its numbers."""


@dataclass(frozen=True, slots=True)
class ExpandingExperts:
    """The reference: expands in every call, and computes in float32."""

    plain: Any
    """The reference of ``moe.experts``."""

    @classmethod
    def build(cls, facts: Facts) -> ExpandingExperts:
        """The reference for one shape."""
        return cls(_PLAIN.build(facts))

    def prepare(self, w13: Expandable, w2: Expandable, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """Binds a layer's weights ``[E, 2 * I, H]`` and ``[E, H, I]``."""

        def experts(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            expanded = (weight.expand(torch.float32) for weight in (w13, w2))
            run: Experts = self.plain.prepare(*expanded, b13, b2)
            return run(x, weights, ids)

        return experts


@dataclass(frozen=True, slots=True)
class ExpandedExperts:
    """Expands once; what that takes is for the kind of weight to say."""

    plain: Any
    """A kernel of ``moe.experts``."""
    dtype: torch.dtype

    def prepare(self, w13: Expandable, w2: Expandable, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """Binds a layer's weights ``[E, 2 * I, H]`` and ``[E, H, I]``."""
        run: Experts = self.plain.prepare(w13.expand(self.dtype), w2.expand(self.dtype), b13, b2)
        return run
