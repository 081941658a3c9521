"""gpt-oss: attention sinks, every other layer with a window, experts with biases and a clamped activation.

Published checkpoints hold the experts' matrices in MXFP4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from frizzen.loading.checkpoint import Source, Stored
from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MoeConfig, check_layers
from frizzen.quantize import mxfp4

__all__ = ["FAMILY"]

_EXPERTS = "mlp.experts."


def _rows(part: moe.ExpertPart) -> tuple[str, int, Callable[[Tensor], Tensor]]:
    """A stored tensor's name, its number of outputs, and one expert's outputs of it ``[E, outputs, ...]``.

    The rows of gate and up take turns.
    """
    if part.matrix == "down":
        return "down_proj", part.hidden, lambda tensor: tensor[part.expert]
    first = 0 if part.matrix == "gate" else 1
    return "gate_up_proj", 2 * part.inner, lambda tensor: tensor[part.expert, first::2]


def _plain(part: moe.ExpertPart) -> Source:
    """Matrices ``[E, in, out]``, and all biases ``[E, out]``."""
    name, outputs, rows = _rows(part)
    if part.kind == "bias":
        return Source((Stored(f"{part.prefix}{_EXPERTS}{name}_bias", (part.experts, outputs), rows),))
    shape = (part.experts, part.shape[1], outputs)
    stored = f"{part.prefix}{_EXPERTS}{name}"
    return Source((Stored(stored, shape, lambda tensor: rows(tensor.transpose(1, 2))),))


def _packed(part: moe.ExpertPart) -> Source:
    """Matrices ``[E, out, in]``: blocks of 32 inputs, and their scales."""
    if part.kind == "bias":
        return _plain(part)
    name, outputs, rows = _rows(part)
    shape = (part.experts, outputs, part.shape[1] // mxfp4.BLOCK)
    stored = f"{part.prefix}{_EXPERTS}{name}"
    return Source(
        (
            Stored(f"{stored}_blocks", (*shape, mxfp4.BLOCK // 2), rows, packed=True),
            Stored(f"{stored}_scales", shape, rows, packed=True),
        ),
        mxfp4.dequantize,
    )


_NAMES = moe.Names(router=("mlp.router",), experts=(_packed, _plain))


def _from_hf(raw: HfConfig) -> DecoderConfig:
    quantization = raw.values.get("quantization_config") or {}
    replace(raw, values=quantization).require("quant_method", ["mxfp4", None])
    bias, layers = raw.flag("attention_bias", True), check_layers(raw.integer("num_hidden_layers"))
    alternating = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    base = dense.from_hf(
        raw.replaced(quantization_config=None, layer_types=raw.values.get("layer_types") or alternating),
        window=raw.integer("sliding_window", 0),
        default_theta=150_000.0,
        qkv_bias=bias,
        output_bias=bias,
    )
    return replace(
        base,
        sinks=True,
        mxfp4=quantization.get("quant_method") == "mxfp4",
        moe=MoeConfig(
            layers=frozenset(range(base.num_layers)),
            num_experts=raw.any_integer("num_local_experts", "num_experts"),
            top_k=raw.any_integer("num_experts_per_tok", "experts_per_token"),
            intermediate_size=base.intermediate_size,
            # A softmax over the chosen logits is the softmax over all, divided by the sum of the chosen.
            renormalize=True,
            router_bias=True,
            expert_bias=True,
            clamp=raw.number("swiglu_limit", 7.0),
            alpha=raw.number("swiglu_alpha", 1.702),
            beta=1.0,
        ),
    )


FAMILY = moe.family("GptOssForCausalLM", from_hf=_from_hf, parameters=partial(moe.parameters, _NAMES))
