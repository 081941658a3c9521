"""Grouped-query self-attention over a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from frizzen.kernels.draft_ops import ATTENTION_DRAFT
from frizzen.kernels.facts import ShapeValue
from frizzen.kernels.ops import ATTENTION_PAGED, ROPE, PagedAttentionKernel
from frizzen.layers.build import BuildContext, Norm, Normed, NormedMap, NormPlace, Sight
from frizzen.layers.kv_scales import KvScales
from frizzen.models.config import DecoderConfig

__all__ = ["Attention"]


class Attention:
    """Norm, projections in, rotation with cache write, attention, projection out.

    Unusable until :meth:`allocate_kv` has bound a cache. With a ``sight``, it is a draft layer's.
    """

    def __init__(
        self, context: BuildContext, config: DecoderConfig, window: int, sight: Sight | None = None
    ) -> None:
        plan, dtype, layer = context.plan, context.dtype, context.layer
        heads = {"heads": config.num_heads, "kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
        scales = KvScales.of(context, config) if sight is None else None
        self._qkv = _projection(context, config, sight, scales)
        self._full_norms = _full_norms(context, config) if config.full_qk_norm else ()
        self._clip = config.clip_qkv
        self._q_norm = context.take("attention.q_norm") if config.qk_norm else None
        self._k_norm = context.take("attention.k_norm") if config.qk_norm else None
        if scales is not None and self._q_norm is not None and self._k_norm is not None:
            self._q_norm.mul_(scales.key.to(dtype))
            self._k_norm.div_(scales.key.to(dtype))
        self._eps = config.rms_eps
        self.kernel = _kernel(context, config, window, sight)
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
        self._sinks = context.take("attention.sinks") if config.sinks else None
        out_gains = None if scales is None else scales.of_out()
        self._out, self._add_out = context.added_linear(
            "attention_out", "attention.out", bias=config.output_bias, gains=out_gains
        )
        self._adds = config.residual_multiplier == 1
        self._device = context.device
        self._rope: Callable[[Tensor, Tensor, Tensor, Tensor], None] = _without_cache
        self._attend: Callable[[Tensor, Any], Tensor] = _without_cache
        self._turn_and_attend: Callable[[Tensor, Tensor, Tensor, Tensor, Any], Tensor] = _without_cache

    def allocate_kv(self, num_blocks: int) -> None:
        """Makes the cache in the attention kernel's layout; an earlier one is dropped."""
        cache = self.kernel.allocate(num_blocks, self._device)
        self._rope = self._rope_kernel.prepare(cache, self._q_norm, self._k_norm, self._eps)
        self._attend = self.kernel.prepare(cache, self._sinks)
        self._turn_and_attend = self._apart
        # As with norms: the attention kernel may do what the rotation named in the plan is equal to.
        if isinstance(self._rope_kernel, getattr(self.kernel, "turns", ())):
            norms = self._q_norm, self._k_norm, self._eps
            fold = getattr(self.kernel, "prepare_turned")  # noqa: B009
            self._turn_and_attend = fold(self._rope_kernel, cache, norms, self._sinks)

    @property
    def norm(self) -> Norm:
        """The norm before the projection, of draft layers only."""
        if not isinstance(self._qkv, Normed):
            raise TypeError("the norm is part of the projection: only a draft layer has it apart")
        return self._qkv.norm

    def kernels(self) -> tuple[object, object, object, object, object] | None:
        """Norm, projection in, rotation, attention, projection out; None if the layer is not just these."""
        if self._full_norms or self._clip or not isinstance(self._qkv, Normed):
            return None
        return self._qkv.norm, self._qkv.linear, self._rope, self._attend, self._out

    def write(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``decoder.AttentionLayer``."""
        qkv, residual = self._qkv(x, residual)
        return self._store(qkv, cos, sin, slots), residual

    def write_normed(self, x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> Tensor:
        """As ``write``, of ``x [T, H]`` that is normed already; of draft layers only."""
        if not isinstance(self._qkv, Normed):
            raise TypeError("the norm is part of the projection: only a draft layer is without")
        return self._store(self._qkv.linear(x), cos, sin, slots)

    def read(self, queries: Tensor, state: Any) -> Tensor:
        """What ``write`` returned -> ``[T, H]``; ``state`` is what the kernel made of the step."""
        return self._out(self._attend(queries, state))

    def forward(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, slots: Tensor, state: Any
    ) -> tuple[Tensor, Tensor | None]:
        """See ``decoder.AttentionLayer``."""
        qkv, residual = self._qkv(x, residual)
        self._bound(qkv)
        attended = self._turn_and_attend(qkv, cos, sin, slots, state)
        return self._add_out(attended, residual) if self._adds else (self._out(attended), residual)

    def _apart(self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: Any) -> Tensor:
        """Rotation, then attention: two launches."""
        self._rope(qkv, cos, sin, slots)
        return self._attend(qkv, state)

    def _store(self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> Tensor:
        self._bound(qkv)
        self._rope(qkv, cos, sin, slots)
        return qkv

    def _bound(self, qkv: Tensor) -> None:
        """Norms over all heads, and the clip, of models that have them; in place."""
        for place, norm in self._full_norms:
            qkv[:, place] = norm(qkv[:, place], None)
        if self._clip:
            qkv.clamp_(-self._clip, self._clip)


def _projection(
    context: BuildContext, config: DecoderConfig, sight: Sight | None, scales: KvScales | None
) -> NormedMap:
    names, place = (
        ("attention.q", "attention.k", "attention.v"),
        NormPlace("input_norm", config.rms_eps, config.layer_norm),
    )
    if sight is None:
        gains = None if scales is None else scales.of_qkv(config)
        return context.normed_linear(place, "qkv", *names, bias=config.qkv_bias, gains=gains)
    # What a draft layer stores does not always come through its norm, so the two stay apart.
    norm = context.norm(place.name, place.name, place.eps, centred=place.centred)
    return Normed(norm, context.linear("qkv", *names, bias=config.qkv_bias))


def _kernel(
    context: BuildContext, config: DecoderConfig, window: int, sight: Sight | None
) -> PagedAttentionKernel:
    facts: dict[str, ShapeValue] = {
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "scale": config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale,
        "window": window,
        "block_size": context.block_size,
    }
    site, layer = "attention", context.layer
    if sight is None:
        return context.plan.resolve(
            ATTENTION_PAGED,
            context.dtype,
            site=site,
            layer=layer,
            **facts,
            sinks=config.sinks,
            kv_dtype=context.kv_dtype,
        )
    return context.plan.resolve(
        ATTENTION_DRAFT,
        context.dtype,
        site=site,
        layer=layer,
        **facts,
        causal=sight.causal,
        first=sight.first,
    )


def _full_norms(context: BuildContext, config: DecoderConfig) -> tuple[tuple[slice, Norm], ...]:
    """Norms over all heads of q and over those of k, with their places in qkv."""
    query = config.num_heads * config.head_dim
    key = query + config.num_kv_heads * config.head_dim
    return (
        (slice(0, query), context.norm("q_norm", "attention.q_norm", config.rms_eps)),
        (slice(query, key), context.norm("k_norm", "attention.k_norm", config.rms_eps)),
    )


def _without_cache(*_: Any) -> Any:
    raise RuntimeError("allocate_kv must be called before the first forward")
