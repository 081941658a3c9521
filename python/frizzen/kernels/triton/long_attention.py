"""Paged attention of rows with many tokens on Hopper: copies, and two groups of warps that multiply.

Programs stay, one per multiprocessor, and take tile after tile: 128 tokens of one row and one query head. One
warp brings keys and values from the paged cache to shared memory, 16 positions of one block by one copy
(``long_copies``); two groups of four warps take 64 tokens each. The product of queries and the next keys is
started before a group computes the weights of the last ones. The groups do not wait for each other, so one
may compute exponentials, or store its results, while the other multiplies.

What must hold: positions past a row's context count nothing, NaN included. Whole pieces past it are read from
behind the cache's end, which is zeros; of the piece that holds the border the copying warp clears the rest of
the values, and scores past the context are masked.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from frizzen.kernels.triton.long_copies import (
    BLOCK_M,
    BLOCK_N,
    GROUP_M,
    MESSAGE,
    PIECE,
    PIECES,
    WIDTH,
    copy_tiles,
    hear,
)

__all__ = ["BLOCK_M", "PIECE", "WIDTH", "long_attention"]

LOG2E: gl.constexpr = gl.constexpr(1.4426950408889634)


@gluon.jit
def _weigh(score, peak, norm, key, query, context, scale, MASKED: gl.constexpr):
    """Weights of the keys from ``key`` on, the new peaks and norms, and what old sums shrink by."""
    if MASKED:
        layout: gl.constexpr = score.type.layout
        position = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
        seen = (position[None, :] <= query[:, None]) & (position < context)[None, :]
        score = gl.where(seen, score, float("-inf"))
    higher = gl.maximum(peak, gl.max(score, 1) * scale)
    # A query that has seen no key yet keeps a peak of -inf: subtract 0 instead, so that no NaN arises.
    base = gl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
    weight = gl.exp2(score * scale - base[:, None])
    shrink = gl.exp2(peak - base)
    return weight, higher, norm * shrink + gl.sum(weight, 1), shrink


@gluon.jit
def _steps(
    barriers, q, k_tiles, v_tiles, weight, total, peak, norm, base, first, last, tiles, query, context, scale,
    D: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Steps ``first`` to ``last``; ``weight`` are the weights of the step before, whose values come next.

    ``base`` counts the steps of all tiles before.
    """
    _, _, k_ready, k_free, v_ready, v_free, _ = barriers
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    blank = gl.zeros([GROUP_M, BLOCK_N], gl.float32, score_layout)
    for step in range(first, last):
        turn = base + step
        stage = turn % STAGES
        mbarrier.wait(k_ready.index(stage), turn // STAGES & 1)
        score = warpgroup_mma(q, k_tiles.index(stage).permute((1, 0)), blank, use_acc=False, is_async=True)
        before = turn - 1
        mbarrier.wait(v_ready.index(before % STAGES), before // STAGES & 1)
        total = warpgroup_mma(weight, v_tiles.index(before % STAGES), total, is_async=True)
        score = warpgroup_mma_wait(1, deps=(score,))
        mbarrier.arrive(k_free.index(stage), count=1)
        fresh, peak, norm, shrink = _weigh(
            score, peak, norm, (tiles - 1 - step) * BLOCK_N, query, context, scale, MASKED
        )
        fresh = fresh.to(q.dtype)
        # Long over; but no instruction is moved over its branch, so the weights are computed before the wait.
        mbarrier.wait(v_ready.index(before % STAGES), before // STAGES & 1)
        total, fresh = warpgroup_mma_wait(0, deps=(total, fresh))
        mbarrier.arrive(v_free.index(before % STAGES), count=1)
        total_layout: gl.constexpr = total.type.layout
        total = total * gl.convert_layout(shrink, gl.SliceLayout(1, total_layout))[:, None]
        weight = gl.convert_layout(fresh, gl.DotOperandLayout(0, total_layout, 2))
    return weight, total, peak, norm


@gluon.jit
def _attend(
    barriers, messages, q_tiles, k_tiles, v_tiles, sinks, out, group, out_stride, scale,
    D: gl.constexpr, SINKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One group of warps: the 64 tokens of number ``group`` of every tile."""
    q_ready, q_free, k_ready, k_free, v_ready, v_free, _ = barriers
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    total_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    rows: gl.constexpr = gl.SliceLayout(1, score_layout)
    blank = gl.zeros([GROUP_M, BLOCK_N], gl.float32, score_layout)
    number = 0
    base = 0
    head, tiles, clear, first_token, first_query, width, first_position, context = hear(messages, number)
    while tiles > 0:
        query = first_position + group * GROUP_M + gl.arange(0, GROUP_M, rows)
        peak = gl.full([GROUP_M], float("-inf"), gl.float32, rows)
        norm = gl.zeros([GROUP_M], gl.float32, rows)
        total = gl.zeros([GROUP_M, D], gl.float32, total_layout)
        slot = number % 2
        q = q_tiles.index(slot * 2 + group)
        mbarrier.wait(q_ready.index(slot), number // 2 & 1)
        stage = base % STAGES
        mbarrier.wait(k_ready.index(stage), base // STAGES & 1)
        score = warpgroup_mma(q, k_tiles.index(stage).permute((1, 0)), blank, use_acc=False, is_async=True)
        score = warpgroup_mma_wait(0, deps=(score,))
        mbarrier.arrive(k_free.index(stage), count=1)
        fresh, peak, norm, _shrink = _weigh(
            score, peak, norm, (tiles - 1) * BLOCK_N, query, context, scale, True
        )
        weight = gl.convert_layout(fresh.to(q.dtype), gl.DotOperandLayout(0, total_layout, 2))
        weight, total, peak, norm = _steps(
            barriers, q, k_tiles, v_tiles, weight, total, peak, norm, base, 1, tiles - clear, tiles, query,
            context, scale, D, STAGES, True,
        )  # fmt: skip
        weight, total, peak, norm = _steps(
            barriers, q, k_tiles, v_tiles, weight, total, peak, norm, base, tiles - clear, tiles, tiles,
            query, context, scale, D, STAGES, False,
        )  # fmt: skip
        mbarrier.arrive(q_free.index(slot), count=1)
        base += tiles
        last = (base - 1) % STAGES
        mbarrier.wait(v_ready.index(last), (base - 1) // STAGES & 1)
        total = warpgroup_mma(weight, v_tiles.index(last), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=(total,))
        mbarrier.arrive(v_free.index(last), count=1)
        if SINKS:
            sink = gl.load(sinks + head).to(gl.float32) * LOG2E
            higher = gl.maximum(peak, sink)
            shrink = gl.exp2(peak - higher)
            norm = norm * shrink + gl.exp2(sink - higher)
            total = total * gl.convert_layout(shrink, gl.SliceLayout(1, total_layout))[:, None]
        total = total / gl.convert_layout(norm, gl.SliceLayout(1, total_layout))[:, None]
        out_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
        result = gl.convert_layout(total.to(q.dtype), out_layout)
        place = group * GROUP_M + gl.arange(0, GROUP_M, gl.SliceLayout(1, out_layout))
        column = head * D + gl.arange(0, D, gl.SliceLayout(0, out_layout))
        at = out + (first_token + place).to(gl.int64)[:, None] * out_stride + column[None, :]
        gl.store(at, result, mask=(first_query + place < width)[:, None])
        number += 1
        head, tiles, clear, first_token, first_query, width, first_position, context = hear(messages, number)


@gluon.jit
def _pairs(COUNT: gl.constexpr):
    """Barriers of so many buffers: filled by the copying warp, read by both groups."""
    ready = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(COUNT):
        mbarrier.init(ready.index(index), count=1)
        mbarrier.init(free.index(index), count=2)
    return ready, free


@gluon.jit(
    do_not_specialize=["first_row", "last_row", "units", "blocks_stride", "last_cache_row"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_table"],
)
def long_attention(
    queries, cache, sinks, out, query_start, seq_lens, block_table, counter, first_row, last_row, units,
    out_stride, blocks_stride, last_cache_row, scale,
    GROUP: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr, SINKS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """``units`` times one tile of tokens of one query head; ``scale`` has the base-2 softmax's factor in it.

    ``queries`` is a descriptor of ``[T, HEADS * D]``, ``cache`` of ``[slots, 2 * HEADS / GROUP * D]``;
    ``counter`` is 0 and is left so.
    """
    halves: gl.constexpr = D // WIDTH
    dtype: gl.constexpr = cache.dtype
    piece_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_pieces = gl.allocate_shared_memory(dtype, [4 * halves, GROUP_M, WIDTH], piece_layout)
    k_pieces = gl.allocate_shared_memory(dtype, [STAGES * halves * PIECES, PIECE, WIDTH], piece_layout)
    v_pieces = gl.allocate_shared_memory(dtype, [STAGES * halves * PIECES, PIECE, WIDTH], piece_layout)
    q_tiles = q_pieces._reinterpret(dtype, [4, GROUP_M, D], piece_layout)
    k_tiles = k_pieces._reinterpret(dtype, [STAGES, BLOCK_N, D], piece_layout)
    v_tiles = v_pieces._reinterpret(dtype, [STAGES, BLOCK_N, D], piece_layout)
    numbers = gl.allocate_shared_memory(gl.int32, [2 * MESSAGE, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    fixed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(fixed, count=1)
    told, heard = _pairs(2)
    q_ready, q_free = _pairs(2)
    k_ready, k_free = _pairs(STAGES)
    v_ready, v_free = _pairs(STAGES)

    barriers = (q_ready, q_free, k_ready, k_free, v_ready, v_free, fixed)
    messages = (numbers, told, heard)
    rows = (query_start, seq_lens, block_table, first_row, last_row, blocks_stride)
    gl.warp_specialize(
        [
            (
                _attend,
                (
                    barriers, messages, q_tiles, k_tiles, v_tiles, sinks, out, 0, out_stride, scale, D,
                    SINKS, STAGES,
                ),
            ),
            (
                _attend,
                (
                    barriers, messages, q_tiles, k_tiles, v_tiles, sinks, out, 1, out_stride, scale, D,
                    SINKS, STAGES,
                ),
            ),
            (
                copy_tiles,
                (
                    barriers, messages, (q_pieces, k_pieces, v_pieces), queries, cache, rows, counter,
                    units, last_cache_row, GROUP, HEADS, D, BLOCK_SIZE, STAGES,
                ),
            ),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
