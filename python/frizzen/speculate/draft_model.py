"""A smaller model as drafter: an ordinary decoder over the same text, one pass per draft."""

from __future__ import annotations

import torch

from frizzen.models.base import CausalLM
from frizzen.speculate.drafter import Asked, Choose, Proposed, Seen

__all__ = ["DraftModel"]


class DraftModel:
    """Drafts with a causal language model that has the target's vocabulary.

    Its keys at position p depend on the tokens up to p, as any decoder's do.
    """

    name = "draft_model"
    taps: tuple[int, ...] = ()
    has_confidence = False

    def __init__(self, model: CausalLM, max_drafts: int) -> None:
        self._model = model
        self.reach = max_drafts

    def bytes_per_token(self) -> int:
        """All layers of the draft model."""
        return self._model.kv_bytes_per_token()

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """The draft model's cache."""
        self._model.allocate_kv(num_blocks, block_size)

    def advance(self, seen: Seen, asked: Asked | None, choose: Choose, count: int) -> Proposed | None:
        """The step's tokens again, by the smaller model; then one token after the other."""
        self._model.forward(seen.ids, seen.step)
        if asked is None:
            return None
        tokens, drafts = asked.tokens, []
        for place in range(count):
            hidden = self._model.forward(tokens, asked.step(place, 1))
            tokens = choose(self._model.logits(hidden), place)
            drafts.append(tokens)
        return Proposed(torch.stack(drafts, 1))
