"""ERNIE-4.5-MoE: a correction for the choice of experts, shared experts, and dense layers at the ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.errors import UnsupportedModelError
from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = ["FAMILY"]

_NAMES = moe.Names(
    router=("mlp.gate",),
    experts=moe.GATE_UP_DOWN,
    correction=(
        "mlp.moe_statics.e_score_correction_bias",
        "mlp.gate.moe_statics.e_score_correction_bias",
    ),
    correction_dim=2,
    shared="mlp.shared_experts",
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    raw.require("use_bias", [False], False)
    base = dense.from_hf(raw, default_theta=5e5)
    size = raw.integer("moe_intermediate_size")
    return replace(
        base,
        interleaved_rope=True,
        moe=MoeConfig(
            layers=_layers(raw, base.num_layers),
            num_experts=raw.integer("moe_num_experts"),
            top_k=raw.integer("moe_k"),
            intermediate_size=size,
            renormalize=True,
            correction=True,
            router_float32=True,
            shared_size=size * raw.integer("moe_num_shared_experts"),
        ),
    )


def _layers(raw: HfConfig, count: int) -> frozenset[int]:
    first, last = raw.integer("moe_layer_start_index"), raw.integer("moe_layer_end_index", -1)
    interval = raw.integer("moe_layer_interval", 1)
    if interval < 1:
        raise UnsupportedModelError(f"{raw.path}: moe_layer_interval is {interval}, expected at least 1")
    last = count - 1 if last == -1 else min(last, count - 1)
    return frozenset(layer for layer in range(first, last + 1) if (layer + 1) % interval == 0)


# Modules that predict further tokens are not read.
FAMILY = moe.family(
    "Ernie4_5_MoeForCausalLM",
    from_hf=_from_hf,
    parameters=partial(moe.parameters, _NAMES),
    ignored=(r"\.mtp_",),
)
