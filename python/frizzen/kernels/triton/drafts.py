"""Where drafts stand, what fused drafters carry from step to step, and results: each in one launch.

See ``speculate.drafter.lay_out``, ``speculate.fused`` and ``worker.results.write_proposed``, which have the
same in torch's operators: dozens of small kernels, more than a draft's own on a fast device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from frizzen.kernels.triton.launch import round_up_power
from frizzen.kernels.triton.steps import owner_of

if TYPE_CHECKING:
    from torch import Tensor

    from frizzen.speculate.drafter import Asking, Proposed, Seen, Spots
    from frizzen.worker.arena import Sections

__all__ = ["before", "keep", "lay_out", "write_proposed"]

COLUMNS = 256
"""Columns of a block table that are written at once."""


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
    lengths, columns, known_columns, rows, first,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, REACH: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
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


def lay_out(asking: Asking) -> Spots:
    """See ``speculate.drafter.lay_out``."""
    from frizzen.speculate.drafter import Spots

    step, blocks, rows, device = asking.step, asking.blocks, len(asking.step_rows), asking.ends.device
    columns = -(-asking.max_context // blocks.block_size)
    wide = torch.empty(2 + 2 * asking.reach, rows, dtype=torch.int64, device=device)
    narrow = torch.empty(asking.reach, rows, dtype=torch.int32, device=device)
    table = torch.empty(rows, columns, dtype=torch.int32, device=device)
    ends, last, positions, slots = wide[0], wide[1], wide[2 : 2 + asking.reach], wide[2 + asking.reach :]
    if rows:
        _lay_out[(rows,)](
            asking.step_rows, asking.rows, asking.ends, step.query_start, step.seq_lens, step.block_table,
            ends, last, table, positions, slots, narrow, columns, step.block_table.shape[1], rows,
            blocks.first, WIDTH=blocks.width, SIZE=blocks.block_size, REACH=asking.reach,
            SPAN=round_up_power(asking.reach), COLUMNS=COLUMNS,
        )  # fmt: skip
    return Spots(ends, last, table, positions, slots, narrow)


@triton.jit(do_not_specialize=["columns", "rows", "bits"])
def _before(
    states, carried, positions, query_start, block_table, out, columns, rows, bits, size,
    FILLED: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of every token, as far as it is known before the step is kept; or of rows that begin a block."""
    program = tl.program_id(0)
    if FILLED:
        row = program
        token = tl.load(query_start + row)
    else:
        token = program
        row = owner_of(token, query_start, rows, bits)
    is_first = (row < rows) & (tl.load(query_start + tl.minimum(row, rows - 1)) == token)
    position = tl.load(positions + token)
    begins = is_first & (position % SIZE == 0)
    if begins == FILLED:
        column = tl.maximum(position - 1, 0) // SIZE
        at = block_table + tl.minimum(row, rows - 1).to(tl.int64) * columns + column
        block = tl.load(at, mask=is_first, other=0)
        source = tl.where(
            is_first, carried + block.to(tl.int64) * size, states + (token.to(tl.int64) - 1) * size
        )
        element = tl.arange(0, BLOCK)
        exists = (element < size) & ((is_first & (position > 0)) | (not is_first & (token > 0)))
        state = tl.load(source + element, mask=exists, other=0.0)
        tl.store(out + token.to(tl.int64) * size + element, state, mask=element < size)


@triton.jit(do_not_specialize=["rows", "bits"])
def _keep(
    states, carried, positions, slots, query_start, ends, rows, bits, size,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    row = owner_of(token, query_start, rows, bits)
    if row < rows:
        position = tl.load(positions + token)
        newest = tl.load(ends + row) - 1
        if (position == newest) | ((position < newest) & ((position + 1) % SIZE == 0)):
            element = tl.arange(0, BLOCK)
            state = tl.load(states + token.to(tl.int64) * size + element, mask=element < size)
            block = tl.load(slots + token) // SIZE
            tl.store(carried + block * size + element, state, mask=element < size)


def before(
    states: Tensor, carried: Tensor, seen: Seen, block_size: int, out: Tensor, *, filled: bool
) -> None:
    """Writes the state before each token to ``out`` ``[T, H]``: of rows that begin a block, or of all others.

    What stands in the block before may be of this very step, once that is kept: so the latter come after.
    """
    step, size = seen.step, states.shape[1]
    _before[(step.num_rows if filled else step.num_tokens,)](
        states, carried, step.positions, step.query_start, step.block_table, out, step.block_table.shape[1],
        step.num_rows, step.num_rows.bit_length(), size, FILLED=filled, SIZE=block_size,
        BLOCK=round_up_power(size), num_warps=8,
    )  # fmt: skip


def keep(states: Tensor, carried: Tensor, seen: Seen, block_size: int) -> None:
    """Keeps the newest state of every block that the step writes to."""
    step, size = seen.step, states.shape[1]
    _keep[(step.num_tokens,)](
        states, carried, step.positions, step.slots, step.query_start, seen.ends, step.num_rows,
        step.num_rows.bit_length(), size, SIZE=block_size, BLOCK=round_up_power(size), num_warps=8,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count", "stride", "known"])
def _write_proposed(
    tokens, confidence, step_rows, num_sampled, num_proposed, proposed, proposed_confidence, count, stride,
    known, SPAN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
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
        )  # fmt: skip
