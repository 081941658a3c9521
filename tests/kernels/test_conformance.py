"""Every candidate of every op agrees with the reference. A new backend is covered by being registered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from frizzen.kernels.facts import Facts, detect_machine
from frizzen.kernels.plan import Candidate, default_registry
from frizzen.kernels.problems import OPS, SHAPES, disagreement

DTYPES = (torch.float32, torch.bfloat16)


def cases() -> Iterator[object]:
    registry = default_registry()
    for op in OPS:
        for candidate in registry.candidates(op.name):
            for dtype in DTYPES:
                name = f"{op.name}-{candidate.name}-{str(dtype).removeprefix('torch.')}"
                yield pytest.param("cpu", op, candidate, dtype, id=name)
                yield pytest.param("cuda", op, candidate, dtype, id=f"{name}-cuda", marks=pytest.mark.gpu)


@pytest.mark.parametrize(("device", "op", "candidate", "dtype"), list(cases()))
@torch.inference_mode()
def test_candidate_agrees_with_the_reference(device, op, candidate: Candidate, dtype) -> None:
    machine = detect_machine(device)
    served = 0
    for shape in SHAPES[op.name]:
        facts = Facts.of(machine, dtype, shape)
        reason = candidate.requires(facts)
        if reason is None:
            served += 1
            disagrees = disagreement(op, candidate, facts, candidate.build(facts))
            assert disagrees is None, f"{dict(shape)}: {disagrees.message}"
    if not served:
        pytest.skip(f"{reason.code}: {reason.message}")


def test_every_op_has_a_reference_that_serves_every_shape() -> None:
    registry, machine = default_registry(), detect_machine("cpu")
    assert {op.name for op in OPS} == set(registry.ops())
    for op in OPS:
        reference = registry.candidates(op.name)[-1]
        assert (reference.name, reference.rank) == ("reference", 0)
        for shape in SHAPES[op.name]:
            assert set(shape) == set(op.shape)
            assert reference.requires(Facts.of(machine, torch.float32, shape)) is None
