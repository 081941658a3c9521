"""The router of Phi-MoE, ``moe.route.sparsemixer`` (SparseMixer-v2, arXiv 2409.12136, at inference)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Route
from frizzen.kernels.plan import Candidate, Op

__all__ = ["CANDIDATES", "MOE_ROUTE_SPARSEMIXER", "SparseMixerKernel"]


class SparseMixerKernel(Protocol):
    """See :data:`MOE_ROUTE_SPARSEMIXER`."""

    def prepare(self, weight: Tensor) -> Route:
        """``weight [E, H]``; may be kept."""


MOE_ROUTE_SPARSEMIXER: Op[SparseMixerKernel] = Op(
    "moe.route.sparsemixer",
    ("hidden", "experts", "jitter"),
    """(x [T, H], valid int32 [1] | None) -> (weights [T, 2] float32, ids [T, 2] int32), as moe.route. The
    first expert has the highest logit, the second the highest of the others. An expert's weight is its
    share in the softmax over those logits l that are near its own, m: (m - l) / max(|l|, m) <= 2 * jitter;
    for the second expert, the first is left out. So the weights need not sum to 1.""",
)


@dataclass(frozen=True, slots=True)
class _SparseMixer:
    jitter: float

    def prepare(self, weight: Tensor) -> Route:
        def route(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
            logits = x.float() @ weight.float().T
            weights, ids = self._choose(logits)
            if valid is not None:
                padding = (torch.arange(len(x), device=x.device) >= valid).unsqueeze(1)
                weights, ids = weights.masked_fill(padding, 0), ids.masked_fill(padding, -1)
            return weights, ids

        return route

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        left = torch.where(logits.isnan(), -torch.inf, logits)
        weights, ids = [], []
        for _ in range(2):
            peak, best = left.max(dim=-1, keepdim=True)
            far = (peak - logits) / torch.maximum(logits.abs(), peak) > 2 * self.jitter
            shares = torch.softmax(left.masked_fill(far, -torch.inf), dim=-1)
            weights.append(shares.gather(1, best))
            ids.append(best)
            left = left.scatter(1, best, -torch.inf)
        return torch.cat(weights, dim=1), torch.cat(ids, dim=1).int()


def _anywhere(_: Facts) -> None:
    """The reference serves everything."""


CANDIDATES = (
    Candidate(
        MOE_ROUTE_SPARSEMIXER.name,
        "reference",
        0,
        _anywhere,
        lambda facts: _SparseMixer(facts.number("jitter")),
    ),
)
