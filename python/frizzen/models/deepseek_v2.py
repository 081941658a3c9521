"""DeepSeek-V2 and V2-Lite: latent attention, groups of experts by their best member, shared experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import mla, moe
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = ["FAMILY"]

_NAMES = moe.Names(
    router=("mlp.gate",),
    experts=moe.GATE_UP_DOWN,
    shared="mlp.shared_experts",
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    raw.require("topk_method", ["greedy", "group_limited_greedy"], "greedy")
    raw.require("scoring_func", ["softmax"], "softmax")
    raw.require("moe_layer_freq", [1], 1)
    raw.require("norm_topk_prob", [False], False)
    raw.require("mlp_bias", [False], False)
    base = mla.from_hf(raw, interleaved=True)
    size = raw.integer("moe_intermediate_size")
    grouped = raw.values.get("topk_method") == "group_limited_greedy"
    return replace(
        base,
        moe=MoeConfig(
            layers=frozenset(range(raw.integer("first_k_dense_replace"), base.num_layers)),
            num_experts=raw.integer("n_routed_experts"),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=size,
            scaling=raw.number("routed_scaling_factor"),
            groups=raw.integer("n_group") if grouped else 1,
            top_groups=raw.integer("topk_group") if grouped else 1,
            shared_size=size * raw.integer("n_shared_experts", 0),
        ),
    )


FAMILY = moe.family("DeepseekV2ForCausalLM", from_hf=_from_hf, parameters=partial(mla.parameters, _NAMES))
