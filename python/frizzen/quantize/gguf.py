"""GGUF block formats to float32, exactly as the ``gguf`` package computes them.

The formats that small models ship in are unpacked by torch, ten times as fast as by numpy; every other one is
left to the package, which is imported only then.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["BLOCKS", "block_bytes", "dequantize", "type_name"]

_PLAIN = {0: torch.float32, 1: torch.float16, 28: torch.float64, 30: torch.bfloat16}
_Q4_0, _Q4_1, _Q8_0 = 2, 3, 8

BLOCKS: dict[int, tuple[int, int]] = {
    **{kind: (1, dtype.itemsize) for kind, dtype in _PLAIN.items()},
    _Q4_0: (32, 18),
    _Q4_1: (32, 20),
    _Q8_0: (32, 34),
}
"""Elements and bytes of a block, for the types that need no package."""


def block_bytes(kind: int) -> tuple[int, int] | None:
    """Elements and bytes of one block of a GGML type; None if the type is unknown."""
    if kind in BLOCKS:
        return BLOCKS[kind]
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType(kind)] if kind in set(GGMLQuantizationType) else None


def type_name(kind: int) -> str:
    """``Q4_K`` for 12; the number if the type is unknown."""
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType(kind).name if kind in set(GGMLQuantizationType) else str(kind)


def dequantize(kind: int, raw: Tensor, out: Tensor) -> None:
    """Unpacks blocks.

    Args:
        kind: GGML type number.
        raw: ``[rows, bytes]`` uint8, whole blocks.
        out: ``[rows, columns]`` of any floating dtype; values are computed in float32 and rounded once.

    Raises:
        NotImplementedError: the ``gguf`` package cannot unpack this type.
    """
    if kind in _PLAIN:
        out.copy_(raw.view(_PLAIN[kind]))
        return
    if kind not in _UNPACK:
        out.copy_(_by_package(kind, raw))
        return
    elements, size = BLOCKS[kind]
    blocks = raw.reshape(-1, size)
    if out.dtype == torch.float32 and out.is_cpu and out.is_contiguous():
        _UNPACK[kind](blocks, out.view(-1, elements))
        return
    staged = torch.empty(blocks.shape[0], elements)
    _UNPACK[kind](blocks, staged)
    out.copy_(staged.view(out.shape))


def _halves(blocks: Tensor, first: int, count: int) -> Tensor:
    """``[blocks, count]`` float32 from the half-precision numbers that start at byte ``first``."""
    return blocks[:, first : first + 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """``[blocks, 16]`` bytes to ``[blocks, 32]``: all low nibbles come before all high ones."""
    out = packed.new_empty(packed.shape[0], 2, packed.shape[1])
    torch.bitwise_and(packed, 15, out=out[:, 0])
    torch.bitwise_right_shift(packed, 4, out=out[:, 1])
    return out.flatten(1)


def _unpack_q4_0(blocks: Tensor, out: Tensor) -> None:
    torch.mul(_nibbles(blocks[:, 2:]).view(torch.int8) - 8, _halves(blocks, 0, 1), out=out)


def _unpack_q4_1(blocks: Tensor, out: Tensor) -> None:
    head = _halves(blocks, 0, 2)
    # Two roundings, as in the format's own code: a fused multiply-add would differ in the last bit.
    torch.mul(_nibbles(blocks[:, 4:]), head[:, :1], out=out).add_(head[:, 1:])


def _unpack_q8_0(blocks: Tensor, out: Tensor) -> None:
    torch.mul(blocks[:, 2:].view(torch.int8), _halves(blocks, 0, 1), out=out)


_UNPACK: dict[int, Callable[[Tensor, Tensor], None]] = {
    _Q4_0: _unpack_q4_0,
    _Q4_1: _unpack_q4_1,
    _Q8_0: _unpack_q8_0,
}


def _by_package(kind: int, raw: Tensor) -> Tensor:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as unpack

    return torch.from_numpy(unpack(raw.numpy(), GGMLQuantizationType(kind)))
