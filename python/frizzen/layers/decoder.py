"""One pre-norm decoder layer."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from frizzen.layers.attention import Attention
from frizzen.layers.build import BuildContext

__all__ = ["DecoderLayer", "FeedForward"]


class FeedForward(Protocol):
    """The second half of a layer, dense or a mixture of experts."""

    def forward(self, x: Tensor) -> Tensor:
        """``[T, H]`` -> ``[T, H]``."""


class DecoderLayer:
    """Attention and feed-forward, each behind a norm that adds what came before to the residual stream."""

    def __init__(
        self, context: BuildContext, attention: Attention, feed_forward: FeedForward, rms_eps: float
    ) -> None:
        self.attention = attention
        self._feed_forward = feed_forward
        self._input_norm = context.norm("input_norm", "input_norm", rms_eps)
        self._mlp_norm = context.norm("mlp_norm", "mlp_norm", rms_eps)

    def forward(
        self, x: Tensor | None, residual: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: Any
    ) -> Tensor:
        """Adds ``x [T, H]``, the layer before's output (None in the first), to ``residual`` in place."""
        normed = self._input_norm(residual, None) if x is None else self._input_norm(x, residual)
        attended = self.attention.forward(normed, cos, sin, slots, state)
        return self._feed_forward.forward(self._mlp_norm(attended, residual))
