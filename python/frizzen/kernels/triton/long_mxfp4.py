"""Experts in MXFP4 for many tokens on Hopper: the products of ``long_experts``, whose weights are unpacked.

Four warps bring the operands. Of the weights they read units of four numbers, a step ahead, and write
bfloat16 to where the products read: once for all 128 places of a tile, while the groups multiply the steps
before. So what unpacking costs is hidden as long as it takes no longer than the products of a group.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier, tma

from frizzen.kernels.triton.long_experts import (
    BLOCK,
    COLUMNS,
    GROUP,
    PLACES,
    down_group,
    draw,
    gate_up_group,
    open_tiles,
    tile_of,
    weight_rows,
)
from frizzen.kernels.triton.mxfp4 import UNPACK

__all__ = ["down_packed", "gate_up_packed"]

_WARPS: gl.constexpr = gl.constexpr(4)
"""That bring operands."""
_UNITS: gl.constexpr = gl.constexpr(8)
"""Of a block of 32 columns, which share a scale; a step has two blocks."""


@gluon.jit
def _places_of_units(weight, scales, expert, first, jump, rows, K: gl.constexpr):
    """Where a thread's units ``[256, 2, 8]`` and scales ``[256, 2]`` of the first step stand."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1, _UNITS], [16, 2, 1], [_WARPS, 1, 1], [2, 1, 0])
    by_block: gl.constexpr = gl.SliceLayout(2, layout)
    row = weight_rows(first, jump, rows, gl.SliceLayout(1, by_block))
    row = expert.to(gl.int64) * rows + row
    block = gl.arange(0, COLUMNS // 32, gl.SliceLayout(0, by_block))
    unit = gl.arange(0, _UNITS, gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    units_at = weight + row[:, None] * (K // 4) + block[None, :] * _UNITS
    pitch: gl.constexpr = (K + 127) // 128 * 4
    return units_at[:, :, None] + unit[None, None, :], scales + row[:, None] * pitch + block[None, :]


@gluon.jit
def _read(units_at, scales_at, start, K: gl.constexpr):
    """Units and scales of a step; past the last step, that one's again, which nobody uses."""
    start = gl.minimum(start, K - COLUMNS)
    return gl.load(units_at + start // 4), gl.load(scales_at + start // 32)


@gluon.jit
def _unpacked(units, scales):
    """``[256, 64]`` bfloat16. All of it stays in the registers where it is."""
    factors = (scales.to(gl.int32) << 7).to(gl.int16)[:, :, None]
    a, b, c, d = gl.inline_asm_elementwise(
        UNPACK, "=r,=r,=r,=r,r,r", [units, factors],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    numbers = gl.join(gl.join(a, b), gl.join(c, d))
    return gl.reshape(gl.permute(numbers, [0, 1, 4, 3, 2]), [2 * BLOCK, COLUMNS])


@gluon.jit
def _bring(
    state, rows_from, weight, scales, counter, jump, height, rows,
    K: gl.constexpr, TOP: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Brings the operands of a product; tiles of weights begin every ``height`` of an expert's ``rows``.

    ``rows_from`` is ``x`` and its stride, whose rows are gathered, or the descriptor of ``act``, if ``TOP``
    is 0.
    """
    barriers, tickets, buffers, places = state
    ready, free = barriers
    a_tiles, b_tiles, _ = buffers
    order, tile_experts, tiles = places
    a_wide = a_tiles._reinterpret(a_tiles.dtype, [STAGES, PLACES, COLUMNS], a_tiles.layout)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [_WARPS, 1], [1, 0])
    place = gl.arange(0, PLACES, gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    blocks = gl.cdiv(rows if TOP == 0 else rows // 2, height)
    turn = 0
    number = 0
    program = gl.program_id(0)
    while program < tiles * blocks:
        tile, block = tile_of(program, blocks, tiles, BAND)
        program = draw(tickets, number, counter)
        number += 1
        expert = gl.load(tile_experts + tile)
        units_at, scales_at = _places_of_units(weight, scales, expert, block * height, jump, rows, K)
        units, factors = _read(units_at, scales_at, 0, K)
        next_units, next_factors = _read(units_at, scales_at, COLUMNS, K)
        if TOP > 0:
            x, x_stride = rows_from
            pair = gl.load(order + tile * PLACES + place)
            x_at = x + (pair // TOP).to(gl.int64)[:, None] * x_stride + column[None, :]
            present = (pair >= 0)[:, None]
        for start in range(0, K, COLUMNS):
            stage = turn % STAGES
            bar = ready.index(stage)
            mbarrier.wait(free.index(stage), (turn // STAGES & 1) ^ 1)
            if TOP > 0:
                async_copy.async_copy_global_to_shared(a_wide.index(stage), x_at + start, mask=present)
                async_copy.mbarrier_arrive(bar, increment_count=False)
            else:
                mbarrier.expect(bar, PLACES * COLUMNS * 2)
                for group in gl.static_range(2):
                    tma.async_copy_global_to_shared(
                        rows_from, [tile * PLACES + group * GROUP, start], bar,
                        a_tiles.index(stage * 2 + group),
                    )  # fmt: skip
            numbers = _unpacked(units, factors)
            units, factors = next_units, next_factors
            next_units, next_factors = _read(units_at, scales_at, start + 2 * COLUMNS, K)
            b_tiles.index(stage).store(numbers)
            # What threads have written, products read through another engine.
            fence_async_shared()
            mbarrier.arrive(bar, count=1)
            turn += 1


@gluon.jit
def gate_up_packed(
    x, w13, s13, b13, order, tile_experts, used, act, x_stride, I, clamp, alpha, beta,
    H: gl.constexpr, TOP: gl.constexpr, BIAS: gl.constexpr, CLAMP: gl.constexpr, BAND: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """``act [places, I]``: the first product and the activation.

    ``act`` is a descriptor; units and scales of a weight are ``[E, 2 * I, H / 4]`` and
    ``[E, 2 * I, 4 * ceil(H / 128)]``.
    """
    state = open_tiles(x.dtype.element_ty, order, tile_experts, used, 1 + 32 * _WARPS, STAGES)
    gl.warp_specialize(
        [
            (gate_up_group, (state, 0, b13, act, I, clamp, alpha, beta, H, BIAS, CLAMP, BAND, STAGES)),
            (gate_up_group, (state, 1, b13, act, I, clamp, alpha, beta, H, BIAS, CLAMP, BAND, STAGES)),
            (
                _bring,
                (state, (x, x_stride), w13, s13, used + 1, I, BLOCK, 2 * I, H, TOP, BAND, STAGES),
            ),
        ],
        [4, _WARPS],
        [168, 168],
    )  # fmt: skip


@gluon.jit
def down_packed(
    act, w2, s2, b2, order, tile_experts, used, out, H,
    I: gl.constexpr, BIAS: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """``out [places, H]``: the second product, without the weights of the tokens.

    ``act`` of ``[places, I]`` and ``out`` in pieces of 64 by 64 are descriptors.
    """
    state = open_tiles(act.dtype, order, tile_experts, used, 2, STAGES)
    gl.warp_specialize(
        [
            (down_group, (state, 0, b2, out, H, I, BIAS, False, BAND, STAGES)),
            (down_group, (state, 1, b2, out, H, I, BIAS, False, BAND, STAGES)),
            (_bring, (state, act, w2, s2, used + 2, BLOCK, 2 * BLOCK, H, I, 0, BAND, STAGES)),
        ],
        [4, _WARPS],
        [168, 168],
    )
