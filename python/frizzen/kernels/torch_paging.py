"""How the candidates of torch's operators read a paged cache: rows of one token together, others singly.

On a CPU, shapes follow the rows' lengths. Elsewhere they follow what the host knows of the step, so that
nothing waits for the device and the step can be captured: every row is as long as the longest, and what does
not exist is masked on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.step import StepContext

__all__ = ["LongRow", "PaddedRow", "Paging", "Rows", "SingleRows"]


@dataclass(frozen=True, slots=True)
class SingleRows:
    """The rows of one token, as one batch padded to the longest context among them."""

    count: int
    blocks: Tensor
    """``[count * blocks]``, the block table in one line."""
    stale: Tensor
    """Gathered positions past their row's context, as indices or as a mask of all positions. They are zeroed:
    a NaN there would survive the mask."""
    mask: Tensor
    """``[count, 1, 1, positions]``, 0 or -inf."""

    def gather(self, data: Tensor, dtype: torch.dtype) -> Tensor:
        """``data [blocks, block_size, ...]`` -> ``[count, positions, ...]`` of ``dtype``."""
        gathered = data.index_select(0, self.blocks).flatten(0, 1).to(dtype)
        _clear(gathered, self.stale)
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

    def gather(self, data: Tensor, dtype: torch.dtype) -> Tensor:
        """``data [blocks, block_size, ...]`` -> ``[context, ...]`` of ``dtype``."""
        return data.index_select(0, self.blocks).flatten(0, 1)[: self.context].to(dtype)


@dataclass(frozen=True, slots=True)
class PaddedRow:
    """A row of an unknown number of tokens, as long as the longest of its step."""

    tokens: Tensor
    """``[Q]`` int64, the tokens of its queries; past its last one, any."""
    places: Tensor
    """``[Q]`` int64, where results go: past its last one, behind the step's last token."""
    blocks: Tensor
    """``[columns]`` int64."""
    start: Tensor
    """The position of its first token."""
    context: Tensor
    window: int
    block_size: int
    dtype: torch.dtype

    @property
    def mask(self) -> Tensor:
        """``[Q, positions]``: 0, or a number so low that a key counts nothing."""
        query = self.start + torch.arange(len(self.tokens), device=self.blocks.device).unsqueeze(1)
        key = self._positions()
        hidden = (key > query) | (key >= self.context)
        if self.window:
            hidden |= key <= query - self.window
        return _bias(hidden, self.dtype)

    def gather(self, data: Tensor, dtype: torch.dtype) -> Tensor:
        """``data [blocks, block_size, ...]`` -> ``[positions, ...]`` of ``dtype``."""
        gathered = data.index_select(0, self.blocks).flatten(0, 1).to(dtype)
        _clear(gathered, self._positions() >= self.context)
        return gathered

    def _positions(self) -> Tensor:
        return torch.arange(len(self.blocks) * self.block_size, device=self.blocks.device)


def _clear(gathered: Tensor, stale: Tensor) -> None:
    """Zeroes positions, which are given as indices or as a mask."""
    if stale.dtype == torch.bool:
        gathered.masked_fill_(stale.view(-1, *(1,) * (gathered.dim() - 1)), 0)
    else:
        gathered.index_fill_(0, stale, 0)


def _bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Not minus infinity: a query without any key would get NaN."""
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return bias.masked_fill_(hidden, torch.finfo(dtype).min)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step."""

    single: SingleRows | None
    long: tuple[LongRow, ...] = ()
    padded: tuple[PaddedRow, ...] = ()

    def attend(
        self,
        queries: Tensor,
        attend_single: Callable[[Tensor, SingleRows], Tensor],
        attend_long: Callable[[Tensor, LongRow | PaddedRow], Tensor],
    ) -> Tensor:
        """``queries [T, ...]`` -> what the functions make of their rows, ``[T, ...]``."""
        parts = []
        if self.single is not None:
            parts.append(attend_single(queries[: self.single.count], self.single))
        parts += [attend_long(queries[row.first : row.last], row) for row in self.long]
        if not self.padded:
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        results = [attend_long(queries.index_select(0, row.tokens), row) for row in self.padded]
        # One row more, for the results of queries that do not exist.
        out = queries.new_empty(len(queries) + 1, results[0].shape[1])
        for row, result in zip(self.padded, results, strict=True):
            out.index_copy_(0, row.places, result)
        if parts:
            out[: len(parts[0])] = parts[0]
        return out[:-1]


@dataclass(frozen=True, slots=True)
class Paging:
    """Makes the index tensors and masks of a step."""

    block_size: int
    window: int
    dtype: torch.dtype
    """Of the masks."""
    masked: bool = False
    """Whether every row needs its mask spelled out."""

    def rows(self, step: StepContext, *, padded: bool | None = None) -> Rows:
        """``padded``: shapes by what the host knows; None is everywhere but on a CPU."""
        if padded is None:
            padded = step.seq_lens.device.type != "cpu"
        if padded:
            several = range(step.num_single, step.num_rows)
            return Rows(self._padded_singles(step), (), tuple(self._padded_row(step, row) for row in several))
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

    def _padded_singles(self, step: StepContext) -> SingleRows | None:
        count = step.num_single
        if count == 0:
            return None
        blocks = step.block_table[:count, : -(-step.max_context // self.block_size)].long()
        position = torch.arange(blocks.shape[1] * self.block_size, device=blocks.device)
        context = step.seq_lens[:count].unsqueeze(1)
        stale = position >= context
        hidden = stale | (position < context - self.window) if self.window else stale
        bias = _bias(hidden, self.dtype)[:, None, None]
        return SingleRows(count, blocks.flatten(), stale.flatten(), bias)

    def _padded_row(self, step: StepContext, row: int) -> PaddedRow:
        blocks = step.block_table[row, : -(-step.max_context // self.block_size)].long()
        first, last, context = step.query_start[row], step.query_start[row + 1], step.seq_lens[row]
        token = first + torch.arange(step.max_query, device=blocks.device)
        return PaddedRow(
            tokens=token.clamp(max=step.num_tokens - 1),
            places=torch.where(token < last, token, step.num_tokens),
            blocks=blocks,
            start=context - (last - first),
            context=context,
            window=self.window,
            block_size=self.block_size,
            dtype=self.dtype,
        )

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
