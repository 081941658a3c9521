"""Problems of ``moe.experts.mxfp4`` for the conformance test; ``problems`` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log2
from typing import Any

from frizzen.kernels.facts import Facts, ShapeValue
from frizzen.kernels.moe_problems import experts_problem, mlp_shape
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.plan import Op
from frizzen.kernels.problem_inputs import Inputs, Run
from frizzen.quantize.mxfp4 import BLOCK, Mxfp4Weight

__all__ = ["OPS", "SHAPES", "runs"]

OPS: tuple[Op[Any], ...] = (MOE_EXPERTS_MXFP4,)

_SIZE = 6.0
"""Twice the root mean square of the sixteen numbers, so that results with biases are of the order of 1."""


def _weight(inputs: Inputs, _: Facts, *shape: int) -> Mxfp4Weight:
    """Every pattern of bits; blocks of different magnitude, so that a scale in the wrong place shows."""
    *rows, columns = shape
    usual = 127 - round(log2(_SIZE * columns**0.5))
    data = inputs.bytes_within(0, 256, *rows, columns // 2)
    return Mxfp4Weight(data, inputs.bytes_within(usual - 1, usual + 2, *rows, columns // BLOCK))


def _weight_of_large_scales(inputs: Inputs, facts: Facts, *shape: int) -> Mxfp4Weight:
    """One scale is 8, for which bits that stand in bfloat16 have no factor; of its numbers one is 1/2."""
    weight = _weight(inputs, facts, *shape)
    weight.scale[0, 0, 0] = 130
    weight.data[0, 0, : BLOCK // 2] = 0
    weight.data[0, 0, 0] = 1
    return weight


def _experts(tokens: int, *, skewed: bool = False) -> Run:
    return experts_problem(tokens, skewed=skewed, draw_weight=_weight)


def runs(op: str) -> Iterator[tuple[str, Run]]:
    """Labels and problems of an op; nothing for an op of another file."""
    if op == MOE_EXPERTS_MXFP4.name:
        yield from ((f"{tokens} tokens", _experts(tokens)) for tokens in (1, 7, 40, 270))
        yield "70 tokens of few experts", _experts(70, skewed=True)
        for tokens in (1, 7, 270):
            run = experts_problem(tokens, draw_weight=_weight_of_large_scales)
            yield f"{tokens} tokens, a scale of 8", run


SHAPES: Mapping[str, tuple[Mapping[str, ShapeValue], ...]] = {
    MOE_EXPERTS_MXFP4.name: (
        mlp_shape(256, 128, 16, 4, bias=True, clamp=7.0, alpha=1.702, beta=1.0),
        mlp_shape(64, 96, 40, 6),
        mlp_shape(96, 160, 4, 2, bias=True, clamp=1.0, alpha=1.702, beta=1.0),
        mlp_shape(64, 32, 3, 3, bias=True, clamp=1.0, alpha=1.702, beta=1.0),
    ),
}
"""Shapes for the conformance test, by op."""
