"""Random weights for a configuration, for measuring speed and memory without a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from frizzen.loading.checkpoint import Parameter, Stored

__all__ = ["DummyCheckpoint"]


class DummyCheckpoint:
    """Every tensor exists: norms are ones, biases zeros, matrices small normal values."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def path(self) -> Path:
        """The configuration's place."""
        return self._path

    def stored(self, parameter: Parameter) -> tuple[Stored, ...]:
        """A tensor of the model's own name."""
        return (Stored(parameter.name, parameter.shape),)

    def shapes(self) -> Mapping[str, tuple[int, ...]] | None:
        """None: whatever is asked for exists."""
        return None

    def read(self, parameter: Parameter, out: Tensor) -> None:
        """Fills ``out``; a seed gives the same weights on every device."""
        if out.dim() == 1:
            out.fill_(1.0 if "norm" in parameter.name else 0.0)
            return
        out.copy_(torch.empty(out.shape).normal_(0, 0.02, generator=self._generator))

    def close(self) -> None:
        """Nothing to give back."""
