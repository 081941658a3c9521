"""Every family of experts can run as CUDA graphs: by the plan for a GPU, and on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frizzen.config import EngineConfig
from frizzen.kernels.facts import Machine
from frizzen.kernels.plan import Place, PlanBuilder, default_registry
from frizzen.loading.load import rehearse_model
from frizzen.worker.preview import load_request
from tests.conftest import COMMON
from tests.models.moe_families import MOE_FAMILIES
from tests.worker.driver import Driver, Request
from tests.worker.test_launch import build

H200 = Machine("cuda", frozenset({"sm_90"}), 1, (("triton", "3.6.0"),))


@pytest.fixture
def checkpoint(tmp_path: Path, family: str) -> Path:
    transformers = pytest.importorskip("transformers")
    prefix, own = MOE_FAMILIES[family]
    values = {"architectures": [f"{prefix}ForCausalLM"], **COMMON, **own}
    getattr(transformers, f"{prefix}Config")(**values).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_no_kernel_of_a_plan_for_a_gpu_reads_lengths_on_the_host(
    checkpoint: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = pytest.importorskip("frizzen.kernels.triton.launch")
    target = launch.Target(dependent=True, processors=132)
    monkeypatch.setattr(launch.Target, "of", classmethod(lambda *_, **__: target))
    steps: dict[str, bool] = {}

    def wrap(place: Place, kernel: Any) -> Any:
        if hasattr(kernel, "begin"):
            steps[f"{place.op} by {place.candidate}"] = getattr(kernel, "capturable", False)
        return kernel

    config = EngineConfig(model=str(checkpoint), load_format="dummy", dtype="bfloat16")
    builder = PlanBuilder(default_registry(), H200, wrap=wrap, described=True)
    rehearse_model(load_request(config, "cuda"), builder)
    assert steps
    assert [kernel for kernel, capturable in steps.items() if not capturable] == []


@pytest.mark.gpu
@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_graphs_give_the_tokens_of_launches_and_nothing_is_compiled_late(
    checkpoint: Path, family: str
) -> None:
    outputs = []
    for options in ({"enforce_eager": True}, {}):
        worker = build(
            checkpoint, device="cuda", load_format="dummy", max_num_seqs=8, max_model_len=200, **options
        )
        driver = Driver(worker)
        batch = [Request([(5 * i + place) % 320 for i in range(3 + 9 * place)]) for place in range(5)]
        driver.run(batch, 24)
        outputs.append([request.outputs for request in batch])
    assert outputs[0] == outputs[1]
    counters = json.loads(worker.control("counters", ""))
    assert counters["graph_steps"] >= 22
    assert counters["late_compiles"] == {}
