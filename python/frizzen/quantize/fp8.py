"""FP8 weights: float8_e4m3fn numbers with a float32 scale for every block of them.

A block is ``rows`` outputs by ``columns`` inputs: 128 by 128 in DeepSeek-V3's and Qwen3's checkpoints, one
output by all inputs where scales are per channel. A tensor that has one scale gives that to every channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FP8", "GROUP", "LARGEST", "Fp8Scheme", "Fp8Weight", "quantize", "quantize_inputs"]

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of the format."""
GROUP = 128
"""Inputs of an activation that share a scale."""


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """How a checkpoint stores the weights of its linear layers."""

    block: tuple[int, int] | None
    """Outputs and inputs that share a scale; None where scales are per channel or per tensor."""


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight, or the weights of all experts one after the other."""

    data: Tensor
    """``[..., N, K]`` float8_e4m3fn."""
    scale: Tensor
    """``[..., ceil(N / rows), ceil(K / columns)]`` float32; ``[..., ceil(N / rows), 1]`` if columns is 0."""
    rows: int
    columns: int
    """0: all of them."""

    def expand(self, dtype: torch.dtype) -> Tensor:
        """``data * scale``, rounded once to ``dtype``."""
        out = torch.empty(self.data.shape, dtype=dtype, device=self.data.device)
        size_out, size_in = self.data.shape[-2:]
        flat = (self.data.view(-1, size_out, size_in), self.scale.view(-1, *self.scale.shape[-2:]))
        # One expert at a time: float32 copies of all would be four times their size.
        for place, data, scale in zip(out.view(-1, size_out, size_in), *flat, strict=True):
            by_row = scale.repeat_interleave(self.rows, 0)[:size_out]
            if self.columns:
                by_row = by_row.repeat_interleave(self.columns, 1)[:, :size_in]
            place.copy_(data.float() * by_row)
        return out

    def with_rows(self, rows: int) -> Fp8Weight:
        """The same numbers with a scale for every ``rows`` outputs, a divisor of the rows there are."""
        if rows == self.rows:
            return self
        scale = self.scale.repeat_interleave(self.rows // rows, -2)
        wanted = -(-self.data.shape[-2] // rows)
        return Fp8Weight(self.data, scale[..., :wanted, :].contiguous(), rows, self.columns)

    def unflatten(self, count: int) -> Fp8Weight:
        """``[count * N, K]`` -> ``[count, N, K]``."""
        data, scale = (torch.unflatten(tensor, 0, (count, -1)) for tensor in (self.data, self.scale))
        return Fp8Weight(data, scale, self.rows, self.columns)


def quantize(weight: Tensor, rows: int, columns: int) -> Fp8Weight:
    """Rounds ``[..., N, K]``: the largest number of every block becomes 448."""
    size_out, size_in = weight.shape[-2:]
    width = columns or size_in
    down, right = -size_out % rows, -size_in % width
    padded = torch.nn.functional.pad(weight.float(), (0, right, 0, down))
    blocks = torch.unflatten(torch.unflatten(padded, -1, (-1, width)), -3, (-1, rows))
    scale = blocks.abs().amax((-3, -1)) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)
    numbers = (blocks / scale[..., :, None, :, None]).to(FP8)
    data = numbers.flatten(-2).flatten(-3, -2)[..., :size_out, :size_in].contiguous()
    return Fp8Weight(data, scale, rows, columns)


def quantize_inputs(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x [T, K]`` -> numbers ``[T, K]`` float8_e4m3fn, scales ``[T, ceil(K / 128)]`` float32."""
    found = quantize(x, 1, GROUP)
    return found.data, found.scale
