"""DeepSeek-V3, R1 and their like: V2's structure with sigmoid scores and a correction for the choice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import mla, moe
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = ["FAMILY", "NAMES", "experts"]

NAMES = moe.Names(
    router=("mlp.gate",),
    experts=moe.GATE_UP_DOWN,
    correction=("mlp.gate.e_score_correction_bias",),
    shared="mlp.shared_experts",
)


def experts(raw: HfConfig, num_layers: int) -> MoeConfig:
    """Sigmoid scores, groups by the sum of their best two, shared experts, dense layers first."""
    raw.require("topk_method", ["noaux_tc"], "noaux_tc")
    raw.require("scoring_func", ["sigmoid"], "sigmoid")
    raw.require("moe_layer_freq", [1], 1)
    size = raw.integer("moe_intermediate_size")
    return MoeConfig(
        layers=frozenset(range(raw.integer("first_k_dense_replace"), num_layers)),
        num_experts=raw.any_integer("n_routed_experts", "num_local_experts"),
        top_k=raw.integer("num_experts_per_tok"),
        intermediate_size=size,
        scoring="sigmoid",
        renormalize=raw.flag("norm_topk_prob", True),
        scaling=raw.number("routed_scaling_factor"),
        groups=raw.integer("n_group"),
        top_groups=raw.integer("topk_group"),
        correction=True,
        shared_size=size * raw.integer("n_shared_experts", 0),
    )


def _from_hf(raw: HfConfig) -> DecoderConfig:
    base = mla.from_hf(raw, interleaved=raw.flag("rope_interleave", True))
    return replace(
        base,
        moe=experts(raw, base.num_layers),
        extra_layers=raw.integer("num_nextn_predict_layers", 0),
    )


FAMILY = moe.family("DeepseekV3ForCausalLM", from_hf=_from_hf, parameters=partial(mla.parameters, NAMES))
