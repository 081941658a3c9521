"""Questions to the worker outside of the steps."""

from __future__ import annotations

import json

import pytest

from frizzen.config import EngineConfig
from frizzen.worker import launch
from frizzen.worker.worker import Worker
from tests.conftest import CheckpointMaker
from tests.worker.driver import Driver, Request, fake_driver


def build(path: object) -> Worker:
    config = EngineConfig(
        model=str(path), dtype="float32", device="cpu", kv_cache_memory=2**22, max_num_seqs=4
    )
    return launch.build(config.to_json())


def test_experts_are_counted_by_layer_since_the_start(tiny_checkpoint: CheckpointMaker) -> None:
    worker = build(tiny_checkpoint("qwen3_moe"))
    before = json.loads(worker.control("experts", "null"))
    Driver(worker).run([Request([5, 9, 200, 31, 7])], 6)
    after = json.loads(worker.control("experts", ""))
    assert after["layers"] == before["layers"]
    # Five tokens of the prompt, and five of the six outputs: nothing is computed for the last one.
    model = worker._model
    top_k = model.config.moe.top_k  # type: ignore[attr-defined]
    for row, earlier in zip(after["tokens"], before["tokens"], strict=True):
        assert len(row) == model.config.moe.num_experts  # type: ignore[attr-defined]
        assert (sum(row) - sum(earlier)) % top_k == 0
        assert sum(row) - sum(earlier) >= 10 * top_k


def test_a_model_without_experts_has_no_load(tiny_checkpoint: CheckpointMaker) -> None:
    assert json.loads(build(tiny_checkpoint("llama")).control("experts", "null")) is None


def test_memory_is_told_by_owner_as_it_was_measured(tiny_checkpoint: CheckpointMaker) -> None:
    worker = build(tiny_checkpoint("llama"))
    told = json.loads(worker.control("counters", "null"))["memory"]
    owners = {owner["owner"]: owner for owner in worker.info["plan"]["memory"]["owners"]}
    assert set(told) == set(owners)
    assert told["kv_cache"] == owners["kv_cache"]["measured"] > 0
    # Weights this small are not measured.
    assert told["weights"] == owners["weights"]["predicted"] > 0


def test_a_question_that_is_not_known_is_refused_by_name(tiny_checkpoint: CheckpointMaker) -> None:
    with pytest.raises(ValueError, match=r"the worker has no command 'weather'; it has memory, .*experts"):
        build(tiny_checkpoint("llama")).control("weather", "null")


def test_forced_acceptance_can_be_changed_and_only_where_it_is_forced() -> None:
    driver, _ = fake_driver(max_drafts=4, acceptance=3.0)
    request = Request([1, 2])
    driver.run([request], 1)
    for acceptance, accepted in ((3, 2), (1, 0), (5, 4), (2.0, 1)):
        assert json.loads(driver.worker.control("synthetic_acceptance", str(acceptance))) == acceptance
        request.drafts = [50, 51, 52, 53]
        driver.step({request: 1})
        assert request.accepted[-1] == (4, accepted)
    for bad in ("0.5", "true", '"2"', "null"):
        with pytest.raises(ValueError, match="must be a number of at least 1"):
            driver.worker.control("synthetic_acceptance", bad)
    with pytest.raises(ValueError, match="spec_synthetic_acceptance was not given"):
        fake_driver(max_drafts=4)[0].worker.control("synthetic_acceptance", "2")
