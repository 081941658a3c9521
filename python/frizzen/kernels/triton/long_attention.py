"""Paged attention of rows with many tokens on Hopper: copies, and two groups of warps that multiply.

A program serves 128 tokens of one row and one query head. One warp brings keys and values from the paged
cache to shared memory, 16 positions of one block by one copy; two groups of four warps take 64 tokens each.
The product of queries and the next keys is started before a group computes the weights of the last ones. The
groups do not wait for each other, so one may compute exponentials while the other multiplies.

What must hold: positions past a row's context count nothing, NaN included. Whole pieces past it are read from
behind the cache's end, which is zeros; of the piece that holds the border the copying warp clears the rest of
the values, and scores past the context are masked.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = ["BLOCK_M", "BLOCK_N", "PIECE", "WIDTH", "long_attention"]

BLOCK_M: gl.constexpr = gl.constexpr(128)
"""Tokens of a program."""
BLOCK_N: gl.constexpr = gl.constexpr(128)
"""Keys of a step of the loop."""
PIECE: gl.constexpr = gl.constexpr(16)
"""Positions of one copy; block sizes are multiples of it."""
WIDTH: gl.constexpr = gl.constexpr(64)
"""Elements of a row of one copy: 128 bytes, which is what the copy engine interleaves."""
_PIECES: gl.constexpr = gl.constexpr(8)
_GROUP: gl.constexpr = gl.constexpr(64)
LOG2E: gl.constexpr = gl.constexpr(1.4426950408889634)


@gluon.jit
def _copy_tile(
    cache, ready, pieces, first, table, position, context, column, last_row,
    D: gl.constexpr, BLOCK_SIZE: gl.constexpr,
):  # fmt: skip
    """Starts the copies of the positions from ``position`` on."""
    mbarrier.expect(ready, BLOCK_N * D * 2)
    for piece in gl.static_range(_PIECES):
        at = position + piece * PIECE
        inside = at < context
        block = gl.load(table + at // BLOCK_SIZE, mask=inside, other=0)
        row = gl.where(inside, block * BLOCK_SIZE + at % BLOCK_SIZE, last_row)
        for half in gl.static_range(D // WIDTH):
            tma.async_copy_global_to_shared(
                cache, [row, column + half * WIDTH], ready, pieces.index(first + half * _PIECES + piece)
            )


@gluon.jit
def _copy(
    barriers, buffers, queries, cache, table, tiles, first_token, context, head, kv_head, last_row,
    KV_HEADS: gl.constexpr, D: gl.constexpr, BLOCK_SIZE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp: queries, then keys and values of every step, the last positions first."""
    q_ready, k_ready, k_free, v_ready, v_free, fixed = barriers
    q_pieces, k_pieces, v_pieces = buffers
    halves: gl.constexpr = D // WIDTH
    mbarrier.expect(q_ready, BLOCK_M * D * 2)
    for group in gl.static_range(2):
        for half in gl.static_range(halves):
            tma.async_copy_global_to_shared(
                queries, [first_token + group * _GROUP, head * D + half * WIDTH], q_ready,
                q_pieces.index(group * halves + half),
            )  # fmt: skip
    ragged = ((context % PIECE) != 0) & (context // BLOCK_N == tiles - 1)
    for step in range(tiles):
        stage = step % STAGES
        phase = (step // STAGES & 1) ^ 1
        position = (tiles - 1 - step) * BLOCK_N
        first = stage * halves * _PIECES
        mbarrier.wait(k_free.index(stage), phase)
        _copy_tile(
            cache, k_ready.index(stage), k_pieces, first, table, position, context, kv_head * D, last_row,
            D, BLOCK_SIZE,
        )  # fmt: skip
        mbarrier.wait(v_free.index(stage), phase)
        column = (KV_HEADS + kv_head) * D
        if (step == 0) & ragged:
            _copy_tile(
                cache, fixed, v_pieces, first, table, position, context, column, last_row, D, BLOCK_SIZE
            )
            mbarrier.wait(fixed, 0)
            layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
            row = gl.arange(0, PIECE, gl.SliceLayout(1, layout))
            for half in gl.static_range(halves):
                piece = v_pieces.index(first + half * _PIECES + context % BLOCK_N // PIECE)
                values = piece.load(layout)
                piece.store(gl.where((row < context % PIECE)[:, None], values, gl.zeros_like(values)))
            fence_async_shared()
            mbarrier.arrive(v_ready.index(stage), count=1)
        else:
            _copy_tile(
                cache, v_ready.index(stage), v_pieces, first, table, position, context, column, last_row,
                D, BLOCK_SIZE,
            )  # fmt: skip


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
    barriers, q, k_tiles, v_tiles, weight, total, peak, norm, first, last, tiles, query, context, scale,
    D: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Steps ``first`` to ``last``; ``weight`` are the weights of the step before, whose values come next."""
    _, k_ready, k_free, v_ready, v_free, _ = barriers
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    blank = gl.zeros([_GROUP, BLOCK_N], gl.float32, score_layout)
    for step in range(first, last):
        stage = step % STAGES
        mbarrier.wait(k_ready.index(stage), step // STAGES & 1)
        score = warpgroup_mma(q, k_tiles.index(stage).permute((1, 0)), blank, use_acc=False, is_async=True)
        before = step - 1
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
    barriers, q_tiles, k_tiles, v_tiles, sinks, out, group, tiles, clear, first_token, first_query, width,
    first_position, context, head, out_stride, scale,
    D: gl.constexpr, SINKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One group of warps: the 64 tokens of number ``group``."""
    q_ready, k_ready, k_free, v_ready, _, _ = barriers
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    total_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    rows: gl.constexpr = gl.SliceLayout(1, score_layout)
    query = first_position + group * _GROUP + gl.arange(0, _GROUP, rows)
    peak = gl.full([_GROUP], float("-inf"), gl.float32, rows)
    norm = gl.zeros([_GROUP], gl.float32, rows)
    total = gl.zeros([_GROUP, D], gl.float32, total_layout)
    q = q_tiles.index(group)
    mbarrier.wait(q_ready, 0)
    mbarrier.wait(k_ready.index(0), 0)
    blank = gl.zeros([_GROUP, BLOCK_N], gl.float32, score_layout)
    score = warpgroup_mma(q, k_tiles.index(0).permute((1, 0)), blank, use_acc=False, is_async=True)
    score = warpgroup_mma_wait(0, deps=(score,))
    mbarrier.arrive(k_free.index(0), count=1)
    fresh, peak, norm, _shrink = _weigh(score, peak, norm, (tiles - 1) * BLOCK_N, query, context, scale, True)
    weight = gl.convert_layout(fresh.to(q.dtype), gl.DotOperandLayout(0, total_layout, 2))
    weight, total, peak, norm = _steps(
        barriers, q, k_tiles, v_tiles, weight, total, peak, norm, 1, tiles - clear, tiles, query, context,
        scale, D, STAGES, True,
    )  # fmt: skip
    weight, total, peak, norm = _steps(
        barriers, q, k_tiles, v_tiles, weight, total, peak, norm, tiles - clear, tiles, tiles, query, context,
        scale, D, STAGES, False,
    )  # fmt: skip
    last = tiles - 1
    mbarrier.wait(v_ready.index(last % STAGES), last // STAGES & 1)
    total = warpgroup_mma(weight, v_tiles.index(last % STAGES), total, is_async=True)
    total = warpgroup_mma_wait(0, deps=(total,))
    if SINKS:
        sink = gl.load(sinks + head).to(gl.float32) * LOG2E
        higher = gl.maximum(peak, sink)
        shrink = gl.exp2(peak - higher)
        norm = norm * shrink + gl.exp2(sink - higher)
        total = total * gl.convert_layout(shrink, gl.SliceLayout(1, total_layout))[:, None]
    total = total / gl.convert_layout(norm, gl.SliceLayout(1, total_layout))[:, None]
    out_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    result = gl.convert_layout(total.to(q.dtype), out_layout)
    number = first_query + group * _GROUP + gl.arange(0, _GROUP, gl.SliceLayout(1, out_layout))
    column = head * D + gl.arange(0, D, gl.SliceLayout(0, out_layout))
    token = (first_token + group * _GROUP + gl.arange(0, _GROUP, gl.SliceLayout(1, out_layout))).to(gl.int64)
    gl.store(out + token[:, None] * out_stride + column[None, :], result, mask=(number < width)[:, None])


@gluon.jit
def _find_row(query_start, tile, first_row, last_row):
    """The row of a tile, and the tile's number in it; see ``attention``."""
    origin = gl.load(query_start + first_row)
    low = first_row
    high = last_row
    while high - low > 1:
        middle = (low + high) // 2
        if (gl.load(query_start + middle) - origin) // BLOCK_M + middle - first_row <= tile:
            low = middle
        else:
            high = middle
    return low, tile - ((gl.load(query_start + low) - origin) // BLOCK_M + low - first_row)


@gluon.jit(
    do_not_specialize=["first_row", "last_row", "tiles", "blocks_stride", "last_cache_row"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_table"],
)
def long_attention(
    queries, cache, sinks, out, query_start, seq_lens, block_table, first_row, last_row, tiles, out_stride,
    blocks_stride, last_cache_row, scale,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, SINKS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One tile of tokens of one query head; ``scale`` has the factor of the base-2 softmax in it.

    ``queries`` is a descriptor of ``[T, heads * D]``, ``cache`` of ``[slots, 2 * KV_HEADS * D]``.
    """
    head = gl.program_id(0)
    # The last tile of a prompt has the longest context: it starts first.
    row, tile = _find_row(query_start, tiles - 1 - gl.program_id(1), first_row, last_row)
    row_start = gl.load(query_start + row)
    width = gl.load(query_start + row + 1) - row_start
    context = gl.load(seq_lens + row)
    first_query = tile * BLOCK_M
    if first_query >= width:
        return
    first_position = context - width + first_query
    steps = gl.cdiv(gl.minimum(first_position + BLOCK_M, context), BLOCK_N)
    # Every query of the tile sees the keys up to its first position: these need no mask.
    clear = gl.minimum((first_position + 1) // BLOCK_N, steps - 1)

    halves: gl.constexpr = D // WIDTH
    dtype: gl.constexpr = cache.dtype
    piece_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_pieces = gl.allocate_shared_memory(dtype, [2 * halves, _GROUP, WIDTH], piece_layout)
    k_pieces = gl.allocate_shared_memory(dtype, [STAGES * halves * _PIECES, PIECE, WIDTH], piece_layout)
    v_pieces = gl.allocate_shared_memory(dtype, [STAGES * halves * _PIECES, PIECE, WIDTH], piece_layout)
    q_tiles = q_pieces._reinterpret(dtype, [2, _GROUP, D], piece_layout)
    k_tiles = k_pieces._reinterpret(dtype, [STAGES, BLOCK_N, D], piece_layout)
    v_tiles = v_pieces._reinterpret(dtype, [STAGES, BLOCK_N, D], piece_layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    fixed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    mbarrier.init(fixed, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=1)
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)

    barriers = (q_ready, k_ready, k_free, v_ready, v_free, fixed)
    table = block_table + row.to(gl.int64) * blocks_stride
    first_token = row_start + first_query
    gl.warp_specialize(
        [
            (
                _attend,
                (
                    barriers, q_tiles, k_tiles, v_tiles, sinks, out, 0, steps, clear, first_token,
                    first_query, width, first_position, context, head, out_stride, scale, D, SINKS, STAGES,
                ),
            ),
            (
                _attend,
                (
                    barriers, q_tiles, k_tiles, v_tiles, sinks, out, 1, steps, clear, first_token,
                    first_query, width, first_position, context, head, out_stride, scale, D, SINKS, STAGES,
                ),
            ),
            (
                _copy,
                (
                    barriers, (q_pieces, k_pieces, v_pieces), queries, cache, table, steps, first_token,
                    context, head, head // GROUP, last_cache_row, KV_HEADS, D, BLOCK_SIZE, STAGES,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
