"""What the families with latent attention (DeepSeek) have in common: its configuration and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from frizzen.loading.checkpoint import Parameter
from frizzen.loading.hf_config import HfConfig, yarn_temperature
from frizzen.models import dense, moe
from frizzen.models.config import DecoderConfig, MlaConfig

__all__ = ["from_hf", "parameters"]


def from_hf(raw: HfConfig, *, interleaved: bool) -> DecoderConfig:
    """A dense decoder with latent attention; ``interleaved`` as ``DecoderConfig.interleaved_rope``.

    Raises:
        UnsupportedModelError: a value that this structure does not compute.
    """
    raw.require("attention_bias", [False], False)
    rope_dim, nope_dim = raw.integer("qk_rope_head_dim"), raw.integer("qk_nope_head_dim")
    base = dense.from_hf(raw.replaced(head_dim=rope_dim))
    scale = (nope_dim + rope_dim) ** -0.5
    if base.rope.kind == "yarn":
        # Queries and keys are each multiplied by it, rotated part or not, so it goes into their product.
        weight = raw.with_rope().number("mscale_all_dim", 0.0)
        scale *= yarn_temperature(base.rope.factor, weight) ** 2
    return replace(
        base,
        interleaved_rope=interleaved,
        mla=MlaConfig(
            query_rank=raw.integer("q_lora_rank", 0),
            latent_dim=raw.integer("kv_lora_rank"),
            nope_dim=nope_dim,
            rope_dim=rope_dim,
            value_dim=raw.integer("v_head_dim"),
            scale=scale,
        ),
    )


def parameters(names: moe.Names, config: DecoderConfig) -> list[Parameter]:
    """Every tensor of a model."""
    found = [*dense.parameters(config), *moe.feed_forward_parameters(names, config)]
    for layer in range(config.num_layers):
        found += _attention_parameters(config, layer)
    return found


def _attention_parameters(config: DecoderConfig, layer: int) -> Iterator[Parameter]:
    mla, hidden, heads = config.mla, config.hidden_size, config.num_heads
    if mla is None:
        return

    def add(name: str, shape: tuple[int, ...], hf: str) -> Parameter:
        return Parameter(
            f"layers.{layer}.attention.{name}", shape, f"model.layers.{layer}.self_attn.{hf}", None
        )

    def add_rotated(name: str, shape: tuple[int, ...], hf: str, heads: int, kept: int) -> Parameter:
        parameter = add(name, shape, hf)
        return dense.halves_apart(parameter, heads, kept) if config.interleaved_rope else parameter

    query = heads * (mla.nope_dim + mla.rope_dim)
    rank, latent = mla.query_rank, mla.latent_dim
    if rank:
        yield add("q_a.weight", (rank, hidden), "q_a_proj.weight")
        yield add("q_norm", (rank,), "q_a_layernorm.weight")
        yield add_rotated("q_b.weight", (query, rank), "q_b_proj.weight", heads, mla.nope_dim)
    else:
        yield add_rotated("q.weight", (query, hidden), "q_proj.weight", heads, mla.nope_dim)
    down = (latent + mla.rope_dim, hidden)
    yield add_rotated("kv_a.weight", down, "kv_a_proj_with_mqa.weight", 1, latent)
    yield add("kv_norm", (latent,), "kv_a_layernorm.weight")
    yield add("kv_b.weight", (heads * (mla.nope_dim + mla.value_dim), latent), "kv_b_proj.weight")
    yield add("out.weight", (hidden, heads * mla.value_dim), "o_proj.weight")
