"""Weights in MXFP4 as the kernels read them: four numbers in every 16 bits, four scales in every 32.

A block of 32 columns is eight units of 16 bits; unit ``u`` has the numbers of columns ``u``, ``8 + u``,
``16 + u`` and ``24 + u``. Each number is a sign, two bits of exponent and one of mantissa, which in bfloat16
stand at bits 15, 8, 7 and 6, where they are 2 ** -126 of what they mean, subnormal numbers included. Of the
first number they stand there, of the second three bits lower, of the third six; the fourth has what is left.
So one instruction moves and another masks the numbers of two units. The product with the scale, a power of
two, is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.quantize.mxfp4 import Mxfp4Weight

__all__ = [
    "BIAS_OF_FACTORS",
    "LARGEST_SCALE",
    "UNPACK",
    "Rearranged",
    "factors",
    "padding_bytes",
    "rearrange",
    "unpack",
]

LARGEST_SCALE = 128
"""As it is stored: it stands for 2. Its factor is the largest power of two that bfloat16 has."""

BIAS_OF_FACTORS = tl.constexpr(126)
"""Added to stored scales, gives the exponents, in bfloat16, of the factors of numbers as they stand there."""

UNPACK = tl.constexpr("""
{
    .reg .b32 a, b, c, d, e;
    and.b32 a, $4, 0x81C081C0;
    shl.b32 b, $4, 3;
    and.b32 b, b, 0x81C081C0;
    shl.b32 c, $4, 6;
    and.b32 c, c, 0x81C081C0;
    shl.b32 d, $4, 1;
    and.b32 d, d, 0x80008000;
    shr.u32 e, $4, 5;
    lop3.b32 d, e, 0x01000100, d, 0xEA;
    shr.u32 e, $4, 4;
    lop3.b32 d, e, 0x00C000C0, d, 0xEA;
    mov.b32 e, 0x80008000;
    fma.rn.bf16x2 $0, a, $5, e;
    fma.rn.bf16x2 $1, b, $5, e;
    fma.rn.bf16x2 $2, c, $5, e;
    fma.rn.bf16x2 $3, d, $5, e;
}
""")


@triton.jit
def _value(bits):
    """A number of which sign, exponent and mantissa stand at bits 15 and 8 to 6, in float32."""
    code = (bits >> 6) & 7
    exponent = code >> 1
    mantissa = (code & 1).to(tl.float32)
    normal = ((exponent + 126) << 23).to(tl.float32, bitcast=True) * (1.0 + 0.5 * mantissa)
    size = tl.where(exponent > 0, normal, 0.5 * mantissa)
    return tl.where((bits & 0x8000) > 0, -size, size)


@triton.jit
def factors(words, PACKED: tl.constexpr):
    """Of scales ``words [ROWS]``, those of 128 columns, one for every unit: ``[ROWS, 32]``.

    Bits of bfloat16, for numbers as they stand there, or float32, for their values.
    """
    # Nothing here may depend on a place: then the compiler does all of it where the products want it.
    even = tl.join(words & 0xFF, (words >> 16) & 0xFF)
    odd = tl.join((words >> 8) & 0xFF, (words >> 24) & 0xFF)
    scales = tl.reshape(tl.join(even, odd), (words.shape[0], 4))
    if PACKED:
        found = (scales << 7).to(tl.int16)
    else:
        wide = scales - BIAS_OF_FACTORS
        found = tl.where(wide > 0, wide << 23, 1 << 22).to(tl.float32, bitcast=True)
    found = tl.broadcast_to(found[:, :, None], (words.shape[0], 4, 8))
    return tl.reshape(found, (words.shape[0], 32))


@triton.jit
def unpack(units, factor, PACKED: tl.constexpr):
    """The four numbers of every unit (int16), times :func:`factors` of its shape."""
    if PACKED:
        a, b, c, d = tl.inline_asm_elementwise(
            UNPACK, "=r,=r,=r,=r,r,r", [units, factor],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        bits = units.to(tl.int32)
        fourth = ((bits << 1) & 0x8000) | ((bits >> 5) & 0x100) | ((bits >> 4) & 0xC0)
        a = _value(bits) * factor
        b = _value(bits << 3) * factor
        c = _value(bits << 6) * factor
        d = _value(fourth) * factor
    return a, b, c, d


@triton.jit
def _rearrange(data, blocks, MANY: tl.constexpr):
    """Blocks of 16 bytes in place."""
    block = tl.program_id(0).to(tl.int64) * MANY + tl.arange(0, MANY)
    unit = tl.arange(0, 8)
    exists = (block < blocks)[:, None]
    at = data + block[:, None] * 16
    # The numbers of columns u, 8 + u, ... are neighbours' halves of a byte.
    shift = (unit % 2 * 4)[None, :]
    first = tl.load(at + (unit // 2)[None, :], mask=exists, other=0).to(tl.int32) >> shift
    second = tl.load(at + (4 + unit // 2)[None, :], mask=exists, other=0).to(tl.int32) >> shift
    third = tl.load(at + (8 + unit // 2)[None, :], mask=exists, other=0).to(tl.int32) >> shift
    fourth = tl.load(at + (12 + unit // 2)[None, :], mask=exists, other=0).to(tl.int32) >> shift
    bits = ((first & 8) << 12) | ((first & 7) << 6)
    bits |= ((second & 8) << 9) | ((second & 7) << 3)
    bits |= ((third & 8) << 6) | (third & 7)
    bits |= ((fourth & 8) << 11) | ((fourth & 4) << 11) | ((fourth & 3) << 10)
    tl.debug_barrier()
    places = at.to(tl.pointer_type(tl.int16)) + unit[None, :]
    tl.store(places, bits.to(tl.int16), mask=exists)


def padding_bytes(weight: Mxfp4Weight) -> int:
    """What scales take in whole words besides their own bytes."""
    return weight.scale[..., 0].numel() * (-weight.scale.shape[-1] % 4)


class Rearranged(NamedTuple):
    """A weight as the kernels read it, ``2 ** excess`` times too small."""

    units: Tensor
    """``[E, N, K / 4]`` int16, in the bytes of the numbers."""
    words: Tensor
    """``[E, N, ceil(K / 128)]`` int32, the scales."""
    excess: int
    """0 unless a scale is larger than :data:`LARGEST_SCALE`."""


def rearrange(weight: Mxfp4Weight) -> Rearranged:
    """Rearranges the numbers in place; the largest factor is one that bfloat16 has, whatever the scales are.

    All scales of a weight are lowered alike. What falls below the smallest factor by that is 2 ** 126 times
    smaller than the largest number, and adds nothing to a sum in float32.
    """
    excess = max(int(weight.scale.max()) - LARGEST_SCALE, 0)
    blocks, many = weight.scale.numel(), 64
    _rearrange[(triton.cdiv(blocks, many),)](weight.data, blocks, MANY=many, num_warps=4)
    stored = weight.scale + (BIAS_OF_FACTORS.value - excess)
    padded = torch.nn.functional.pad(stored, (0, -weight.scale.shape[-1] % 4))
    return Rearranged(weight.data.view(torch.int16), padded.view(torch.int32), excess)
