"""What the dense families have in common: parameters, their names in checkpoints, the structure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from frizzen.layers.attention import Attention
from frizzen.layers.build import BuildContext
from frizzen.layers.decoder import DecoderLayer
from frizzen.layers.mlp import GatedMlp
from frizzen.layers.rotary import Rotary
from frizzen.loading.checkpoint import Parameter
from frizzen.loading.gguf import GgufMetadata
from frizzen.loading.hf_config import HfConfig
from frizzen.models.base import CausalLM
from frizzen.models.config import DenseConfig, RopeConfig, check_layers

__all__ = ["IGNORED", "build", "from_gguf", "from_hf", "parameters"]

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
) -> DenseConfig:
    """The keys that all dense families spell alike; what differs comes as an argument.

    Raises:
        UnsupportedModelError: a value that this structure does not compute.
    """
    raw.require("hidden_act", ["silu", "swish"], "silu")
    raw.require("quantization_config", [None])
    heads, hidden = raw.integer("num_attention_heads"), raw.integer("hidden_size")
    head_dim = raw.integer("head_dim", hidden // max(heads, 1))
    rope = raw.rope(head_dim, default_theta)
    # Llama 3 configurations state the stretched length, the older rules the trained one.
    length = raw.integer("max_position_embeddings")
    if rope.kind == "linear":
        length = int(length * rope.factor)
    elif rope.kind == "yarn":
        length = max(length, int(rope.original_max_position * rope.factor))
    return DenseConfig(
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
        eos_token_ids=raw.eos_token_ids(),
    )


def from_gguf(
    meta: GgufMetadata, tied: bool, *, qkv_bias: bool = False, qk_norm: bool = False
) -> DenseConfig:
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
    return DenseConfig(
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


def parameters(config: DenseConfig, *, gguf_interleaved: bool = False) -> list[Parameter]:
    """Every tensor of a model, with its name in either format.

    ``gguf_interleaved``: the family's GGUF files hold the rows of q and k in the order of interleaved rope
    pairs.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    found = [
        Parameter("embedding", (config.vocab_size, hidden), "model.embed_tokens.weight", "token_embd.weight"),
        Parameter("norm", (hidden,), "model.norm.weight", "output_norm.weight"),
        Parameter("rope_divisors", (config.rope.rotary_dim // 2,), None, "rope_freqs.weight", required=False),
    ]
    if not config.tied:
        found.append(Parameter("lm_head", (config.vocab_size, hidden), "lm_head.weight", "output.weight"))
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    heads = (config.num_heads, config.num_kv_heads) if gguf_interleaved else (0, 0)
    for layer in range(config.num_layers):
        add = partial(_layer_parameter, layer)
        add_linear = partial(_linear_parameters, add)
        found += [
            add("input_norm", (hidden,), "input_layernorm.weight", "attn_norm.weight"),
            add("mlp_norm", (hidden,), "post_attention_layernorm.weight", "ffn_norm.weight"),
            *add_linear(
                "attention.q", (query, hidden), "self_attn.q_proj", "attn_q", config.qkv_bias, heads[0]
            ),
            *add_linear(
                "attention.k", (key, hidden), "self_attn.k_proj", "attn_k", config.qkv_bias, heads[1]
            ),
            *add_linear("attention.v", (key, hidden), "self_attn.v_proj", "attn_v", config.qkv_bias),
            *add_linear(
                "attention.out", (hidden, query), "self_attn.o_proj", "attn_output", config.output_bias
            ),
            *add_linear("mlp.gate", (inner, hidden), "mlp.gate_proj", "ffn_gate", config.mlp_bias),
            *add_linear("mlp.up", (inner, hidden), "mlp.up_proj", "ffn_up", config.mlp_bias),
            *add_linear("mlp.down", (hidden, inner), "mlp.down_proj", "ffn_down", config.mlp_bias),
        ]
        if config.qk_norm:
            found += [
                add("attention.q_norm", (config.head_dim,), "self_attn.q_norm.weight", "attn_q_norm.weight"),
                add("attention.k_norm", (config.head_dim,), "self_attn.k_norm.weight", "attn_k_norm.weight"),
            ]
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


def build(config: DenseConfig, context: BuildContext) -> CausalLM:
    """Puts the model together."""
    embed, lm_head = context.embedding_and_head("embedding", None if config.tied else "lm_head")
    divisors = context.take("rope_divisors") if context.weights.has("rope_divisors") else None
    layers = []
    for index, window in enumerate(config.windows):
        at_layer = context.at_layer(index)
        attention = Attention(at_layer, config, window)
        mlp = GatedMlp(at_layer, bias=config.mlp_bias)
        layers.append(DecoderLayer(at_layer, attention, mlp, config.rms_eps))
    return CausalLM(
        config,
        embed=embed,
        rotary=Rotary(config.rope, context.device, divisors),
        layers=layers,
        norm=context.norm("final_norm", "norm", config.rms_eps),
        lm_head=lm_head,
        dtype=context.dtype,
        device=context.device,
        block_size=context.block_size,
    )
