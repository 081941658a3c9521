"""A step cut into parts whose rows have one token each: every kind of draft layer takes those.

Each token becomes a row of its own with the context up to itself. Parts follow each other in the order of
the tokens, and a layer stores a part's entries before it reads, so a token sees those before it in its step.
Sizes follow from what the host knows of a step: nothing waits for the device. The price is that the tokens of
a row do not share the reading of their context.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from frizzen.step import StepContext

__all__ = ["known", "singles"]

_TOKENS = 256
"""Of a part: bounds the memory for contexts that are gathered."""


def singles(step: StepContext) -> Iterator[tuple[slice, StepContext]]:
    """Which of the step's tokens a part holds, and the part."""
    tokens = torch.arange(step.num_tokens, dtype=torch.int32, device=step.positions.device)
    # Padding may come after the last row; its slots are of the null block.
    rows = torch.searchsorted(step.query_start[1:], tokens, right=True).clamp_(max=step.num_rows - 1)
    for first in range(0, step.num_tokens, _TOKENS):
        within = slice(first, min(first + _TOKENS, step.num_tokens))
        count = within.stop - first
        yield (
            within,
            StepContext(
                positions=step.positions[within],
                slots=step.slots[within],
                query_start=torch.arange(count + 1, dtype=torch.int32, device=rows.device),
                seq_lens=step.positions[within].int() + 1,
                block_table=step.block_table.index_select(0, rows[within]),
                num_rows=count,
                num_single=count,
                num_tokens=count,
                max_query=1,
                max_context=step.max_context,
            ),
        )


def known(states: Tensor, positions: Tensor, first: int) -> Tensor:
    """``states [T, H]``, 0 before slot ``first``: a layer that sees no earlier slot saw nothing there."""
    return states.masked_fill((positions < first)[:, None], 0)
