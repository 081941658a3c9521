"""Granite-MoE: Llama's attention with multipliers, experts in every layer, stored together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = ["FAMILY"]

_NAMES = moe.Names(
    router=("block_sparse_moe.router.layer", "block_sparse_moe.router"),
    experts=(
        moe.fused("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
        moe.fused("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
    ),
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    bias = raw.flag("attention_bias", False)
    base = dense.from_hf(raw, qkv_bias=bias, output_bias=bias)
    return replace(
        base,
        attention_scale=raw.number("attention_multiplier", 1.0),
        embedding_multiplier=raw.number("embedding_multiplier", 1.0),
        residual_multiplier=raw.number("residual_multiplier", 1.0),
        logits_divisor=raw.number("logits_scaling", 1.0),
        moe=MoeConfig(
            layers=frozenset(range(base.num_layers)),
            num_experts=raw.integer("num_local_experts"),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=base.intermediate_size,
            # A softmax over the chosen logits is the softmax over all, divided by the sum of the chosen.
            renormalize=True,
        ),
    )


FAMILY = moe.family("GraniteMoeForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, _NAMES))
