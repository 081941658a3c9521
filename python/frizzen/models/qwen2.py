"""Qwen2 and Qwen2.5, dense: biases on q, k and v; a sliding window in the layers that ask for it."""

from __future__ import annotations

from functools import partial

from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense
from frizzen.models.base import Family
from frizzen.models.config import DecoderConfig

__all__ = ["FAMILY", "sliding_window"]


def sliding_window(raw: HfConfig) -> int:
    """The window in tokens, 0 if the configuration turns it off.

    Raises:
        UnsupportedModelError: it starts at some layer by ``max_window_layers`` and ``layer_types`` does not
        say which.
    """
    if not raw.flag("use_sliding_window", False):
        return 0
    if "layer_types" not in raw.values:
        raw.require("max_window_layers", [0], 0)
    return raw.integer("sliding_window", 0)


def _from_hf(raw: HfConfig) -> DecoderConfig:
    return dense.from_hf(raw, window=sliding_window(raw), qkv_bias=True)


FAMILY = Family(
    architectures=("Qwen2ForCausalLM",),
    gguf_architectures=("qwen2",),
    from_hf=_from_hf,
    from_gguf=partial(dense.from_gguf, qkv_bias=True),
    parameters=dense.parameters,
    build=dense.build,
    ignored=dense.IGNORED,
)
