"""Problems of the ops with FP8 weights for the conformance test; ``problems`` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts, ShapeValue
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.moe_problems import experts_problem, mlp_shape
from frizzen.kernels.plan import Op
from frizzen.kernels.problem_inputs import Inputs, Run
from frizzen.quantize.fp8 import FP8, GROUP, LARGEST, Fp8Weight, quantize

__all__ = ["OPS", "ROUNDED", "SHAPES", "runs"]

OPS: tuple[Op[Any], ...] = (LINEAR_FP8, MOE_EXPERTS_FP8)

ROUNDED = {MOE_EXPERTS_FP8.name: 7e-2}
"""Ops in which a kernel rounds numbers between two products or does not, and the error that each row of an
output may have then: its root mean square, over that of the row or of all rows. Numbers with three bits after
the first are off by 1/16 at most and by 0.026 on average, and so are sums of their products, unless one
number is most of the sum."""

_TOKENS = (1, 2, 7, 33, 130)


def exact_inputs(inputs: Inputs, tokens: int, size: int) -> Tensor:
    """``[tokens, size]`` of the order of 1, which a rounding to FP8 leaves as they are."""
    drawn = (torch.randn(tokens, size, generator=inputs.generator) * 100).clamp(-LARGEST, LARGEST)
    numbers = drawn.to(FP8).float()
    numbers[:, ::GROUP] = LARGEST
    return (numbers / 128).to(inputs.dtype).to(inputs.device)


def _weight(inputs: Inputs, facts: Facts, *shape: int) -> Fp8Weight:
    rows, columns = facts.size("block_rows"), facts.size("block_columns")
    # Blocks of different magnitude, so that a scale in the wrong place shows.
    by_row = torch.exp2(torch.rand(*shape[:-1], 1, generator=inputs.generator) * 2 - 1)
    drawn = torch.randn(shape, generator=inputs.generator) * by_row * shape[-1] ** -0.5
    found = quantize(drawn, rows, columns)
    return Fp8Weight(found.data.to(inputs.device), found.scale.to(inputs.device), rows, columns)


def _linear(tokens: int) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        size_in, size_out = facts.size("in_features"), facts.size("out_features")
        weight = _weight(inputs, facts, size_out, size_in)
        bias = inputs.normal(size_out) if facts["bias"] else None
        return {"out": kernel.prepare(weight, bias)(exact_inputs(inputs, tokens, size_in))}

    return run


def _experts(tokens: int, *, skewed: bool = False) -> Run:
    return experts_problem(tokens, skewed=skewed, draw_weight=_weight, draw_tokens=exact_inputs)


def runs(op: str) -> Iterator[tuple[str, Run]]:
    """Labels and problems of an op; nothing for an op of another file."""
    if op == LINEAR_FP8.name:
        yield from ((f"{tokens} tokens", _linear(tokens)) for tokens in _TOKENS)
    if op == MOE_EXPERTS_FP8.name:
        yield from ((f"{tokens} tokens", _experts(tokens)) for tokens in (1, 7, 40, 270))
        yield "70 tokens of few experts", _experts(70, skewed=True)


_BLOCK: dict[str, ShapeValue] = {"block_rows": 128, "block_columns": 128}
_BY_ROW: dict[str, ShapeValue] = {"block_rows": 1, "block_columns": 128}
_CHANNEL: dict[str, ShapeValue] = {"block_rows": 1, "block_columns": 0}

SHAPES: Mapping[str, tuple[Mapping[str, ShapeValue], ...]] = {
    LINEAR_FP8.name: tuple(
        {"in_features": size_in, "out_features": size_out, "bias": bias, **block}
        for size_in, size_out, bias, block in (
            (512, 384, False, _BLOCK),
            (256, 200, True, _BLOCK),
            (144, 576, False, _BLOCK),
            (304, 96, False, _BY_ROW),
            (512, 72, True, _CHANNEL),
            (67, 45, False, _BLOCK),
            (256, 80, True, _CHANNEL),
        )
    ),
    MOE_EXPERTS_FP8.name: (
        {**mlp_shape(256, 128, 16, 4), **_BLOCK},
        {**mlp_shape(384, 256, 8, 2), **_BLOCK},
        {**mlp_shape(144, 80, 6, 3, bias=True, clamp=1.0, alpha=1.702, beta=1.0), **_BY_ROW},
        {**mlp_shape(64, 96, 4, 2), **_CHANNEL},
    ),
}
"""Shapes for the conformance test, by op."""
