"""Torch's scaled product: right on a CPU, where it may not serve, and refused with a reason elsewhere."""

from __future__ import annotations

import pytest
import torch

from frizzen.kernels.facts import Facts, Machine, detect_machine
from frizzen.kernels.fp8_ops import LINEAR_FP8
from frizzen.kernels.problems import SHAPES, disagreement
from frizzen.kernels.scaled_mm import CANDIDATES, ScaledLinear
from frizzen.quantize.fp8 import quantize

(CANDIDATE,) = CANDIDATES
SHAPE = {"in_features": 512, "out_features": 64, "bias": True, "block_rows": 1, "block_columns": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_per_channel_agree_with_the_reference(dtype: torch.dtype) -> None:
    shapes = [shape for shape in SHAPES[LINEAR_FP8.name] if shape["block_columns"] == 0]
    for shape in (*shapes, SHAPE):
        facts = Facts.of(detect_machine("cpu"), dtype, shape)
        found = disagreement(LINEAR_FP8, CANDIDATE, facts, ScaledLinear.build(facts))
        assert found is None, found


def test_a_row_that_is_not_a_number_fails_alone_and_zeros_stay() -> None:
    facts = Facts.of(detect_machine("cpu"), torch.bfloat16, SHAPE)
    linear = ScaledLinear.build(facts).prepare(quantize(torch.randn(64, 512), 1, 0), None)
    x = torch.randn(4, 512, dtype=torch.bfloat16)
    x[1, 3], x[2] = torch.nan, 0
    out = linear(x)
    assert out[1].isnan().all()
    assert not out[2].any()
    assert out[[0, 3]].isfinite().all()
    assert linear(x[:0]).shape == (0, 64)


@pytest.mark.parametrize(
    ("capability", "dtype", "changed", "code"),
    [
        ("sm_90", torch.bfloat16, {}, None),
        ("sm_80", torch.bfloat16, {}, "capability"),
        ("sm_90", torch.float32, {}, "dtype"),
        ("sm_90", torch.bfloat16, {"block_rows": 128, "block_columns": 128}, "blocks"),
        ("sm_90", torch.bfloat16, {"out_features": 72}, "shape"),
    ],
)
def test_what_it_cannot_do_has_a_reason(
    capability: str, dtype: torch.dtype, changed: dict[str, int], code: str | None
) -> None:
    machine = Machine("cuda", frozenset({capability}), 1, ())
    reason = CANDIDATE.requires(Facts.of(machine, dtype, SHAPE | changed))
    assert (reason and reason.code) == code
