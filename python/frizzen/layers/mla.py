"""Multi-head latent attention over a paged cache of latent vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frizzen.errors import UnsupportedModelError
from frizzen.kernels.draft_ops import ATTENTION_DRAFT_MLA
from frizzen.kernels.facts import ShapeValue
from frizzen.kernels.mla_ops import ATTENTION_MLA, ROPE_MLA, LatentAttend, LatentAttentionKernel, LatentRope
from frizzen.layers.build import BuildContext, Map, NormPlace, Sight
from frizzen.models.config import DecoderConfig, MlaConfig

__all__ = ["LatentAttention"]

_NORM_EPS = 1e-6
"""Of the latent vectors' norms: a constant of the architecture, not the configuration's."""


class LatentAttention:
    """Norm, projections to latent vectors, norm and rotation with cache write, attention, projection out.

    Unusable until :meth:`allocate_kv` has bound a cache. With a ``sight``, it is a draft layer's.
    """

    def __init__(
        self, context: BuildContext, config: DecoderConfig, mla: MlaConfig, sight: Sight | None = None
    ) -> None:
        if context.kv_dtype != "auto":
            raise UnsupportedModelError(
                f"kv_cache_dtype is {context.kv_dtype}, latent attention has a cache of auto only"
            )
        sizes = {"heads": config.num_heads, "nope_dim": mla.nope_dim, "rope_dim": mla.rope_dim}
        latent_dim = mla.latent_dim
        query_width = config.num_heads * (mla.nope_dim + mla.rope_dim)
        self._split = [mla.query_rank or query_width, latent_dim + mla.rope_dim]
        self._query: Map | None = None
        before = NormPlace("input_norm", config.rms_eps, config.layer_norm)
        if mla.query_rank:
            self._down = context.normed_linear(
                before, "latent", "attention.q_a", "attention.kv_a", bias=False
            )
            norm = context.norm("q_norm", "attention.q_norm", _NORM_EPS)
            up = context.linear("q", "attention.q_b", bias=False)
            self._query = lambda x: up(norm(x, None))
        else:
            self._down = context.normed_linear(
                before, "q_latent", "attention.q", "attention.kv_a", bias=False
            )
        self._kv_norm = context.take("attention.kv_norm")
        self._expansion = context.take("attention.kv_b.weight")
        self.kernel = _kernel(context, config, mla, sight)
        self._rope_kernel = context.plan.resolve(
            ROPE_MLA,
            context.dtype,
            site="attention",
            layer=context.layer,
            latent_dim=latent_dim,
            **sizes,
        )
        self._out = context.linear("attention_out", "attention.out", bias=False)
        self._device = context.device
        self._rope: LatentRope = _without_cache
        self._attend: LatentAttend = _without_cache

    def allocate_kv(self, num_blocks: int) -> None:
        """Makes the cache in the attention kernel's layout; an earlier one is dropped."""
        cache = self.kernel.allocate(num_blocks, self._device)
        self._rope = self._rope_kernel.prepare(cache, self._kv_norm, _NORM_EPS)
        self._attend = self.kernel.prepare(cache, self._expansion)

    def kernels(self) -> tuple[object, object, object, object, object] | None:
        """None: nothing runs such a layer in one call."""
        return None

    def write(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``decoder.AttentionLayer``."""
        latents, residual = self._down(x, residual)
        q, kv = torch.split(latents, self._split, dim=1)
        if self._query is not None:
            q = self._query(q)
        self._rope(q, kv, cos, sin, slots)
        return q, residual

    def forward(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, slots: Tensor, state: Any
    ) -> tuple[Tensor, Tensor]:
        """See ``decoder.AttentionLayer``."""
        queries, residual = self.write(x, residual, cos, sin, slots)
        return self._out(self._attend(queries, state)), residual


def _kernel(
    context: BuildContext, config: DecoderConfig, mla: MlaConfig, sight: Sight | None
) -> LatentAttentionKernel:
    facts: dict[str, ShapeValue] = {
        "heads": config.num_heads,
        "nope_dim": mla.nope_dim,
        "rope_dim": mla.rope_dim,
        "value_dim": mla.value_dim,
        "latent_dim": mla.latent_dim,
        "scale": mla.scale,
        "block_size": context.block_size,
    }
    site, layer = "attention", context.layer
    if sight is None:
        return context.plan.resolve(ATTENTION_MLA, context.dtype, site=site, layer=layer, **facts)
    return context.plan.resolve(
        ATTENTION_DRAFT_MLA, context.dtype, site=site, layer=layer, **facts, first=sight.first
    )


def _without_cache(*_: Any) -> Any:
    raise RuntimeError("allocate_kv must be called before the first forward")
