"""Checkpoints in FP8: the numbers are those of transformers on the same values, kept or expanded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from frizzen.errors import CheckpointError, LoadError, UnsupportedModelError
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import Plan, PlanBuilder, default_registry
from frizzen.kernels.stand_ins import Rehearsal
from frizzen.loading.load import LoadRequest, load_model, rehearse_model
from frizzen.quantize.fp8 import FP8, Fp8Weight, quantize, quantize_inputs
from tests.models.driver import Driver, Stream, load
from tests.models.test_parity import check_equal, oracle, oracle_logits, prompts

BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
PER_TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}
WEIGHTS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
    "ignore": ["lm_head"],
}
# Blocks that begin with every matrix, and sizes that no block divides.
ALIGNED = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "moe_intermediate_size": 128}
LINEAR = re.compile(r"(self_attn|mlp|experts|shared_experts?)\..*proj.*\.weight$|block_sparse_moe.*w[123]")


def store(kind: str, tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Replaces a tensor by its numbers in FP8 and their scales; returns the values that these stand for."""
    weight = tensors[name]
    if kind == "block":
        found = quantize(weight, 128, 128)
        tensors[f"{name}_scale_inv"] = found.scale
    elif kind == "channel":
        found = quantize(weight, 1, 0)
        tensors[f"{name}_scale"] = found.scale
    else:
        scale = (weight.abs().max() / 448).float()
        found = Fp8Weight((weight.float() / scale).to(FP8), scale.expand(len(weight), 1), 1, 0)
        tensors[f"{name}_scale"] = scale
        tensors[name.replace("weight", "input_scale")] = torch.ones(())
    tensors[name] = found.data
    return found.expand(torch.float32)


def write(
    source: Path, target: Path, kind: str, quantization: dict[str, Any], plain_part: str = "$^"
) -> tuple[Path, Any]:
    """A copy of a checkpoint in FP8 but for ``plain_part``, and transformers' model with the same values."""
    path = shutil.copytree(source, target / "model")
    tensors = load_file(path / "model.safetensors")
    plain = dict(tensors)
    for name in [name for name in tensors if LINEAR.search(name) and not re.search(plain_part, name)]:
        plain[name] = store(kind, tensors, name)
    for place, values in ((path, tensors), (target / "plain", plain)):
        if place != path:
            shutil.copytree(source, place)
        contiguous = {name: tensor.contiguous() for name, tensor in values.items()}
        save_file(contiguous, place / "model.safetensors", {"format": "pt"})
    configure(path, quantization_config=quantization)
    return path, oracle(target / "plain")


