"""Mixture-of-experts families: logits and greedy tokens equal to those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from frizzen.kernels.plan import default_registry
from tests.models.driver import Driver, Stream, load
from tests.models.moe_families import MOE_FAMILIES
from tests.models.prompts import prompts
from tests.models.test_parity import check_equal, oracle, oracle_logits

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0, 2.5],
    "long_factor": [2.0] * 8,
    "short_mscale": 1.2,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 128,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe, experts in every second layer": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "qwen3_moe, dense layers": ("qwen3_moe", {"mlp_only_layers": [0, 3], "norm_topk_prob": False}),
    "qwen2_moe, renormalised": ("qwen2_moe", {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    "olmoe, clipped": ("olmoe", {"clip_qkv": 0.8, "attention_bias": True, "norm_topk_prob": True}),
    "granite_moe, own head": ("granite_moe", {"tie_word_embeddings": False, "attention_bias": True}),
    "phi_moe, longrope, window": ("phi_moe", {"rope_parameters": LONGROPE, "sliding_window": 24}),
    "phi_moe, no biases": ("phi_moe", {"attention_bias": False, "lm_head_bias": False}),
    "ernie4_5_moe, experts in the middle": (
        "ernie4_5_moe",
        {"moe_layer_interval": 2, "moe_layer_end_index": 2, "moe_num_shared_experts": 1},
    ),
    "glm4_moe, one group, no q and k norm": (
        "glm4_moe",
        {"n_group": 1, "topk_group": 1, "use_qk_norm": False, "norm_topk_prob": False},
    ),
    "deepseek_v2, lite": (
        "deepseek_v2",
        {"q_lora_rank": None, "topk_method": "greedy", "rope_parameters": YARN, "first_k_dense_replace": 0},
    ),
    "deepseek_v3, halves, wide values": ("deepseek_v3", {"rope_interleave": False, "v_head_dim": 40}),
    "gpt_oss, no window": ("gpt_oss", {"layer_types": ["full_attention"] * 4}),
}


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_family_equals_transformers(tiny_checkpoint: Any, family: str) -> None:
    path = tiny_checkpoint(family)
    check_equal(path, oracle(path))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_equals_transformers(tiny_checkpoint: Any, variant: str) -> None:
    family, changes = VARIANTS[variant]
    path = tiny_checkpoint(family, **changes)
    check_equal(path, oracle(path))


@pytest.mark.parametrize("family", ["qwen3_moe", "phi_moe", "deepseek_v3", "gpt_oss"])
def test_reference_kernels_alone_serve_a_family(tiny_checkpoint: Any, family: str) -> None:
    registry = default_registry()
    registry = registry.restricted(dict.fromkeys(registry.ops(), "reference"))
    path = tiny_checkpoint(family)
    found = Driver(load(path, registry=registry)).prefill(Stream(prompts()[2]), 40)
    torch.testing.assert_close(found, oracle_logits(oracle(path), prompts()[2]), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_bfloat16_is_about_as_close_to_float32_as_transformers(tiny_checkpoint: Any, family: str) -> None:
    """Bound: the logits' root mean square error is at most 1.5 times that of transformers in bfloat16.

    Wider than the dense families': a rounding that flips the choice of an expert weighs more than all others.
    """
    path = tiny_checkpoint(family)
    exact, rounded = oracle(path), oracle(path, torch.bfloat16)
    driver = Driver(load(path, dtype="bfloat16"))
    generator = torch.Generator().manual_seed(3)
    ours, theirs = [], []
    for _ in range(3):
        prompt = torch.randint(0, 320, (200,), generator=generator).tolist()
        wanted = oracle_logits(exact, prompt)
        ours.append(driver.prefill(Stream(list(prompt)), 64) - wanted)
        theirs.append(oracle_logits(rounded, prompt) - wanted)
    assert torch.cat(ours).square().mean().sqrt() <= 1.5 * torch.cat(theirs).square().mean().sqrt()
