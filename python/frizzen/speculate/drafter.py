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

__all__ = ["Asked", "Choose", "DraftBlocks", "Drafter", "Proposed", "Seen"]


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

    def table(self, table: Tensor, rows: Tensor, ends: Tensor, max_context: int) -> Tensor:
        """``[R, blocks]`` int32, the blocks of contexts up to ``max_context`` tokens.

        ``table`` holds the rows' own, ``rows`` ``[R]`` says which persistent rows they are. A row's own
        blocks are those of its first ``ends`` ``[R]`` tokens: what its table has past these may be
        another's by now.
        """
        columns = torch.arange(-(-max_context // self.block_size), device=table.device)
        past = columns - torch.div(ends - 1, self.block_size, rounding_mode="floor")[:, None]
        private = self.first + rows[:, None] * self.width + (past - 1).clamp(0, self.width - 1)
        known = torch.nn.functional.pad(table, (0, max(len(columns) - table.shape[1], 0)))[:, : len(columns)]
        return torch.where(past <= 0, known, private).int()


@dataclass(frozen=True, slots=True)
class Asked:
    """The ``R`` rows that drafts are wanted for: those that sampled in the step."""

    step_rows: Tensor
    """``[R]`` int64, which of the step's rows."""
    tokens: Tensor
    """``[R]`` int64, what they sampled last: the token at position ``ends``."""
    ends: Tensor
    """``[R]`` int64."""
    last: Tensor
    """``[R]`` int64, where each row's last token that counts stands in the step."""
    table: Tensor
    """``[R, blocks]`` int32, blocks for as far as the drafter reaches."""
    block_size: int
    max_context: int
    real: Tensor | None = None
    """``[1]`` int32, how many of the rows are real; those after them are padding. ``None``: all are."""

    def step(self, offset: int, width: int) -> StepContext:
        """A pass over ``width`` tokens of each row, from ``offset`` past its end."""
        device, rows = self.ends.device, len(self.ends)
        positions = self.ends[:, None] + torch.arange(offset, offset + width, device=device)
        blocks = self.table.gather(1, positions // self.block_size).long()
        return StepContext(
            positions=positions.flatten(),
            slots=(blocks * self.block_size + positions % self.block_size).flatten(),
            query_start=torch.arange(0, (rows + 1) * width, width, dtype=torch.int32, device=device),
            seq_lens=(self.ends + offset + width).int(),
            block_table=self.table,
            num_rows=rows,
            num_single=rows if width == 1 else 0,
            num_tokens=rows * width,
            max_query=width,
            max_context=self.max_context,
            valid=None if self.real is None else self.real * width,
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
