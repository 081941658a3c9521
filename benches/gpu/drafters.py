"""Drafters beside the measured shape, of dummy weights: one layer each, as published ones have.

The draft model is a whole one, of Qwen3-0.6B's shape, or of the target's where that is smaller.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benches.gpu.shape import READ_RATE, MoeShape

__all__ = ["DRAFTERS", "drafting_seconds", "options", "target"]

DRAFTERS = ("ngram", "suffix", "mtp", "eagle3", "dspark", "draft_model")
INTERMEDIATE = 3
"""The width of a drafter's dense network, in hidden sizes."""
DRAFT_VOCABULARY = 32_000
"""Of EAGLE-3, as its authors publish it."""
MARKOV_RANK = 256
TAPS = 3
"""Layers of the target that EAGLE-3 and DSpark read."""
SMALL_MODEL: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
"""Qwen3-0.6B, from its published configuration."""


def target(name: str, shape: MoeShape) -> dict[str, Any]:
    """What a drafter changes in its target's configuration.

    Prediction layers are of the target's own checkpoint, so theirs is of a family that has them: GLM-4.5's,
    with the shape's sizes.
    """
    if name != "mtp":
        return {}
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "n_routed_experts": shape.experts,
        "n_shared_experts": 0,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "use_qk_norm": True,
        "partial_rotary_factor": 1.0,
        "num_nextn_predict_layers": 1,
    }


def drafting_seconds(name: str, shape: MoeShape, drafts: int) -> float:
    """Least time of the drafts of one row: every weight of the drafter is read as often as its passes need.

    Most read their layer and head for every draft, and for the step's tokens what makes their keys and
    values. DSpark reads layer and head once, and for every draft what a token says of the next one.
    """
    if not drafts or name in ("ngram", "suffix"):
        return 0.0
    hidden, keys, whole = shape.hidden, 2 * shape.kv_heads * shape.head_dim, shape.vocabulary * shape.hidden
    layer = shape.attention_weights + 3 * INTERMEDIATE * hidden * hidden
    combine = TAPS * hidden * hidden
    if name == "eagle3":
        # Token and state stand beside each other before the layer.
        layer += hidden * shape.qkv_features
        head = min(DRAFT_VOCABULARY, shape.vocabulary) * hidden
        weights = combine + 2 * hidden * keys + drafts * (layer + head)
    elif name == "dspark":
        weights = combine + hidden * keys + layer + whole + drafts * shape.vocabulary * MARKOV_RANK
    elif name == "mtp":
        project, router = 2 * hidden * hidden, shape.experts * hidden
        layer = shape.attention_weights + router + shape.top_k * shape.expert_weights
        weights = project + hidden * keys + drafts * (project + layer + whole)
    else:
        weights = drafts * _small_weights(shape)
    return 2 * weights / READ_RATE


def _small_weights(shape: MoeShape) -> int:
    """Weights that the draft model reads for a token: its layers and its head."""
    if shape.hidden <= SMALL_MODEL["hidden_size"]:
        return shape.attention_weights + (3 * INTERMEDIATE * shape.hidden + shape.vocabulary) * shape.hidden
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    hidden, intermediate, layers, head = (SMALL_MODEL[size] for size in sizes)
    heads = 2 * (SMALL_MODEL["num_attention_heads"] + SMALL_MODEL["num_key_value_heads"])
    each: int = hidden * heads * head + 3 * hidden * intermediate
    return layers * each + shape.vocabulary * hidden


def options(name: str, shape: MoeShape, layers: int, folder: Path, most: int) -> dict[str, Any]:
    """Engine options of a drafter of up to ``most`` tokens; its configuration goes to ``folder``."""
    chosen: dict[str, Any] = {"drafter": name, "num_speculative_tokens": most}
    if name in ("ngram", "suffix", "mtp"):
        return chosen
    layer = {
        "hidden_size": shape.hidden,
        "intermediate_size": INTERMEDIATE * shape.hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    last = layers - 1
    taps = sorted({min(2, last), layers // 2, max(layers - 3, 0)})
    own: dict[str, dict[str, Any]] = {
        "eagle3": {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": min(DRAFT_VOCABULARY, shape.vocabulary),
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": taps},
        },
        "dspark": {
            "architectures": ["Qwen3DSparkModel"],
            "model_type": "qwen3",
            "target_layer_ids": [max(tap - 1, 0) for tap in taps],
            "block_size": most,
            "markov_rank": MARKOV_RANK,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "mask_token_id": shape.vocabulary - 1,
        },
        "draft_model": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
        | (SMALL_MODEL if shape.hidden > SMALL_MODEL["hidden_size"] else {}),
    }
    path = folder / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(layer | own[name]), encoding="utf-8")
    return chosen | {"drafter_model": str(path)}
