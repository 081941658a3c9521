"""Published configurations, abridged to what is read: the model that they describe has its published size."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest

from frizzen.loading.hf_config import HfConfig
from frizzen.models.config import DecoderConfig
from frizzen.models.families import family_of_hf

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen3-30B-A3B": (
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "decoder_sparse_step": 1,
            "head_dim": 128,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "max_position_embeddings": 40960,
            "max_window_layers": 48,
            "mlp_only_layers": [],
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        30_532_122_624,
    ),
    "Qwen1.5-MoE-A2.7B": (
        {
            "architectures": ["Qwen2MoeForCausalLM"],
            "decoder_sparse_step": 1,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "max_position_embeddings": 8192,
            "max_window_layers": 21,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 16,
            "rope_theta": 1000000.0,
            "shared_expert_intermediate_size": 5632,
            "sliding_window": 32768,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        14_315_784_192,
    ),
    "Mixtral-8x7B": (
        {
            "architectures": ["MixtralForCausalLM"],
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "vocab_size": 32000,
        },
        46_702_792_704,
    ),
    "OLMoE-1B-7B": (
        {
            "architectures": ["OlmoeForCausalLM"],
            "clip_qkv": None,
            "hidden_size": 2048,
            "intermediate_size": 1024,
            "max_position_embeddings": 4096,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 16,
            "num_key_value_heads": 16,
            "vocab_size": 50304,
        },
        6_919_161_856,
    ),
    "Phi-3.5-MoE": (
        {
            "architectures": ["PhiMoEForCausalLM"],
            "attention_bias": True,
            "hidden_size": 4096,
            "intermediate_size": 6400,
            "lm_head_bias": True,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 64,
                "long_factor": [2.0] * 64,
                "short_mscale": 1.243163121016122,
                "long_mscale": 1.243163121016122,
                "original_max_position_embeddings": 4096,
            },
            "rope_theta": 10000.0,
            "router_jitter_noise": 0.01,
            "sliding_window": 131072,
            "vocab_size": 32064,
        },
        41_873_153_344,
    ),
    "DeepSeek-V2-Lite": (
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "kv_lora_rank": 512,
            "max_position_embeddings": 163840,
            "moe_intermediate_size": 1408,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 27,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rope_scaling": {
                "type": "yarn",
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
            },
            "rope_theta": 10000,
            "routed_scaling_factor": 1.0,
            "scoring_func": "softmax",
            "topk_group": 1,
            "topk_method": "greedy",
            "v_head_dim": 128,
            "vocab_size": 102400,
        },
        15_706_484_224,
    ),
    "DeepSeek-V3": (
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            "first_k_dense_replace": 3,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "max_position_embeddings": 163840,
            "moe_intermediate_size": 2048,
            "moe_layer_freq": 1,
            "n_group": 8,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 128,
            "num_nextn_predict_layers": 1,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rope_scaling": {
                "type": "yarn",
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
            },
            "rope_theta": 10000,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_group": 4,
            "topk_method": "noaux_tc",
            "v_head_dim": 128,
            "vocab_size": 129280,
        },
        671_026_419_200,
    ),
    "gpt-oss-20b": (
        {
            "architectures": ["GptOssForCausalLM"],
            "attention_bias": True,
            "experts_per_token": 4,
            "head_dim": 64,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "max_position_embeddings": 131072,
            "num_attention_heads": 64,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
            "rope_scaling": {
                "rope_type": "yarn",
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "truncate": False,
            },
            "rope_theta": 150000,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "vocab_size": 201088,
        },
        20_914_757_184,
    ),
    "ERNIE-4.5-21B-A3B": (
        {
            "architectures": ["Ernie4_5_MoeForCausalLM"],
            "head_dim": 128,
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 1536,
            "moe_k": 6,
            "moe_layer_end_index": 27,
            "moe_layer_interval": 1,
            "moe_layer_start_index": 1,
            "moe_num_experts": 64,
            "moe_num_shared_experts": 2,
            "num_attention_heads": 20,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "use_bias": False,
            "vocab_size": 103424,
        },
        21_825_437_888,
    ),
    "GLM-4.5-Air": (
        {
            "architectures": ["Glm4MoeForCausalLM"],
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 96,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 46,
            "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1,
            "partial_rotary_factor": 0.5,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "routed_scaling_factor": 1.0,
            "topk_group": 1,
            "use_qk_norm": False,
            "vocab_size": 151552,
        },
        106_852_251_264,
    ),
    "granite-3.0-1b-a400m": (
        {
            "architectures": ["GraniteMoeForCausalLM"],
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "hidden_size": 1024,
            "intermediate_size": 512,
            "logits_scaling": 6.0,
            "max_position_embeddings": 4096,
            "num_attention_heads": 16,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 24,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "residual_multiplier": 0.22,
            "rope_theta": 10000,
            "tie_word_embeddings": True,
            "vocab_size": 49155,
        },
        1_334_628_352,
    ),
}
"""Configuration, and number of parameters without the layers that predict further tokens."""


def read(values: dict[str, Any]) -> tuple[DecoderConfig, int]:
    raw = HfConfig(Path("config.json"), {"rms_norm_eps": 1e-5, **values}, {})
    family = family_of_hf(raw)
    config = family.from_hf(raw)
    sizes = (prod(parameter.shape) for parameter in family.parameters(config) if parameter.required)
    return config, sum(sizes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_describes_a_model_of_the_published_size(name: str) -> None:
    values, size = PUBLISHED[name]
    assert read(values)[1] == size


def test_a_published_rope_is_read_with_what_it_means_for_attention() -> None:
    """DeepSeek's temperature goes into the softmax's scale: (0.1 ln 40 + 1) ** 2 / sqrt(192)."""
    config, _ = read(PUBLISHED["DeepSeek-V3"][0])
    assert config.mla is not None
    assert config.mla.scale == pytest.approx(0.13523377888)
    assert (config.rope.attention_factor, config.rope.rotary_dim) == (1.0, 64)
    assert config.max_model_len == 163840
    glm, _ = read(PUBLISHED["GLM-4.5-Air"][0])
    assert (glm.rope.rotary_dim, glm.head_dim) == (64, 128)


def test_a_rope_that_changes_with_the_length_serves_the_shorter_context_only() -> None:
    config, _ = read(PUBLISHED["Phi-3.5-MoE"][0])
    assert (config.max_model_len, config.rope.attention_factor) == (4096, 1.243163121016122)


def test_every_other_layer_of_gpt_oss_has_a_window() -> None:
    config, _ = read(PUBLISHED["gpt-oss-20b"][0])
    assert config.windows == (128, 0) * 12
