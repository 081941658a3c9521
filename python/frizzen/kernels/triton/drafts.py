"""Where drafts stand, what fused drafters carry from step to step, and results: each in one launch.

See ``speculate.drafter.lay_out``, ``speculate.fused`` and ``worker.results.write_proposed``, which have the
same in torch's operators: dozens of small kernels, more than a draft's own on a fast device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from frizzen.kernels.triton.launch import await_inputs, options_on, release_next, round_up_power
from frizzen.kernels.triton.steps import owner_of

if TYPE_CHECKING:
    from torch import Tensor

    from frizzen.speculate.drafter import Asking, Proposed, Seen, Spots
    from frizzen.speculate.fused import Joined
    from frizzen.worker.arena import Sections

__all__ = ["before", "join", "keep", "lay_out", "write_proposed"]

COLUMNS = 256
"""Columns of a block table that are written at once."""
TOKENS = 512
"""Tokens that are searched at once for one that fills a block."""


@triton.jit
def _block_at(column, own, table, private, WIDTH: tl.constexpr, inside):
    """Blocks at columns of a row: its own up to column ``own``, then private ones."""
    known = tl.load(table + column, mask=inside & (column <= own), other=0)
    past = tl.minimum(tl.maximum(column - own - 1, 0), WIDTH - 1)
    return tl.where(column <= own, known, (private + past).to(tl.int32))


@triton.jit(
    do_not_specialize=["columns", "known_columns", "rows", "first"],
    do_not_specialize_on_alignment=["last", "positions", "slots"],
)
def _lay_out(
    step_rows, persistent, ends, query_start, seq_lens, block_table, own_ends, last, table, positions, slots,
    lengths, borders, columns, known_columns, rows, first,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, REACH: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    await_inputs(PDL)
    release_next(PDL)
    of_step = tl.load(step_rows + row)
    end = tl.load(ends + of_step)
    tl.store(own_ends + row, end)
    behind = tl.load(seq_lens + of_step) - end
    tl.store(last + row, tl.load(query_start + of_step + 1) - 1 - behind)
    own = tl.where(end > 0, (end - 1) // SIZE, -1)
    private = first + tl.load(persistent + row) * WIDTH
    blocks = block_table + of_step * known_columns
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        found = _block_at(column, own, blocks, private, WIDTH, column < known_columns)
        tl.store(table + row.to(tl.int64) * columns + column, found, mask=column < columns)
    place = tl.arange(0, SPAN)
    position = end + place
    block = _block_at(position // SIZE, own, blocks, private, WIDTH, position // SIZE < known_columns)
    at = place * rows + row
    tl.store(positions + at, position, mask=place < REACH)
    tl.store(slots + at, block.to(tl.int64) * SIZE + position % SIZE, mask=place < REACH)
    tl.store(lengths + at, (position + 1).to(tl.int32), mask=place < REACH)
    # Of one token, and of all, per row; the first program also stores where both begin.
    for border in tl.static_range(2):
        start = borders + border * (rows + 1)
        width = REACH if border else 1
        tl.store(start, 0, mask=row == 0)
        tl.store(start + row + 1, (row + 1) * width)


def lay_out(asking: Asking) -> Spots:
    """See ``speculate.drafter.lay_out``."""
    from frizzen.speculate.drafter import Spots

    step, blocks, rows, device = asking.step, asking.blocks, len(asking.step_rows), asking.ends.device
    columns = -(-asking.max_context // blocks.block_size)
    wide = torch.empty(2 + 2 * asking.reach, rows, dtype=torch.int64, device=device)
    narrow = torch.empty(asking.reach, rows, dtype=torch.int32, device=device)
    table = torch.empty(rows, columns, dtype=torch.int32, device=device)
    borders = torch.empty(2, rows + 1, dtype=torch.int32, device=device)
    ends, last, positions, slots = wide[0], wide[1], wide[2 : 2 + asking.reach], wide[2 + asking.reach :]
    if rows:
        _lay_out[(rows,)](
            asking.step_rows, asking.rows, asking.ends, step.query_start, step.seq_lens, step.block_table,
            ends, last, table, positions, slots, narrow, borders, columns, step.block_table.shape[1], rows,
            blocks.first, WIDTH=blocks.width, SIZE=blocks.block_size, REACH=asking.reach,
            SPAN=round_up_power(asking.reach), COLUMNS=COLUMNS, **options_on(device),
        )  # fmt: skip
    return Spots(ends, last, table, positions, slots, narrow, borders)


@triton.jit(
    do_not_specialize=["columns", "rows", "bits", "tokens", "asked", "reach"],
    do_not_specialize_on_alignment=[
        "ids", "positions", "slots", "drafted", "last", "spot_positions", "spot_slots", "out_ids",
        "out_slots", "out_positions",
    ],
)  # fmt: skip
def _join(
    states, carried, ids, positions, slots, query_start, block_table, drafted, last, spot_positions,
    spot_slots, out, out_ids, out_slots, out_positions, columns, rows, bits, tokens, asked, reach, size,
    SIZE: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The state before a token of the step; or, past these, what a row that is drafted for begins with."""
    program = tl.program_id(0)
    await_inputs(PDL)
    release_next(PDL)
    element = tl.arange(0, BLOCK)
    if program < tokens:
        row = owner_of(program, query_start, rows, bits)
        is_first = (row < rows) & (tl.load(query_start + tl.minimum(row, rows - 1)) == program)
        position = tl.load(positions + program)
        column = tl.maximum(position - 1, 0) // SIZE
        at = block_table + tl.minimum(row, rows - 1).to(tl.int64) * columns + column
        block = tl.load(at, mask=is_first, other=0).to(tl.int64)
        # After a full block: one that another row fills in this step is not kept yet.
        end = block * SIZE + SIZE - 1
        filled = program * 0 - 1
        follows = is_first & (position > 0) & (position % SIZE == 0)
        for start in range(0, tl.where(follows, tokens, 0), TOKENS):
            other = start + tl.arange(0, TOKENS)
            slot = tl.load(slots + other, mask=other < tokens, other=-1)
            filled = tl.maximum(filled, tl.max(tl.where(slot == end, other, -1), axis=0))
        source = tl.where(is_first, carried + block * size, states + (program.to(tl.int64) - 1) * size)
        source = tl.where(filled >= 0, states + filled.to(tl.int64) * size, source)
        exists = (element < size) & ((is_first & (position > 0)) | (not is_first & (program > 0)))
        state = tl.load(source + element, mask=exists, other=0.0)
        tl.store(out + program.to(tl.int64) * size + element, state, mask=element < size)
        if asked > 0:
            tl.store(out_ids + program, tl.load(ids + program))
            tl.store(out_slots + program, tl.load(slots + program))
            tl.store(out_positions + program, position)
    else:
        of_row = program - tokens
        source = states + tl.load(last + of_row) * size
        state = tl.load(source + element, mask=element < size, other=0.0)
        tl.store(out + program.to(tl.int64) * size + element, state, mask=element < size)
        tl.store(out_ids + program, tl.load(drafted + of_row))
        tl.store(out_slots + program, tl.load(spot_slots + of_row))
        for place in range(reach):
            of_place = place * asked
            tl.store(out_positions + program + of_place, tl.load(spot_positions + of_row + of_place))


