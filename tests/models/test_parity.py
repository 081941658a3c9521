"""Logits and greedy tokens equal to transformers', per family, on tiny random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from frizzen.kernels.plan import default_registry
from tests.models.driver import Driver, Stream, load
from tests.models.gguf_files import round_like, write_gguf
from tests.models.prompts import prompts

transformers = pytest.importorskip("transformers")

ROPE = {"rope_theta": 10000.0, "factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama_tied", {}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one key-value head": ("llama", {"num_key_value_heads": 1}),
    "llama, rope llama3": ("llama3", {}),
    "llama, rope linear": ("llama", {"rope_parameters": {"rope_type": "linear", **ROPE}}),
    "llama, rope dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", **ROPE}}),
    "llama, rope yarn": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64, **ROPE}},
    ),
    "mistral": ("mistral", {}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, window in one layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
}


def oracle(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager"
    ).eval()


@torch.inference_mode()
def oracle_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0].float()


@torch.inference_mode()
def oracle_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(oracle_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def check_equal(path: Path, expected: Any, **options: Any) -> None:
    """Prefill whole and in chunks, and greedy decoding in a mixed batch."""
    model = load(path, **options)
    for prompt in prompts():
        wanted = oracle_logits(expected, prompt)
        for chunk in (None, 7, 16):
            found = Driver(model).prefill(Stream(list(prompt)), chunk)
            torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)
    wanted_tokens = [oracle_greedy(expected, prompt, 12) for prompt in prompts()]
    for chunk in (None, 7):
        assert Driver(model, seed=1).greedy(prompts(), 12, chunk) == wanted_tokens


@pytest.mark.parametrize("case", CASES)
def test_safetensors_equal_transformers(tiny_checkpoint: Any, case: str) -> None:
    family, changes = CASES[case]
    path = tiny_checkpoint(family, **changes)
    check_equal(path, oracle(path))


def test_sharded_safetensors_equal_transformers(tiny_checkpoint: Any) -> None:
    path = tiny_checkpoint("llama", max_shard_size="100KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    check_equal(path, oracle(path))


@pytest.mark.parametrize("case", ["llama", "llama, tied", "mistral, no window", "qwen2", "qwen3"])
def test_gguf_equals_transformers(tiny_checkpoint: Any, tmp_path: Path, case: str) -> None:
    family, changes = CASES[case]
    expected = oracle(tiny_checkpoint(family, **changes))
    check_equal(write_gguf(tmp_path / "model.gguf", expected), expected)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_1", "Q8_0"])
def test_quantised_gguf_equals_transformers_on_the_same_values(
    tiny_checkpoint: Any, tmp_path: Path, kind: str
) -> None:
    stored = gguf.GGMLQuantizationType[kind]
    expected = oracle(tiny_checkpoint("llama"))
    path = write_gguf(tmp_path / "model.gguf", expected, kind=stored)
    check_equal(path, round_like(expected, stored))


def test_gguf_rope_divisors_equal_llama3_scaling(tiny_checkpoint: Any, tmp_path: Path) -> None:
    """llama.cpp's converter stores Llama 3.1's rule as a tensor that divides the frequencies."""
    expected = oracle(tiny_checkpoint("llama3"))
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2, dtype=np.float32) / 16)
    divisors = plain / expected.model.rotary_emb.inv_freq.numpy()
    check_equal(write_gguf(tmp_path / "model.gguf", expected, rope_divisors=divisors), expected)


def test_gguf_yarn_equals_transformers(tiny_checkpoint: Any, tmp_path: Path) -> None:
    family, changes = CASES["llama, rope yarn"]
    expected = oracle(tiny_checkpoint(family, **changes))
    scaling = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    check_equal(write_gguf(tmp_path / "model.gguf", expected, extra=scaling), expected)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_bfloat16_is_as_close_to_float32_as_transformers(tiny_checkpoint: Any, family: str) -> None:
    """Bound: the logits' root mean square error is at most 1.2 times that of transformers in bfloat16."""
    path = tiny_checkpoint(family)
    exact, rounded = oracle(path), oracle(path, torch.bfloat16)
    driver = Driver(load(path, dtype="bfloat16"))
    ours, theirs = [], []
    for prompt in prompts():
        wanted = oracle_logits(exact, prompt)
        ours.append(driver.prefill(Stream(list(prompt)), 16) - wanted)
        theirs.append(oracle_logits(rounded, prompt) - wanted)
    assert torch.cat(ours).square().mean().sqrt() <= 1.2 * torch.cat(theirs).square().mean().sqrt()


def test_reference_kernels_alone_serve_a_model(tiny_checkpoint: Any) -> None:
    registry = default_registry()
    registry = registry.restricted(dict.fromkeys(registry.ops(), "reference"))
    path = tiny_checkpoint("qwen3")
    found = Driver(load(path, registry=registry)).prefill(Stream(prompts()[2]), 40)
    torch.testing.assert_close(found, oracle_logits(oracle(path), prompts()[2]), atol=2e-4, rtol=1e-4)
