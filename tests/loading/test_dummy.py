"""Dummy weights: the same wherever they are made, no row like another, quickly there."""

from __future__ import annotations

from pathlib import Path

import torch

from frizzen.loading.checkpoint import Parameter
from frizzen.loading.dummy import PERIOD, DummyCheckpoint


def read(
    checkpoint: DummyCheckpoint, name: str, *shape: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    out = torch.full(shape, torch.nan, dtype=dtype)
    checkpoint.read(Parameter(name, shape, None, None), out)
    return out


def test_rows_differ_although_the_values_come_again() -> None:
    matrix = read(DummyCheckpoint(Path(), 1), "embedding", 2 * PERIOD // 2048, 2048)
    assert len(matrix[:, :8].unique(dim=0)) == len(matrix)
    assert abs(matrix.std().item() - 0.02) < 1e-3
    assert abs(matrix.mean().item()) < 1e-3


def test_matrices_follow_each_other_and_types_round_the_same_values() -> None:
    checkpoints = [DummyCheckpoint(Path(), 1) for _ in range(2)]
    first, second = (read(checkpoints[0], "up", 300, 7) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(read(checkpoints[1], "up", 300, 7, dtype=torch.bfloat16), first.bfloat16())
    assert torch.equal(read(checkpoints[1], "up", 300, 7), second)


def test_norms_are_ones_and_biases_zeros() -> None:
    checkpoint = DummyCheckpoint(Path(), 1)
    assert torch.equal(read(checkpoint, "layers.0.mlp_norm", 9), torch.ones(9))
    assert torch.equal(read(checkpoint, "attention.q.bias", 9), torch.zeros(9))
