"""What steps and their graphs will take, against what an H200 was found to hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benches.gpu.ledger import MODELS
from frizzen.config import EngineConfig
from frizzen.loading.hf_config import HfConfig
from frizzen.models.config import DecoderConfig
from frizzen.models.families import family_of_hf
from frizzen.worker import launch
from frizzen.worker.footprint import MIB, StepLimits, footprint, live_set, nodes

LIMITS = StepLimits(rows=128, tokens=8192, context=8192, drafts=0)
FOUND: dict[str, tuple[int, int, int, int, float]] = {
    "qwen3-30b-a3b": (48, 40960, 606, 242, 440),
    "deepseek-v2-lite": (6, 8192, 616, 152, 102),
    "gpt-oss-20b": (6, 8192, 618, 168, 59),
    "dense-8b": (8, 8192, 772, 164, 76),
}
"""Layers, context; MiB of workspaces and of all graphs of 128 rows; kernels of a graph on average."""


def config(name: str, tmp_path: Path, layers: int) -> DecoderConfig:
    raw = HfConfig.read(MODELS[name](tmp_path, layers) / "config.json")
    return family_of_hf(raw).from_hf(raw)


@pytest.mark.parametrize("name", FOUND)
def test_predictions_are_within_a_fifth_of_what_was_measured(name: str, tmp_path: Path) -> None:
    layers, context, workspaces, graphs, kernels = FOUND[name]
    model = config(name, tmp_path, layers)
    found = footprint(model, replace(LIMITS, context=context), 2, graphs=True)
    assert found.workspaces == pytest.approx(workspaces * MIB, rel=0.07)
    assert found.graphs == pytest.approx(graphs * MIB, rel=0.21)
    assert nodes(model) == pytest.approx(kernels, rel=0.06)


def test_a_step_without_graphs_has_workspaces_only(tmp_path: Path) -> None:
    model = config("qwen3-30b-a3b", tmp_path, 4)
    eager, both = (footprint(model, LIMITS, 2, graphs=graphs) for graphs in (False, True))
    assert eager.graphs == 0
    assert eager.workspaces == both.workspaces


def test_more_rows_tokens_context_or_drafts_take_more(tmp_path: Path) -> None:
    model = config("qwen3-30b-a3b", tmp_path, 4)
    base = footprint(model, LIMITS, 2, graphs=True)
    for more in ({"rows": 256}, {"context": 40960}, {"drafts": 3}):
        assert footprint(model, replace(LIMITS, **more), 2, graphs=True).graphs > base.graphs, more
    assert footprint(model, replace(LIMITS, tokens=16384), 2, graphs=True).workspaces > base.workspaces


def test_the_widest_part_of_a_model_counts(tmp_path: Path) -> None:
    """The first layer of DeepSeek-V2-Lite is dense, and wider than its experts."""
    model = config("deepseek-v2-lite", tmp_path, 6)
    assert live_set(model, 8192) == 8192 * (3 * 10944 + 2 * 2048)
    assert model.moe is not None
    sparse = replace(model, moe=replace(model.moe, layers=frozenset(range(6))))
    assert live_set(sparse, 8192) < live_set(model, 8192)


@pytest.mark.parametrize("options", [{}, {"enforce_eager": True}])
def test_a_described_gpu_shows_graphs_and_workspaces(tmp_path: Path, options: dict[str, Any]) -> None:
    path = MODELS["qwen3-30b-a3b"](tmp_path, 2)
    plan = launch.preview_described(
        EngineConfig(model=str(path), load_format="dummy", **options), "sm_90", 80 * 10**9
    )
    owners = {owner["owner"]: owner["predicted"] for owner in plan["memory"]["owners"]}
    assert ("graphs" in owners) == (not options)
    assert owners["workspaces"] > 500 * MIB
    assert owners["reserve"] + owners["workspaces"] + owners.get("graphs", 0) == 8 * 10**9
    assert json.dumps(plan)
