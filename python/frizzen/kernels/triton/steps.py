"""What stands around the model in a decode step that runs as graphs, each in one launch.

``fill_step`` brings the plan's step to a graph's shape, see ``worker.buffers``; ``end_rows`` decides what the
rows of a greedy step get, see ``worker.tail``. Launched by torch's operators these are ten and seventy small
kernels, which is a tenth of the step of a single row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from frizzen.kernels.triton.launch import round_up_power

if TYPE_CHECKING:
    from frizzen.worker.buffers import StepBuffers
    from frizzen.worker.lattice import Shape
    from frizzen.worker.tail import Greedy

__all__ = ["end_rows", "fill_step", "largest"]

PARTS = 16
"""Programs that share the logits of a token."""
LOGITS = 1024
"""Logits that a program looks at together."""
TOKENS = 32
"""Tokens of a program."""
COLUMNS = 1024
"""Columns of a block table that are copied at once."""


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


@triton.jit(do_not_specialize=["tokens", "width", "columns", "bits"])
def _fill(
    count, total, input_ids, plan_positions, slots, plan_rows, query_start, seq_lens, last_sampled, table,
    ids, positions, block_table, tokens, width, columns, bits,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    num_rows = tl.load(count)
    num_tokens = tl.load(total)
    of_tokens = tl.cdiv(tokens, TOKENS)
    program = tl.program_id(0)
    if program < of_tokens:
        token = program * TOKENS + tl.arange(0, TOKENS)
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
    else:
        row = program - of_tokens
        if row < num_rows:
            source = table + tl.load(plan_rows + row).to(tl.int64) * columns
            target = block_table + row.to(tl.int64) * columns
            for start in range(0, columns, COLUMNS):
                column = start + tl.arange(0, COLUMNS)
                blocks = tl.load(source + column, mask=column < columns, other=0)
                tl.store(target + column, blocks, mask=column < columns)
        else:
            tl.store(seq_lens + row, 0)
            tl.store(query_start + row + 1, num_tokens + width * (row + 1 - num_rows))


def fill_step(buffers: StepBuffers, shape: Shape) -> None:
    """See ``worker.buffers.fill``."""
    plan, batch = buffers.plan, buffers.batch
    _fill[(triton.cdiv(shape.tokens, TOKENS) + shape.rows,)](
        buffers.count, buffers.total, plan.input_ids, plan.positions, plan.slots, plan.rows,
        plan.query_start, plan.seq_lens, batch.last_sampled, batch.block_table, buffers.ids,
        buffers.positions, buffers.block_table, shape.tokens, shape.width, batch.block_table.shape[1],
        shape.rows.bit_length(), TOKENS=TOKENS, COLUMNS=COLUMNS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["sink", "stride"])
def _end(
    tokens, maximum, ids, query_start, count, rows, last_sampled, uniforms, acceptance, sampled,
    num_sampled, row_status, last, rejected, sink, stride, FORCED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
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
    tl.store(rejected + row, (drafts - tl.where(is_fine, accepted, 0)).to(tl.int64))
    owner = tl.load(rows + row, mask=real, other=0)
    tl.store(last_sampled + tl.where(real, owner, sink), next_token)


def end_rows(step: Greedy) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``worker.tail.end_rows``."""
    plan, rows = step.plan, step.shape.rows
    last = torch.empty(rows, dtype=torch.int64, device=step.tokens.device)
    rejected = torch.empty_like(last)
    forced = step.acceptance is not None
    _end[(rows,)](
        step.tokens, step.maximum, step.ids, plan.query_start, step.count, plan.rows,
        step.batch.last_sampled, plan.uniforms, step.acceptance if forced else plan.uniforms, plan.sampled,
        plan.num_sampled, plan.row_status, last, rejected, step.padding,
        plan.sampled.shape[1], FORCED=forced, WIDTH=round_up_power(plan.sampled.shape[1]), num_warps=1,
    )  # fmt: skip
    return last, rejected


@triton.jit(do_not_specialize=["size", "stride"])
def _largest_parts(logits, peaks, places, size, stride, PARTS: tl.constexpr, LOGITS: tl.constexpr):
    token, part = tl.program_id(0), tl.program_id(1)
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
def _largest(peaks, places, maximum, tokens, PARTS: tl.constexpr):
    token = tl.program_id(0)
    part = tl.arange(0, PARTS)
    peak = tl.load(peaks + token * PARTS + part)
    place = tl.load(places + token * PARTS + part)
    broken = tl.max(is_nan(peak).to(tl.int32), axis=0) > 0
    best = tl.max(tl.where(is_nan(peak), float("-inf"), peak), axis=0)
    found = tl.min(tl.where(peak == best, place, 2147483647), axis=0)
    tl.store(maximum + token, tl.where(broken, float("nan"), best))
    tl.store(tokens + token, tl.where(broken, 0, found).to(tl.int64))


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``logits [T, V]`` float32 -> the largest ``[T]``, NaN if one is, and their ids int64 ``[T]``.

    The lowest id among equals. Torch's own takes longer for a few rows.
    """
    count, size = logits.shape
    maximum = torch.empty(count, device=logits.device)
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(count * PARTS, device=logits.device)
    places = torch.empty(count * PARTS, dtype=torch.int32, device=logits.device)
    if count:
        _largest_parts[(count, PARTS)](
            logits, peaks, places, size, logits.stride(0), PARTS=PARTS, LOGITS=LOGITS
        )
        _largest[(count,)](peaks, places, maximum, tokens, PARTS=PARTS, num_warps=1)
    return maximum, tokens
