"""Products with weights in FP8: how activations are rounded, and how scales enter the sums.

Inputs of several tokens are rounded by a launch of their own (in the product itself, every program would do
it again, which took 1 to 4 us longer on an H200) and multiplied as they are, 128 at a time, since so many
share a scale on both sides. The scales multiply the sum of each such step, in float32, which also keeps the
tensor cores' short sums short. One token is multiplied unrounded: its product waits for the weight, and a
launch less is worth more than cheaper arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.triton.launch import Target, await_inputs, multiply_add, release_next, round_up_power
from frizzen.quantize.fp8 import FP8, GROUP, LARGEST, Fp8Weight

__all__ = [
    "fp8_precision",
    "linear_few",
    "linear_many",
    "linear_one",
    "norm_rows",
    "quantize_rows",
    "saturate_fp8",
    "scale_constants",
    "to_fp8",
    "weigh_groups",
]

_LARGEST: tl.constexpr = tl.constexpr(LARGEST)
_INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _nearest_fp8(values):
    if _INTERPRETED:
        # It cuts off what does not fit: leave nothing to cut.
        bits = values.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
        values = bits.to(tl.float32, bitcast=True)
    return values.to(tl.float8e4nv)


@triton.jit
def saturate_fp8(values):
    """Float32 in FP8; what is too large becomes the largest number, and NaN stays."""
    every: tl.constexpr = tl.PropagateNan.ALL
    bounded = tl.minimum(tl.maximum(values, -_LARGEST, every), _LARGEST, every)
    return _nearest_fp8(bounded)


@triton.jit
def to_fp8(values, peak):
    """Numbers and scale of ``values [R, G]`` whose largest are ``peak [R]``; of zeros the scale is 1."""
    scale = tl.where(peak > 0, peak / _LARGEST, 1.0)
    return _nearest_fp8(values / scale[:, None]), scale


@triton.jit(do_not_specialize=["rows"])
def _quantize_rows(
    x, numbers, scales, rows, x_stride, scale_stride, group_stride, K,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < K
    await_inputs(PDL)
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    release_next(PDL)
    found, scale = to_fp8(values, tl.max(tl.abs(values), axis=1))
    tl.store(numbers + row * K + column, found, mask=inside)
    tl.store(scales + row * scale_stride + group * group_stride, scale, mask=group * GROUP < K)


@triton.jit(do_not_specialize=["rows"])
def _norm_rows(
    x, residual, weight, numbers, scales, rows, x_stride, scale_stride, group_stride, K, eps,
    ADD: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < K
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    await_inputs(PDL)
    y = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        stream = residual + row * K + column
        y += tl.load(stream, mask=inside, other=0.0).to(tl.float32)
        rounded = y.to(residual.dtype.element_ty)
        tl.store(stream, rounded, mask=inside)
        y = rounded.to(tl.float32)
    release_next(PDL)
    inverse = tl.rsqrt(tl.sum(tl.sum(y * y, axis=1), axis=0) / K + eps)
    # As if the norm had been stored.
    y = (y * inverse * gain).to(x.dtype.element_ty).to(tl.float32)
    found, scale = to_fp8(y, tl.max(tl.abs(y), axis=1))
    tl.store(numbers + row * K + column, found, mask=inside)
    tl.store(scales + row * scale_stride + group * group_stride, scale, mask=group * GROUP < K)


def _rounded(x: Tensor, *, by_column: bool) -> tuple[Tensor, Tensor]:
    """Room for the numbers and scales of ``x``."""
    rows, size = x.shape
    groups = triton.cdiv(size, GROUP)
    numbers = torch.empty(rows, size, dtype=FP8, device=x.device)
    if not by_column:
        return numbers, torch.empty(rows, groups, dtype=torch.float32, device=x.device)
    padded = torch.empty(groups, triton.cdiv(rows, 4) * 4, dtype=torch.float32, device=x.device)
    return numbers, padded.T[:rows]


def norm_rows(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, target: Target, *, by_column: bool = False
) -> tuple[Tensor, Tensor]:
    """``norm.rms`` and :func:`quantize_rows` together; ``residual += x`` in place."""
    rows, size = x.shape
    numbers, scales = _rounded(x, by_column=by_column)
    if rows:
        groups = round_up_power(triton.cdiv(size, GROUP))
        _norm_rows[(rows,)](
            x, residual, weight, numbers, scales, rows, x.stride(0), *scales.stride(), size, eps,
            ADD=residual is not None, GROUPS=groups, GROUP=GROUP, num_warps=min(max(groups // 4, 1), 8),
            **target.options(),
        )  # fmt: skip
    return numbers, scales


def quantize_rows(x: Tensor, target: Target, *, by_column: bool = False) -> tuple[Tensor, Tensor]:
    """``x [R, K]`` -> numbers ``[R, K]`` and scales ``[R, ceil(K / 128)]`` float32.

    ``by_column``: the scales of a group stand together, each group on a border of 16 bytes.
    """
    rows, size = x.shape
    groups = triton.cdiv(size, GROUP)
    numbers, scales = _rounded(x, by_column=by_column)
    if rows:
        several = min(round_up_power(groups), 8)
        _quantize_rows[(rows, triton.cdiv(groups, several))](
            x, numbers, scales, rows, x.stride(0), *scales.stride(), size,
            GROUPS=several, GROUP=GROUP, num_warps=4, **target.options(),
        )  # fmt: skip
    return numbers, scales


@triton.jit
def weigh_groups(
    w_at, w_scale_at, values, rows_exist, groups_exist, mask, BLOCK_COLUMNS: tl.constexpr
):  # fmt: skip
    """Rows of a weight times a token: ``w_at [R, G, 128]`` by ``values`` of that shape, summed to ``[R]``."""
    w = tl.load(w_at, mask=mask, other=0.0, eviction_policy="evict_first")
    sums = tl.sum(w.to(tl.float32) * values, axis=2)
    if BLOCK_COLUMNS > 0:
        scale = tl.load(w_scale_at, mask=rows_exist[:, None] & groups_exist[None, :], other=0.0)
        total = tl.sum(sums * scale, axis=1)
    else:
        total = tl.sum(sums, axis=1) * tl.load(w_scale_at, mask=rows_exist, other=0.0)
    return total


@triton.jit
def linear_one(
    x, weight, w_scale, bias, out, K, N, scale_stride,
    BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token: ``out [1, N]``."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < N
    total = tl.zeros([ROWS], dtype=tl.float32)
    release_next(PDL)
    await_inputs(PDL)
    for first in range(0, K, GROUPS * GROUP):
        group = first // GROUP + tl.arange(0, GROUPS)
        column = (group * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
        inside = column < K
        values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)[None, :, :]
        w_at = weight + row[:, None, None] * K + column[None, :, :]
        scale_at = w_scale + row // BLOCK_ROWS * scale_stride
        if BLOCK_COLUMNS > 0:
            scale_at = scale_at[:, None] + group[None, :]
        total += weigh_groups(
            w_at, scale_at, values, exists, group * GROUP < K, exists[:, None, None] & inside[None, :, :],
            BLOCK_COLUMNS,
        )  # fmt: skip
    if BIAS:
        total += tl.load(bias + row, mask=exists, other=0.0).to(tl.float32)
    tl.store(out + row, total.to(out.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["tokens"])
def linear_few(
    x, x_scale, weight, w_scale, bias, out, partial, counters, tokens, K, N, scale_stride, x_groups, share,
    BIAS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out [T, N]``; the weight is the left operand, and its columns may be cut, as in ``linear``."""
    program = tl.program_id(0)
    split = tl.program_id(1)
    within = tl.arange(0, ROWS)
    row = program.to(tl.int64) * ROWS + within
    exists = row < N
    token = tl.arange(0, TOKENS)
    present = token < tokens
    column = tl.arange(0, GROUP)
    weight_at = weight + row[:, None] * K + column[None, :]
    x_at = x + token[None, :] * K + column[:, None]
    scale_at = w_scale + row // BLOCK_ROWS * scale_stride
    total = tl.zeros([ROWS, TOKENS], dtype=tl.float32)
    first = split * share
    await_inputs(PDL)
    for start in range(first, tl.minimum(first + share, K), GROUP):
        mask = present[None, :]
        weight_mask = exists[:, None]
        if not EVEN:
            mask = mask & (start + column < K)[:, None]
            weight_mask = weight_mask & (start + column < K)[None, :]
        w = tl.load(weight_at + start, mask=weight_mask, other=0.0, eviction_policy="evict_first")
        values = tl.load(x_at + start, mask=mask, other=0.0)
        of_weight = tl.load(scale_at + start // GROUP * (BLOCK_COLUMNS > 0), mask=exists, other=0.0)
        of_token = tl.load(x_scale + token * x_groups + start // GROUP, mask=present, other=0.0)
        sums = multiply_add(w, values, tl.zeros([ROWS, TOKENS], dtype=tl.float32), PRECISION)
        total += sums * of_weight[:, None] * of_token[None, :]
    release_next(PDL)
    if SPLITS > 1:
        mine = partial + program * (SPLITS * ROWS * TOKENS) + within[:, None] * TOKENS + token[None, :]
        tl.store(mine + split * (ROWS * TOKENS), total)
        # All threads have stored before the one that counts does.
        tl.debug_barrier()
        if tl.atomic_add(counters + program, 1, sem="acq_rel") != SPLITS - 1:
            return
        tl.store(counters + program, 0)
        total = tl.zeros([ROWS, TOKENS], dtype=tl.float32)
        for other in tl.static_range(SPLITS):
            total += tl.load(mine + other * (ROWS * TOKENS), cache_modifier=".cg")
    if BIAS:
        total += tl.load(bias + row, mask=exists, other=0.0).to(tl.float32)[:, None]
    out_at = out + token[None, :].to(tl.int64) * N + row[:, None]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=exists[:, None] & present[None, :])


@triton.jit(do_not_specialize=["tokens"])
def linear_many(
    x, x_scale, weight, w_scale, bias, out, tokens, K, N, scale_stride, x_groups,
    BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, M: tl.constexpr,
    ROWS: tl.constexpr, GROUP: tl.constexpr, BAND: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out [T, N]`` in tiles; bands of tiles of tokens go through all rows of the weight together."""
    blocks = tl.cdiv(N, ROWS)
    tiles = tl.cdiv(tokens, M)
    program = tl.program_id(0)
    band = program // (BAND * blocks)
    height = tl.minimum(tiles - band * BAND, BAND)
    within = program % (BAND * blocks)
    token = (band * BAND + within % height) * M + tl.arange(0, M)
    row = (within // height).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    present = token < tokens
    exists = row < N
    column = tl.arange(0, GROUP)
    x_at = x + token.to(tl.int64)[:, None] * K + column[None, :]
    weight_at = weight + row[None, :] * K + column[:, None]
    scale_at = w_scale + row // BLOCK_ROWS * scale_stride
    total = tl.zeros([M, ROWS], dtype=tl.float32)
    await_inputs(PDL)
    for start in range(0, K, GROUP):
        mask = present[:, None]
        weight_mask = exists[None, :]
        if not EVEN:
            mask = mask & (start + column < K)[None, :]
            weight_mask = weight_mask & (start + column < K)[:, None]
        values = tl.load(x_at + start, mask=mask, other=0.0)
        w = tl.load(weight_at + start, mask=weight_mask, other=0.0)
        of_weight = tl.load(scale_at + start // GROUP * (BLOCK_COLUMNS > 0), mask=exists, other=0.0)
        of_token = tl.load(x_scale + token * x_groups + start // GROUP, mask=present, other=0.0)
        sums = multiply_add(values, w, tl.zeros([M, ROWS], dtype=tl.float32), PRECISION)
        total += sums * of_token[:, None] * of_weight[None, :]
    release_next(PDL)
    if BIAS:
        total += tl.load(bias + row, mask=exists, other=0.0).to(tl.float32)[None, :]
    out_at = out + token.to(tl.int64)[:, None] * N + row[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=present[:, None] & exists[None, :])


def fp8_precision() -> str:
    """``PRECISION`` of a product of FP8 numbers: the interpreter multiplies float32."""
    return "ieee" if triton.knobs.runtime.interpret else "native"


def scale_constants(weight: Fp8Weight) -> dict[str, Any]:
    """What kernels are told of a weight's blocks."""
    return {"BLOCK_ROWS": weight.rows, "BLOCK_COLUMNS": weight.columns, "GROUP": GROUP}
