"""GLM-4.5 and GLM-4.6: grouped-query attention with half of each head rotated, DeepSeek-V3's experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig
from frizzen.models.deepseek_v3 import NAMES, experts

__all__ = ["FAMILY"]


def _from_hf(raw: HfConfig) -> DecoderConfig:
    base = dense.from_hf(
        replace(raw, values={"partial_rotary_factor": 0.5, **raw.values}),
        qkv_bias=raw.flag("attention_bias", False),
        qk_norm=raw.flag("use_qk_norm", False),
    )
    return replace(
        base,
        moe=experts(raw, base.num_layers),
        extra_layers=raw.integer("num_nextn_predict_layers", 0),
    )


FAMILY = moe.family("Glm4MoeForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, NAMES))
