"""Qwen3, dense: an RMS norm on each head of q and k, and a head size of its own."""

from __future__ import annotations

from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense
from frizzen.models.base import Family
from frizzen.models.config import DecoderConfig
from frizzen.models.qwen2 import sliding_window

__all__ = ["FAMILY"]


def _from_hf(raw: HfConfig) -> DecoderConfig:
    bias = raw.flag("attention_bias", False)
    return dense.from_hf(raw, window=sliding_window(raw), qkv_bias=bias, output_bias=bias, qk_norm=True)


FAMILY = Family(
    architectures=("Qwen3ForCausalLM",),
    gguf_architectures=("qwen3",),
    from_hf=_from_hf,
    from_gguf=partial(dense.from_gguf, qk_norm=True),
    parameters=dense.parameters,
    build=dense.build,
    ignored=dense.IGNORED,
)
