"""What the families have in common: parameters, their names in checkpoints, the structure.

The dense families are this and little else; ``moe`` and ``mla`` have the parts that replace some of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from frizzen.layers.attention import Attention
from frizzen.layers.build import BuildContext, Map, NormPlace, Sight
from frizzen.layers.decoder import AttentionLayer, DecoderLayer, FeedForward
from frizzen.layers.kv_scales import decide_kv_scales
from frizzen.layers.mla import LatentAttention
from frizzen.layers.mlp import Mlp
from frizzen.layers.moe import ExpertLoad, MoeLayer
from frizzen.layers.rotary import Rotary
from frizzen.loading.checkpoint import Parameter, Source, Stored
from frizzen.loading.gguf import GgufMetadata
from frizzen.loading.hf_config import HfConfig
from frizzen.loading.quantization import fp8_scheme
from frizzen.models.base import CausalLM
from frizzen.models.config import DecoderConfig, RopeConfig, check_layers

__all__ = ["IGNORED", "build", "decoder_layer", "from_gguf", "from_hf", "halves_apart", "parameters"]

IGNORED = (r"rotary_emb\.inv_freq$",)
"""Old checkpoints carry the rope frequencies, which follow from the configuration."""


def from_hf(
    raw: HfConfig,
    *,
    window: int = 0,
    default_theta: float = 10_000.0,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> DecoderConfig:
    """The keys that all dense families spell alike; what differs comes as an argument.

    Raises:
        UnsupportedModelError: a value that this structure does not compute.
    """
    raw.require("hidden_act", ["silu", "swish"], "silu")
    heads, hidden = raw.integer("num_attention_heads"), raw.integer("hidden_size")
    head_dim = raw.integer("head_dim", hidden // max(heads, 1))
    rope = raw.rope(head_dim, default_theta)
    # Llama 3 configurations state the stretched length, the older rules the trained one.
    length = raw.integer("max_position_embeddings")
    if rope.kind == "linear":
        length = int(length * rope.factor)
    elif rope.kind == "yarn":
        length = max(length, int(rope.original_max_position * rope.factor))
    elif rope.kind == "longrope":
        length = min(length, rope.original_max_position)
    return DecoderConfig(
        architecture=raw.architectures[0],
        vocab_size=raw.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=raw.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=raw.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        rms_eps=raw.number("rms_norm_eps", 1e-6),
        rope=rope,
        max_model_len=length,
        windows=raw.windows(check_layers(raw.integer("num_hidden_layers")), window),
        tied=raw.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        fp8=fp8_scheme(raw),
        eos_token_ids=raw.eos_token_ids(),
    )


def from_gguf(
    meta: GgufMetadata, tied: bool, *, qkv_bias: bool = False, qk_norm: bool = False
) -> DecoderConfig:
    """The keys that all dense families spell alike in GGUF.

    Raises:
        UnsupportedModelError: a value that this structure does not compute.
    """
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    head_dim = meta.integer("attention.key_length", hidden // max(heads, 1))
    length, kind = meta.integer("context_length"), meta.text("rope.scaling.type", "default")
    rope = RopeConfig(
        theta=meta.number("rope.freq_base", 10_000.0),
        rotary_dim=meta.integer("rope.dimension_count", head_dim),
        kind="default" if kind == "none" else kind,
        factor=meta.number("rope.scaling.factor", meta.number("rope.scale_linear", 1.0)) or 1.0,
        original_max_position=meta.integer("rope.scaling.original_context_length", length),
    )
    return DecoderConfig(
        architecture=meta.architecture,
        vocab_size=meta.vocab_size(),
        hidden_size=hidden,
        intermediate_size=meta.integer("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=meta.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_eps=meta.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        max_model_len=length,
        windows=(meta.integer("attention.sliding_window", 0),) * check_layers(meta.integer("block_count")),
        tied=tied,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        eos_token_ids=meta.eos_token_ids(),
    )


def parameters(config: DecoderConfig, *, gguf_interleaved: bool = False) -> list[Parameter]:
    """Every tensor of a model, with its name in either format; a mixture of experts has its own elsewhere.

    ``gguf_interleaved``: the family's GGUF files hold the rows of q and k in the order of interleaved rope
    pairs.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    found = [
        Parameter("embedding", (config.vocab_size, hidden), "model.embed_tokens.weight", "token_embd.weight"),
        *_norm_parameters(Parameter, config, "norm", "model.norm", "output_norm"),
        Parameter("rope_divisors", (config.rope.rotary_dim // 2,), None, "rope_freqs.weight", required=False),
    ]
    if not config.tied:
        found.append(Parameter("lm_head", (config.vocab_size, hidden), "lm_head.weight", "output.weight"))
    if config.head_bias:
        found.append(Parameter("lm_head.bias", (config.vocab_size,), "lm_head.bias", None))
    for layer in range(config.num_layers):
        add = partial(_layer_parameter, layer)
        add_linear = partial(_linear_parameters, add)
        found += [
            *_norm_parameters(add, config, "input_norm", "input_layernorm", "attn_norm"),
            *_norm_parameters(add, config, "mlp_norm", "post_attention_layernorm", "ffn_norm"),
        ]
        if config.mla is None:
            found += _attention_parameters(add, config, gguf_interleaved)
        if config.moe is None or layer not in config.moe.layers:
            found += [
                *add_linear("mlp.gate", (inner, hidden), "mlp.gate_proj", "ffn_gate", config.mlp_bias),
                *add_linear("mlp.up", (inner, hidden), "mlp.up_proj", "ffn_up", config.mlp_bias),
                *add_linear("mlp.down", (hidden, inner), "mlp.down_proj", "ffn_down", config.mlp_bias),
            ]
    return found


def _attention_parameters(
    add: Callable[..., Parameter], config: DecoderConfig, gguf_interleaved: bool
) -> list[Parameter]:
    hidden = config.hidden_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    heads = (config.num_heads, config.num_kv_heads) if gguf_interleaved else (0, 0)
    add_linear = partial(_linear_parameters, add)
    q = add_linear("attention.q", (query, hidden), "self_attn.q_proj", "attn_q", config.qkv_bias, heads[0])
    k = add_linear("attention.k", (key, hidden), "self_attn.k_proj", "attn_k", config.qkv_bias, heads[1])
    if config.interleaved_rope:
        q = [halves_apart(entry, config.num_heads) for entry in q]
        k = [halves_apart(entry, config.num_kv_heads) for entry in k]
    found = [
        *q,
        *k,
        *add_linear("attention.v", (key, hidden), "self_attn.v_proj", "attn_v", config.qkv_bias),
        *add_linear("attention.out", (hidden, query), "self_attn.o_proj", "attn_output", config.output_bias),
    ]
    if config.qk_norm or config.full_qk_norm:
        sizes = (query, key) if config.full_qk_norm else (config.head_dim, config.head_dim)
        found += [
            add("attention.q_norm", sizes[:1], "self_attn.q_norm.weight", "attn_q_norm.weight"),
            add("attention.k_norm", sizes[1:], "self_attn.k_norm.weight", "attn_k_norm.weight"),
        ]
    found += [_kv_scale(add, part) for part in "kv"]
    if config.sinks:
        found.append(add("attention.sinks", (config.num_heads,), "self_attn.sinks", "attn_sinks.weight"))
    return found


def _kv_scale(add: Callable[..., Parameter], part: str) -> Parameter:
    """What keys or values in an FP8 cache are divided by: of the layer, or of its projection."""
    found = add(f"attention.{part}_scale", (1,), f"self_attn.{part}_scale", "")
    names = (f"{part}_proj.{part}_scale", f"{part}_proj.output_scale")
    others = (str(found.hf).replace(f"{part}_scale", name) for name in names)
    sources = tuple(Source((Stored(name, found.shape),)) for name in others)
    return replace(found, gguf=None, required=False, sources=sources)


def halves_apart(parameter: Parameter, heads: int, kept: int = 0) -> Parameter:
    """A parameter whose checkpoints have the two rows of each of a head's rope pairs side by side.

    The first ``kept`` rows of a head stay where they are.
    """
    if parameter.hf is None:
        raise ValueError(f"{parameter.name} has no tensor of its own")
    source = Source((Stored(parameter.hf, parameter.shape),), partial(_halves_apart, heads, kept))
    return replace(parameter, hf=None, sources=(source,))


def _halves_apart(heads: int, kept: int, rows: Tensor) -> Tensor:
    by_head = torch.unflatten(rows, 0, (heads, -1))
    pairs = torch.unflatten(by_head[:, kept:], 1, (-1, 2))
    return torch.cat([by_head[:, :kept], pairs.transpose(1, 2).flatten(1, 2)], dim=1).view(rows.shape)


def _norm_parameters(
    add: Callable[..., Parameter], config: DecoderConfig, name: str, hf: str, gguf: str
) -> list[Parameter]:
    shape = (config.hidden_size,)
    found = [add(name, shape, f"{hf}.weight", f"{gguf}.weight")]
    if config.layer_norm:
        found.append(add(f"{name}.bias", shape, f"{hf}.bias", f"{gguf}.bias"))
    return found


def _layer_parameter(
    layer: int, name: str, shape: tuple[int, ...], hf: str, gguf: str, interleaved_heads: int = 0
) -> Parameter:
    return Parameter(
        f"layers.{layer}.{name}",
        shape,
        f"model.layers.{layer}.{hf}",
        f"blk.{layer}.{gguf}",
        interleaved_heads,
    )


def _linear_parameters(
    add: Callable[..., Parameter],
    name: str,
    shape: tuple[int, int],
    hf: str,
    gguf: str,
    bias: bool,
    interleaved_heads: int = 0,
) -> list[Parameter]:
    found = [add(f"{name}.weight", shape, f"{hf}.weight", f"{gguf}.weight", interleaved_heads)]
    if bias:
        found.append(add(f"{name}.bias", shape[:1], f"{hf}.bias", f"{gguf}.bias", interleaved_heads))
    return found


def build(config: DecoderConfig, context: BuildContext) -> CausalLM:
    """Puts the model together."""
    embed, lm_head = context.embedding_and_head(
        "embedding", None if config.tied else "lm_head", bias=config.head_bias
    )
    divisors = context.take("rope_divisors") if context.weights.has("rope_divisors") else None
    moe = config.moe
    load = ExpertLoad(moe.layers, moe.num_experts, context.device) if moe else None
    decide_kv_scales(context, config.num_layers)
    layers = [decoder_layer(config, context, index, load) for index in range(config.num_layers)]
    return CausalLM(
        config,
        embed=_multiplied(embed, config.embedding_multiplier),
        rotary=Rotary(config.rope, context.device, divisors),
        layers=layers,
        norm=context.norm("final_norm", "norm", config.rms_eps, centred=config.layer_norm),
        lm_head=_multiplied(lm_head, 1 / config.logits_divisor),
        dtype=context.dtype,
        device=context.device,
        block_size=context.block_size,
        expert_load=load,
        streams=context.streams,
    )


def decoder_layer(
    config: DecoderConfig,
    context: BuildContext,
    index: int,
    load: ExpertLoad | None,
    sight: Sight | None = None,
) -> DecoderLayer:
    """Layer ``index``; with a ``sight``, as a draft layer."""
    at_layer = context.at_layer(index)
    attention: AttentionLayer
    if config.mla:
        attention = LatentAttention(at_layer, config, config.mla, sight)
    else:
        attention = Attention(at_layer, config, config.windows[index], sight)
    feed_forward: FeedForward
    norm = NormPlace("mlp_norm", config.rms_eps, config.layer_norm)
    if config.moe and load and index in config.moe.layers:
        feed_forward = MoeLayer(at_layer, config.moe, norm, load)
    else:
        feed_forward = Mlp(at_layer, norm, bias=config.mlp_bias)
    return DecoderLayer(config, attention, feed_forward)


def _multiplied(function: Map, factor: float) -> Map:
    """``function``, whose result is a fresh tensor, times a number."""
    return function if factor == 1 else lambda x: function(x).mul_(factor)
