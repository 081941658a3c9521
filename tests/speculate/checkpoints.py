"""Tiny random checkpoints of drafters, beside the tiny models of ``tests.conftest``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

__all__ = ["VOCAB", "with_mtp", "write_dspark", "write_eagle3"]

VOCAB, HIDDEN = 320, 64
HEADS, KV_HEADS, HEAD_DIM, INNER = 4, 2, 16, 96


class Maker:
    """Draws tensors, larger than trained ones, so that everything matters for the next token."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}

    def matrix(self, name: str, *shape: int, std: float = 0.15) -> None:
        self.tensors[name] = torch.randn(shape, generator=self.generator) * std

    def norm(self, name: str, size: int) -> None:
        self.tensors[name] = 1 + 0.2 * torch.randn(size, generator=self.generator)

    def layer(self, prefix: str, columns: int, *, qk_norm: bool) -> None:
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            self.matrix(f"{prefix}self_attn.{name}_proj.weight", rows, columns)
        self.matrix(f"{prefix}self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
        if qk_norm:
            self.norm(f"{prefix}self_attn.q_norm.weight", HEAD_DIM)
            self.norm(f"{prefix}self_attn.k_norm.weight", HEAD_DIM)
        self.matrix(f"{prefix}mlp.gate_proj.weight", INNER, HIDDEN)
        self.matrix(f"{prefix}mlp.up_proj.weight", INNER, HIDDEN)
        self.matrix(f"{prefix}mlp.down_proj.weight", HIDDEN, INNER)
        self.norm(f"{prefix}input_layernorm.weight", HIDDEN)
        self.norm(f"{prefix}post_attention_layernorm.weight", HIDDEN)

    def map_to(self, rows: int) -> None:
        """A vocabulary of ``rows`` of the target's tokens."""
        chosen = torch.randperm(VOCAB, generator=self.generator)[:rows].sort().values
        self.tensors["d2t"] = chosen - torch.arange(rows)
        self.tensors["t2d"] = torch.isin(torch.arange(VOCAB), chosen)

    def write(self, path: Path, config: dict[str, Any]) -> Path:
        path.mkdir(parents=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in self.tensors.items()}, path / "model.safetensors"
        )
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return path


LAYER = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
}


def write_eagle3(
    path: Path,
    *,
    taps: tuple[int, ...] = (0, 1, 2),
    draft_vocab: int = 200,
    speculators: bool = False,
    own_embedding: bool = False,
    norm_before_residual: bool = False,
    layers: int = 1,
    target_hidden: int = HIDDEN,
    seed: int = 1,
    **changes: Any,
) -> Path:
    """In the layout of the authors' checkpoints, or of the ``speculators`` library."""
    maker, prefix = Maker(seed), "layers.0." if speculators else "midlayer."
    maker.layer(prefix, 2 * HIDDEN, qk_norm=False)
    for index in range(1, layers):
        maker.layer(f"layers.{index}.", HIDDEN, qk_norm=False)
    maker.norm(f"{prefix}hidden_norm.weight", HIDDEN)
    maker.norm("norm.weight", HIDDEN)
    maker.matrix("fc.weight", HIDDEN, len(taps) * target_hidden)
    maker.matrix("lm_head.weight", draft_vocab, HIDDEN, std=0.3)
    if draft_vocab < VOCAB:
        maker.map_to(draft_vocab)
    if own_embedding:
        maker.matrix("embed_tokens.weight", VOCAB, HIDDEN, std=0.3)
    own = {"draft_vocab_size": draft_vocab, "norm_before_residual": norm_before_residual}
    if speculators:
        config: dict[str, Any] = {
            "speculators_model_type": "eagle3",
            "architectures": ["Eagle3Speculator"],
            "transformer_layer_config": {**LAYER, "num_hidden_layers": layers, "model_type": "llama"},
            "eagle_aux_hidden_state_layer_ids": list(taps),
            "target_hidden_size": None,
            **own,
        }
    else:
        config = {
            **LAYER,
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": layers,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(taps), "use_aux_hidden_state": True},
            **own,
        }
    return maker.write(path, {**config, **changes})


