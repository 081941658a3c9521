"""Token histories of the rows that use a penalty.

Penalties touch only tokens that occurred, so a step costs the length of the longest history, not the
vocabulary. Rows without penalties hold no slot and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from frizzen.worker.arena import to_device

__all__ = ["HistoryEnds", "TokenHistory"]


@dataclass(frozen=True, slots=True)
class HistoryEnds:
    """Where the histories of ``N`` sampled positions end."""

    samples: torch.Tensor
    """``[N]`` int64, the positions among all that the step samples."""
    slots: torch.Tensor
    """``[N]`` int64."""
    lengths: torch.Tensor
    """``[N]`` int64, in tokens."""
    longest: int
    """The greatest of ``lengths``."""
    drafts: torch.Tensor | None = None
    """``[N, k]`` int64, tokens at the end of each that the history lacks; -1 where there are fewer."""


class TokenHistory:
    """Prompt and output tokens by slot, and how often each token occurred in the output.

    A history's length is always one more than the position of its last token, so the caller knows it without
    asking the device, also for tokens that are still being computed.
    """

    def __init__(self, vocab_size: int, max_length: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        # One column more: the last token of a full context is recorded too.
        self._tokens = torch.zeros(0, max_length + 1, dtype=torch.int64, device=device)
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)

    def admit(self, row: int, tokens: torch.Tensor, prompt_len: int) -> None:
        """Starts the history of ``row``: ``tokens`` int32 ``[n]``, the prompt's ``prompt_len`` first."""
        if row not in self._slots:
            if not self._free:
                self._grow()
            self._slots[row] = self._free.pop()
        slot = self._slots[row]
        tokens = tokens.long()
        self._tokens[slot, : len(tokens)] = tokens
        outputs = tokens[prompt_len:]
        self._counts[slot].zero_().index_add_(0, outputs, torch.ones_like(outputs, dtype=torch.int32))

    def forget(self, row: int) -> None:
        """Ends the history of ``row``, if it has one."""
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._free.append(slot)

    def ends(
        self,
        samples: torch.Tensor,
        rows: Sequence[int],
        lengths: Sequence[int],
        drafts: torch.Tensor | None = None,
    ) -> HistoryEnds:
        """The histories of ``rows``, which have ``lengths`` tokens with their ``drafts``, for ``samples``."""
        slots = to_device([self._slots[row] for row in rows], self._device)
        return HistoryEnds(samples, slots, to_device(lengths, self._device), max(lengths), drafts)

    def penalise(self, logits: torch.Tensor, ends: HistoryEnds, penalties: torch.Tensor) -> None:
        """Applies penalties in place to ``logits`` ``[S, V]`` of the positions of ``ends``.

        ``penalties`` is float32 ``[N, 3]``: presence, frequency, repetition.
        """
        tokens = self._tokens[:, : ends.longest].index_select(0, ends.slots)
        columns = torch.arange(ends.longest, device=self._device)
        known = ends.lengths if ends.drafts is None else ends.lengths - (ends.drafts >= 0).sum(1)
        # Past its end a history repeats its first token: written twice with the same value.
        tokens = torch.where(columns < known[:, None], tokens, tokens[:, :1])
        if ends.drafts is not None:
            tokens = torch.cat([tokens, torch.where(ends.drafts >= 0, ends.drafts, tokens[:, :1])], 1)
        counts = self._counts.view(-1).take(ends.slots[:, None] * self._vocab_size + tokens)
        if ends.drafts is not None:
            for drafts in ends.drafts.unbind(1):
                counts += tokens == drafts[:, None]
        presence, frequency, repetition = penalties.unsqueeze(1).unbind(2)
        flat = logits.view(-1)
        places = ends.samples[:, None] * self._vocab_size + tokens
        values = flat.take(places)
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts + presence * (counts > 0)
        flat.scatter_(0, places.view(-1), values.view(-1))

    def append(self, ends: HistoryEnds, tokens: torch.Tensor, kept: torch.Tensor | None = None) -> None:
        """Appends to each history its own of the step's ``tokens`` ``[S]``, if ``kept`` ``[S]``."""
        tokens = tokens[ends.samples]
        # Tokens that do not count stand past the history's new end, where the next ones overwrite them.
        self._tokens[ends.slots, ends.lengths] = tokens
        ones = torch.ones_like(tokens) if kept is None else kept[ends.samples]
        places = ends.slots * self._vocab_size + tokens
        self._counts.view(-1).index_add_(0, places, ones.int())

    def _grow(self) -> None:
        old = len(self._tokens)
        new = max(8, old)
        for name in ("_tokens", "_counts"):
            table: torch.Tensor = getattr(self, name)
            setattr(self, name, torch.cat([table, table.new_zeros(new, table.shape[1])]))
        self._free.extend(reversed(range(old, old + new)))
