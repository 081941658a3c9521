"""The ops of a mixture-of-experts layer, in the style of ``ops``.

Letters: ``T`` tokens, ``H`` hidden size, ``E`` experts, ``k`` experts per token, ``I`` intermediate size of
one expert. Exactly one op applies each factor: ``moe.route`` the normalisation and the scaling,
``moe.experts`` the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from frizzen.kernels.plan import Op

__all__ = ["MOE_EXPERTS", "MOE_ROUTE", "Experts", "ExpertsKernel", "Route", "RouteKernel"]

Route = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
Experts = Callable[[Tensor, Tensor, Tensor], Tensor]


class RouteKernel(Protocol):
    """See :data:`MOE_ROUTE`."""

    def prepare(self, weight: Tensor, bias: Tensor | None, correction: Tensor | None) -> Route:
        """``weight [E, H]``, ``bias [E]``, ``correction [E]`` float32, as the facts say. All may be kept."""


class ExpertsKernel(Protocol):
    """See :data:`MOE_EXPERTS`."""

    def prepare(self, w13: Tensor, w2: Tensor, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """``w13 [E, 2 * I, H]``, the gate first, ``w2 [E, H, I]``, ``b13 [E, 2 * I]``, ``b2 [E, H]``.

        All may be kept.
        """


MOE_ROUTE: Op[RouteKernel] = Op(
    "moe.route",
    (
        "hidden",
        "experts",
        "top_k",
        "scoring",
        "renormalize",
        "scaling",
        "groups",
        "top_groups",
        "bias",
        "correction",
    ),
    """(x [T, H], valid int32 [1] | None) -> (weights [T, k] float32, ids [T, k] int32). Logits are x @
    weight.T + bias in float32, never rounded; scoring makes them scores: softmax over all experts,
    sigmoid, or sqrtsoftplus = sqrt(softplus). Experts are chosen by score + correction, best first, the
    lower id wins ties, NaN never wins over a number. With groups > 1 only the top_groups best groups of
    consecutive experts may be chosen from: a group counts its best expert, or with a correction the sum of
    its best two; groups that do not divide the experts are ignored. Weights are the scores without
    correction, divided by their sum if renormalize, times scaling. Rows at and past valid[0] are padding:
    id -1, weight 0. ids are in [-1, E) whatever x holds.""",
)

MOE_EXPERTS: Op[ExpertsKernel] = Op(
    "moe.experts",
    ("hidden", "intermediate", "experts", "top_k", "bias", "clamp", "alpha", "beta"),
    """(x [T, H], weights [T, k] float32, ids [T, k] int32) -> [T, H]: the sum over the row's ids of weight *
    (act(x @ w13[id].T + b13[id]) @ w2[id].T + b2[id]), in float32; id -1 adds nothing, ids of a row
    differ. act(gate, up) = g * sigmoid(alpha * g) * (u + beta) with g = min(gate, clamp) and u = up within
    -clamp..clamp; clamp 0 is none. Nothing waits for the device: shapes depend on T alone.""",
)
