"""What the problems of all ops are made of: drawn tensors, and a step over a paged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.step import StepContext

__all__ = ["Inputs", "Run", "paged_step"]

_LARGE = 1 << 24
"""Elements from which on a GPU draws for itself."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Draws tensors: always the same numbers for a seed, rounded to one dtype and handed out in another."""

    generator: torch.Generator
    rounded_to: torch.dtype
    dtype: torch.dtype
    device: torch.device

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal values of a dtype's precision."""
        generator = self._generator(*shape)
        drawn = torch.randn(shape, generator=generator, device=generator.device).mul_(scale)
        return drawn.to(self.rounded_to).to(self.dtype).to(self.device)

    def bytes_within(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers from ``low`` to ``high - 1`` in uint8."""
        generator = self._generator(*shape)
        device = generator.device
        drawn = torch.randint(low, high, shape, generator=generator, device=device, dtype=torch.uint8)
        return drawn.to(self.device)

    def _generator(self, *shape: int) -> torch.Generator:
        """The CPU's, unless so much is drawn that it would take minutes: a real model's experts."""
        if self.device.type != "cuda" or prod(shape) <= _LARGE:
            return self.generator
        seed = int(torch.randint(2**62, (), generator=self.generator))
        return torch.Generator(self.device).manual_seed(seed)


Run = Callable[[Any, Facts, Inputs], dict[str, Tensor]]
"""Prepares a kernel, calls it, and returns everything that its contract says it wrote."""


def paged_step(
    rows: Sequence[tuple[int, int]], block_size: int, generator: torch.Generator, device: torch.device
) -> tuple[StepContext, int]:
    """A step of rows ``(context, query)``, those of one token first; and how many blocks it needs."""
    widths = [-(-context // block_size) for context, _ in rows]
    order = (torch.randperm(sum(widths), generator=generator) + 1).int()
    table = torch.zeros(len(rows), max(widths), dtype=torch.int32)
    for row, (width, end) in enumerate(zip(widths, accumulate(widths), strict=True)):
        table[row, :width] = order[end - width : end]
    positions = torch.cat([torch.arange(context - query, context) for context, query in rows])
    row_of = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([query for _, query in rows]))
    slots = table[row_of, positions // block_size].long() * block_size + positions % block_size
    step = StepContext(
        positions=positions.to(device),
        slots=slots.to(device),
        query_start=torch.tensor(
            [0, *accumulate(query for _, query in rows)], dtype=torch.int32, device=device
        ),
        seq_lens=torch.tensor([context for context, _ in rows], dtype=torch.int32, device=device),
        block_table=table.to(device),
        num_rows=len(rows),
        num_single=sum(query == 1 for _, query in rows),
        num_tokens=len(positions),
        max_query=max(query for _, query in rows),
        max_context=max(context for context, _ in rows),
    )
    return step, sum(widths) + 1
