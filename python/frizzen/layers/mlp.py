"""The gated feed-forward network."""

from __future__ import annotations

from torch import Tensor

from frizzen.layers.build import BuildContext

__all__ = ["GatedMlp"]


class GatedMlp:
    """``down(silu(gate(x)) * up(x))``; gate and up are one product."""

    def __init__(self, context: BuildContext, *, bias: bool) -> None:
        self._gate_up = context.linear_silu_mul("gate_up", "mlp.gate", "mlp.up", bias=bias)
        self._down = context.linear("down", "mlp.down", bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, H]`` -> ``[T, H]``."""
        return self._down(self._gate_up(x))
