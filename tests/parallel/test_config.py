"""The draft's parallel configuration: one construction, the target untouched (specs/serving.md 2.4)."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen.errors import ConfigError
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.layers.build import BuildContext
from frizzen.loading.load import LoadRequest, load_model
from frizzen.parallel.config import EplbConfig, ParallelConfig, for_draft
from frizzen.speculate import load as loader
from frizzen.speculate.load import DraftRequest, load_drafter
from tests.conftest import CheckpointMaker
from tests.speculate.checkpoints import with_mtp, write_dspark

BALANCED = ParallelConfig(
    tensor_parallel_size=4,
    pipeline_parallel_size=2,
    expert_parallel_size=8,
    enable_eplb=True,
    eplb=EplbConfig(num_redundant_experts=16, window_size=500, step_interval=700),
    enable_elastic_ep=True,
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"eplb": EplbConfig(num_redundant_experts=2)},
            "num_redundant_experts must be 0 without enable_eplb, got 2",
        ),
        ({"enable_elastic_ep": True}, "enable_elastic_ep needs enable_eplb"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be at least 1, got 0"),
    ],
)
def test_an_illegal_configuration_cannot_be_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParallelConfig(**values)
    with pytest.raises(ConfigError, match="num_redundant_experts must be at least 0, got -1"):
        EplbConfig(num_redundant_experts=-1)


def test_no_order_of_single_changes_would_do() -> None:
    """Why it is one ``replace``: each field alone is refused, whichever comes first."""
    for change in ({"enable_eplb": False}, {"enable_eplb": False, "enable_elastic_ep": False}):
        with pytest.raises(ConfigError):
            replace(BALANCED, **change)
    with pytest.raises(FrozenInstanceError):
        BALANCED.eplb.num_redundant_experts = 0  # type: ignore[misc]


@pytest.mark.parametrize("size", [1, 4])
def test_the_drafts_configuration_leaves_the_targets_as_it_is(size: int) -> None:
    before = replace(BALANCED, eplb=replace(BALANCED.eplb))
    draft = for_draft(BALANCED, size)
    assert before == BALANCED
    assert (draft.enable_eplb, draft.enable_elastic_ep, draft.eplb.num_redundant_experts) == (False, False, 0)
    assert (draft.tensor_parallel_size, draft.pipeline_parallel_size) == (size, 1)
    assert draft.eplb is not BALANCED.eplb
    # What is not the draft's own is the target's.
    assert (draft.expert_parallel_size, draft.eplb.window_size, draft.eplb.step_interval) == (8, 500, 700)


def test_a_draft_of_another_size_than_1_or_the_targets_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be 1 or the target's 4, got 2"):
        for_draft(BALANCED, 2)


@pytest.mark.parametrize("kind", ["dspark", "mtp"])
def test_a_draft_shares_the_targets_runtime_and_not_its_layout_of_experts(
    tiny_checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A balanced mixture of experts with a dense draft, and with a draft that has experts of its own."""
    target_path = with_mtp(tiny_checkpoint("deepseek_v3"), tmp_path / "target")
    model = None if kind == "mtp" else str(write_dspark(tmp_path / "draft"))
    plan = PlanBuilder(default_registry(), detect_machine("cpu"))
    parallel = ParallelConfig(
        enable_eplb=True, eplb=EplbConfig(num_redundant_experts=2), enable_elastic_ep=True
    )
    request = LoadRequest(model=str(target_path), dtype="float32", parallel=parallel)
    target = load_model(request, plan)
    target_load = target.expert_load
    contexts: list[BuildContext] = []

    def watched(*arguments: Any) -> BuildContext:
        contexts.append(original(*arguments))
        return contexts[-1]

    original = loader.draft_context
    monkeypatch.setattr(loader, "draft_context", watched)
    loaded = load_drafter(DraftRequest(name=kind, target=request, model=model), target, plan)
    (context,) = contexts
    assert context.parallel is loaded.parallel
    assert (loaded.parallel.enable_eplb, loaded.parallel.eplb.num_redundant_experts) == (False, 0)
    assert request.parallel is parallel
    assert parallel.eplb.num_redundant_experts == 2
    # Shared by reference: what the draft resolved, the target's plan shows, by the same kernels.
    assert context.plan.registry is plan.registry
    assert context.plan._resolved is plan._resolved
    assert context.plan._choices is plan._choices
    assert context.streams is target.streams
    drafted = [choice for choice in plan.plan().choices if choice.site.startswith("draft_")]
    assert {choice.layer for choice in drafted if choice.layer is not None} >= {target.config.num_layers}
    # The target counts its own experts only.
    assert target.expert_load is target_load
    assert target_load is not None
    assert target.config.num_layers not in target_load.layers
    assert context.device == torch.device("cpu")
