"""The inputs of a decode step at fixed addresses, for graphs: where they can be, the plan's own sections.

``fill`` is part of a graph. It changes the block table as the plan says, and brings the plan's step up to the
graph's shape, whatever its rows and tokens are, from what the device knows alone: the host does nothing
between two replays but write plans.

Padding is inert: its KV goes to the null block, its rows have no context, ``valid`` keeps it from experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from frizzen.step import StepContext
from frizzen.worker.arena import Header, Sections, num_blocks, num_rows, num_tokens
from frizzen.worker.lattice import Shape
from frizzen.worker.rows import PersistentBatch

__all__ = ["StepBuffers", "fill"]

Fill = Callable[["StepBuffers", Shape], None]


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Inputs of steps, as large as the largest step needs."""

    plan: Sections
    """Read, and padded in place: slots, borders and lengths of rows."""
    batch: PersistentBatch
    ids: torch.Tensor
    """``[tokens]`` int64."""
    positions: torch.Tensor
    """``[tokens]`` int64."""
    block_table: torch.Tensor
    """``[rows, blocks]`` int32; the blocks of one row beside those of the next."""
    fill_by: Fill

    @property
    def count(self) -> torch.Tensor:
        """``[1]`` int32, the rows of the plan's step."""
        return num_rows(self.plan)

    @property
    def total(self) -> torch.Tensor:
        """``[1]`` int32, its tokens."""
        return num_tokens(self.plan)

    @property
    def changes(self) -> torch.Tensor:
        """``[1]`` int32, its changes of the block table."""
        return num_blocks(self.plan)

    @classmethod
    def allocate(cls, plan: Sections, batch: PersistentBatch) -> StepBuffers:
        """Buffers beside ``plan``, on its device."""
        device, tokens = plan.input_ids.device, len(plan.input_ids)
        by: Fill = fill
        if device.type == "cuda" and find_spec("triton") is not None:
            from frizzen.kernels.triton.steps import fill_step

            by = fill_step
        return cls(
            plan=plan,
            batch=batch,
            ids=torch.zeros(tokens, dtype=torch.int64, device=device),
            positions=torch.zeros(tokens, dtype=torch.int64, device=device),
            block_table=torch.zeros_like(batch.block_table),
            fill_by=by,
        )

    def fill(self, shape: Shape) -> None:
        """Brings the plan's step here, padded up to ``shape``, which serves it."""
        self.fill_by(self, shape)

    def step(self, shape: Shape) -> StepContext:
        """The step that a graph of ``shape`` computes."""
        single = shape.rows if shape.width == 1 else 0
        return self._context(shape.rows, single, shape.tokens, shape.width, shape.context)

    def inputs(self, header: Header) -> tuple[torch.Tensor, StepContext]:
        """Token ids ``[T]`` and context of the step that was filled in, without its padding."""
        step = self._context(
            header.num_rows, header.num_single, header.num_tokens, header.max_query, header.max_context
        )
        return self.ids[: header.num_tokens], step

    def _context(self, rows: int, single: int, tokens: int, width: int, context: int) -> StepContext:
        return StepContext(
            positions=self.positions[:tokens],
            slots=self.plan.slots[:tokens],
            query_start=self.plan.query_start[: rows + 1],
            seq_lens=self.plan.seq_lens[:rows],
            block_table=self.block_table[:rows],
            num_rows=rows,
            num_single=single,
            num_tokens=tokens,
            max_query=width,
            max_context=context,
            valid=self.total,
        )


def fill(buffers: StepBuffers, shape: Shape) -> None:
    """See ``StepBuffers.fill``; by torch's operators, on any device."""
    plan, batch, (rows, tokens) = buffers.plan, buffers.batch, (shape.rows, shape.tokens)
    device = plan.rows.device
    count, total = buffers.count, buffers.total
    place, token = torch.arange(rows + 1, device=device), torch.arange(tokens, device=device)
    is_row, is_token = place[:-1] < count, token < total
    borders = plan.query_start[: rows + 1]
    # Rows of the full width, which have no context: their attention is zero.
    borders.copy_(torch.where(place <= count, borders, total + shape.width * (place - count)))
    plan.seq_lens[:rows].masked_fill_(~is_row, 0)
    plan.slots[:tokens].masked_fill_(~is_token, 0)
    owners = torch.where(is_row, plan.rows[:rows], 0).long()
    owner = torch.searchsorted(borders[1:], token.int(), right=True).clamp_(max=rows - 1)
    ids = plan.input_ids[:tokens].long()
    ids = torch.where(ids < 0, batch.last_sampled[owners[owner]], ids)
    buffers.ids[:tokens] = ids.masked_fill_(~is_token, 0)
    buffers.positions[:tokens] = torch.where(is_token, plan.positions[:tokens], 0)
    _change_blocks(buffers)
    torch.index_select(batch.block_table, 0, owners, out=buffers.block_table[:rows])


def _change_blocks(buffers: StepBuffers) -> None:
    """As ``PersistentBatch.change_blocks``, for a number of changes that only the device knows."""
    plan, table = buffers.plan, buffers.batch.block_table
    entries = table.view(-1)
    # Those past the last change are the last change again, or change nothing.
    change = torch.arange(len(plan.block_rows), device=table.device)
    change = change.minimum((buffers.changes.long() - 1).clamp(min=0))
    places = plan.block_rows[change].long() * table.shape[1] + plan.block_columns[change]
    places = torch.where(buffers.changes > 0, places, 0)
    entries.index_copy_(0, places, torch.where(buffers.changes > 0, plan.block_ids[change], entries[places]))
