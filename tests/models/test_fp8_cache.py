"""Keys and values in FP8: half the bytes, the same answer every way, and a bound on what it costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from frizzen.errors import UnsupportedModelError
from frizzen.kernels.facts import Facts, detect_machine
from frizzen.kernels.kv_layout import rounded
from frizzen.kernels.ops import ATTENTION_PAGED
from frizzen.kernels.plan import default_registry
from frizzen.kernels.problem_inputs import paged_step
from frizzen.quantize.fp8 import FP8
from tests.models.driver import Driver, Stream, load
from tests.models.test_parity import prompts

BOUND = 0.05
"""Root mean square error of attention over an FP8 cache relative to its result, keys and values normal."""


@torch.inference_mode()
@pytest.mark.parametrize("name", ["reference", "torch_sdpa"])
def test_attention_over_fp8_stays_within_the_stated_bound(name: str) -> None:
    candidate = next(
        entry for entry in default_registry().candidates(ATTENTION_PAGED.name) if entry.name == name
    )
    shape = {"heads": 8, "kv_heads": 2, "head_dim": 64, "scale": 0.125, "window": 0, "block_size": 16}
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    step, blocks = paged_step([(130, 1), (70, 1), (300, 40)], 16, generator, device)
    keys, values = torch.randn(2, blocks, 16, 2, 64, generator=generator)
    qkv = torch.randn(step.num_tokens, (8 + 4) * 64, generator=generator)
    results = []
    for kv_dtype in ("auto", "fp8_e4m3"):
        facts = Facts.of(
            detect_machine("cpu"), torch.float32, {**shape, "sinks": False, "kv_dtype": kv_dtype}
        )
        kernel = candidate.build(facts)
        cache = kernel.allocate(blocks, device)
        cache.k.copy_(rounded(keys, cache.k.dtype))
        cache.v.copy_(rounded(values, cache.v.dtype))
        results.append(kernel.prepare(cache)(qkv, kernel.begin(step)))
    exact, found = results
    error = (found - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 0 < error < BOUND


@pytest.mark.parametrize("family", ["qwen3", "mistral", "qwen3_moe"])
def test_the_answer_does_not_depend_on_chunks_or_the_batch(tiny_checkpoint: Any, family: str) -> None:
    model = load(tiny_checkpoint(family), kv_cache_dtype="fp8_e4m3")
    alone = [Driver(model, seed=2).greedy([prompt], 12, None)[0] for prompt in prompts()]
    for chunk in (None, 7):
        assert Driver(model, seed=1).greedy(prompts(), 12, chunk) == alone


def test_a_token_takes_a_byte_per_number(tiny_checkpoint: Any) -> None:
    path = tiny_checkpoint("qwen3")
    plain, in_fp8 = load(path, dtype="bfloat16"), load(path, dtype="bfloat16", kv_cache_dtype="fp8_e4m3")
    assert in_fp8.kv_bytes_per_token() * 2 == plain.kv_bytes_per_token()


def test_logits_stay_near_those_of_a_plain_cache(tiny_checkpoint: Any) -> None:
    path, prompt = tiny_checkpoint("qwen3"), prompts()[2]
    plain = Driver(load(path)).prefill(Stream(list(prompt)), 16)
    found = Driver(load(path, kv_cache_dtype="fp8_e4m3")).prefill(Stream(list(prompt)), 16)
    assert 0 < (found - plain).square().mean().sqrt() < 0.1 * plain.square().mean().sqrt()


def test_latent_attention_with_an_fp8_cache_is_refused(tiny_checkpoint: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="kv_cache_dtype is fp8_e4m3, latent attention has"):
        load(tiny_checkpoint("deepseek_v3"), kv_cache_dtype="fp8_e4m3")


def test_what_is_too_large_becomes_the_largest_number() -> None:
    values = torch.tensor([1e6, -1e6, torch.nan, 448.0])
    found = rounded(values, FP8).float()
    assert found.tolist()[:2] == [448.0, -448.0]
    assert found[2].isnan()
    assert found[3] == 448
