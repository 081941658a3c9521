"""Llama 2, Llama 3 and what shares their structure (SmolLM2)."""

from __future__ import annotations

from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense
from frizzen.models.base import Family
from frizzen.models.config import DecoderConfig

__all__ = ["FAMILY"]


def _from_hf(raw: HfConfig) -> DecoderConfig:
    bias = raw.flag("attention_bias", False)
    return dense.from_hf(raw, qkv_bias=bias, output_bias=bias, mlp_bias=raw.flag("mlp_bias", False))


FAMILY = Family(
    architectures=("LlamaForCausalLM",),
    gguf_architectures=("llama",),
    from_hf=_from_hf,
    from_gguf=dense.from_gguf,
    parameters=partial(dense.parameters, gguf_interleaved=True),
    build=dense.build,
    ignored=dense.IGNORED,
)
