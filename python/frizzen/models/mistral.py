"""Mistral: Llama's structure with a sliding window. Its GGUF files say that they are Llama's."""

from __future__ import annotations

from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense
from frizzen.models.base import Family
from frizzen.models.config import DecoderConfig

__all__ = ["FAMILY"]


def _from_hf(raw: HfConfig) -> DecoderConfig:
    return dense.from_hf(raw, window=raw.integer("sliding_window", 0))


FAMILY = Family(
    architectures=("MistralForCausalLM",),
    gguf_architectures=(),
    from_hf=_from_hf,
    from_gguf=dense.from_gguf,
    parameters=partial(dense.parameters, gguf_interleaved=True),
    build=dense.build,
    ignored=dense.IGNORED,
)
