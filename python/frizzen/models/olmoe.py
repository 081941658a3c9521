"""OLMoE: norms over all heads of q and of k, values optionally clipped, experts in every layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = ["FAMILY"]

_NAMES = moe.Names(
    router=("mlp.gate",),
    experts=moe.GATE_UP_DOWN,
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    bias = raw.flag("attention_bias", False)
    base = dense.from_hf(raw, qkv_bias=bias, output_bias=bias)
    return replace(
        base,
        full_qk_norm=True,
        clip_qkv=raw.number("clip_qkv", 0.0),
        moe=MoeConfig(
            layers=frozenset(range(base.num_layers)),
            num_experts=raw.any_integer("num_experts", "num_local_experts"),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=base.intermediate_size,
            renormalize=raw.flag("norm_topk_prob", False),
        ),
    )


FAMILY = moe.family("OlmoeForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, _NAMES))
