"""The same worker on a GPU: the same tokens, and no wait for the device but in ``collect``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from frizzen.step import StepContext
from frizzen.worker.worker import Worker
from tests.conftest import COMMON, CheckpointMaker
from tests.models.moe_families import MOE_FAMILIES
from tests.worker.driver import VOCAB, Driver, Request, fake_driver, worker_info
from tests.worker.reference import Params
from tests.worker.test_launch import PROMPTS, build
from tests.worker.test_sampler import expected_tokens

pytestmark = pytest.mark.gpu

MIXED = [
    Params(),
    Params(temperature=0.9, top_p=0.8, seed=1),
    Params(temperature=1.0, top_k=7, min_p=0.05, seed=2),
    Params(repetition=1.3, frequency=0.5, logprobs=3),
    Params(temperature=0.7, bias={4: 3.0}, allowed=tuple(range(40)), seed=3),
    Params(min_tokens=4, suppressed=(1, 2, 3), prompt_logprobs=2),
]


def requests() -> list[Request]:
    return [
        Request([(7 * i + place) % VOCAB for i in range(9)], params) for place, params in enumerate(MIXED)
    ]


@pytest.mark.parametrize("chunk", [4, 64])
def test_tokens_are_those_of_the_reference(chunk: int) -> None:
    driver, _ = fake_driver(device="cuda")
    batch = requests()
    driver.run(batch, 5, chunk)
    for request in batch[:3]:
        driver.preempt(request)
    driver.run(batch, 9, chunk)
    for request in batch:
        assert request.outputs[:9] == expected_tokens(request, 9)
        assert len(request.prompt_logprobs) == (8 if request.params.prompt_logprobs >= 0 else 0)


def test_an_overlapped_step_reads_the_tokens_of_the_one_before() -> None:
    driver, _ = fake_driver(device="cuda")
    batch = requests()
    driver.submit({request: len(request.prompt) for request in batch})
    for _ in range(9):
        driver.submit(dict.fromkeys(batch, 1))
        driver.collect()
    driver.collect()
    for request in batch:
        assert request.outputs == expected_tokens(request, 10)


class Unhurried:
    """A model of two operators, neither of which waits for the device."""

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        return (input_ids + step.positions).float()[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.sin(hidden * torch.arange(1, VOCAB + 1, device=hidden.device))


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_submit_never_waits_for_the_device() -> None:
    worker = Worker(Unhurried(), worker_info(device="cuda"), torch.device("cuda"))
    driver = Driver(worker)
    batch = requests()
    with waiting_is_an_error():
        driver.submit({request: len(request.prompt) for request in batch})
        driver.submit(dict.fromkeys(batch, 1))
    driver.collect()
    driver.collect()
    assert [len(request.outputs) for request in batch] == [2] * len(batch)


def test_a_real_model_gives_the_same_tokens_as_on_a_cpu(tiny_checkpoint: CheckpointMaker) -> None:
    outputs = []
    for device in ("cpu", "cuda"):
        driver = Driver(build(tiny_checkpoint("llama"), device=device))
        batch = [Request(list(prompt)) for prompt in PROMPTS]
        driver.run(batch, 20)
        outputs.append([request.outputs for request in batch])
    assert outputs[0] == outputs[1]


def moe_config(tmp_path: Path) -> Path:
    prefix, own = MOE_FAMILIES["qwen3_moe"]
    values = {"architectures": [f"{prefix}ForCausalLM"], "rms_norm_eps": 1e-6, **COMMON, **own}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return tmp_path


def moe_worker(path: Path, **options: object) -> Worker:
    return build(path, device="cuda", load_format="dummy", max_num_seqs=8, max_model_len=200, **options)


def test_graphs_give_the_tokens_of_launches_and_nothing_is_compiled_late(tmp_path: Path) -> None:
    path = moe_config(tmp_path)
    outputs, loads = [], []
    for options in ({"enforce_eager": True}, {}):
        worker = moe_worker(path, **options)
        driver = Driver(worker)
        batch = [Request([(5 * i + place) % 320 for i in range(3 + 9 * place)]) for place in range(5)]
        driver.run(batch, 24)
        outputs.append([request.outputs for request in batch])
        load = worker._model.expert_load  # type: ignore[attr-defined]
        loads.append(load.read())
    assert outputs[0] == outputs[1]
    assert torch.equal(loads[0], loads[1]), "padding counts as load"
    counters = json.loads(worker.control("counters", ""))
    assert counters["graph_steps"] >= 22
    assert counters["late_compiles"] == {}


def test_replays_do_not_wait_for_the_device(tmp_path: Path) -> None:
    driver = Driver(moe_worker(moe_config(tmp_path)))
    batch = [Request([7, 8, 9 + place]) for place in range(5)]
    driver.run(batch, 3)
    with waiting_is_an_error():
        driver.submit(dict.fromkeys(batch, 1))
        driver.submit(dict.fromkeys(batch, 1))
    driver.collect()
    driver.collect()
    assert driver.worker._graphs is not None
    assert driver.worker._graphs.failure is None
    assert driver.worker._graphs.graph_steps >= 3


def test_every_graph_can_be_captured_while_idle(tmp_path: Path) -> None:
    worker = moe_worker(moe_config(tmp_path), max_drafts=3)
    driver = Driver(worker)
    while worker.idle():
        pass
    state = json.loads(worker.control("graphs", ""))
    assert (state["failure"], state["missing"]) == (None, 0)
    batch = [Request([7, 8, 9 + place]) for place in range(5)]
    driver.run(batch, 6)
    assert json.loads(worker.control("counters", ""))["graph_steps"] >= 5
