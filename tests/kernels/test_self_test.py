"""Kernels that raise, differ or are not finite do not serve, whenever they show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from frizzen.config import EngineConfig
from frizzen.errors import PlanError
from frizzen.kernels import plan as kernel_plan
from frizzen.kernels.facts import Facts, detect_machine
from frizzen.kernels.ops import LINEAR, NORM_RMS
from frizzen.kernels.plan import Candidate, Place, Registry
from frizzen.kernels.stand_ins import KernelFaultError, Watch
from frizzen.worker import launch
from frizzen.worker.worker import Worker
from tests.conftest import CheckpointMaker
from tests.worker.driver import Driver, Request

PLACE = Place(NORM_RMS.name, Facts.of(detect_machine("cpu"), torch.float32, {"size": 4}), "faulty")


class Faulty:
    """A norm that does as a test says."""

    def __init__(self, run: Callable[..., Any], prepare: Callable[..., None] = lambda *_: None) -> None:
        self._run, self._prepare = run, prepare

    def prepare(self, *constants: Any) -> Callable[..., Any]:
        self._prepare(*constants)
        return self._run


def fail(*_: Any) -> None:
    raise RuntimeError("an illegal instruction\nand more")


FAULTS: dict[str, tuple[Faulty, str]] = {
    "raises": (Faulty(fail), "RuntimeError: an illegal instruction"),
    "raises_in_prepare": (Faulty(fail, fail), "RuntimeError: an illegal instruction"),
    "not_finite": (Faulty(lambda x, _: torch.full_like(x, torch.nan)), "has values that are not finite"),
    "disagrees": (Faulty(lambda x, _: torch.zeros_like(x)), "is off by"),
}


@pytest.fixture
def start(tiny_checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    """Builds a worker with one more candidate for the norms."""

    def build(kernel: object, op: str = NORM_RMS.name, **options: Any) -> Worker:
        usual = kernel_plan.default_registry()
        candidates = [candidate for name in usual.ops() for candidate in usual.candidates(name)]
        extra = Candidate(op, "faulty", 1000, lambda _: None, lambda _: kernel)
        monkeypatch.setattr(launch, "default_registry", lambda: Registry([*candidates, extra]))
        defaults = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 2**22, "max_num_seqs": 4}
        config = EngineConfig(model=str(tiny_checkpoint("llama")), **(defaults | options))
        return launch.build(config.to_json())

    return build


def rejections(worker: Worker, op: str = NORM_RMS.name) -> set[tuple[str, str]]:
    kernels = [kernel for kernel in worker.info["plan"]["kernels"] if kernel["op"] == op]
    assert "faulty" not in {kernel["kernel"] for kernel in kernels}
    losers = [loser for kernel in kernels for loser in kernel["rejected"] if loser["kernel"] == "faulty"]
    assert len(losers) == len(kernels)
    return {(loser["code"], loser["message"]) for loser in losers}


def tokens(worker: Worker) -> list[int]:
    request = Request([5, 9, 200, 31, 7])
    Driver(worker).run([request], 8)
    return request.outputs


@pytest.mark.parametrize("fault", FAULTS)
def test_the_self_test_quarantines_a_kernel_and_the_next_one_serves(
    fault: str, start: Callable[..., Worker]
) -> None:
    kernel, problem = FAULTS[fault]
    worker = start(kernel, self_test=True)
    ((code, message),) = rejections(worker)
    assert code == "self_test_failed"
    assert problem in message
    usual = start(kernel, op="no.such.op")
    assert tokens(worker) == tokens(usual)


def test_the_self_test_says_what_it_tested(start: Callable[..., Worker]) -> None:
    decisions = start(FAULTS["disagrees"][0], self_test=True).info["plan"]["decisions"]
    (decision,) = [entry for entry in decisions if entry["name"] == "self_test"]
    assert decision["reason"].endswith("kernels agree with the reference on this model's shapes")
    assert int(decision["reason"].split()[0]) >= 6


def test_without_a_self_test_a_kernel_that_raises_in_prepare_is_quarantined_all_the_same(
    start: Callable[..., Worker], capsys: pytest.CaptureFixture[str]
) -> None:
    worker = start(FAULTS["raises_in_prepare"][0])
    assert rejections(worker) == {("prepare_failed", "RuntimeError: an illegal instruction")}
    assert "norm.rms: faulty failed: RuntimeError: an illegal instruction" in capsys.readouterr().err
    assert len(tokens(worker)) >= 8


def test_a_kernel_that_raises_when_the_cache_is_bound_is_quarantined(start: Callable[..., Worker]) -> None:
    class Attention:
        layout = "token"

        def bytes_per_token(self) -> int:
            return 256

        def allocate(self, num_blocks: int, device: torch.device) -> torch.Tensor:
            return torch.zeros(num_blocks)

        prepare = staticmethod(fail)

    codes = {code for code, _ in rejections(start(Attention(), "attention.paged"), "attention.paged")}
    assert codes == {"prepare_failed"}


def test_too_little_memory_is_not_held_against_a_kernel(start: Callable[..., Worker]) -> None:
    def exhaust(*_: Any) -> None:
        raise MemoryError("no memory")

    with pytest.raises(MemoryError):
        start(Faulty(fail, exhaust))


def test_a_model_whose_every_kernel_fails_is_refused_with_the_reasons(
    tiny_checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = kernel_plan.default_registry()
    candidates = [
        candidate for name in usual.ops() if name != LINEAR.name for candidate in usual.candidates(name)
    ]
    only = Candidate(LINEAR.name, "faulty", 0, lambda _: None, lambda _: Faulty(fail, fail))
    monkeypatch.setattr(launch, "default_registry", lambda: Registry([*candidates, only]))
    config = EngineConfig(model=str(tiny_checkpoint("llama")), dtype="float32", device="cpu")
    with pytest.raises(PlanError, match=r"nothing serves linear .*faulty: RuntimeError: an illegal"):
        launch.build(config.to_json())


def test_a_watched_kernel_is_still_of_its_class_and_has_its_attributes() -> None:
    watched = Watch()(PLACE, FAULTS["raises"][0])
    assert isinstance(watched, Faulty)
    assert not hasattr(watched, "prepare_normed")


def test_every_way_to_prepare_a_kernel_is_watched() -> None:
    class Folding(Faulty):
        def prepare_normed(self, *_: Any) -> None:
            raise ValueError("no such shape")

    watched = Watch()(PLACE, Folding(fail))
    with pytest.raises(KernelFaultError, match=r"norm\.rms: faulty failed: ValueError: no such shape"):
        watched.prepare_normed(1, 2)
