"""Experts for many tokens on Hopper: two grouped products whose copies, sums and results overlap.

Programs stay, one per multiprocessor, and take tile after tile: 128 places of one expert times two blocks of
128 weight rows, which are one operand of 256. Tiles are drawn from a counter, because one whose second half
holds no pair takes less time than others; what is computed does not depend on who draws it. Some warps copy
the next operands while two groups of four warps multiply, 64 places each; a group that is done with a tile
writes its results while the other still multiplies. A group whose places hold no pair multiplies nothing: an
expert's part is padded to 64 places, as far as arithmetic goes.

Of the first product, the two blocks are of gate and up; its rows are gathered from ``x``. Of the second, they
are neighbours. Places and ``order`` are those of ``grouped``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "BLOCK",
    "COLUMNS",
    "GROUP",
    "PLACES",
    "down_group",
    "down_long",
    "draw",
    "gate_up_group",
    "gate_up_long",
    "open_tiles",
    "tile_of",
    "weight_rows",
]

BLOCK: gl.constexpr = gl.constexpr(128)
"""Weight rows of a block; a tile has two."""
COLUMNS: gl.constexpr = gl.constexpr(64)
"""Columns of a step."""
PLACES: gl.constexpr = gl.constexpr(128)
"""Places of a tile."""
GROUP: gl.constexpr = gl.constexpr(64)
"""Places of a group of warps; a tile has two."""
_COPIERS: gl.constexpr = gl.constexpr(128)
"""Threads that gather."""
_LOG2E: gl.constexpr = gl.constexpr(1.4426950408889634)


@gluon.jit
def tile_of(program, blocks, tiles, BAND: gl.constexpr):
    """See ``grouped.tile_of``."""
    band = program // (BAND * blocks)
    height = gl.minimum(tiles - band * BAND, BAND)
    within = program % (BAND * blocks)
    return band * BAND + within % height, within // height


@gluon.jit
def weight_rows(first, jump, rows, layout: gl.constexpr):
    """The rows of a tile in an expert's part of a weight: two blocks, the second ``jump`` behind the first.

    Past the part's end the last row stands for all: what it gives is not stored.
    """
    number = gl.arange(0, 2 * BLOCK, layout)
    return gl.minimum(first + number // BLOCK * jump + number % BLOCK, rows - 1)


@gluon.jit
def _first_sums(bias, expert_at, first, jump, rows, BIAS: gl.constexpr):
    """What sums ``[64, 256]`` begin with: zeros, or an expert's bias."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * BLOCK, 16])
    total = gl.zeros([GROUP, 2 * BLOCK], gl.float32, layout)
    if BIAS:
        row = weight_rows(first, jump, rows, gl.SliceLayout(0, layout))
        total = total + gl.load(bias + gl.load(expert_at) * rows + row).to(gl.float32)[None, :]
    return total


