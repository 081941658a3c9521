"""Per-request rules about single tokens: bias, allowed, suppressed until ``min_tokens``, scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from frizzen.worker.arena import Rule, to_device

__all__ = ["TokenRules"]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules of one row. Token ids are int64 tensors on the device; an absent kind is ``None``."""

    allowed: torch.Tensor | None
    biased: torch.Tensor | None
    bias: torch.Tensor | None
    suppressed: torch.Tensor | None
    scored: torch.Tensor | None
    """Tokens whose log-probabilities are reported; they change no logit."""
    suppressed_until: int
    """Position from which the suppressed tokens may be sampled: prompt length plus ``min_tokens``."""

    @classmethod
    def build(
        cls,
        kinds: Sequence[int],
        tokens: Sequence[int],
        values: Sequence[float],
        suppressed_until: int,
        device: torch.device,
    ) -> TokenRules:
        """Sorts one row's rules, given as columns, by kind."""

        def of(kind: Rule, column: Sequence[float], dtype: torch.dtype) -> torch.Tensor | None:
            chosen = [value for value, other in zip(column, kinds, strict=True) if other == kind]
            return to_device(chosen, device, dtype) if chosen else None

        return cls(
            allowed=of(Rule.ALLOW, tokens, torch.int64),
            biased=of(Rule.BIAS, tokens, torch.int64),
            bias=of(Rule.BIAS, values, torch.float32),
            suppressed=of(Rule.SUPPRESS, tokens, torch.int64),
            scored=of(Rule.SCORE, tokens, torch.int64),
            suppressed_until=suppressed_until,
        )

    @property
    def change_logits(self) -> bool:
        """Whether :meth:`apply` can do anything."""
        return any(kind is not None for kind in (self.allowed, self.biased, self.suppressed))

    def apply(self, logits: torch.Tensor, position: int) -> None:
        """Applies the rules in place to ``logits`` ``[V]`` of the token that will stand at ``position``."""
        if self.allowed is not None:
            kept = logits.index_select(0, self.allowed)
            logits.fill_(-torch.inf).index_copy_(0, self.allowed, kept)
        if self.biased is not None and self.bias is not None:
            logits.index_add_(0, self.biased, self.bias)
        if self.suppressed is not None and position < self.suppressed_until:
            logits.index_fill_(0, self.suppressed, -torch.inf)
