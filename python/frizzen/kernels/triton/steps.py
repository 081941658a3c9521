"""What stands around the model in a decode step that runs as graphs, each in one launch.

``fill_step`` brings the plan's step to a graph's shape, see ``worker.buffers``; ``end_rows`` decides what the
rows of a greedy step get, see ``worker.tail``. Launched by torch's operators these are ten and seventy small
kernels, which is a tenth of the step of a single row. ``angles`` are those of ``layers.rotary``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from frizzen.kernels.triton.launch import await_inputs, options_on, release_next, round_up_power

if TYPE_CHECKING:
    from frizzen.worker.buffers import StepBuffers
    from frizzen.worker.lattice import Shape
    from frizzen.worker.tail import Ended, Greedy

__all__ = ["angles", "end_rows", "fill_step", "largest"]

PARTS = 64
"""Programs that share the logits of a token."""
LOGITS = 512
"""Logits that a program looks at together."""
TOKENS = 32
"""Tokens of a program."""
COLUMNS = 1024
"""Columns of a block table, and changes of it, that are brought over at once."""
ANGLES = 256
"""Angles of a program."""


@triton.jit
def is_nan(value):
    """Whether it is no number."""
    return value != value  # noqa: PLR0124


@triton.jit
def owner_of(token, query_start, num_rows, bits):
    """The row of each token, the number of rows for what is past the last one; they have so many bits."""
    low = token * 0
    high = low + num_rows
    for _ in range(bits):
        middle = (low + high) // 2
        is_open = low < high
        ends = tl.load(query_start + 1 + middle, mask=is_open, other=0)
        is_past = is_open & (ends <= token)
        high = tl.where(is_open & (ends > token), middle, high)
        low = tl.where(is_past, middle + 1, low)
    return low


@triton.jit(do_not_specialize=["tokens", "rows", "width", "columns", "bits"])
def _fill(
    count, total, changes, input_ids, plan_positions, slots, plan_rows, query_start, seq_lens, block_rows,
    block_columns, block_ids, last_sampled, table, ids, positions, block_table, tokens, rows, width, columns,
    bits, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    num_rows = tl.load(count)
    num_tokens = tl.load(total)
    row = tl.program_id(0) - tl.cdiv(tokens, TOKENS)
    if row < 0:
        token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
        inside = token < tokens
        real = token < num_tokens
        # Only borders up to the last row are read: those after it are being written.
        owner = owner_of(token, query_start, num_rows, bits)
        place = tl.load(plan_rows + owner, mask=real, other=0)
        known = tl.load(input_ids + token, mask=real, other=0)
        sampled = tl.load(last_sampled + place, mask=real & (known < 0), other=0)
        tl.store(ids + token, tl.where(known < 0, sampled, known.to(tl.int64)), mask=inside)
        position = tl.load(plan_positions + token, mask=real, other=0)
        tl.store(positions + token, position.to(tl.int64), mask=inside)
        tl.store(slots + token, tl.zeros_like(sampled), mask=inside & (token >= num_tokens))
    elif row == rows:
        num_changes = tl.load(changes)
        for start in range(0, num_changes, COLUMNS):
            change = start + tl.arange(0, COLUMNS)
            inside = change < num_changes
            owner = tl.load(block_rows + change, mask=inside, other=0).to(tl.int64)
            column = tl.load(block_columns + change, mask=inside, other=0)
            block = tl.load(block_ids + change, mask=inside, other=0)
            tl.store(table + owner * columns + column, block, mask=inside)
    elif row < num_rows:
        owner = tl.load(plan_rows + row)
        source = table + owner.to(tl.int64) * columns
        target = block_table + row.to(tl.int64) * columns
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            blocks = tl.load(source + column, mask=column < columns, other=0)
            tl.store(target + column, blocks, mask=column < columns)
        # The source is being changed meanwhile, so what was read may be old.
        tl.debug_barrier()
        num_changes = tl.load(changes)
        for start in range(0, num_changes, COLUMNS):
            change = start + tl.arange(0, COLUMNS)
            own = tl.load(block_rows + change, mask=change < num_changes, other=-1) == owner
            column = tl.load(block_columns + change, mask=own, other=0)
            tl.store(target + column, tl.load(block_ids + change, mask=own, other=0), mask=own)
    else:
        tl.store(seq_lens + row, 0)
        tl.store(query_start + row + 1, num_tokens + width * (row + 1 - num_rows))


def fill_step(buffers: StepBuffers, shape: Shape) -> None:
    """See ``worker.buffers.fill``."""
    plan, batch = buffers.plan, buffers.batch
    # A program for some tokens, for every row, and for the changes of the table.
    _fill[(triton.cdiv(shape.tokens, TOKENS) + shape.rows + 1,)](
        buffers.count, buffers.total, buffers.changes, plan.input_ids, plan.positions, plan.slots, plan.rows,
        plan.query_start, plan.seq_lens, plan.block_rows, plan.block_columns, plan.block_ids,
        batch.last_sampled, batch.block_table, buffers.ids, buffers.positions, buffers.block_table,
        shape.tokens, shape.rows, shape.width, batch.block_table.shape[1], shape.rows.bit_length(),
        TOKENS=TOKENS, COLUMNS=COLUMNS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count", "half", "behind"], do_not_specialize_on_alignment=["positions"])
def _angles(positions, frequencies, cosine, sine, count, half, behind, scale, ANGLES: tl.constexpr):
    at = tl.program_id(0) * ANGLES + tl.arange(0, ANGLES)
    inside = at < count
    position = tl.maximum(tl.load(positions + at // half, mask=inside, other=0) - behind, 0)
    angle = position.to(tl.float32) * tl.load(frequencies + at % half, mask=inside, other=0.0)
    tl.store(cosine + at, tl.cos(angle) * scale, mask=inside)
    tl.store(sine + at, tl.sin(angle) * scale, mask=inside)


def angles(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, behind: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``layers.rotary.angles``."""
    tokens, half = len(positions), len(frequencies)
    cosine = torch.empty(tokens, half, device=positions.device)
    sine = torch.empty_like(cosine)
    if count := tokens * half:
        _angles[(triton.cdiv(count, ANGLES),)](
            positions, frequencies, cosine, sine, count, half, behind, scale, ANGLES=ANGLES, num_warps=4
        )
    return cosine, sine


