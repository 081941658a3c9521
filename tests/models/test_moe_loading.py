"""How checkpoints hold experts, and what is refused before time is spent on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from frizzen.errors import CheckpointError, UnsupportedModelError
from frizzen.quantize import mxfp4
from tests.models.driver import Driver, Stream, load
from tests.models.moe_families import MOE_FAMILIES
from tests.models.prompts import prompts
from tests.models.test_parity import check_equal, oracle

Tensors = dict[str, torch.Tensor]


def rewrite(source: Path, target: Path, change: Callable[[Tensors], Any]) -> Path:
    """A copy of a checkpoint with other tensors."""
    path = shutil.copytree(source, target / "model")
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path / "model.safetensors", {"format": "pt"})
    return path


def fuse(published: tuple[str, str, str, str], prefix: str) -> Callable[[Tensors], None]:
    """Experts in one tensor per layer, as transformers 5 holds them in memory."""
    pattern, gate, up, down = published

    def change(tensors: Tensors) -> None:
        for layer in range(4):
            at = f"model.layers.{layer}."
            parts = [
                [tensors.pop(f"{at}{pattern.format(expert)}.{matrix}.weight") for matrix in (gate, up, down)]
                for expert in range(8)
            ]
            tensors[f"{at}{prefix}gate_up_proj"] = torch.stack([torch.cat(part[:2]) for part in parts])
            tensors[f"{at}{prefix}down_proj"] = torch.stack([part[2] for part in parts])

    return change


@pytest.mark.parametrize(
    ("family", "published"),
    [
        ("qwen3_moe", ("mlp.experts.{}", "gate_proj", "up_proj", "down_proj")),
        ("mixtral", ("block_sparse_moe.experts.{}", "w1", "w3", "w2")),
    ],
)
def test_experts_in_one_tensor_are_the_same_model(
    tiny_checkpoint: Any, tmp_path: Path, family: str, published: tuple[str, str, str, str]
) -> None:
    apart = tiny_checkpoint(family)
    together = rewrite(apart, tmp_path, fuse(published, "mlp.experts."))
    logits = [Driver(load(path)).prefill(Stream(prompts()[1])) for path in (apart, together)]
    assert torch.equal(*logits)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_out_of_order_across_shards_are_the_same_model_vllm_35324(
    tiny_checkpoint: Any, tmp_path: Path, family: str
) -> None:
    source = tiny_checkpoint(family)
    path = shutil.copytree(source, tmp_path / "model")
    (path / "model.safetensors").unlink()
    tensors = load_file(source / "model.safetensors")
    # Neighbours lie in different files, and within a file the last comes first.
    names = sorted(tensors, reverse=True)
    files = [f"model-{shard:05}-of-00003.safetensors" for shard in (1, 2, 3)]
    for shard, file in enumerate(files):
        save_file({name: tensors[name] for name in names[shard::3]}, path / file, {"format": "pt"})
    index = {"weight_map": {name: files[at % 3] for at, name in enumerate(names)}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    logits = [Driver(load(place)).prefill(Stream(prompts()[1])) for place in (source, path)]
    assert torch.equal(*logits)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3_moe", "model.layers.2.mlp.experts.5.up_proj.weight"),
        ("mixtral", "model.layers.3.block_sparse_moe.experts.0.w2.weight"),
        ("granite_moe", "model.layers.0.block_sparse_moe.input_linear.weight"),
        ("deepseek_v3", "model.layers.1.mlp.gate.e_score_correction_bias"),
        ("gpt_oss", "model.layers.1.mlp.experts.down_proj_bias"),
        ("gpt_oss", "model.layers.3.self_attn.sinks"),
    ],
)
def test_a_missing_tensor_is_named_once(tiny_checkpoint: Any, tmp_path: Path, family: str, name: str) -> None:
    path = rewrite(tiny_checkpoint(family), tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"missing {name}") as caught:
        load(path)
    assert caught.value.missing == (name,)


def test_a_fused_tensor_of_another_shape_is_named_once(tiny_checkpoint: Any, tmp_path: Path) -> None:
    name = "model.layers.0.block_sparse_moe.input_linear.weight"
    path = rewrite(
        tiny_checkpoint("granite_moe"), tmp_path, lambda tensors: tensors.update({name: tensors[name][:7]})
    )
    with pytest.raises(CheckpointError, match=r"shape \[7, 192, 64\], expected \[8, 192, 64\]") as caught:
        load(path)
    assert len(caught.value.mismatched) == 1


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_layers_that_predict_further_tokens_are_not_read(
    tiny_checkpoint: Any, tmp_path: Path, family: str
) -> None:
    extra = {f"model.layers.{layer}.eh_proj.weight": torch.ones(64, 128) for layer in (4, 5)}
    path = rewrite(tiny_checkpoint(family), tmp_path, lambda tensors: tensors.update(extra))
    with pytest.raises(CheckpointError) as caught:
        load(path)
    # The configuration has one such layer after its four.
    assert caught.value.unexpected == ("model.layers.5.eh_proj.weight",)


def pack(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``[E, out, in]`` in MXFP4: blocks and scales, each number rounded to the nearest."""
    blocks = matrices.unflatten(-1, (-1, 32))
    exponent = blocks.abs().amax(-1).log2().floor().int() - 2
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    scaled = torch.ldexp(blocks, -exponent.unsqueeze(-1))
    nearest = (scaled.abs().unsqueeze(-1) - table).abs().argmin(-1)
    nibbles = (nearest + 8 * (scaled < 0)).to(torch.uint8)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4, (exponent + 127).to(torch.uint8)


