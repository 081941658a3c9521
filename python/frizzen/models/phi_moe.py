"""Phi-3.5-MoE: layer norms, biases, and a router that weighs each of its two experts by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = ["FAMILY"]

_NAMES = moe.Names(
    router=("block_sparse_moe.gate", "mlp.router"),
    experts=moe.W1_W3_W2,
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    raw.require("num_experts_per_tok", [2], 2)
    bias = raw.flag("attention_bias", False)
    base = dense.from_hf(
        raw,
        window=raw.integer("sliding_window", 0),
        default_theta=1e6,
        qkv_bias=bias,
        output_bias=bias,
    )
    return replace(
        base,
        layer_norm=True,
        head_bias=raw.flag("lm_head_bias", False),
        moe=MoeConfig(
            layers=frozenset(range(base.num_layers)),
            num_experts=raw.integer("num_local_experts"),
            top_k=2,
            intermediate_size=base.intermediate_size,
            jitter=raw.number("router_jitter_noise", 0.01),
        ),
    )


FAMILY = moe.family(
    "PhimoeForCausalLM", "PhiMoEForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, _NAMES)
)
