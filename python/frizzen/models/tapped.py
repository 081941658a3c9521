"""A model whose drafter reads the residual stream inside it: one tensor per step, so a graph serves it."""

from __future__ import annotations

import torch

from frizzen.layers.moe import ExpertLoad
from frizzen.models.base import CausalLM
from frizzen.step import StepContext

__all__ = ["TappedModel"]


class TappedModel:
    """Like its model, but a step gives ``[T, (1 + taps) * H]``: hidden states, what enters ``layers``."""

    def __init__(self, model: CausalLM, layers: tuple[int, ...]) -> None:
        self._model = model
        self._layers = layers

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See ``CausalLM.forward_tapped``."""
        hidden, taps = self._model.forward_tapped(input_ids, step, self._layers)
        return torch.cat([hidden, *taps], dim=1)

    @property
    def expert_load(self) -> ExpertLoad | None:
        """The model's."""
        return self._model.expert_load

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of hidden states alone."""
        return self._model.logits(hidden)
