"""Tiny configurations of the mixture-of-experts families, in transformers' words."""

from __future__ import annotations

from typing import Any

__all__ = ["MOE_FAMILIES"]

SMALL = {"num_hidden_layers": 4, "intermediate_size": 96, "num_experts_per_tok": 2}
GROUPED = {
    **SMALL,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}

MOE_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": (
        "Qwen3Moe",
        {**SMALL, "head_dim": 24, "num_experts": 8, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "qwen2_moe": (
        "Qwen2Moe",
        {**SMALL, "num_experts": 8, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    ),
    "mixtral": ("Mixtral", {**SMALL, "num_local_experts": 8, "sliding_window": 24}),
    "olmoe": ("Olmoe", {**SMALL, "num_experts": 8}),
    "granite_moe": (
        "GraniteMoe",
        {
            **SMALL,
            "num_local_experts": 8,
            "tie_word_embeddings": True,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "phi_moe": (
        "Phimoe",
        {
            **SMALL,
            "num_local_experts": 8,
            "attention_bias": True,
            "lm_head_bias": True,
            # Large, so that several experts share a weight.
            "router_jitter_noise": 0.3,
        },
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {"num_hidden_layers": 4, "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32},
    ),
    "glm4_moe": (
        "Glm4Moe",
        {
            **GROUPED,
            "head_dim": 24,
            "use_qk_norm": True,
            "attention_bias": True,
            "routed_scaling_factor": 1.5,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {
            **GROUPED,
            **LATENT,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 4.0,
            "n_shared_experts": 2,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **GROUPED,
            **LATENT,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 0.8,
            },
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            **SMALL,
            "num_local_experts": 8,
            "head_dim": 16,
            "sliding_window": 24,
            # Small, so that the clamp is reached.
            "swiglu_limit": 0.7,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
        },
    ),
}
"""Family name -> class prefix in transformers and what differs from the configuration common to all."""