@triton.jit(do_not_specialize=["rows", "bits"])
def _keep(
    states, carried, positions, slots, query_start, ends, rows, bits, size,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    await_inputs(PDL)
    release_next(PDL)
    row = owner_of(token, query_start, rows, bits)
    if row < rows:
        position = tl.load(positions + token)
        newest = tl.load(ends + row) - 1
        if (position == newest) | ((position < newest) & ((position + 1) % SIZE == 0)):
            element = tl.arange(0, BLOCK)
            state = tl.load(states + token.to(tl.int64) * size + element, mask=element < size)
            block = tl.load(slots + token) // SIZE
            tl.store(carried + block * size + element, state, mask=element < size)


def before(states: Tensor, carried: Tensor, seen: Seen, block_size: int) -> Tensor:
    """See ``speculate.fused``: the state before each token of a step, while nothing of it is kept."""
    step, out = seen.step, torch.empty_like(states)
    nothing = (step.positions, step.positions, step.positions, step.slots)
    outputs = (out, seen.ids, step.slots, step.positions)
    _launch_join(states, carried, seen, block_size, nothing, outputs, asked=0, reach=0)
    return out


def join(
    states: Tensor, carried: Tensor, seen: Seen, block_size: int, tokens: Tensor, spots: Spots
) -> Joined:
    """See ``speculate.fused.Joined``, while nothing of the step is kept."""
    from frizzen.speculate.fused import Joined

    step, device, entries, asked = seen.step, states.device, len(states) + len(tokens), len(tokens)
    reach = len(spots.positions)
    joined = Joined(
        ids=torch.empty(entries, dtype=torch.int64, device=device),
        slots=torch.empty(entries, dtype=step.slots.dtype, device=device),
        before=torch.empty(entries, states.shape[1], dtype=states.dtype, device=device),
        positions=torch.empty(len(states) + reach * asked, dtype=torch.int64, device=device),
    )
    given = (tokens, spots.last, spots.positions, spots.slots)
    outputs = (joined.before, joined.ids, joined.slots, joined.positions)
    _launch_join(states, carried, seen, block_size, given, outputs, asked=asked, reach=reach)
    return joined


def _launch_join(
    states: Tensor,
    carried: Tensor,
    seen: Seen,
    block_size: int,
    given: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    *,
    asked: int,
    reach: int,
) -> None:
    step, size = seen.step, states.shape[1]
    _join[(step.num_tokens + asked,)](
        states, carried, seen.ids, step.positions, step.slots, step.query_start, step.block_table, *given,
        *outputs, step.block_table.shape[1], step.num_rows, step.num_rows.bit_length(), step.num_tokens,
        asked, reach, size, SIZE=block_size, TOKENS=TOKENS, BLOCK=round_up_power(size), num_warps=8,
        **options_on(states.device),
    )  # fmt: skip


def keep(states: Tensor, carried: Tensor, seen: Seen, block_size: int) -> None:
    """Keeps the newest state of every block that the step writes to."""
    step, size = seen.step, states.shape[1]
    _keep[(step.num_tokens,)](
        states, carried, step.positions, step.slots, step.query_start, seen.ends, step.num_rows,
        step.num_rows.bit_length(), size, SIZE=block_size, BLOCK=round_up_power(size), num_warps=8,
        **options_on(states.device),
    )  # fmt: skip


@triton.jit(do_not_specialize=["count", "stride", "known"])
def _write_proposed(
    tokens, confidence, step_rows, num_sampled, num_proposed, proposed, proposed_confidence, count, stride,
    known, SPAN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    await_inputs(PDL)
    release_next(PDL)
    of_step = tl.load(step_rows + row)
    # A row that failed has no next token to draft after.
    fine = tl.load(num_sampled + of_step) > 0
    tl.store(num_proposed + of_step, tl.where(fine, count, 0))
    place = tl.arange(0, SPAN)
    inside = place < count
    token = tl.load(tokens + row * count + place, mask=inside, other=0)
    chance = tl.load(confidence + row * count + place, mask=inside & (known > 0), other=float("nan"))
    tl.store(proposed + of_step * stride + place, token.to(tl.int32), mask=inside)
    tl.store(proposed_confidence + of_step * stride + place, chance, mask=inside)


def write_proposed(drafts: Proposed, step_rows: Tensor, out: Sections) -> None:
    """See ``worker.results.write_proposed``."""
    (rows, count), stride, chances = drafts.tokens.shape, out.proposed.shape[1], drafts.confidence
    if rows:
        _write_proposed[(rows,)](
            drafts.tokens.contiguous(),
            out.proposed_confidence if chances is None else chances.contiguous(),
            step_rows, out.num_sampled, out.num_proposed, out.proposed, out.proposed_confidence, count,
            stride, int(chances is not None), SPAN=round_up_power(stride), num_warps=1,
            **options_on(drafts.tokens.device),
        )  # fmt: skip
