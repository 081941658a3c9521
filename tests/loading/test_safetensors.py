"""Checkpoints that are not what they claim: each error names the tensor or the value, and the limit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from frizzen.errors import CheckpointError, CorruptFileError, LoadError, UnsupportedModelError
from tests.models.driver import load

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def checkpoint(tiny_checkpoint: Any, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_checkpoint("llama"), tmp_path / "model")


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def edit_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")


def edit_bytes(path: Path, change: Callable[[bytes], bytes]) -> None:
    file = path / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))


def test_a_missing_tensor_is_named(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.pop(Q))
    with pytest.raises(CheckpointError, match=f"missing {Q}") as caught:
        load(checkpoint)
    assert caught.value.missing == (Q,)


def test_an_unexpected_tensor_is_named(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({"model.extra.weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"unexpected model\.extra\.weight"):
        load(checkpoint)


def test_a_shape_that_differs_is_named_with_both_shapes(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({Q: torch.ones(32, 64)}))
    with pytest.raises(CheckpointError, match=rf"{Q} has shape \[32, 64\], expected \[64, 64\]"):
        load(checkpoint)


def test_every_difference_is_reported_at_once(checkpoint: Path) -> None:
    edit_config(checkpoint, num_hidden_layers=4, intermediate_size=96)
    with pytest.raises(CheckpointError, match="and 10 more") as caught:
        load(checkpoint)
    assert len(caught.value.missing) == 18
    assert len(caught.value.mismatched) == 6


def test_an_output_head_beside_tied_embeddings_is_not_unexpected(
    tiny_checkpoint: Any, tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_checkpoint("llama_tied"), tmp_path / "model")
    edit_tensors(path, lambda tensors: tensors.update({"lm_head.weight": torch.ones(320, 64)}))
    assert load(path).config.tied


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 3000, 100_000])
def test_a_truncated_file_is_refused(checkpoint: Path, kept: int) -> None:
    edit_bytes(checkpoint, lambda content: content[:kept])
    with pytest.raises(LoadError, match=r"model\.safetensors (is damaged|cannot be read)"):
        load(checkpoint)


def test_a_header_longer_than_the_file_is_refused_with_both_lengths(checkpoint: Path) -> None:
    edit_bytes(checkpoint, lambda content: (2**40).to_bytes(8, "little") + content[8:])
    with pytest.raises(CorruptFileError, match=rf"its header claims {2**40} bytes, the file has \d+"):
        load(checkpoint)


def test_a_header_that_is_not_json_is_refused(checkpoint: Path) -> None:
    edit_bytes(checkpoint, lambda content: content[:8] + b"\xff" + content[9:])
    with pytest.raises(CorruptFileError, match="its header is not JSON"):
        load(checkpoint)


def test_a_tensor_whose_bytes_do_not_fit_its_shape_is_refused(checkpoint: Path) -> None:
    edit_bytes(checkpoint, lambda content: content.replace(b'"shape":[320,64]', b'"shape":[319,64]', 1))
    with pytest.raises(CorruptFileError, match=r"holds 81920 bytes, its shape \[319, 64\] needs 81664"):
        load(checkpoint)


def test_a_header_entry_without_offsets_is_refused(checkpoint: Path) -> None:
    edit_bytes(checkpoint, lambda content: content.replace(b'"data_offsets"', b'"data_offsetz"', 1))
    with pytest.raises(CorruptFileError, match=r"the header's entry of .* is malformed"):
        load(checkpoint)


def test_integer_weights_are_refused_by_name_and_type(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({Q: torch.ones(64, 64, dtype=torch.int8)}))
    with pytest.raises(UnsupportedModelError, match=rf"{Q} is stored as I8, expected one of F64, F32"):
        load(checkpoint)


def test_a_shard_that_the_index_names_must_exist(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path = shutil.copytree(tiny_checkpoint("llama", max_shard_size="100KB"), tmp_path / "model")
    shard = sorted(path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(LoadError, match=f"lacks {shard.name}, which model.safetensors.index.json names"):
        load(path)


def test_an_index_that_is_not_one_is_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").write_text("[]", encoding="utf-8")
    with pytest.raises(LoadError, match="is not an index of shards"):
        load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures is GPT2LMHeadModel, expected one of .*Llama"),
        ({"architectures": None}, "architectures is none"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu' or 'swish'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is .*gptq"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads evenly"),
        ({"num_hidden_layers": 10**9}, "the model has 1000000000 layers, expected 1 to 1024"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected an integer"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"rms_norm_eps": -1.0}, "epsilon is -1.0"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "rope type 'proportional'"),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.5}},
            "rope factor is 0.5",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope parameters per layer type"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer type 'linear_attention'"),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused_with_its_value(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(checkpoint, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load(checkpoint)


def test_the_older_spelling_of_rope_scaling_is_read(checkpoint: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    edit_config(checkpoint, rope_parameters=None, rope_theta=5e5, rope_scaling=scaling)
    config = load(checkpoint).config
    assert (config.rope.kind, config.rope.factor, config.rope.theta) == ("linear", 2.0, 5e5)
    assert config.max_model_len == 512


def test_end_of_sequence_ids_of_both_configurations_count(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [7, 257]}', encoding="utf-8")
    assert load(checkpoint).config.eos_token_ids == (7, 257)


def test_a_directory_without_weights_says_what_it_lacks(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(
        LoadError, match=r"neither \*\.safetensors nor \*\.gguf; pytorch_model\.bin is a pickle"
    ):
        load(checkpoint)


def test_a_configuration_that_is_missing_or_not_json_is_named(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(LoadError, match=r"config\.json is not JSON"):
        load(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(LoadError, match=r"config\.json cannot be read: No such file"):
        load(checkpoint)