def configure(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")


def planned(path: Path, **options: Any) -> Plan:
    builder = PlanBuilder(default_registry(), detect_machine("cpu"))
    load_model(LoadRequest(model=str(path), dtype="float32", **options), builder)
    return builder.plan()


@pytest.mark.parametrize("fp8_weights", ["kept", "expanded"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_moe", ALIGNED),
        ("qwen3_moe", {}),
        ("deepseek_v3", {"hidden_size": 256, "moe_intermediate_size": 128, "kv_lora_rank": 120}),
        ("qwen2_moe", {"shared_expert_intermediate_size": 96}),
        ("mixtral", {}),
    ],
)
def test_block_scales_equal_transformers_on_the_same_values(
    tiny_checkpoint: Any, tmp_path: Path, family: str, changes: dict[str, Any], fp8_weights: str
) -> None:
    path, expected = write(tiny_checkpoint(family, **changes), tmp_path, "block", BLOCKS)
    check_equal(path, expected, fp8_weights=fp8_weights)


@pytest.mark.parametrize("fp8_weights", ["kept", "expanded"])
@pytest.mark.parametrize(("kind", "quantization"), [("channel", CHANNELS), ("tensor", PER_TENSOR)])
def test_one_scale_per_channel_or_tensor_equals_transformers_on_the_same_values(
    tiny_checkpoint: Any, tmp_path: Path, kind: str, quantization: dict[str, Any], fp8_weights: str
) -> None:
    path, expected = write(tiny_checkpoint("qwen3_moe"), tmp_path, kind, quantization)
    check_equal(path, expected, fp8_weights=fp8_weights)


@pytest.mark.parametrize("fp8_weights", ["kept", "expanded"])
@pytest.mark.parametrize(
    "ignored",
    [["model.layers.2"], ["model.layers.2.mlp.experts.0.gate_proj"], ["re:.*another.*"], []],
    ids=["prefix", "leaf", "wrong", "none"],
)
def test_what_is_on_disk_decides_and_no_list_of_names_vllm_41994(
    tiny_checkpoint: Any, tmp_path: Path, ignored: list[str], fp8_weights: str
) -> None:
    quantization = {**BLOCKS, "modules_to_not_convert": ignored}
    path, expected = write(tiny_checkpoint("qwen3_moe"), tmp_path, "block", quantization, r"layers\.2\.mlp\.")
    check_equal(path, expected, fp8_weights=fp8_weights)


def test_experts_of_two_types_in_one_layer_are_served(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, expected = write(
        tiny_checkpoint("qwen3_moe"), tmp_path, "block", BLOCKS, r"layers\.2\.mlp\.experts\.5\."
    )
    check_equal(path, expected, fp8_weights="kept")


def test_reference_kernels_alone_serve_fp8(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, expected = write(tiny_checkpoint("qwen3_moe", **ALIGNED), tmp_path, "block", BLOCKS)
    registry = default_registry()
    registry = registry.restricted(dict.fromkeys(registry.ops(), "reference"))
    found = Driver(load(path, registry=registry, fp8_weights="kept")).prefill(Stream(prompts()[1]))
    torch.testing.assert_close(found, oracle_logits(expected, prompts()[1]), atol=2e-4, rtol=1e-4)


def test_the_plan_says_what_becomes_of_fp8(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = write(tiny_checkpoint("qwen3_moe", **ALIGNED), tmp_path, "block", BLOCKS)
    expanded = planned(path)
    assert [(entry.value, entry.reason) for entry in expanded.decisions if entry.name == "fp8_weights"] == [
        ("expanded", "the cpu has no arithmetic for them")
    ]
    assert not any(choice.op.endswith(".fp8") for choice in expanded.choices)
    kept = planned(path, fp8_weights="kept")
    served = {(choice.op, choice.site) for choice in kept.choices if choice.op.endswith(".fp8")}
    assert served == {
        ("linear.fp8", "qkv"),
        ("linear.fp8", "attention_out"),
        ("moe.experts.fp8", "experts"),
    }


def test_a_rehearsal_counts_the_bytes_of_fp8(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = write(tiny_checkpoint("qwen3_moe", **ALIGNED), tmp_path, "block", BLOCKS)
    sizes = []
    for kind in ("kept", "expanded"):
        builder = PlanBuilder(default_registry(), detect_machine("cpu"), wrap=Rehearsal())
        request = LoadRequest(model=str(path), dtype="bfloat16", fp8_weights=kind)
        sizes.append(rehearse_model(request, builder).weights)
    kept, expanded = sizes
    # A scale of four bytes for 128 by 128 numbers.
    assert kept["experts"] == expanded["experts"] // 2 * (1 + 4 / 128**2)
    assert kept["embedding"] == expanded["embedding"]


def test_a_configuration_alone_makes_random_fp8_weights(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path = shutil.copytree(tiny_checkpoint("deepseek_v3", hidden_size=256), tmp_path / "model")
    configure(path, quantization_config=BLOCKS)
    options = {"load_format": "dummy", "fp8_weights": "kept"}
    sites = {choice.site for choice in planned(path, **options).choices if choice.op.endswith(".fp8")}
    assert sites == {
        "latent",
        "q",
        "attention_out",
        "gate_up",
        "down",
        "experts",
        "shared_gate_up",
        "shared_down",
    }
    logits = Driver(load(path / "config.json", **options)).prefill(Stream([1, 2, 3]))
    assert torch.isfinite(logits).all()


def test_missing_scales_are_named(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = write(tiny_checkpoint("qwen3_moe"), tmp_path, "block", BLOCKS)
    name = "model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"
    tensors = load_file(path / "model.safetensors")
    tensors.pop(name)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert caught.value.missing == (name,)


def test_scales_of_another_shape_are_named(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = write(tiny_checkpoint("qwen3_moe", **ALIGNED), tmp_path, "block", BLOCKS)
    name = "model.layers.0.self_attn.o_proj.weight_scale_inv"
    tensors = load_file(path / "model.safetensors")
    tensors[name] = tensors[name].T.contiguous()[:1]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"{name} has shape \[1, 2\], expected \[2, 2\]"):
        load(path)


def test_fp8_without_a_configuration_is_refused(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = write(tiny_checkpoint("qwen3_moe"), tmp_path, "block", BLOCKS)
    configure(path, quantization_config=None)
    with pytest.raises((CheckpointError, UnsupportedModelError)):
        load(path)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({**BLOCKS, "weight_block_size": [64, 128]}, r"size \[64, 128\], expected \[128, 128\]"),
        ({**BLOCKS, "fmt": "e5m2"}, "fmt of the quantization is 'e5m2', expected 'e4m3'"),
        (
            {**CHANNELS, "config_groups": {"group_0": {"weights": {**WEIGHTS, "num_bits": 4}}}},
            "num_bits of the quantization is 4, expected 8",
        ),
        ({**CHANNELS, "config_groups": {}}, "config_groups of compressed-tensors is empty"),
        ("fp8", "quantization_config is 'fp8', expected an object"),
    ],
)
def test_formats_that_are_not_computed_are_refused(
    tiny_checkpoint: Any, tmp_path: Path, quantization: Any, message: str
) -> None:
    path = shutil.copytree(tiny_checkpoint("qwen3_moe"), tmp_path / "model")
    configure(path, quantization_config=quantization)
    with pytest.raises(UnsupportedModelError, match=message):
        load(path, load_format="dummy")


def test_an_unknown_way_to_hold_fp8_is_refused(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = write(tiny_checkpoint("qwen3_moe"), tmp_path, "block", BLOCKS)
    with pytest.raises(LoadError, match="fp8_weights is 'packed', expected auto or kept or expanded"):
        load(path, fp8_weights="packed")


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (1, 128), (1, 0)])
def test_rounding_twice_changes_nothing_and_errors_stay_below_half_a_step(rows: int, columns: int) -> None:
    weight = torch.randn(3, 200, 300, generator=torch.Generator().manual_seed(1))
    found = quantize(weight, rows, columns)
    expanded = found.expand(torch.float32)
    again = quantize(expanded, rows, columns)
    assert torch.equal(again.data.float(), found.data.float())
    # Three bits after the first: half a step is a sixteenth of the number, or of the smallest normal one.
    step = torch.maximum(weight.abs(), found.scale.amax() * 2.0**-6) / 16
    assert ((expanded - weight).abs() <= step * 1.0001).all()


def test_a_group_of_zeros_stays_zero() -> None:
    numbers, scale = quantize_inputs(torch.zeros(2, 130))
    assert not numbers.float().any()
    assert scale.tolist() == [[1.0, 1.0], [1.0, 1.0]]
