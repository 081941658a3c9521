"""One pre-norm decoder layer."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from frizzen.kernels.native import LayerKernels
from frizzen.kernels.ops import StepKernel
from frizzen.models.config import DecoderConfig
from frizzen.step import StepContext

__all__ = ["AttentionLayer", "DecoderLayer", "FeedForward"]


class AttentionLayer(Protocol):
    """The first half of a layer: over keys and values of every head, or over latent vectors."""

    @property
    def kernel(self) -> StepKernel:
        """What attends; layers with the same one share its preparation of a step."""

    def allocate_kv(self, num_blocks: int) -> None:
        """Makes the cache in the kernel's layout; an earlier one is dropped."""

    def kernels(self) -> tuple[object, object, object, object, object] | None:
        """Norm, projection in, rotation, attention, projection out; None if the layer is not just these."""

    def write(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The first part of ``forward``, which stores keys and values; returns queries and residual."""

    def forward(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, slots: Tensor, state: Any
    ) -> tuple[Tensor, Tensor | None]:
        """``x [T, H]``, added to ``residual`` and normed, -> ``[T, H]``, a fresh tensor; and the residual.

        The updated residual is the tensor that was given, a fresh one, or ``x`` if there was none; it is None
        if the layer has added its output to it, and returns the sum. ``state`` is what the kernel made of the
        step.
        """


class FeedForward(Protocol):
    """The second half of a layer, dense or a mixture of experts."""

    def kernels(self) -> tuple[object, object, object] | None:
        """Norm, gated product, product back; None if the layer is not just these."""

    def forward(self, x: Tensor, residual: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """As the attention's, but nothing is added up; ``valid`` is the step's."""


class DecoderLayer:
    """Attention and feed-forward, each of which norms what came before, added to the residual stream.

    The norm belongs to the half that it opens, because the kernel that follows may do it on the way.
    """

    def __init__(self, config: DecoderConfig, attention: AttentionLayer, feed_forward: FeedForward) -> None:
        self.attention = attention
        self._feed_forward = feed_forward
        self._multiplier = config.residual_multiplier

    def kernels(self) -> LayerKernels | None:
        """All that the layer is, in order, if it is no more than kernels; bound by ``allocate_kv``."""
        attention, feed_forward = self.attention.kernels(), self._feed_forward.kernels()
        if attention is None or feed_forward is None or self._multiplier != 1:
            return None
        return LayerKernels(*attention, *feed_forward)

    def forward(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, step: StepContext, state: Any
    ) -> tuple[Tensor, Tensor]:
        """``x [T, H]`` of the layer before, and the residual stream without it (None in the first layer).

        Returns the same two of this layer.
        """
        attended, residual = self.attention.forward(x, residual, cos, sin, step.slots, state)
        if self._multiplier != 1:
            attended.mul_(self._multiplier)
        x, residual = self._feed_forward.forward(attended, residual, step.valid)
        return (x if self._multiplier == 1 else x.mul_(self._multiplier)), residual
