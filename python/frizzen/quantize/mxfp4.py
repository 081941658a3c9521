"""MXFP4 (OCP Microscaling Formats 1.0): four-bit floating-point numbers, 32 of which share a power of two."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["BLOCK", "dequantize"]

BLOCK = 32
"""Numbers that share a scale."""

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
