"""Qwen3-MoE: Qwen3 whose feed-forward networks are experts, in the layers that the configuration names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MoeConfig
from frizzen.models.qwen2 import sliding_window

__all__ = ["FAMILY"]

_NAMES = moe.Names(
    router=("mlp.gate",),
    experts=moe.GATE_UP_DOWN,
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    bias = raw.flag("attention_bias", False)
    base = dense.from_hf(raw, window=sliding_window(raw), qkv_bias=bias, output_bias=bias, qk_norm=True)
    return replace(
        base,
        moe=MoeConfig(
            layers=moe.sparse_layers(raw),
            num_experts=raw.any_integer("num_experts", "num_local_experts"),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=raw.integer("moe_intermediate_size"),
            renormalize=raw.flag("norm_topk_prob", False),
        ),
    )


FAMILY = moe.family("Qwen3MoeForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, _NAMES))
