"""Random weights for a configuration, for measuring speed and memory without a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from frizzen.loading.checkpoint import Parameter, Stored
from frizzen.quantize.fp8 import Fp8Scheme

__all__ = ["DummyCheckpoint"]

_LINEAR = re.compile(r"\.(attention|mlp|experts|shared)\..*\.weight$")


class DummyCheckpoint:
    """Every tensor exists: norms are ones, biases zeros, matrices small normal values."""

    def __init__(self, path: Path, seed: int, fp8: Fp8Scheme | None = None) -> None:
        self._path = path
        self._fp8 = fp8
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

    def fp8_block(self, parameter: Parameter) -> tuple[int, int] | None:
        """The layers' products are in FP8 where the configuration says so; routers and gates are not."""
        if self._fp8 is None or not _LINEAR.search(parameter.name):
            return None
        return self._fp8.block or (1, 0)

    def read_fp8(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Fills ``data`` with normal values and ``scale`` so that they are as small as those of ``read``."""
        data.copy_(torch.empty(data.shape).normal_(0, 1, generator=self._generator))
        scale.fill_(0.02)

    def close(self) -> None:
        """Nothing to give back."""
