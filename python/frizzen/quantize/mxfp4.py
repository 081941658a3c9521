"""MXFP4 (OCP Microscaling Formats 1.0): four-bit floating-point numbers, 32 of which share a power of two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BLOCK", "NO_NUMBER", "Mxfp4Weight", "dequantize"]

BLOCK = 32
"""Numbers that share a scale."""
NO_NUMBER = 255
"""The scale that stands for none."""

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = (*_POSITIVE, *(-value for value in _POSITIVE))
_UE8M0 = (*(2.0 ** (exponent - 127) for exponent in range(255)), math.nan)


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """Unpacks numbers; every result is exact in float32 and in bfloat16.

    Args:
        blocks: ``[..., G, 16]`` uint8, two E2M1 numbers per byte, the low four bits first.
        scales: ``[..., G]`` uint8, UE8M0: the exponent of two plus 127; 255 is NaN.

    Returns:
        ``[..., G * 32]`` float32.

    Raises:
        ValueError: the shapes do not belong together.
    """
    if blocks.shape != (*scales.shape, BLOCK // 2):
        raise ValueError(
            f"blocks have shape {list(blocks.shape)} and scales {list(scales.shape)}, "
            f"expected {BLOCK // 2} bytes per scale"
        )
    numbers, powers = (torch.tensor(table, device=blocks.device) for table in (_E2M1, _UE8M0))
    unpacked = torch.stack([numbers[(blocks & 15).int()], numbers[(blocks >> 4).int()]], dim=-1).flatten(-2)
    return (unpacked * powers[scales.int()].unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """A weight, or the weights of all experts one after the other, in a checkpoint's order."""

    data: Tensor
    """``[..., N, K / 2]`` uint8, two numbers per byte, the low four bits first."""
    scale: Tensor
    """``[..., N, K / 32]`` uint8."""

    def expand(self, dtype: torch.dtype) -> Tensor:
        """``[..., N, K]``: the numbers times their scales, which float32 and bfloat16 hold exactly."""
        *leading, rows, half = self.data.shape
        out = torch.empty(*leading, rows, 2 * half, dtype=dtype, device=self.data.device)
        flat = self.data.view(-1, rows, half // 16, 16), self.scale.view(-1, rows, half // 16)
        # One expert at a time: float32 copies of all would be eight times their size.
        for place, blocks, scales in zip(out.view(-1, rows, 2 * half), *flat, strict=True):
            place.copy_(dequantize(blocks, scales))
        return out

    def unflatten(self, count: int) -> Mxfp4Weight:
        """``[count * N, K]`` -> ``[count, N, K]``."""
        return Mxfp4Weight(*(torch.unflatten(tensor, 0, (count, -1)) for tensor in (self.data, self.scale)))
