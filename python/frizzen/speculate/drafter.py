"""What a drafter is to the worker: told of every step, asked for drafts after some.

A drafter has KV of its own under the target's block ids and slots, so it needs no allocator, and a block that
the prefix cache hands to another row brings the drafter's entries with it. That is right because every
drafter here obeys one rule:

    *what stands at position p depends on the tokens up to p alone.*

A draft model's keys do by nature, and DSpark's come from target states at p. MTP and EAGLE fuse a token with
the hidden state before it; their entry is kept at the position of the *token* (see ``fused``), not of the
state, which would make the last entry of every block depend on what follows the block.

``advance`` covers all tokens of every step, also while nothing is drafted, so a block has its entries as soon
as it is full. Rejected tokens leave entries past the row's end, which the next step overwrites before anybody
sees them.

Drafts stand past the row's end, where it may own no block yet. They are written to blocks of the drafter's
own (``DraftBlocks``), a few per row of the batch, so proposing takes nothing from the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from frizzen.step import StepContext

__all__ = ["Asked", "Asking", "Choose", "DraftBlocks", "Drafter", "Proposed", "Seen", "Spots", "lay_out"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A step of ``T`` tokens in ``B`` rows that the target has computed."""

    ids: Tensor
    """``[T]`` int64."""
    step: StepContext
    hidden: Tensor
    """``[T, H]``, after the target's final norm."""
    taps: tuple[Tensor, ...]
    """``[T, H]`` for each of the drafter's taps."""
    ends: Tensor
    """``[B]`` int64, the tokens of each row that count now: the position of its next one."""

    @classmethod
    def of(cls, ids: Tensor, step: StepContext, hidden: Tensor, taps: tuple[Tensor, ...]) -> Seen:
        """A step all of whose tokens count."""
        return cls(ids, step, hidden, taps, step.seq_lens.long())

    def without(self, rows: Tensor, rejected: Tensor) -> Seen:
        """The same without the last ``rejected`` ``[R]`` tokens of ``rows`` ``[R]``."""
        return replace(self, ends=self.ends.index_add(0, rows, -rejected))


