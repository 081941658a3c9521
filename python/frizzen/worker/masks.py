"""Masks of allowed tokens: bits on the host's side, minus infinity in the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["TokenMasks"]


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The masks of ``R`` of a step's sampled positions."""

    samples: Sequence[int]
    """The positions that have one, ascending."""
    index: torch.Tensor
    """The same on the device, ``[R]`` int64."""
    words: torch.Tensor
    """``[R, ceil(V / 32)]`` int32; bit ``id % 32`` of word ``id // 32`` is set where the token is allowed."""

    def apply(self, logits: torch.Tensor) -> None:
        """Forbids every other token, in place, in ``logits`` float32 ``[S, V]``."""
        forbidden = self._forbidden(logits.shape[1])
        if len(self.samples) == len(logits):
            logits.masked_fill_(forbidden, -torch.inf)
        else:
            masked = logits.index_select(0, self.index).masked_fill_(forbidden, -torch.inf)
            logits.index_copy_(0, self.index, masked)

    def _forbidden(self, vocab_size: int) -> torch.Tensor:
        """``[R, V]`` bool."""
        bits = torch.arange(32, dtype=torch.int32, device=self.words.device)
        unpacked = (self.words.unsqueeze(-1) >> bits) & 1
        return unpacked.flatten(1)[:, :vocab_size] == 0
