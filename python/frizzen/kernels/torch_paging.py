"""How the candidates of torch's operators read a paged cache: rows of one token together, others singly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.step import StepContext

__all__ = ["LongRow", "Paging", "Rows", "SingleRows"]


@dataclass(frozen=True, slots=True)
class SingleRows:
    """The rows of one token, as one batch padded to the longest context among them."""

    count: int
    blocks: Tensor
    """``[count * blocks]``, the block table in one line."""
    stale: Tensor
    """Gathered positions past their row's context. They are zeroed: a NaN there would survive the mask."""
    mask: Tensor
    """``[count, 1, 1, positions]``, 0 or -inf."""

    def gather(self, data: Tensor, dtype: torch.dtype) -> Tensor:
        """``data [blocks, block_size, ...]`` -> ``[count, positions, ...]`` of ``dtype``."""
        gathered = data.index_select(0, self.blocks).flatten(0, 1).to(dtype)
        gathered.index_fill_(0, self.stale, 0)
        return gathered.view(self.count, -1, *data.shape[2:])


@dataclass(frozen=True, slots=True)
class LongRow:
    """A row of several tokens."""

    first: int
    last: int
    context: int
    blocks: Tensor
    mask: Tensor | None
    """``[tokens, context]``, or None where plain causality from position 0 says it all."""

    def gather(self, data: Tensor) -> Tensor:
        """``data [blocks, block_size, ...]`` -> ``[context, ...]``."""
        return data.index_select(0, self.blocks).flatten(0, 1)[: self.context]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step."""

    single: SingleRows | None
    long: tuple[LongRow, ...]

    def attend(
        self,
        queries: Tensor,
        attend_single: Callable[[Tensor, SingleRows], Tensor],
        attend_long: Callable[[Tensor, LongRow], Tensor],
    ) -> Tensor:
        """``queries [T, ...]`` -> what the functions make of their rows, ``[T, ...]``."""
        parts = []
        if self.single is not None:
            parts.append(attend_single(queries[: self.single.count], self.single))
        parts += [attend_long(queries[row.first : row.last], row) for row in self.long]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, slots=True)
class Paging:
    """Makes the index tensors and masks of a step."""

    block_size: int
    window: int
    dtype: torch.dtype
    """Of the masks."""
    masked: bool = False
    """Whether every row needs its mask spelled out."""

    def rows(self, step: StepContext) -> Rows:
        """Waits for the device: the shapes depend on the rows' lengths."""
        starts, contexts = step.query_start.tolist(), step.seq_lens.tolist()
        long = tuple(
            self._long_row(step, row, starts[row], starts[row + 1], contexts[row])
            for row in range(step.num_single, step.num_rows)
        )
        return Rows(self._single_rows(step, max(contexts[: step.num_single], default=0)), long)

    def _single_rows(self, step: StepContext, longest: int) -> SingleRows | None:
        count = step.num_single
        if count == 0:
            return None
        blocks = step.block_table[:count, : -(-longest // self.block_size)].long()
        position = torch.arange(blocks.shape[1] * self.block_size, device=blocks.device)
        context = step.seq_lens[:count].unsqueeze(1)
        stale = position >= context
        hidden = stale | (position < context - self.window) if self.window else stale
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=blocks.device).masked_fill_(
            hidden, -torch.inf
        )
        return SingleRows(count, blocks.flatten(), stale.flatten().nonzero().squeeze(1), mask[:, None, None])

    def _long_row(self, step: StepContext, row: int, first: int, last: int, context: int) -> LongRow:
        blocks = step.block_table[row, : -(-context // self.block_size)].long()
        tokens, mask = last - first, None
        if self.masked or tokens < context or 0 < self.window < context:
            query = torch.arange(context - tokens, context, device=blocks.device).unsqueeze(1)
            key = torch.arange(context, device=blocks.device)
            hidden = key > query
            if self.window:
                hidden |= key <= query - self.window
            mask = torch.zeros(tokens, context, dtype=self.dtype, device=blocks.device)
            mask.masked_fill_(hidden, -torch.inf)
        return LongRow(first, last, context, blocks, mask)