@dataclass(frozen=True, slots=True)
class DraftBlocks:
    """Where drafts are written: past a row's own blocks, ``width`` private ones for each persistent row."""

    first: int
    """The first private block: as many as the target has come before."""
    width: int
    block_size: int

    @classmethod
    def of(cls, num_blocks: int, reach: int, block_size: int) -> DraftBlocks:
        """For passes that reach ``reach`` positions past a row's end."""
        return cls(num_blocks, -(-reach // block_size), block_size)

    def total(self, rows: int) -> int:
        """Blocks of the drafter's caches, for a batch of ``rows`` and one row more, which is padding's."""
        return self.first + (rows + 1) * self.width


@dataclass(frozen=True, slots=True)
class Asking:
    """Rows that drafts are wanted for, before it is known where these stand."""

    step: StepContext
    """The step that they sampled in, of ``B`` rows."""
    ends: Tensor
    """``[B]`` int64, the tokens of each row that count."""
    step_rows: Tensor
    """``[R]`` int64, which of the step's rows."""
    rows: Tensor
    """``[R]`` int64, which persistent rows they are."""
    blocks: DraftBlocks
    reach: int

    @property
    def max_context(self) -> int:
        """With all drafts."""
        return self.step.max_context + self.reach


@dataclass(frozen=True, slots=True)
class Spots:
    """Where drafts stand: ``reach`` of each of ``R`` rows, from its end on."""

    ends: Tensor
    """``[R]`` int64."""
    last: Tensor
    """``[R]`` int64, where each row's last token that counts stands in the step."""
    table: Tensor
    """``[R, blocks]`` int32, a row's own blocks of its first ``ends`` tokens, then private ones: what its
    table has past the former may be another's by now."""
    positions: Tensor
    """``[reach, R]`` int64."""
    slots: Tensor
    """``[reach, R]`` int64."""
    lengths: Tensor
    """``[reach, R]`` int32, the context of each draft, itself included."""
    borders: Tensor
    """``[2, R + 1]`` int32, where rows of one token begin and end, and rows of ``reach``."""


def lay_out(asking: Asking) -> Spots:
    """By torch's operators, on any device."""
    step, blocks, device = asking.step, asking.blocks, asking.ends.device
    size, rows = blocks.block_size, asking.step_rows
    ends = asking.ends.index_select(0, rows)
    own = torch.div(ends - 1, size, rounding_mode="floor")[:, None]
    columns = torch.arange(-(-asking.max_context // size), device=device)
    private = blocks.first + asking.rows[:, None] * blocks.width
    private = private + (columns - own - 1).clamp(0, blocks.width - 1)
    known = step.block_table.index_select(0, rows)
    known = torch.nn.functional.pad(known, (0, max(len(columns) - known.shape[1], 0)))[:, : len(columns)]
    table = torch.where(columns <= own, known, private).int()
    positions = ends + torch.arange(asking.reach, device=device)[:, None]
    border = torch.arange(len(rows) + 1, dtype=torch.int32, device=device)
    # In one piece: kernels take the slots of one place for all rows as they lie.
    block = table.gather(1, (positions // size).t()).t().contiguous().long()
    return Spots(
        ends=ends,
        last=step.query_start.long()[rows + 1] - 1 - (step.seq_lens.long()[rows] - ends),
        table=table,
        positions=positions,
        slots=block * size + positions % size,
        lengths=(positions + 1).int(),
        borders=torch.stack([border, border * asking.reach]),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """The ``R`` rows that drafts are wanted for: those that sampled in the step."""

    tokens: Tensor
    """``[R]`` int64, what they sampled last: the token at the row's end."""
    spots: Spots
    max_context: int
    real: Tensor | None = None
    """``[1]`` int32, how many of the rows are real; those after them are padding. ``None``: all are."""

    def step(self, offset: int, width: int) -> StepContext:
        """A pass over ``width`` tokens of each row, 1 or all of its reach, from ``offset`` past its end.

        Layers that take all at once are dense, and compute padding like every other token.
        """
        rows, spots = len(self.tokens), self.spots
        if width == 1:
            positions, slots, real = spots.positions[offset], spots.slots[offset], self.real
        else:
            within = slice(offset, offset + width)
            positions, slots = spots.positions[within].t().flatten(), spots.slots[within].t().flatten()
            real = None
        return StepContext(
            positions=positions,
            slots=slots,
            query_start=spots.borders[0 if width == 1 else 1],
            seq_lens=spots.lengths[offset + width - 1],
            block_table=spots.table,
            num_rows=rows,
            num_single=rows if width == 1 else 0,
            num_tokens=rows * width,
            max_query=width,
            max_context=self.max_context,
            valid=real,
        )


class Choose(Protocol):
    """Chooses drafts from a drafter's logits, greedily or at random, and remembers how."""

    def __call__(self, logits: Tensor, place: int, ids: Tensor | None = None) -> Tensor:
        """``logits [R, Vd]`` float32 of draft number ``place`` -> ``[R]`` int64, the target's token ids.

        ``ids [Vd]`` int64 are the target's ids of the drafter's, if it has a vocabulary of its own.
        """


@dataclass(frozen=True, slots=True)
class Proposed:
    """Drafts of ``R`` rows."""

    tokens: Tensor
    """``[R, k]`` int64."""
    confidence: Tensor | None = None
    """``[R, k]`` float32, the chance that a draft is accepted if those before it are."""


class Drafter(Protocol):
    """Proposes tokens; never waits for the device."""

    @property
    def name(self) -> str:
        """As in the configuration."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target at whose entrance it reads; see ``models.tapped``."""

    @property
    def has_confidence(self) -> bool:
        """Whether its proposals come with chances."""

    @property
    def reach(self) -> int:
        """Positions past a row's end that its passes write to."""

    def bytes_per_token(self) -> int:
        """What it keeps per token of the target's KV cache."""

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Makes its caches, of the target's blocks and the private ones."""

    def advance(self, seen: Seen, asked: Asked | None, choose: Choose, count: int) -> Proposed | None:
        """Takes in a step, and proposes ``count`` drafts for the rows ``asked``."""
