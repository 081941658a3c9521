"""Grouped-query self-attention over a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from frizzen.kernels.ops import ATTENTION_PAGED, ROPE
from frizzen.layers.build import BuildContext
from frizzen.models.config import DenseConfig

__all__ = ["Attention"]


class Attention:
    """Projections in, rotation with cache write, attention, projection out.

    Unusable until :meth:`allocate_kv` has bound a cache.
    """

    def __init__(self, context: BuildContext, config: DenseConfig, window: int) -> None:
        plan, dtype, layer = context.plan, context.dtype, context.layer
        heads = {"heads": config.num_heads, "kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
        self._qkv = context.linear("qkv", "attention.q", "attention.k", "attention.v", bias=config.qkv_bias)
        self._q_norm = context.take("attention.q_norm") if config.qk_norm else None
        self._k_norm = context.take("attention.k_norm") if config.qk_norm else None
        self._eps = config.rms_eps
        self.kernel = plan.resolve(
            ATTENTION_PAGED,
            dtype,
            site="attention",
            layer=layer,
            scale=config.head_dim**-0.5,
            window=window,
            block_size=context.block_size,
            **heads,
        )
        self._rope_kernel = plan.resolve(
            ROPE,
            dtype,
            site="attention",
            layer=layer,
            rotary_dim=config.rope.rotary_dim,
            qk_norm=config.qk_norm,
            layout=self.kernel.layout,
            **heads,
        )
        self._out = context.linear("attention_out", "attention.out", bias=config.output_bias)
        self._device = context.device
        self._rope: Callable[[Tensor, Tensor, Tensor, Tensor], None] = _without_cache
        self._attend: Callable[[Tensor, Any], Tensor] = _without_cache

    def allocate_kv(self, num_blocks: int) -> None:
        """Makes the cache in the attention kernel's layout; an earlier one is dropped."""
        cache = self.kernel.allocate(num_blocks, self._device)
        self._rope = self._rope_kernel.prepare(cache, self._q_norm, self._k_norm, self._eps)
        self._attend = self.kernel.prepare(cache)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: Any) -> Tensor:
        """``x [T, H]`` -> ``[T, H]``; ``state`` is what the kernel made of the step."""
        qkv = self._qkv(x)
        self._rope(qkv, cos, sin, slots)
        return self._out(self._attend(qkv, state))


def _without_cache(*_: Any) -> Any:
    raise RuntimeError("allocate_kv must be called before the first forward")
