"""What the layers of a model see of a step: which tokens, whose they are, where their KV goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["StepContext"]


@dataclass(slots=True)
class StepContext:
    """One step of ``T`` tokens in ``B`` rows; row ``b`` owns tokens ``query_start[b]:query_start[b + 1]``.

    Rows of exactly one token come first (``num_single`` of them): they are the plain decodes. All tensors are
    on the model's device.
    """

    positions: torch.Tensor
    """``[T]`` int64, position of each token within its request."""
    slots: torch.Tensor
    """``[T]`` int64, KV slot of each token: block id times block size plus offset."""
    query_start: torch.Tensor
    """``[B + 1]`` int32, exclusive prefix sum of the rows' token counts."""
    seq_lens: torch.Tensor
    """``[B]`` int32, context length of each row, this step's tokens included."""
    block_table: torch.Tensor
    """``[B, blocks]`` int32, the blocks of each row's context in order; past it 0, or blocks of the row that
    drafts once filled."""
    num_rows: int
    num_single: int
    num_tokens: int
    max_query: int
    """Longest row of the step, in tokens."""
    max_context: int
    """Longest context of the step, its own tokens included."""
    valid: torch.Tensor | None = None
    """``[1]`` int32, how many of the tokens are real; those after them are padding, and no expert is to see
    them. ``None``: all are."""
    segments: torch.Tensor | None = None
    """``[T]`` int64, 0 or 1: which text of a pair each token is of. Only for models that pool."""
