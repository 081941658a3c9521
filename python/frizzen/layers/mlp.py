"""The gated feed-forward network."""

from __future__ import annotations

from torch import Tensor

from frizzen.layers.build import BuildContext, Normed, NormPlace

__all__ = ["GatedMlp", "Mlp"]


class GatedMlp:
    """``down(silu(gate(x)) * up(x))``; gate and up are one product.

    ``name`` is what its parameters are called, ``site`` goes before its places in the plan.
    """

    def __init__(self, context: BuildContext, *, bias: bool, name: str, site: str = "") -> None:
        self._gate_up = context.linear_silu_mul(f"{site}gate_up", f"{name}.gate", f"{name}.up", bias=bias)
        self._down = context.linear(f"{site}down", f"{name}.down", bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, H]`` -> ``[T, H]``."""
        return self._down(self._gate_up(x))


class Mlp:
    """The feed-forward half of a dense layer: norm and gated network."""

    def __init__(self, context: BuildContext, norm: NormPlace, *, bias: bool) -> None:
        self._gate_up = context.normed_linear_silu_mul(norm, "gate_up", "mlp.gate", "mlp.up", bias=bias)
        self._down = context.linear("down", "mlp.down", bias=bias)

    def kernels(self) -> tuple[object, object, object] | None:
        """Norm, gated product, product back; None if two of them are one."""
        if not isinstance(self._gate_up, Normed):
            return None
        return self._gate_up.norm, self._gate_up.linear, self._down

    def forward(self, x: Tensor, residual: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """See ``decoder.FeedForward``; padding is computed like every other token."""
        y, residual = self._gate_up(x, residual)
        return self._down(y), residual