@gluon.jit
def _multiply(
    barriers, a_tiles, b_tiles, group, total, turn, steps,
    WRITTEN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Adds the products of ``steps`` steps to sums ``[64, 256]``; ``turn`` counts the steps of all tiles.

    ``WRITTEN`` says that threads write operands, not the copy engine alone.
    """
    ready, free = barriers
    for step in range(steps):
        stage = turn % STAGES
        mbarrier.wait(ready.index(stage), turn // STAGES & 1)
        if WRITTEN:
            # What threads wrote, or copied row by row, did not go through the engine that products read by.
            fence_async_shared()
        a = a_tiles.index(stage * 2 + group)
        total = warpgroup_mma(a, b_tiles.index(stage).permute((1, 0)), total, is_async=True)
        # All but this step's product are over.
        total = warpgroup_mma_wait(1, deps=(total,))
        mbarrier.arrive(free.index((turn + STAGES - 1) % STAGES), count=1, pred=step > 0)
        turn += 1
    total = warpgroup_mma_wait(0, deps=(total,))
    mbarrier.arrive(free.index((turn + STAGES - 1) % STAGES), count=1)
    return total, turn


@gluon.jit
def _halves(total):
    """The left and the right columns; both stay in the registers where they are."""
    height: gl.constexpr = total.shape[0]
    width: gl.constexpr = total.shape[1] // 2
    return gl.split(gl.permute(gl.reshape(total, [height, 2, width]), [0, 2, 1]))


@gluon.jit
def draw(tickets, number, counter):
    """The copying warps take the next tile of this program, and tell the groups."""
    numbers, ready, free = tickets
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    slot = number % 2
    mbarrier.wait(free.index(slot), (number // 2 & 1) ^ 1)
    program = gl.atomic_add(counter, 1, sem="relaxed") + gl.num_programs(0)
    numbers.index(slot).store(gl.full([1], program, gl.int32, layout))
    mbarrier.arrive(ready.index(slot), count=1)
    return program


@gluon.jit
def _drawn(tickets, number):
    """What :func:`draw` took; both groups ask once."""
    numbers, ready, free = tickets
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    slot = number % 2
    mbarrier.wait(ready.index(slot), number // 2 & 1)
    program = gl.sum(numbers.index(slot).load(layout), 0)
    mbarrier.arrive(free.index(slot), count=1)
    return program


@gluon.jit
def _pass(barriers, turn, steps, STAGES: gl.constexpr):
    """Lets the operands of a tile go by."""
    ready, free = barriers
    for _ in range(steps):
        stage = turn % STAGES
        mbarrier.wait(ready.index(stage), turn // STAGES & 1)
        mbarrier.arrive(free.index(stage), count=1)
        turn += 1
    return turn


@gluon.jit
def _holds_pairs(order, program, group, blocks, tiles, BAND: gl.constexpr):
    """Whether the group's first place of a program's tile has a pair; false past the last tile."""
    tile, _ = tile_of(program, blocks, tiles, BAND)
    inside = program < tiles * blocks
    return gl.load(order + tile * PLACES + group * GROUP, mask=inside, other=-1) >= 0


@gluon.jit
def _store(out, results, row, column, y, WAITING: gl.constexpr):
    """Writes ``y`` by the copy engine, when all of its copies but the last ``WAITING`` are over."""
    tma.store_wait(WAITING)
    results.store(y.to(out.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [row, column], results)


@gluon.jit
def _rows(x, order, x_stride, column, TOP: gl.constexpr):
    """Where the rows of ``x`` of a group's places are, and which places have one."""
    pair = gl.load(order)
    return x + (pair // TOP).to(gl.int64)[:, None] * x_stride + column[None, :], (pair >= 0)[:, None]


@gluon.jit
def _gather(
    state, x, w13, counter, x_stride, I,
    H: gl.constexpr, TOP: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copies the operands of the first product: rows of ``x`` one by one, weights by the copy engine."""
    barriers, tickets, buffers, places = state
    ready, free = barriers
    a_tiles, b_tiles, _ = buffers
    order, tile_experts, tiles = places
    b_halves = b_tiles._reinterpret(b_tiles.dtype, [STAGES * 2, BLOCK, COLUMNS], b_tiles.layout)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    blocks = gl.cdiv(I, BLOCK)
    place = gl.arange(0, GROUP, gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    turn = 0
    number = 0
    program = gl.program_id(0)
    while program < tiles * blocks:
        tile, block = tile_of(program, blocks, tiles, BAND)
        program = draw(tickets, number, counter)
        number += 1
        gate_row = gl.load(tile_experts + tile) * 2 * I + block * BLOCK
        at = order + tile * PLACES + place
        first, first_present = _rows(x, at, x_stride, column, TOP)
        second, second_present = _rows(x, at + GROUP, x_stride, column, TOP)
        for start in range(0, H, COLUMNS):
            stage = turn % STAGES
            mbarrier.wait(free.index(stage), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(ready.index(stage), 2 * BLOCK * COLUMNS * 2)
            tma.async_copy_global_to_shared(
                w13, [gate_row, start], ready.index(stage), b_halves.index(stage * 2)
            )
            tma.async_copy_global_to_shared(
                w13, [gate_row + I, start], ready.index(stage), b_halves.index(stage * 2 + 1)
            )
            a = stage * 2
            async_copy.async_copy_global_to_shared(a_tiles.index(a), first + start, mask=first_present)
            async_copy.async_copy_global_to_shared(a_tiles.index(a + 1), second + start, mask=second_present)
            async_copy.mbarrier_arrive(ready.index(stage), increment_count=False)
            turn += 1


@gluon.jit
def _copy(
    state, act, w2, counter, H,
    I: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copies the operands of the second product."""
    barriers, tickets, buffers, places = state
    ready, free = barriers
    a_tiles, b_tiles, _ = buffers
    _, tile_experts, tiles = places
    blocks = gl.cdiv(H, 2 * BLOCK)
    turn = 0
    number = 0
    program = gl.program_id(0)
    while program < tiles * blocks:
        tile, block = tile_of(program, blocks, tiles, BAND)
        program = draw(tickets, number, counter)
        number += 1
        row = gl.load(tile_experts + tile) * H + block * 2 * BLOCK
        for start in range(0, I, COLUMNS):
            stage = turn % STAGES
            bar = ready.index(stage)
            mbarrier.wait(free.index(stage), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(bar, (2 * BLOCK + PLACES) * COLUMNS * 2)
            for group in gl.static_range(2):
                tma.async_copy_global_to_shared(
                    act, [tile * PLACES + group * GROUP, start], bar, a_tiles.index(stage * 2 + group)
                )
            tma.async_copy_global_to_shared(w2, [row, start], bar, b_tiles.index(stage))
            turn += 1


@gluon.jit
def gate_up_group(
    state, group, bias, act, I, clamp, alpha, beta,
    H: gl.constexpr, BIAS: gl.constexpr, CLAMP: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One group of the first product: sums, activation, results."""
    barriers, tickets, buffers, places = state
    a_tiles, b_tiles, results = buffers
    order, tile_experts, tiles = places
    blocks = gl.cdiv(I, BLOCK)
    turn = 0
    number = 0
    program = gl.program_id(0)
    present = _holds_pairs(order, program, group, blocks, tiles, BAND)
    while program < tiles * blocks:
        tile, block = tile_of(program, blocks, tiles, BAND)
        program = _drawn(tickets, number)
        number += 1
        following = _holds_pairs(order, program, group, blocks, tiles, BAND)
        if present:
            total = _first_sums(bias, tile_experts + tile, block * BLOCK, I, 2 * I, BIAS)
            total, turn = _multiply(
                barriers, a_tiles, b_tiles, group, total, turn, H // COLUMNS, True, STAGES
            )
            gate, up = _halves(total)
            if CLAMP:
                gate = gl.minimum(gate, clamp)
                up = gl.minimum(gl.maximum(up, -clamp), clamp)
            y = gate / (1 + gl.exp2(gate * (-alpha * _LOG2E))) * (up + beta)
            _store(act, results.index(group), tile * PLACES + group * GROUP, block * BLOCK, y, 0)
        else:
            turn = _pass(barriers, turn, H // COLUMNS, STAGES)
        present = following
    tma.store_wait(0)


@gluon.jit
def down_group(
    state, group, bias, out, H,
    I: gl.constexpr, BIAS: gl.constexpr, WRITTEN: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One group of the second product: sums and results."""
    barriers, tickets, buffers, places = state
    a_tiles, b_tiles, results = buffers
    order, tile_experts, tiles = places
    pieces = results._reinterpret(results.dtype, [4, GROUP, COLUMNS], results.layout)
    blocks = gl.cdiv(H, 2 * BLOCK)
    turn = 0
    number = 0
    program = gl.program_id(0)
    present = _holds_pairs(order, program, group, blocks, tiles, BAND)
    while program < tiles * blocks:
        tile, block = tile_of(program, blocks, tiles, BAND)
        program = _drawn(tickets, number)
        number += 1
        following = _holds_pairs(order, program, group, blocks, tiles, BAND)
        if present:
            total = _first_sums(bias, tile_experts + tile, block * 2 * BLOCK, BLOCK, H, BIAS)
            total, turn = _multiply(
                barriers, a_tiles, b_tiles, group, total, turn, gl.cdiv(I, COLUMNS), WRITTEN, STAGES
            )
            row, column = tile * PLACES + group * GROUP, block * 2 * BLOCK
            left, right = _halves(total)
            first, second = pieces.index(group * 2), pieces.index(group * 2 + 1)
            piece, next_piece = _halves(left)
            _store(out, first, row, column, piece, 1)
            _store(out, second, row, column + COLUMNS, next_piece, 1)
            piece, next_piece = _halves(right)
            _store(out, first, row, column + 2 * COLUMNS, piece, 1)
            _store(out, second, row, column + 3 * COLUMNS, next_piece, 1)
        else:
            turn = _pass(barriers, turn, gl.cdiv(I, COLUMNS), STAGES)
        present = following
    tma.store_wait(0)


@gluon.jit
def open_tiles(
    dtype: gl.constexpr, order, tile_experts, used, ARRIVALS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """What all warps of a program share: barriers of operands, tickets, buffers, and what ``sorting`` found.

    ``ARRIVALS`` at its barrier make a stage's operands complete. Of tickets, the numbers of the next tiles,
    there are two at most.
    """
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    a_tiles = gl.allocate_shared_memory(dtype, [STAGES * 2, GROUP, COLUMNS], layout)
    b_tiles = gl.allocate_shared_memory(dtype, [STAGES, 2 * BLOCK, COLUMNS], layout)
    results = gl.allocate_shared_memory(dtype, [2, GROUP, BLOCK], layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=ARRIVALS)
        mbarrier.init(free.index(stage), count=2)
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    told = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    heard = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2):
        mbarrier.init(told.index(slot), count=1)
        mbarrier.init(heard.index(slot), count=2)
    places = (order, tile_experts, gl.load(used))
    return (ready, free), (numbers, told, heard), (a_tiles, b_tiles, results), places


@gluon.jit
def gate_up_long(
    x, w13, b13, order, tile_experts, used, act, x_stride, I, clamp, alpha, beta,
    H: gl.constexpr, TOP: gl.constexpr, BIAS: gl.constexpr, CLAMP: gl.constexpr, BAND: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """``act [places, I]``: the first product and the activation.

    ``act`` is a descriptor, ``w13`` one of ``[E * 2 * I, H]``.
    """
    state = open_tiles(w13.dtype, order, tile_experts, used, 1 + _COPIERS, STAGES)
    gl.warp_specialize(
        [
            (gate_up_group, (state, 0, b13, act, I, clamp, alpha, beta, H, BIAS, CLAMP, BAND, STAGES)),
            (gate_up_group, (state, 1, b13, act, I, clamp, alpha, beta, H, BIAS, CLAMP, BAND, STAGES)),
            (_gather, (state, x, w13, used + 1, x_stride, I, H, TOP, BAND, STAGES)),
        ],
        [4, 4],
        [208, 88],
    )


@gluon.jit
def down_long(
    act, w2, b2, order, tile_experts, used, out, H,
    I: gl.constexpr, BIAS: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """``out [places, H]``: the second product, without the weights of the tokens.

    All are descriptors: ``act`` of ``[places, I]``, ``w2`` of ``[E * H, I]``; ``out`` in pieces of 64 by 64.
    """
    state = open_tiles(w2.dtype, order, tile_experts, used, 1, STAGES)
    gl.warp_specialize(
        [
            (down_group, (state, 0, b2, out, H, I, BIAS, False, BAND, STAGES)),
            (down_group, (state, 1, b2, out, H, I, BIAS, False, BAND, STAGES)),
            (_copy, (state, act, w2, used + 2, H, I, BAND, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )
