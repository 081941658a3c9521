"""Problems of the mixture-of-experts ops for the conformance test; ``problems`` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts, ShapeValue
from frizzen.kernels.moe_ops import MOE_EXPERTS, MOE_ROUTE
from frizzen.kernels.plan import Op

if TYPE_CHECKING:
    from frizzen.kernels.problems import Inputs, Run

__all__ = ["OPS", "SHAPES", "draw_route", "experts_problem", "mlp_shape", "runs"]

OPS: tuple[Op[Any], ...] = (MOE_ROUTE, MOE_EXPERTS)

_TOKENS = (1, 2, 7, 33, 130, 300)


def _route(tokens: int, valid: int | None) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        hidden, experts = facts.size("hidden"), facts.size("experts")
        weight = inputs.normal(experts, hidden, scale=hidden**-0.5)
        bias = inputs.normal(experts) if facts["bias"] else None
        correction = inputs.normal(experts, scale=0.1).float() if facts["correction"] else None
        count = None if valid is None else torch.tensor([valid], dtype=torch.int32, device=inputs.device)
        x = inputs.normal(tokens, hidden, scale=2.0)
        weights, ids = kernel.prepare(weight, bias, correction)(x, count)
        return {"weights": weights, "ids": ids}

    return run


def _plain_weight(inputs: Inputs, _: Facts, *shape: int) -> Tensor:
    return inputs.normal(*shape, scale=shape[-1] ** -0.5)


def _plain_tokens(inputs: Inputs, tokens: int, size: int) -> Tensor:
    return inputs.normal(tokens, size)


def experts_problem(
    tokens: int,
    *,
    skewed: bool = False,
    draw_weight: Callable[..., Any] = _plain_weight,
    draw_tokens: Callable[[Inputs, int, int], Tensor] = _plain_tokens,
) -> Run:
    """A problem of ``moe.experts``, or of the same with weights that ``draw_weight`` makes.

    Args:
        tokens: How many.
        skewed: Whether all of them go to few experts.
        draw_weight: ``(inputs, facts, *shape)`` to a weight of all experts.
        draw_tokens: ``(inputs, tokens, size)`` to ``[tokens, size]``.
    """

    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        hidden, inner, experts = (facts.size(name) for name in ("hidden", "intermediate", "experts"))
        w13 = draw_weight(inputs, facts, experts, 2 * inner, hidden)
        w2 = draw_weight(inputs, facts, experts, hidden, inner)
        biases = (
            (inputs.normal(experts, 2 * inner), inputs.normal(experts, hidden))
            if facts["bias"]
            else (None, None)
        )
        x = draw_tokens(inputs, tokens, hidden)
        weights, ids = draw_route(inputs, facts, tokens, skewed=skewed)
        return {"out": kernel.prepare(w13, w2, *biases)(x, weights, ids)}

    return run


def draw_route(inputs: Inputs, facts: Facts, tokens: int, *, skewed: bool) -> tuple[Tensor, Tensor]:
    """Weights and ids ``[tokens, k]``; some ids are -1, those of the last token all."""
    experts, k = facts.size("experts"), facts.size("top_k")
    weights = torch.rand(tokens, k, generator=inputs.generator)
    # Skewed: every token goes to the same few experts, so that one gets more rows than any tile.
    reach = min(k + 1, experts) if skewed else experts
    ids = torch.rand(tokens, reach, generator=inputs.generator).argsort(1)[:, :k].int()
    ids[torch.rand(ids.shape, generator=inputs.generator) < 0.1] = -1
    ids[-1] = ids[-1] if tokens < 3 else -1
    return weights.to(inputs.device), ids.to(inputs.device)


def runs(op: str) -> Iterator[tuple[str, Run]]:
    """Labels and problems of an op; nothing for an op of another file."""
    if op == MOE_ROUTE.name:
        for tokens in _TOKENS:
            yield f"{tokens} tokens", _route(tokens, None)
        yield "9 tokens, 6 of them real", _route(9, 6)
    if op == MOE_EXPERTS.name:
        for tokens in _TOKENS:
            yield f"{tokens} tokens", experts_problem(tokens)
        yield "130 tokens of few experts", experts_problem(130, skewed=True)


def _routing(
    hidden: int, experts: int, top_k: int, scoring: str, **others: ShapeValue
) -> dict[str, ShapeValue]:
    plain: dict[str, ShapeValue] = {"groups": 1, "top_groups": 1, "scaling": 1.0, "renormalize": True}
    shape: dict[str, ShapeValue] = {
        "hidden": hidden,
        "experts": experts,
        "top_k": top_k,
        "scoring": scoring,
    }
    return {**plain, "bias": False, "correction": False, **shape, **others}


def mlp_shape(
    hidden: int, intermediate: int, experts: int, top_k: int, **others: ShapeValue
) -> dict[str, ShapeValue]:
    """The shape of ``moe.experts``, plain but for ``others``."""
    shape = {"hidden": hidden, "intermediate": intermediate, "experts": experts, "top_k": top_k}
    return {"bias": False, "clamp": 0.0, "alpha": 1.0, "beta": 0.0, **shape, **others}


SHAPES: Mapping[str, tuple[Mapping[str, ShapeValue], ...]] = {
    MOE_ROUTE.name: (
        _routing(256, 128, 8, "softmax"),
        _routing(72, 60, 4, "softmax", renormalize=False),
        _routing(64, 8, 2, "softmax", bias=True),
        _routing(128, 64, 6, "softmax", renormalize=False, groups=8, top_groups=3, scaling=16.0),
        _routing(96, 128, 8, "sigmoid", groups=8, top_groups=4, scaling=2.5, correction=True),
        _routing(40, 20, 3, "sigmoid", correction=True),
        _routing(40, 16, 2, "sqrtsoftplus", correction=True, scaling=1.5),
        _routing(40, 20, 3, "softmax", groups=3, top_groups=2),
    ),
    MOE_EXPERTS.name: (
        mlp_shape(64, 48, 16, 4),
        mlp_shape(128, 96, 40, 6, bias=True),
        mlp_shape(128, 256, 8, 2),
        mlp_shape(72, 40, 4, 2, bias=True, clamp=1.0, alpha=1.702, beta=1.0),
        mlp_shape(32, 16, 3, 3),
    ),
}
"""Shapes for the conformance test, by op."""
