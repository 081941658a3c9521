"""Scales of the keys and values in an FP8 cache, folded into the constants around it.

A checkpoint may say that its cache is to hold ``k / s`` and ``v / t``, so that large keys and values fit. No
step computes with these numbers: queries become larger, keys and values smaller where they are made, and what
attention returns becomes larger in the product after it. ``s`` and ``t`` are rounded up to powers of two, and
these change nothing of a number but its exponent: what is cached is as exact as with the scale itself, and
everything else is as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.errors import UnsupportedModelError
from frizzen.layers.build import BuildContext, Gains
from frizzen.models.config import DecoderConfig

__all__ = ["KvScales", "decide_kv_scales"]

_NAMES = ("attention.k_scale", "attention.v_scale")


@dataclass(frozen=True, slots=True)
class KvScales:
    """Of one layer: ``[1]`` float32 each."""

    key: Tensor
    value: Tensor

    @classmethod
    def of(cls, context: BuildContext, config: DecoderConfig) -> KvScales | None:
        """None without scales, or for a cache that holds the model's own type.

        Raises:
            UnsupportedModelError: what is between a projection and the cache does not go with a scale.
        """
        if context.kv_dtype == "auto" or not any(map(context.has, _NAMES)):
            return None
        if config.full_qk_norm or config.clip_qkv:
            raise UnsupportedModelError(
                f"kv_cache_dtype is {context.kv_dtype} and the checkpoint has scales for it, which do not go "
                f"with the norms over all heads or the clipping of {config.architecture}: use auto"
            )
        one = torch.ones(1, device=context.device)
        found = (context.take(name, dtype=torch.float32) if context.has(name) else one for name in _NAMES)
        # What is not above zero was never set.
        usable = (torch.where(scale > 0, scale, one) for scale in found)
        return cls(*(torch.exp2(torch.ceil(torch.log2(scale))) for scale in usable))

    def of_qkv(self, config: DecoderConfig) -> Gains:
        """For the projection in; where heads are normed, keys and queries have their gains in the norms."""
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        one = torch.ones_like(self.key)
        up, down = (one, one) if config.qk_norm else (self.key, 1 / self.key)
        return Gains(torch.cat([up.expand(query), down.expand(key), (1 / self.value).expand(key)]))

    def of_out(self) -> Gains:
        """For the projection out."""
        return Gains(self.value, outputs=False)


def decide_kv_scales(context: BuildContext, layers: int) -> None:
    """Writes down in the plan what becomes of a checkpoint's scales, if it has any."""
    if not any(context.at_layer(layer).has(name) for layer in range(layers) for name in _NAMES):
        return
    if context.kv_dtype == "auto":
        context.plan.decide("kv_scales", "unused", "the cache holds the model's own type")
    else:
        context.plan.decide("kv_scales", "folded", "rounded up to powers of two, into the projections")
