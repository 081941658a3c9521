"""The gated feed-forward network."""

from __future__ import annotations

from torch import Tensor

from frizzen.layers.build import BuildContext

__all__ = ["GatedMlp"]


class GatedMlp:
    """``down(silu(gate(x)) * up(x))``; gate and up are one product.

    ``name`` is what its parameters are called, ``site`` goes before its places in the plan.
    """

    def __init__(self, context: BuildContext, *, bias: bool, name: str = "mlp", site: str = "") -> None:
        self._gate_up = context.linear_silu_mul(f"{site}gate_up", f"{name}.gate", f"{name}.up", bias=bias)
        self._down = context.linear(f"{site}down", f"{name}.down", bias=bias)

    def kernels(self) -> tuple[object, object] | None:
        """Gated product, product back."""
        return self._gate_up, self._down

    def forward(self, x: Tensor) -> Tensor:
        """``[T, H]`` -> ``[T, H]``."""
        return self._down(self._gate_up(x))
