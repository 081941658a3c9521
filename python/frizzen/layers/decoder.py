"""One pre-norm decoder layer."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from frizzen.kernels.native import LayerKernels
from frizzen.kernels.ops import StepKernel
from frizzen.layers.build import BuildContext
from frizzen.models.config import DecoderConfig

__all__ = ["AttentionLayer", "DecoderLayer", "FeedForward"]


class AttentionLayer(Protocol):
    """The first half of a layer: over keys and values of every head, or over latent vectors."""

    @property
    def kernel(self) -> StepKernel:
        """What attends; layers with the same one share its preparation of a step."""

    def allocate_kv(self, num_blocks: int) -> None:
        """Makes the cache in the kernel's layout; an earlier one is dropped."""

    def kernels(self) -> tuple[object, object, object, object] | None:
        """Projection in, rotation, attention, projection out; None if the layer is more than these."""

    def write(self, x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> Tensor:
        """The first part of ``forward``, which stores keys and values; returns the queries."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: Any) -> Tensor:
        """``x [T, H]`` -> ``[T, H]``, a fresh tensor; ``state`` is what the kernel made of the step."""


class FeedForward(Protocol):
    """The second half of a layer, dense or a mixture of experts."""

    def kernels(self) -> tuple[object, object] | None:
        """Gated product, product back; None if the layer is more than these."""

    def forward(self, x: Tensor) -> Tensor:
        """``[T, H]`` -> ``[T, H]``, a fresh tensor."""


class DecoderLayer:
    """Attention and feed-forward, each behind a norm that adds what came before to the residual stream."""

    def __init__(
        self,
        context: BuildContext,
        config: DecoderConfig,
        attention: AttentionLayer,
        feed_forward: FeedForward,
    ) -> None:
        self.attention = attention
        self._feed_forward = feed_forward
        self._multiplier = config.residual_multiplier
        self._input_norm, self._mlp_norm = (
            context.norm(name, name, config.rms_eps, centred=config.layer_norm)
            for name in ("input_norm", "mlp_norm")
        )

    def kernels(self) -> LayerKernels | None:
        """All that the layer is, in order, if it is no more than kernels; bound by ``allocate_kv``."""
        attention, feed_forward = self.attention.kernels(), self._feed_forward.kernels()
        if attention is None or feed_forward is None or self._multiplier != 1:
            return None
        return LayerKernels(self._input_norm, *attention, self._mlp_norm, *feed_forward)

    def write(self, residual: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
        """Stores keys and values of a stream ``[T, H]`` and computes nothing else."""
        self.attention.write(self._input_norm(residual, None), cos, sin, slots)

    def forward(
        self, x: Tensor | None, residual: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: Any
    ) -> Tensor:
        """Adds ``x [T, H]``, the layer before's output (None in the first), to ``residual`` in place."""
        normed = self._input_norm(residual, None) if x is None else self._input_norm(x, residual)
        attended = self.attention.forward(normed, cos, sin, slots, state)
        if self._multiplier != 1:
            attended.mul_(self._multiplier)
        x = self._feed_forward.forward(self._mlp_norm(attended, residual))
        return x if self._multiplier == 1 else x.mul_(self._multiplier)
