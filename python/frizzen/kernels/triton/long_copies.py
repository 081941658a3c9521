"""What feeds ``long_attention``: the warp that copies.

The copying warp draws tile after tile: it finds the tile's row and tells the others, by a message in shared
memory, what they need to know of it; then it brings queries, keys and values, up to a tile ahead of the
groups that multiply. Tiles are drawn from a counter, so that a program which had short ones takes more. The
program that draws last sets it back to zero.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

__all__ = [
    "BLOCK_M",
    "BLOCK_N",
    "GROUP_M",
    "MESSAGE",
    "PIECE",
    "PIECES",
    "WIDTH",
    "copy_tiles",
    "hear",
]

BLOCK_M: gl.constexpr = gl.constexpr(128)
"""Tokens of a tile."""
BLOCK_N: gl.constexpr = gl.constexpr(128)
"""Keys of a step of the loop."""
PIECE: gl.constexpr = gl.constexpr(16)
"""Positions of one copy; block sizes are multiples of it."""
WIDTH: gl.constexpr = gl.constexpr(64)
"""Elements of a row of one copy: 128 bytes, which is what the copy engine interleaves."""
PIECES: gl.constexpr = gl.constexpr(8)
"""Copies of a step."""
GROUP_M: gl.constexpr = gl.constexpr(64)
"""Tokens of a group of warps."""
MESSAGE: gl.constexpr = gl.constexpr(8)
"""Numbers that describe a tile."""


@gluon.jit
def _copy_tile(
    cache, ready, pieces, first, table, position, context, column, last_row,
    D: gl.constexpr, BLOCK_SIZE: gl.constexpr,
):  # fmt: skip
    """Starts the copies of the positions from ``position`` on."""
    mbarrier.expect(ready, BLOCK_N * D * 2)
    for piece in gl.static_range(PIECES):
        at = position + piece * PIECE
        inside = at < context
        block = gl.load(table + at // BLOCK_SIZE, mask=inside, other=0)
        row = gl.where(inside, block * BLOCK_SIZE + at % BLOCK_SIZE, last_row)
        for half in gl.static_range(D // WIDTH):
            tma.async_copy_global_to_shared(
                cache, [row, column + half * WIDTH], ready, pieces.index(first + half * PIECES + piece)
            )


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


@gluon.jit
def _publish(messages, number, head, tiles, clear, first_token, first_query, width, first_position, context):
    """The copying warp tells the groups what comes next; ``tiles`` is 0 if nothing does."""
    numbers, ready, free = messages
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    slot = number % 2
    mbarrier.wait(free.index(slot), (number // 2 & 1) ^ 1)
    at = slot * MESSAGE
    numbers.index(at).store(gl.full([1], head, gl.int32, layout))
    numbers.index(at + 1).store(gl.full([1], tiles, gl.int32, layout))
    numbers.index(at + 2).store(gl.full([1], clear, gl.int32, layout))
    numbers.index(at + 3).store(gl.full([1], first_token, gl.int32, layout))
    numbers.index(at + 4).store(gl.full([1], first_query, gl.int32, layout))
    numbers.index(at + 5).store(gl.full([1], width, gl.int32, layout))
    numbers.index(at + 6).store(gl.full([1], first_position, gl.int32, layout))
    numbers.index(at + 7).store(gl.full([1], context, gl.int32, layout))
    mbarrier.arrive(ready.index(slot), count=1)


@gluon.jit
def _number(numbers, at):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.sum(numbers.index(at).load(layout), 0)


@gluon.jit
def hear(messages, number):
    """What :func:`_publish` told; both groups ask once."""
    numbers, ready, free = messages
    slot = number % 2
    mbarrier.wait(ready.index(slot), number // 2 & 1)
    at = slot * MESSAGE
    head = _number(numbers, at)
    tiles = _number(numbers, at + 1)
    clear = _number(numbers, at + 2)
    first_token = _number(numbers, at + 3)
    first_query = _number(numbers, at + 4)
    width = _number(numbers, at + 5)
    first_position = _number(numbers, at + 6)
    context = _number(numbers, at + 7)
    mbarrier.arrive(free.index(slot), count=1)
    return head, tiles, clear, first_token, first_query, width, first_position, context


@gluon.jit
def copy_tiles(
    barriers, messages, buffers, queries, cache, rows, counter, units, last_row,
    GROUP: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp: queries, then keys and values of every step, the last positions first."""
    q_ready, q_free, k_ready, k_free, v_ready, v_free, fixed = barriers
    q_pieces, k_pieces, v_pieces = buffers
    query_start, seq_lens, block_table, first_row, end_row, blocks_stride = rows
    halves: gl.constexpr = D // WIDTH
    turn = 0
    number = 0
    repairs = 0
    unit = gl.program_id(0)
    while unit < units:
        head = unit % HEADS
        # The last tile of a prompt has the longest context: it comes first.
        row, tile = _find_row(query_start, (units - 1 - unit) // HEADS, first_row, end_row)
        drawn = gl.atomic_add(counter, 1, sem="relaxed")
        if drawn == units - 1:
            # Nobody draws after this one.
            gl.store(counter, 0)
        unit = drawn + gl.num_programs(0)
        row_start = gl.load(query_start + row)
        width = gl.load(query_start + row + 1) - row_start
        context = gl.load(seq_lens + row)
        first_query = tile * BLOCK_M
        if first_query < width:
            first_token = row_start + first_query
            first_position = context - width + first_query
            tiles = gl.cdiv(gl.minimum(first_position + BLOCK_M, context), BLOCK_N)
            # Every query of the tile sees the keys up to its first position: these need no mask.
            clear = gl.minimum((first_position + 1) // BLOCK_N, tiles - 1)
            _publish(
                messages, number, head, tiles, clear, first_token, first_query, width, first_position, context
            )
            slot = number % 2
            mbarrier.wait(q_free.index(slot), (number // 2 & 1) ^ 1)
            mbarrier.expect(q_ready.index(slot), BLOCK_M * D * 2)
            for group in gl.static_range(2):
                for half in gl.static_range(halves):
                    token, start = first_token + group * GROUP_M, head * D + half * WIDTH
                    place = q_pieces.index((slot * 2 + group) * halves + half)
                    tma.async_copy_global_to_shared(queries, [token, start], q_ready.index(slot), place)
            number += 1
            table = block_table + row.to(gl.int64) * blocks_stride
            column = head // GROUP * D
            ragged = ((context % PIECE) != 0) & (context // BLOCK_N == tiles - 1)
            for step in range(tiles):
                stage = turn % STAGES
                phase = (turn // STAGES & 1) ^ 1
                turn += 1
                position = (tiles - 1 - step) * BLOCK_N
                first = stage * halves * PIECES
                mbarrier.wait(k_free.index(stage), phase)
                _copy_tile(
                    cache, k_ready.index(stage), k_pieces, first, table, position, context, column, last_row,
                    D, BLOCK_SIZE,
                )  # fmt: skip
                mbarrier.wait(v_free.index(stage), phase)
                values_column = column + HEADS // GROUP * D
                if (step == 0) & ragged:
                    _copy_tile(
                        cache, fixed, v_pieces, first, table, position, context, values_column, last_row, D,
                        BLOCK_SIZE,
                    )  # fmt: skip
                    mbarrier.wait(fixed, repairs & 1)
                    repairs += 1
                    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
                    line = gl.arange(0, PIECE, gl.SliceLayout(1, layout))
                    for half in gl.static_range(halves):
                        piece = v_pieces.index(first + half * PIECES + context % BLOCK_N // PIECE)
                        values = piece.load(layout)
                        piece.store(
                            gl.where((line < context % PIECE)[:, None], values, gl.zeros_like(values))
                        )
                    fence_async_shared()
                    mbarrier.arrive(v_ready.index(stage), count=1)
                else:
                    _copy_tile(
                        cache, v_ready.index(stage), v_pieces, first, table, position, context, values_column,
                        last_row, D, BLOCK_SIZE,
                    )  # fmt: skip
    _publish(messages, number, 0, 0, 0, 0, 0, 0, 0, 0)