def write_dspark(
    path: Path,
    *,
    layers: int = 2,
    taps: tuple[int, ...] = (0, 1),
    block: int = 4,
    rank: int = 8,
    draft_vocab: int = VOCAB,
    input_vocab: int = VOCAB,
    own_embedding: bool = False,
    confidence: str = "markov",
    speculators: bool = False,
    target_hidden: int = HIDDEN,
    seed: int = 2,
    **changes: Any,
) -> Path:
    """In the flat layout, or that of the ``speculators`` library; ``taps`` are the layers left."""
    maker = Maker(seed)
    for layer in range(layers):
        maker.layer(f"layers.{layer}.", HIDDEN, qk_norm=True)
    maker.matrix("fc.weight", HIDDEN, len(taps) * target_hidden)
    maker.norm("hidden_norm.weight", HIDDEN)
    maker.norm("norm.weight", HIDDEN)
    maker.matrix("markov_head.markov_w1.weight", input_vocab, rank, std=0.5)
    maker.matrix("markov_head.markov_w2.weight", draft_vocab, rank, std=0.5)
    if confidence:
        maker.matrix("confidence_head.proj.weight", 1, HIDDEN + (rank if confidence == "markov" else 0))
        maker.matrix("confidence_head.proj.bias", 1)
    if own_embedding or input_vocab > VOCAB:
        maker.matrix("embed_tokens.weight", input_vocab, HIDDEN, std=0.3)
    if draft_vocab != VOCAB or own_embedding:
        maker.matrix("lm_head.weight", draft_vocab, HIDDEN, std=0.3)
    if draft_vocab < VOCAB:
        maker.map_to(draft_vocab)
    own = {
        "block_size": block,
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": bool(confidence),
        "confidence_head_with_markov": confidence == "markov",
        "mask_token_id": input_vocab - 1,
        "draft_vocab_size": draft_vocab,
    }
    layer = {**LAYER, "vocab_size": input_vocab, "num_hidden_layers": layers, "model_type": "qwen3"}
    if speculators:
        config: dict[str, Any] = {
            "speculators_model_type": "dspark",
            "transformer_layer_config": layer,
            "aux_hidden_state_layer_ids": [tap + 1 for tap in taps],
            **own,
        }
    else:
        config = {"architectures": ["Qwen3DSparkModel"], **layer, "target_layer_ids": list(taps), **own}
    return maker.write(path, {**config, **changes})


def with_mtp(source: Path, path: Path, seed: int = 3, depth: int = 1) -> Path:
    """A copy of a target's checkpoint with layers for further tokens, which transformers does not save."""
    shutil.copytree(source, path)
    file = path / "model.safetensors"
    tensors, config = load_file(file), json.loads((path / "config.json").read_text(encoding="utf-8"))
    last, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
    maker = Maker(seed)
    for index in range(last + 1, last + 1 + depth):
        for name, tensor in list(tensors.items()):
            if name.startswith(f"model.layers.{last}."):
                new = name.replace(f"layers.{last}.", f"layers.{index}.", 1)
                if tensor.dim() > 1:
                    maker.matrix(new, *tensor.shape)
                elif "correction_bias" in name:
                    maker.tensors[new] = 0.2 * torch.randn(tensor.shape, generator=maker.generator)
                else:
                    maker.norm(new, len(tensor))
        layer = f"model.layers.{index}."
        maker.norm(f"{layer}enorm.weight", hidden)
        maker.norm(f"{layer}hnorm.weight", hidden)
        maker.norm(f"{layer}shared_head.norm.weight", hidden)
        maker.matrix(f"{layer}eh_proj.weight", hidden, 2 * hidden)
        maker.tensors[f"{layer}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        maker.tensors[f"{layer}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file({**tensors, **maker.tensors}, file)
    config["num_nextn_predict_layers"] = depth
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path
