"""Experts in MXFP4 stay packed where something computes with them; the plan and the ledger say so before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen.config import EngineConfig
from frizzen.errors import LoadError
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import Plan, PlanBuilder, default_registry
from frizzen.kernels.stand_ins import Rehearsal
from frizzen.loading.load import LoadRequest, load_model, rehearse_model
from frizzen.quantize.mxfp4 import Mxfp4Weight
from frizzen.worker import launch
from tests.models.driver import Driver, Stream, load
from tests.models.test_moe_loading import in_mxfp4
from tests.models.test_moe_published import PUBLISHED
from tests.models.test_parity import oracle_logits, prompts

OP = "moe.experts.mxfp4"


def planned(path: Path, **options: Any) -> Plan:
    builder = PlanBuilder(default_registry(), detect_machine("cpu"))
    load_model(LoadRequest(model=str(path), dtype="float32", **options), builder)
    return builder.plan()


def rehearsed(path: Path, kind: str, **kernels: str) -> tuple[int, int]:
    """Bytes of the experts' parameters, and what kernels keep besides."""
    rehearsal = Rehearsal()
    registry = default_registry().restricted(kernels)
    builder = PlanBuilder(registry, detect_machine("cpu"), wrap=rehearsal)
    request = LoadRequest(model=str(path), dtype="bfloat16", mxfp4_weights=kind)
    return rehearse_model(request, builder).weights["experts"], rehearsal.extra_bytes()


def test_the_plan_says_what_becomes_of_mxfp4(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)
    expanded, kept = planned(path), planned(path, mxfp4_weights="kept")
    decisions = [
        [(entry.value, entry.reason) for entry in plan.decisions if entry.name == "mxfp4_weights"]
        for plan in (expanded, kept)
    ]
    assert decisions == [
        [("expanded", "nothing computes with them on a cpu")],
        [("kept", "it was asked for")],
    ]
    assert {choice.op for choice in kept.choices if choice.site == "experts"} == {OP}
    assert {choice.op for choice in expanded.choices if choice.site == "experts"} == {"moe.experts"}


def test_a_plain_checkpoint_has_no_such_decision(tiny_checkpoint: Any) -> None:
    plan = planned(tiny_checkpoint("gpt_oss"), mxfp4_weights="kept")
    assert "mxfp4_weights" not in {entry.name for entry in plan.decisions}


def test_reference_kernels_alone_serve_mxfp4(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, expected = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)
    registry = default_registry()
    registry = registry.restricted(dict.fromkeys(registry.ops(), "reference"))
    found = Driver(load(path, registry=registry, mxfp4_weights="kept")).prefill(Stream(prompts()[1]))
    torch.testing.assert_close(found, oracle_logits(expected, prompts()[1]), atol=2e-4, rtol=1e-4)


def test_a_rehearsal_counts_packed_bytes_and_the_copies_of_a_kernel_that_expands(
    tiny_checkpoint: Any, tmp_path: Path
) -> None:
    path, _ = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)
    expanded, nothing = rehearsed(path, "expanded")
    kept, none = rehearsed(path, "kept", **{OP: "reference"})
    replaced, copies = rehearsed(path, "kept", **{OP: "torch_grouped_mm_expanded"})
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    numbers = 4 * 8 * 3 * hidden * inner
    biases = 2 * 4 * 8 * (2 * inner + hidden)
    assert (expanded, nothing) == (2 * numbers + biases, 0)
    # Half a byte a number, and a byte for 32.
    assert (kept, none) == (numbers // 2 + numbers // 32 + biases, 0)
    assert (replaced, replaced + copies) == (kept, expanded)


def test_a_configuration_alone_makes_random_mxfp4_experts(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)
    options = {"load_format": "dummy", "mxfp4_weights": "kept"}
    assert OP in {choice.op for choice in planned(path, **options).choices}
    logits = Driver(load(path / "config.json", **options)).prefill(Stream([1, 2, 3]))
    assert torch.isfinite(logits).all()


def test_gpt_oss_120b_fits_on_one_gpu_of_80_gb(tmp_path: Path) -> None:
    values = PUBLISHED["gpt-oss-20b"][0] | {"num_hidden_layers": 36, "num_local_experts": 128}
    (tmp_path / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-5, **values}), encoding="utf-8")
    config = EngineConfig(model=str(tmp_path), load_format="dummy")
    found = launch.preview_described(config, "sm_90", 80 * 10**9)
    assert {entry["kernel"] for entry in found["kernels"] if entry["op"] == OP} == {"hopper"}
    # 117 thousand million parameters, of which 114.7 are the experts' matrices.
    assert 64e9 < found["memory"]["weights"] < 66e9


def test_an_unknown_way_to_hold_mxfp4_is_refused(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)
    with pytest.raises(LoadError, match="mxfp4_weights is 'packed', expected auto or kept or expanded"):
        load(path, mxfp4_weights="packed")


def test_expanding_is_exact_in_bfloat16() -> None:
    of = torch.Generator().manual_seed(0)
    data = torch.randint(256, (3, 5, 32), generator=of, dtype=torch.uint8)
    weight = Mxfp4Weight(data, torch.randint(1, 250, (3, 5, 2), generator=of, dtype=torch.uint8))
    assert torch.equal(weight.expand(torch.bfloat16).float(), weight.expand(torch.float32))