@triton.jit(do_not_specialize=["sink", "stride"])
def _end(
    tokens, maximum, ids, query_start, seq_lens, count, rows, last_sampled, uniforms, acceptance, sampled,
    num_sampled, row_status, last, ends, persistent, step_rows, sink, stride,
    FORCED: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    await_inputs(PDL)
    release_next(PDL)
    real = row < tl.load(count)
    first = tl.load(query_start + row)
    # Padding has tokens and no drafts.
    drafts = tl.where(real, tl.load(query_start + row + 1) - first - 1, 0)
    place = tl.arange(0, WIDTH)
    at = first + place
    token = tl.load(tokens + at, mask=place <= drafts, other=0)
    fine = tl.abs(tl.load(maximum + at, mask=place <= drafts, other=0.0)) < float("inf")
    draft = tl.load(ids + at + 1, mask=place < drafts, other=-1)
    if FORCED:
        lucky = tl.load(uniforms + at, mask=place < drafts, other=1.0) < tl.load(acceptance) - (place + 1)
        right = (place < drafts) & lucky
        token = tl.where(right, draft, token)
    else:
        right = (place < drafts) & (token == draft)
    accepted = tl.min(tl.where(right & fine, WIDTH, place), axis=0)
    reached = place == accepted
    is_fine = tl.sum((reached & fine).to(tl.int32), axis=0) > 0
    next_token = tl.sum(tl.where(reached, token, 0), axis=0)
    tl.store(sampled + row * stride + place, token.to(tl.int32), mask=place <= drafts)
    tl.store(num_sampled + row, tl.where(is_fine, accepted + 1, 0))
    tl.store(row_status + row, tl.where(is_fine, 0, 1))
    tl.store(last + row, next_token)
    rejected = drafts - tl.where(is_fine, accepted, 0)
    tl.store(ends + row, (tl.load(seq_lens + row) - rejected).to(tl.int64))
    owner = tl.where(real, tl.load(rows + row, mask=real, other=0), sink)
    tl.store(persistent + row, owner.to(tl.int64))
    tl.store(step_rows + row, row.to(tl.int64))
    tl.store(last_sampled + owner, next_token)


def end_rows(step: Greedy) -> Ended:
    """See ``worker.tail.end_rows``."""
    from frizzen.worker.tail import Ended

    plan, rows = step.plan, step.shape.rows
    # Tensors of their own: within one, their alignment would follow from the number of rows.
    ended = Ended(*(torch.empty(rows, dtype=torch.int64, device=step.tokens.device) for _ in Ended._fields))
    forced = step.acceptance is not None
    _end[(rows,)](
        step.tokens, step.maximum, step.ids, plan.query_start, plan.seq_lens, step.count, plan.rows,
        step.batch.last_sampled, plan.uniforms, step.acceptance if forced else plan.uniforms, plan.sampled,
        plan.num_sampled, plan.row_status, *ended, step.padding, plan.sampled.shape[1], FORCED=forced,
        WIDTH=round_up_power(plan.sampled.shape[1]), num_warps=1, **options_on(step.tokens.device),
    )  # fmt: skip
    return ended


@triton.jit(do_not_specialize=["size", "stride"])
def _largest_parts(
    logits, peaks, places, size, stride, PARTS: tl.constexpr, LOGITS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    token, part = tl.program_id(0), tl.program_id(1)
    await_inputs(PDL)
    release_next(PDL)
    blocks = tl.cdiv(size, LOGITS)
    row = logits + token.to(tl.int64) * stride
    peak = tl.full([LOGITS], float("-inf"), tl.float32)
    place = tl.full([LOGITS], 0, tl.int32)
    broken = tl.full([LOGITS], 0, tl.int32)
    for block in range(part * blocks // PARTS, (part + 1) * blocks // PARTS):
        at = block * LOGITS + tl.arange(0, LOGITS)
        value = tl.load(row + at, mask=at < size, other=float("-inf"))
        broken |= is_nan(value).to(tl.int32)
        place = tl.where(value > peak, at, place)
        peak = tl.where(value > peak, value, peak)
    best = tl.max(peak, axis=0)
    # The lowest among equals.
    found = tl.min(tl.where(peak == best, place, size), axis=0)
    best = tl.where(tl.max(broken, axis=0) > 0, float("nan"), best)
    tl.store(peaks + token * PARTS + part, best)
    tl.store(places + token * PARTS + part, tl.minimum(found, size - 1))


@triton.jit
def _largest(
    peaks, places, ids, maximum, tokens, PARTS: tl.constexpr, MAPPED: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0)
    await_inputs(PDL)
    release_next(PDL)
    part = tl.arange(0, PARTS)
    peak = tl.load(peaks + token * PARTS + part)
    place = tl.load(places + token * PARTS + part)
    broken = tl.max(is_nan(peak).to(tl.int32), axis=0) > 0
    best = tl.max(tl.where(is_nan(peak), float("-inf"), peak), axis=0)
    found = tl.min(tl.where(peak == best, place, 2147483647), axis=0)
    tl.store(maximum + token, tl.where(broken, float("nan"), best))
    found = tl.where(broken, 0, found).to(tl.int64)
    tl.store(tokens + token, tl.load(ids + found) if MAPPED else found)


def largest(logits: torch.Tensor, ids: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.largest``. Torch's own takes longer for a few rows."""
    count, size = logits.shape
    maximum = torch.empty(count, device=logits.device)
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(count * PARTS, device=logits.device)
    places = torch.empty(count * PARTS, dtype=torch.int32, device=logits.device)
    options = options_on(logits.device)
    if count:
        _largest_parts[(count, PARTS)](
            logits, peaks, places, size, logits.stride(0), PARTS=PARTS, LOGITS=LOGITS, **options
        )
        _largest[(count,)](
            peaks, places, places if ids is None else ids, maximum, tokens, PARTS=PARTS,
            MAPPED=ids is not None, num_warps=1, **options,
        )  # fmt: skip
    return maximum, tokens