def in_mxfp4(plain: Path, target: Path) -> tuple[Path, Any]:
    """A copy of a gpt-oss checkpoint with packed experts, and transformers' model with the same values."""
    expected = oracle(plain)

    def change(tensors: Tensors) -> None:
        for layer in range(4):
            experts = expected.model.layers[layer].mlp.experts
            for matrix in ("gate_up_proj", "down_proj"):
                name = f"model.layers.{layer}.mlp.experts.{matrix}"
                blocks, scales = pack(tensors.pop(name).transpose(1, 2))
                tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
                getattr(experts, matrix).data = mxfp4.dequantize(blocks, scales).transpose(1, 2).contiguous()

    path = rewrite(plain, target, change)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path, expected


@pytest.mark.parametrize("mxfp4_weights", ["kept", "expanded"])
def test_mxfp4_experts_equal_transformers_on_the_same_values(
    tiny_checkpoint: Any, tmp_path: Path, mxfp4_weights: str
) -> None:
    path, expected = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)
    check_equal(path, expected, mxfp4_weights=mxfp4_weights)


def test_missing_scales_of_mxfp4_are_named(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)
    scales = "model.layers.2.mlp.experts.down_proj_scales"
    (tmp_path / "without").mkdir()
    path = rewrite(path, tmp_path / "without", lambda tensors: tensors.pop(scales))
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert caught.value.missing == (scales,)


def test_mxfp4_unpacks_every_number_as_transformers_does() -> None:
    integration = pytest.importorskip("transformers.integrations.mxfp4")
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 2, 8, 16)
    scales = torch.tensor([0, 1, 126, 127, 128, 150, 200, 254], dtype=torch.uint8).expand(1, 2, 8)
    found = mxfp4.dequantize(blocks, scales)
    wanted = integration.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    assert torch.equal(found, wanted)
    assert torch.equal(found.bfloat16().float(), found)
    assert mxfp4.dequantize(blocks, torch.full_like(scales, 255)).isnan().all()
    with pytest.raises(ValueError, match=r"blocks have shape \[1, 2, 8, 16\] and scales \[1, 2, 7\]"):
        mxfp4.dequantize(blocks, scales[..., :7])


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_a_configuration_alone_makes_a_model_of_dummy_weights(tiny_checkpoint: Any, family: str) -> None:
    model = load(tiny_checkpoint(family) / "config.json", load_format="dummy")
    assert torch.isfinite(Driver(model).prefill(Stream([1, 2, 3]))).all()


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "qwen3_moe",
            {"num_experts_per_tok": 9},
            "9 experts per token, expected 1 to the number of experts, 8",
        ),
        ("qwen3_moe", {"mlp_only_layers": [0, 1, 2, 3]}, "no layer has experts"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0, expected at least 1"),
        ("qwen3_moe", {"num_local_experts": None}, "num_experts is missing"),
        ("phi_moe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3, expected 2"),
        ("phi_moe", {"tie_word_embeddings": True}, "the output head has a bias"),
        (
            "phi_moe",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 3, "short_mscale": 1.0}},
            "short_factor has 3 numbers, expected 8",
        ),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias is True, expected False"),
        ("ernie4_5_moe", {"moe_layer_interval": 0}, "moe_layer_interval is 0, expected at least 1"),
        ("glm4_moe", {"scoring_func": "softmax"}, "scoring_func is 'softmax', expected 'sigmoid'"),
        ("glm4_moe", {"topk_group": 5}, "5 groups of experts per token, expected 1 to their number, 4"),
        ("glm4_moe", {"topk_group": 1, "num_experts_per_tok": 3}, "but 1 of 4 groups hold 2"),
        ("deepseek_v2", {"topk_method": "random"}, "topk_method is 'random', expected 'greedy' or"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is True, expected False"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias is True, expected False"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "latent_dim of latent attention is 0, expected at least 1"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "awq"}}, "quantization_config is .*awq"),
        (
            "gpt_oss",
            {"quantization_config": {"quant_method": "awq"}},
            "quant_method is 'awq', expected 'mxfp4'",
        ),
    ],
)
def test_a_value_that_is_not_computed_is_refused(
    tiny_checkpoint: Any, tmp_path: Path, family: str, changes: dict[str, Any], message: str
) -> None:
    config = json.loads((tiny_checkpoint(family) / "config.json").read_text(encoding="utf-8"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match=message):
        load(path, load_format="dummy")
