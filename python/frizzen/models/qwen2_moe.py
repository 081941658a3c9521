"""Qwen2-MoE and Qwen1.5-MoE: Qwen2 with experts, and a shared expert behind a gate of its own."""

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
    shared="mlp.shared_expert",
    shared_gate="mlp.shared_expert_gate",
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    base = dense.from_hf(raw, window=sliding_window(raw), qkv_bias=raw.flag("qkv_bias", True))
    return replace(
        base,
        moe=MoeConfig(
            layers=moe.sparse_layers(raw),
            num_experts=raw.integer("num_experts"),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=raw.integer("moe_intermediate_size"),
            renormalize=raw.flag("norm_topk_prob", False),
            shared_size=raw.integer("shared_expert_intermediate_size"),
            shared_gate=True,
        ),
    )


FAMILY = moe.family("Qwen2MoeForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, _NAMES))
