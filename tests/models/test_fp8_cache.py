"""Keys and values in FP8: half the bytes, the same answer every way, and a bound on what it costs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from frizzen.errors import UnsupportedModelError
from frizzen.kernels.facts import Facts, detect_machine
from frizzen.kernels.kv_layout import rounded
from frizzen.kernels.ops import ATTENTION_PAGED
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.kernels.problem_inputs import paged_step
from frizzen.loading.load import LoadRequest, load_model
from frizzen.quantize.fp8 import FP8
from tests.loading.test_fp8 import CHANNELS, configure, write
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


def with_scales(
    source: Path, target: Path, key: float, value: float, names: str = "{part}_scale", ndim: int = 1
) -> Path:
    """A checkpoint whose values are ``value`` times as large, with scales for its keys and values."""
    path = shutil.copytree(source, target)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("v_proj.weight")]:
        layer = name.removesuffix("v_proj.weight")
        for part, scale in (("k", key), ("v", value)):
            tensors[layer + names.format(part=part)] = torch.full((1,) * ndim, scale)
        for end in ("weight", "bias"):
            if f"{layer}v_proj.{end}" in tensors:
                tensors[f"{layer}v_proj.{end}"] = tensors[f"{layer}v_proj.{end}"] * value
        tensors[f"{layer}o_proj.weight"] = tensors[f"{layer}o_proj.weight"] / value
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.mark.parametrize(
    ("names", "ndim"), [("{part}_scale", 1), ("{part}_proj.{part}_scale", 0), ("{part}_proj.output_scale", 1)]
)
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "qwen3_moe", "mistral"])
def test_scales_of_a_checkpoint_bring_large_values_into_range(
    tiny_checkpoint: Any, tmp_path: Path, family: str, names: str, ndim: int
) -> None:
    source, prompt = tiny_checkpoint(family), list(prompts()[2])
    want = Driver(load(source, kv_cache_dtype="fp8_e4m3")).prefill(Stream(prompt), 16)
    # Values 4,096 times as large are far over 448; with a scale of as much, the cache holds what it held.
    path = with_scales(source, tmp_path / "model", 4.0, 4096.0, names, ndim)
    found = Driver(load(path, kv_cache_dtype="fp8_e4m3")).prefill(Stream(prompt), 16)
    # Keys are a fourth of what they were, and their smallest numbers are rounded more, for which a router may
    # choose another expert. Without the scale nothing would be left of the values: the error would be near 1.
    assert (found - want).square().mean().sqrt() < 0.1 * want.square().mean().sqrt()


def test_a_scale_is_rounded_up_and_what_was_never_set_is_one(tiny_checkpoint: Any, tmp_path: Path) -> None:
    source, prompt = tiny_checkpoint("mistral"), list(prompts()[2])
    path = with_scales(source, tmp_path / "model", -1.0, 1.0)
    want = Driver(load(source, kv_cache_dtype="fp8_e4m3")).prefill(Stream(prompt), 16)
    assert torch.equal(Driver(load(path, kv_cache_dtype="fp8_e4m3")).prefill(Stream(prompt), 16), want)
    results = [
        Driver(
            load(with_scales(source, tmp_path / f"by {key}", key, 1.0), kv_cache_dtype="fp8_e4m3")
        ).prefill(Stream(prompt), 16)
        for key in (1.5, 2.0)
    ]
    assert torch.equal(*results)


def test_scales_and_weights_in_fp8_multiply(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = write(tiny_checkpoint("qwen2"), tmp_path, "channel", CHANNELS)
    prompt, options = list(prompts()[2]), {"kv_cache_dtype": "fp8_e4m3", "fp8_weights": "kept"}
    want = Driver(load(path, **options)).prefill(Stream(prompt), 16)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("v_proj.weight_scale")]:
        layer = name.removesuffix("v_proj.weight_scale")
        tensors[f"{layer}k_scale"], tensors[f"{layer}v_scale"] = torch.ones(1), torch.tensor([512.0])
        tensors[name] = tensors[name] * 512
        tensors[f"{layer}v_proj.bias"] = tensors[f"{layer}v_proj.bias"] * 512
        tensors[f"{layer}o_proj.weight_scale"] = tensors[f"{layer}o_proj.weight_scale"] / 512
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    assert torch.equal(Driver(load(path, **options)).prefill(Stream(prompt), 16), want)


def test_a_plain_cache_has_no_use_for_scales_and_the_plan_says_so(
    tiny_checkpoint: Any, tmp_path: Path
) -> None:
    source, prompt = tiny_checkpoint("qwen3"), list(prompts()[2])
    path = with_scales(source, tmp_path / "model", 3.0, 1.0)
    want = Driver(load(source)).prefill(Stream(prompt), 16)
    assert torch.equal(Driver(load(path)).prefill(Stream(prompt), 16), want)
    for kv_dtype, kind in (("auto", "unused"), ("fp8_e4m3", "folded")):
        plan = PlanBuilder(default_registry(), detect_machine("cpu"))
        load_model(LoadRequest(model=str(path), dtype="float32", kv_cache_dtype=kv_dtype), plan)
        assert [entry.value for entry in plan.plan().decisions if entry.name == "kv_scales"] == [kind]


def test_a_checkpoint_may_have_scales_for_its_cache_and_plain_weights(
    tiny_checkpoint: Any, tmp_path: Path
) -> None:
    path = with_scales(tiny_checkpoint("qwen3"), tmp_path / "model", 2.0, 2.0)
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    method = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}}
    configure(path, quantization_config={**method, "kv_cache_scheme": scheme})
    assert load(path, kv_cache_dtype="fp8_e4m3").config.fp8 is None


def test_scales_behind_a_norm_over_all_heads_are_refused(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path = with_scales(tiny_checkpoint("olmoe"), tmp_path / "model", 2.0, 2.0)
    load(path)
    with pytest.raises(UnsupportedModelError, match="scales for it, which do not go with the norms"):
        load(path, kv_cache_dtype="fp8_e4m3")


def test_latent_attention_with_an_fp8_cache_is_refused(tiny_checkpoint: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="kv_cache_dtype is fp8_e4m3, latent attention has"):
        load(tiny_checkpoint("deepseek_v3"), kv_cache_dtype="fp8_e4m3")


def test_what_is_too_large_becomes_the_largest_number() -> None:
    values = torch.tensor([1e6, -1e6, torch.nan, 448.0])
    found = rounded(values, FP8).float()
    assert found.tolist()[:2] == [448.0, -448.0]
    assert found[2].isnan()
    assert found[3] == 448
