"""Workers built from checkpoints: their tokens are those of transformers, whatever the schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen.config import EngineConfig
from frizzen.errors import CatalogError, ConfigError, PlanError
from frizzen.kernels import plan as kernel_plan
from frizzen.worker import launch
from frizzen.worker.worker import Worker
from tests.conftest import CheckpointMaker
from tests.worker.driver import Driver, Request
from tests.worker.reference import Params

PROMPTS = [[5, 9, 200, 31, 7] * 6, [44], list(range(60, 77))]


def build(path: Path, **options: Any) -> Worker:
    defaults = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 2**22, "max_num_seqs": 4}
    return launch.build(EngineConfig(model=str(path), **(defaults | options)).to_json())


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: CheckpointMaker) -> Callable[[str], list[list[int]]]:
    """Greedy tokens of transformers for ``PROMPTS``."""
    from transformers import AutoModelForCausalLM

    def generate(family: str) -> list[list[int]]:
        model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(family), dtype=torch.float32)
        outputs = []
        for prompt in PROMPTS:
            ids = torch.tensor([prompt])
            done = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=20,
                eos_token_id=None,
            )
            outputs.append(done[0, len(prompt) :].tolist())
        return outputs

    return generate


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("chunk", [64, 7])
def test_batched_and_chunked_tokens_are_those_of_transformers(
    family: str, chunk: int, tiny_checkpoint: CheckpointMaker, expected: Callable[[str], list[list[int]]]
) -> None:
    driver = Driver(build(tiny_checkpoint(family)))
    requests = [Request(list(prompt)) for prompt in PROMPTS]
    driver.run(requests, 20, chunk)
    assert [request.outputs[:20] for request in requests] == expected(family)


def test_preempted_and_overlapped_tokens_are_those_of_transformers(
    tiny_checkpoint: CheckpointMaker, expected: Callable[[str], list[list[int]]]
) -> None:
    driver = Driver(build(tiny_checkpoint("llama")))
    requests = [Request(list(prompt)) for prompt in PROMPTS]
    driver.run(requests, 6)
    for request in requests:
        driver.preempt(request)
    driver.submit({request: request.total for request in requests})
    for _ in range(13):
        driver.submit(dict.fromkeys(requests, 1))
        driver.collect()
    driver.collect()
    assert [request.outputs for request in requests] == expected("llama")


def test_sampled_text_depends_on_its_seed_and_not_on_the_batch(tiny_checkpoint: CheckpointMaker) -> None:
    params = Params(temperature=1.5, top_p=0.9, seed=4)
    alone, beside = Request(list(PROMPTS[0]), params), Request(list(PROMPTS[0]), params)
    Driver(build(tiny_checkpoint("llama"))).run([alone], 15)
    others = [Request(list(prompt), Params(temperature=1.0, seed=9)) for prompt in PROMPTS]
    Driver(build(tiny_checkpoint("llama"))).run([*others, beside], 15)
    assert beside.outputs == alone.outputs


def test_the_worker_tells_the_engine_what_it_is(tiny_checkpoint: CheckpointMaker) -> None:
    path = tiny_checkpoint("llama")
    info = build(path, max_model_len=100, served_model_name="tiny", max_logprobs=1000).info
    plan, start = info.pop("plan"), info.pop("start")
    per_token = 2 * 2 * 2 * 16 * 4
    assert info == {
        "model": "tiny",
        "vocab_size": 320,
        "max_model_len": 100,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "num_blocks": 2**22 // (16 * per_token),
        "block_size": 16,
        "max_logprobs": 320,
        "max_drafts": 0,
        "eos_token_ids": [257],
        "device": "cpu",
        "dtype": "float32",
    }
    assert start[0]["phase"] == "before"
    assert plan["memory"]["kv_per_token"] == per_token
    assert {"name": "max_model_len", "value": "100", "reason": "the configuration"} in plan["decisions"]


def test_the_plan_and_the_time_of_every_phase_are_shown(
    tiny_checkpoint: CheckpointMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tiny_checkpoint("llama"))
    shown = capsys.readouterr().err
    for text in ("kernel plan (cpu)", "lm_head", "KV blocks, 4 MiB: 0.", "warm up: "):
        assert text in shown


def test_strict_refuses_to_start_without_a_kernel_that_the_user_could_enable(
    tiny_checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_checkpoint("llama")
    op = build(path).info["plan"]["kernels"][0]["op"]
    missing = kernel_plan.Candidate(
        op,
        "fancy",
        rank=1000,
        requires=lambda facts: kernel_plan.Reason(
            "missing_package", "fancy is not installed", "install fancy"
        ),
        build=lambda facts: None,
    )
    usual = kernel_plan.default_registry()
    candidates = [candidate for name in usual.ops() for candidate in usual.candidates(name)]
    monkeypatch.setattr(launch, "default_registry", lambda: kernel_plan.Registry([*candidates, missing]))
    build(path)
    with pytest.raises(PlanError, match=r"fancy is not used \(fancy is not installed\); fix: install fancy"):
        build(path, strict=True)


def test_a_device_that_is_not_there_is_refused(
    tiny_checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device is cuda, but torch .* finds no CUDA device"):
        build(tiny_checkpoint("llama"), device="cuda")


def test_a_model_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no-model"):
        build(tmp_path / "no-model")


def test_the_number_of_threads_is_the_configured_one(tiny_checkpoint: CheckpointMaker) -> None:
    before = torch.get_num_threads()
    try:
        build(tiny_checkpoint("llama"), num_threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_warming_up_counts_as_nobodys_tokens(tiny_checkpoint: CheckpointMaker) -> None:
    worker = build(tiny_checkpoint("qwen3_moe"))
    load = worker._model.expert_load  # type: ignore[attr-defined]
    assert not load.read().any()
    Driver(worker).run([Request(list(PROMPTS[0]))], 1)
    assert (load.read().sum(1) == 2 * len(PROMPTS[0])).all(), "two experts per token"
