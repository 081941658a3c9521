"""Context length, step and KV blocks that follow from configuration, model and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frizzen.config import EngineConfig
from frizzen.errors import ConfigError
from frizzen.worker.footprint import Footprint
from frizzen.worker.machine import available_cpus, available_memory
from frizzen.worker.sizes import GIB, Sizes, default_kv_memory, reserve, resolve_sizes

BYTES_PER_TOKEN = 1000


def sizes(memory: int = 10 * GIB, **options: Any) -> Sizes:
    config = EngineConfig(model="m", **options)
    return resolve_sizes(
        config, device_type="cpu", model_len=2048, bytes_per_token=BYTES_PER_TOKEN, memory=memory
    )


def test_the_default_is_the_models_context_and_as_much_kv_as_all_rows_can_use() -> None:
    found = sizes(max_num_seqs=3)
    assert found.max_model_len == 2048
    assert found.num_blocks == 1 + 3 * 2048 // 16
    assert found.kv_bytes == found.num_blocks * 16 * BYTES_PER_TOKEN
    assert found.limited_by == "the model's context length"


def test_a_shorter_context_needs_less_kv() -> None:
    assert sizes(max_num_seqs=3, max_model_len=100).num_blocks == 1 + 3 * 7


def test_little_memory_shortens_the_default_context_and_says_why() -> None:
    found = sizes(memory=101 * 16 * BYTES_PER_TOKEN)
    assert (found.num_blocks, found.max_model_len) == (101, 1600)
    assert found.limited_by == "the KV cache: 1616000 bytes hold 1600 tokens, the model could take 2048"


def test_a_context_that_was_asked_for_and_does_not_fit_is_refused_with_the_nearest_that_does() -> None:
    with pytest.raises(ConfigError) as refused:
        sizes(kv_cache_memory=101 * 16 * BYTES_PER_TOKEN, max_model_len=2000)
    text = str(refused.value)
    assert "max_model_len 2000 does not fit the KV cache: 1616000 bytes hold 1600 tokens" in text
    assert sizes(kv_cache_memory=101 * 16 * BYTES_PER_TOKEN, max_model_len=1600).max_model_len == 1600
    enough = int(text.rsplit(" ", 1)[1])
    assert sizes(kv_cache_memory=enough, max_model_len=2000).max_model_len == 2000
    with pytest.raises(ConfigError):
        sizes(kv_cache_memory=enough - 1, max_model_len=2000)


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len must be at most 2048, the model's .*, got 2049"):
        sizes(max_model_len=2049)


def test_memory_for_less_than_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_memory must be at least 32000 bytes.*got 31999"):
        sizes(kv_cache_memory=31999)


def test_memory_that_was_asked_for_is_taken_whole() -> None:
    assert sizes(kv_cache_memory=GIB, max_num_seqs=1).num_blocks == GIB // (16 * BYTES_PER_TOKEN)


def test_the_default_memory_leaves_most_of_a_cpu_machine_alone() -> None:
    assert default_kv_memory("cpu", 8 * GIB, 0) == 2 * GIB
    assert default_kv_memory("cpu", 100 * GIB, 0) == 4 * GIB


def test_the_default_memory_on_a_gpu_leaves_a_tenth_for_activations() -> None:
    kept = reserve("cuda", 80 * GIB, Footprint())
    assert default_kv_memory("cuda", 70 * GIB, kept) == 62 * GIB
    assert default_kv_memory("cuda", 7 * GIB, kept) == 0
    assert reserve("cpu", 80 * GIB, Footprint()) == 0


def test_what_steps_need_beyond_a_tenth_is_kept_too() -> None:
    assert reserve("cuda", 8 * GIB, Footprint(workspaces=GIB, graphs=GIB // 2)) == 2 * GIB


def cgroup(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text, encoding="ascii")
    return path


def test_the_quota_of_a_container_bounds_the_threads(tmp_path: Path) -> None:
    own = available_cpus(tmp_path)
    assert own >= 1
    assert available_cpus(cgroup(tmp_path, cpu_max="50000 100000\n")) == 1
    assert available_cpus(cgroup(tmp_path, cpu_max="max 100000\n")) == own


def test_the_limit_of_a_container_bounds_the_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n", encoding="ascii")
    assert available_memory(meminfo, tmp_path) == 3000 * 1024
    limits = cgroup(tmp_path, memory_max="2000000", memory_current="500000")
    assert available_memory(meminfo, limits) == 1_500_000
    assert available_memory(meminfo, cgroup(tmp_path, memory_current="9000000")) == 0
    assert available_memory(meminfo, cgroup(tmp_path, memory_max="max")) == 3000 * 1024
