"""Reference of the mixture-of-experts ops in plain torch, computed in float32 whatever the dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import MOE_EXPERTS, MOE_ROUTE, Experts, Route
from frizzen.kernels.plan import Candidate

__all__ = ["CANDIDATES", "Activation", "Routing"]

_SCORING: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda logits: functional.softplus(logits).sqrt(),
}


@dataclass(frozen=True, slots=True)
class Routing:
    """How scores become experts and weights."""

    top_k: int
    scoring: str
    renormalize: bool
    scaling: float
    groups: int
    top_groups: int

    @classmethod
    def of(cls, facts: Facts) -> Routing:
        """Reads the facts of ``moe.route``; groups that cannot limit the choice become one group."""
        experts, groups, top_groups = (facts.size(name) for name in ("experts", "groups", "top_groups"))
        if groups <= 1 or experts % groups or experts <= groups or top_groups >= groups:
            groups = top_groups = 1
        return cls(
            facts.size("top_k"),
            str(facts["scoring"]),
            bool(facts["renormalize"]),
            facts.number("scaling"),
            groups,
            top_groups,
        )

    def choose(self, logits: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        """``logits [T, E]`` float32 -> weights ``[T, k]`` float32, ids ``[T, k]`` int32."""
        scores = _SCORING[self.scoring](logits)
        choice = scores if correction is None else scores + correction
        choice = torch.where(choice.isnan(), -torch.inf, choice)
        if self.groups > 1:
            members = choice.view(len(choice), self.groups, -1)
            rank = members.amax(-1) if correction is None else members.topk(2, dim=-1).values.sum(-1)
            kept = torch.zeros_like(rank, dtype=torch.bool).scatter_(1, _best(rank, self.top_groups), True)
            choice = torch.where(kept.unsqueeze(2), members, -torch.inf).flatten(1)
        ids = _best(choice, self.top_k)
        weights = scores.gather(1, ids)
        if self.renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.scaling, ids.int()


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` highest, best first; the lower index wins ties."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :count]


@dataclass(frozen=True, slots=True)
class _Route:
    routing: Routing

    def prepare(self, weight: Tensor, bias: Tensor | None, correction: Tensor | None) -> Route:
        def route(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
            logits = x.float() @ weight.float().T
            if bias is not None:
                logits = logits + bias.float()
            weights, ids = self.routing.choose(logits, correction)
            if valid is not None:
                padding = (torch.arange(len(x), device=x.device) >= valid).unsqueeze(1)
                weights, ids = weights.masked_fill(padding, 0), ids.masked_fill(padding, -1)
            return weights, ids

        return route


@dataclass(frozen=True, slots=True)
class Activation:
    """The gated activation of ``moe.experts``."""

    clamp: float
    alpha: float
    beta: float

    @classmethod
    def of(cls, facts: Facts) -> Activation:
        """Reads the facts of ``moe.experts``."""
        return cls(facts.number("clamp"), facts.number("alpha"), facts.number("beta"))

    def apply(self, gate_up: Tensor) -> Tensor:
        """``[R, 2 * I] -> [R, I]`` in the input's dtype."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        if self.clamp:
            gate, up = gate.clamp(max=self.clamp), up.clamp(-self.clamp, self.clamp)
        return (gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)).to(gate_up.dtype)


@dataclass(frozen=True, slots=True)
class _Experts:
    activation: Activation

    def prepare(self, w13: Tensor, w2: Tensor, b13: Tensor | None, b2: Tensor | None) -> Experts:
        def experts(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
            for expert in torch.unique(ids).tolist():
                if expert < 0:
                    continue
                token, column = (ids == expert).nonzero(as_tuple=True)
                inner = self.activation.apply(_linear(x[token].float(), w13[expert], b13, expert))
                y = _linear(inner, w2[expert], b2, expert)
                out.index_add_(0, token, y * weights[token, column].unsqueeze(1))
            return out.to(x.dtype)

        return experts


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
    out = x @ weight.float().T
    return out if bias is None else out + bias[expert].float()


def _anywhere(_: Facts) -> None:
    """The reference serves everything."""


CANDIDATES = (
    Candidate(MOE_ROUTE.name, "reference", 0, _anywhere, lambda facts: _Route(Routing.of(facts))),
    Candidate(MOE_EXPERTS.name, "reference", 0, _anywhere, lambda facts: _Experts(Activation.of(facts))),
)
