"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = ["FAMILY"]

_NAMES = moe.Names(
    router=("block_sparse_moe.gate", "mlp.gate"),
    experts=moe.W1_W3_W2,
)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    base = dense.from_hf(raw, window=raw.integer("sliding_window", 0), default_theta=1e6)
    return replace(
        base,
        moe=MoeConfig(
            layers=frozenset(range(base.num_layers)),
            num_experts=raw.any_integer("num_local_experts", "num_experts"),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=base.intermediate_size,
            renormalize=True,
        ),
    )


FAMILY = moe.family("MixtralForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, _NAMES))
