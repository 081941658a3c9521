"""GGUF: block formats equal the package's numbers; damage is an error of ours, never another one."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from frizzen.errors import CheckpointError, CorruptFileError, FrizzenError, LoadError, UnsupportedModelError
from frizzen.loading.gguf import ArrayLength, GgufCheckpoint
from frizzen.quantize.gguf import BLOCKS, block_bytes, dequantize
from tests.models.driver import load
from tests.models.gguf_files import write_gguf

transformers = pytest.importorskip("transformers")


def unpackable() -> list[Kind]:
    """Every type that the package can unpack."""
    found = []
    for kind in Kind:
        _, size = gguf.GGML_QUANT_SIZES[kind]
        try:
            gguf.dequantize(np.zeros(size, dtype=np.uint8), kind)
        except NotImplementedError:
            continue
        found.append(kind)
    return found


@pytest.fixture
def file(tiny_checkpoint: Any, tmp_path: Path) -> Path:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)
    return write_gguf(tmp_path / "model.gguf", model)


def edit(file: Path, change: Callable[[bytearray], Any]) -> None:
    content = bytearray(file.read_bytes())
    change(content)
    file.write_bytes(content)


def replace(file: Path, old: bytes, new: bytes) -> None:
    assert len(old) == len(new)
    file.write_bytes(file.read_bytes().replace(old, new))


# Random bytes make some scales infinite.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", unpackable(), ids=lambda kind: kind.name)
def test_unpacked_values_are_the_package_s(kind: Kind, dtype: torch.dtype) -> None:
    elements, size = block_bytes(kind) or (0, 0)
    rng = np.random.default_rng(int(kind))
    raw = rng.integers(0, 256, (5, 3 * size), dtype=np.uint8)
    out = torch.empty(5, 3 * elements, dtype=dtype)
    dequantize(kind, torch.from_numpy(raw), out)
    wanted = torch.from_numpy(gguf.dequantize(raw, kind).astype(np.float32)).to(dtype)
    assert torch.equal(out.nan_to_num(), wanted.nan_to_num())


def test_sizes_of_blocks_are_the_package_s() -> None:
    assert {kind: gguf.GGML_QUANT_SIZES[Kind(kind)] for kind in BLOCKS} == BLOCKS


def test_metadata_is_read_and_long_arrays_are_skipped(file: Path) -> None:
    values = GgufCheckpoint(file).metadata.values
    assert values["general.architecture"] == "llama"
    assert values["llama.embedding_length"] == 64
    assert values["tokenizer.ggml.tokens"] == ArrayLength(320)


def test_a_file_cut_anywhere_is_refused(file: Path) -> None:
    content = file.read_bytes()
    for kept in [0, 3, 4, 8, 24, *range(30, len(content), len(content) // 40)]:
        file.write_bytes(content[:kept])
        with pytest.raises(LoadError, match=r"is damaged|cannot be read"):
            load(file)


def test_damage_in_the_header_never_escapes_as_another_error(file: Path) -> None:
    content = file.read_bytes()
    end = content.index(b"token 319")
    rng = random.Random(0)
    for _ in range(150):
        damaged = bytearray(content)
        at = rng.choice([rng.randrange(end), rng.randrange(500)])
        damaged[at : at + 4] = rng.randbytes(4)
        file.write_bytes(damaged)
        try:
            load(file)
        except FrizzenError:
            continue


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"GGML", r"it starts with b'GGML', expected b'GGUF'"),
        (4, struct.pack("<I", 1), "GGUF version is 1, expected 2 or 3"),
        (4, struct.pack(">I", 3), "the file is big-endian"),
    ],
)
def test_a_file_of_another_kind_is_named(file: Path, offset: int, value: bytes, message: str) -> None:
    edit(file, lambda content: content.__setitem__(slice(offset, offset + 4), value))
    with pytest.raises(LoadError, match=message):
        load(file)


def test_an_unknown_tensor_type_is_named(file: Path) -> None:
    name = b"blk.0.attn_q.weight"

    def change(content: bytearray) -> None:
        # Behind the name: number of dimensions, two dimensions, type.
        at = content.index(name) + len(name) + 4 + 16
        content[at : at + 4] = struct.pack("<I", 250)

    edit(file, change)
    with pytest.raises(
        UnsupportedModelError, match=r"blk\.0\.attn_q\.weight has the unknown tensor type 250"
    ):
        load(file)


def test_a_missing_tensor_is_named(file: Path) -> None:
    replace(file, b"blk.1.ffn_up", b"blk.9.ffn_up")
    with pytest.raises(
        CheckpointError, match=r"missing blk\.1\.ffn_up\.weight; unexpected blk\.9\.ffn_up\.weight"
    ):
        load(file)


def test_an_architecture_without_a_family_is_named(file: Path) -> None:
    replace(file, b"llama", b"mamba")
    with pytest.raises(
        UnsupportedModelError, match=r"general\.architecture is mamba, expected one of llama, qwen2"
    ):
        load(file)


def test_a_missing_key_is_named(file: Path) -> None:
    replace(file, b".block_count", b".block_tount")
    with pytest.raises(UnsupportedModelError, match=r"llama\.block_count is missing"):
        load(file)


def test_a_part_of_a_split_model_is_refused(tiny_checkpoint: Any, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)
    path = write_gguf(tmp_path / "model.gguf", model, extra={"split.count": 3})
    with pytest.raises(LoadError, match="one of 3 parts of a split GGUF"):
        load(path)


def test_a_directory_with_one_gguf_is_that_file_and_with_two_is_refused(file: Path) -> None:
    assert load(file.parent).config.architecture == "llama"
    (file.parent / "other.gguf").write_bytes(file.read_bytes())
    with pytest.raises(LoadError, match="holds 2 GGUF files, expected 1"):
        load(file.parent)


def test_damage_is_reported_with_the_path(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CorruptFileError, match=str(file)):
        load(file)
