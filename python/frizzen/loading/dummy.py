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

DEVIATION = 0.02
"""Standard deviation of matrices."""
PERIOD = 4_194_301
"""Numbers that are drawn. A prime: rows of a matrix, whatever their length, begin at different places."""
_MXFP4_SCALE = 120
"""Times numbers in MXFP4 whose bits are random, 2 ** (120 - 127) gives :data:`DEVIATION` and a seventh."""
_EXPERTS = re.compile(r"\.experts\..*\.weight$")
_LINEAR = re.compile(r"\.(attention|mlp|experts|shared)\..*\.weight$")


class DummyCheckpoint:
    """Every tensor exists: norms are ones, biases zeros, matrices small normal values.

    The values are one sequence that repeats itself, and each matrix takes the part after the one before.
    Drawing tens of billions of numbers takes minutes on a CPU; copying them on the device takes a second, and
    gives the same weights on every device.
    """

    def __init__(self, path: Path, seed: int, fp8: Fp8Scheme | None = None, *, mxfp4: bool = False) -> None:
        self._path = path
        self._mxfp4 = mxfp4
        self._fp8 = fp8
        generator = torch.Generator().manual_seed(seed)
        self._drawn = torch.empty(PERIOD).normal_(0, DEVIATION, generator=generator)
        self._bytes = torch.randint(256, (PERIOD if mxfp4 else 0,), generator=generator, dtype=torch.uint8)
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._place = 0

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
        """Fills ``out``, which is contiguous; a seed gives the same weights on every device."""
        if out.dim() == 1:
            out.fill_(1.0 if "norm" in parameter.name else 0.0)
            return
        self._fill(out, 1.0)

    def _fill(self, out: Tensor, factor: float) -> None:
        """Takes the next numbers, times ``factor``, which is one for all tensors of a type."""
        kind = out.device, out.dtype
        if kind not in self._copies:
            drawn = self._bytes if out.dtype == torch.uint8 else self._drawn * factor
            self._copies[kind] = drawn.to(*kind)
        values = self._copies[kind]
        flat, done = out.view(-1), 0
        while done < len(flat):
            count = min(PERIOD - self._place, len(flat) - done)
            flat[done : done + count] = values[self._place : self._place + count]
            done, self._place = done + count, (self._place + count) % PERIOD

    def fp8_block(self, parameter: Parameter) -> tuple[int, int] | None:
        """The layers' products are in FP8 where the configuration says so; routers and gates are not."""
        if self._fp8 is None or not _LINEAR.search(parameter.name):
            return None
        return self._fp8.block or (1, 0)

    def read_fp8(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Fills ``data`` with normal values and ``scale`` so that they are as small as those of ``read``."""
        self._fill(data, 1 / DEVIATION)
        scale.fill_(DEVIATION)

    def in_mxfp4(self, parameter: Parameter) -> bool:
        """The experts are where the configuration says so."""
        return self._mxfp4 and _EXPERTS.search(parameter.name) is not None

    def read_mxfp4(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Fills ``data`` with random bits, and ``scale`` so that values are about as small as in ``read``."""
        self._fill(data, 1.0)
        scale.fill_(_MXFP4_SCALE)

    def close(self) -> None:
        """Nothing to give back."""
