"""The library on the real core and a tiny model: results, limits, failures."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen import LLM, RequestError, SamplingParams
from frizzen.worker import launch
from frizzen.worker.worker import Worker
from tests.conftest import CheckpointMaker

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[5, 9, 200, 31, 7] * 6, [44], list(range(60, 77))]


def tiny_llm(path: Path, **options: Any) -> LLM:
    defaults = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 2**22, "num_threads": 1}
    return LLM(str(path), **(defaults | options))


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: CheckpointMaker) -> Iterator[LLM]:
    with tiny_llm(tiny_checkpoint("llama")) as made:
        yield made


@pytest.fixture(scope="module")
def transformers_model(tiny_checkpoint: CheckpointMaker) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)


def reference_logprobs(model: Any, tokens: list[int]) -> torch.Tensor:
    """``[len(tokens), V]``, log-probabilities after each token, by transformers."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.log_softmax(-1)


def test_greedy_tokens_are_the_most_likely_ones(llm: LLM, transformers_model: Any) -> None:
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
        tokens = output.outputs[0].token_ids
        assert output.prompt_token_ids == prompt
        assert output.outputs[0].finish_reason == "length"
        best = reference_logprobs(transformers_model, prompt + tokens).argmax(-1)
        assert tokens == best[len(prompt) - 1 : -1].tolist()


def test_logprobs_are_those_of_transformers(llm: LLM, transformers_model: Any) -> None:
    params = SamplingParams(
        temperature=0.8, seed=3, max_tokens=8, logprobs=4, prompt_logprobs=2, ignore_eos=True
    )
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
        completion = output.outputs[0]
        expected = reference_logprobs(transformers_model, prompt + completion.token_ids)
        assert completion.logprobs is not None
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(prompt)
        entries = [*output.prompt_logprobs[1:], *completion.logprobs]
        tokens = [*prompt[1:], *completion.token_ids]
        for place, (token, entry) in enumerate(zip(tokens, entries, strict=True)):
            assert entry is not None
            count = 4 if place >= len(prompt) - 1 else 2
            top = expected[place].topk(count)
            assert set(entry) == {token, *top.indices.tolist()}
            assert entry[token].rank == 1 + int((expected[place] > expected[place][token]).sum())
            for other, value in entry.items():
                assert value.logprob == pytest.approx(expected[place][other].item(), abs=1e-4)


def test_listed_tokens_have_the_logprobs_of_transformers_and_no_rank(
    llm: LLM, transformers_model: Any
) -> None:
    listed = [5, 90, 5, 17]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=6, logprob_token_ids=listed, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        completion = output.outputs[0]
        expected = reference_logprobs(transformers_model, prompt + completion.token_ids)[len(prompt) - 1 :]
        for place, (token, entry) in enumerate(
            zip(completion.token_ids, completion.logprobs or [], strict=True)
        ):
            assert set(entry) == {token, *listed}
            assert all((entry[other].rank is None) == (other != token) for other in entry)
            for other, value in entry.items():
                assert value.logprob == pytest.approx(expected[place][other].item(), abs=1e-4)


def test_logprobs_0_gives_the_chosen_token_alone_lmdeploy_4121(llm: LLM) -> None:
    (output,) = llm.generate([44], SamplingParams(temperature=0, max_tokens=3, logprobs=0))
    entries = output.outputs[0].logprobs
    assert entries is not None
    assert [list(entry) for entry in entries] == [[token] for token in output.outputs[0].token_ids]


def test_a_bias_that_forbids_a_token_leaves_its_logprob_finite_sglang_5984(llm: LLM) -> None:
    (free,) = llm.generate([44], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    best = free.outputs[0].token_ids[0]
    params = SamplingParams(
        temperature=0, max_tokens=1, logprobs=20, logit_bias={best: -100}, ignore_eos=True
    )
    (output,) = llm.generate([44], params)
    (entry,) = output.outputs[0].logprobs or []
    assert output.outputs[0].token_ids != [best]
    assert entry[best].rank == 1
    assert all(math.isfinite(value.logprob) for value in entry.values())


def test_a_seed_gives_the_same_text_whatever_else_is_in_the_batch(llm: LLM) -> None:
    params = SamplingParams(temperature=1.2, top_p=0.95, seed=11, max_tokens=20, ignore_eos=True)
    (alone,) = llm.generate([PROMPTS[0]], params)
    noise = SamplingParams(temperature=1.0, max_tokens=25, ignore_eos=True)
    batch = llm.generate([PROMPTS[2], PROMPTS[0], PROMPTS[1]], [noise, params, noise])
    assert batch[1].outputs[0].token_ids == alone.outputs[0].token_ids
    other = llm.generate(
        [PROMPTS[0]], SamplingParams(temperature=1.2, seed=12, max_tokens=20, ignore_eos=True)
    )
    assert other[0].outputs[0].token_ids != alone.outputs[0].token_ids


def test_text_prompts_and_stop_strings(llm: LLM) -> None:
    free = llm.generate(["abc", "xyz", "0123", "QRS", "#$%&"], GREEDY)
    assert free[0].prompt == "abc"
    assert len(free[0].prompt_token_ids) == 3
    # A random model may repeat itself from the start: take a prompt whose text has a new character later on.
    prompt, text, stop = next(
        (output.prompt, output.outputs[0].text, char)
        for output in free
        for at, char in enumerate(output.outputs[0].text)
        if at >= 2 and char.isprintable() and char not in output.outputs[0].text[:2] and char != "\ufffd"
    )
    for include in (False, True):
        params = SamplingParams(
            temperature=0, max_tokens=12, ignore_eos=True, stop=stop, include_stop_str_in_output=include
        )
        completion = llm.generate(prompt, params)[0].outputs[0]
        assert completion.text == text[: text.index(stop) + include]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_bad_words_do_not_come(llm: LLM) -> None:
    (free,) = llm.generate(["abc"], GREEDY)
    word = next(char for char in free.outputs[0].text if char.isprintable() and char not in " \ufffd")
    params = dataclasses.replace(GREEDY, bad_words=[word])
    (output,) = llm.generate(["abc"], params)
    assert word in free.outputs[0].text
    assert word not in output.outputs[0].text


def test_a_stop_token_ends_the_request_and_is_named(llm: LLM) -> None:
    (free,) = llm.generate([44], GREEDY)
    token = free.outputs[0].token_ids[3]
    first = free.outputs[0].token_ids.index(token)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[token])
    completion = llm.generate([44], params)[0].outputs[0]
    assert completion.token_ids == free.outputs[0].token_ids[: first + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", token)


def test_chat_answers_what_the_template_asks(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert output.prompt == "<|user|>hi<|end|><|assistant|>"
    ids = [257 if piece is None else piece for piece in [*b"<|user|>hi", None, *b"<|assistant|>"]]
    assert len(output.prompt_token_ids) == len(ids)
    assert output.prompt_token_ids[10] == 257
    (again,) = llm.generate([output.prompt_token_ids], GREEDY)
    assert again.outputs[0].token_ids == output.outputs[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], GREEDY, "the prompt must have at least one token"),
        ([3] * 256, GREEDY, "the prompt has 256 tokens, and prompt and output together may have 256"),
        ([320], GREEDY, "token id 320 is not below the vocabulary size 320"),
        ([3], SamplingParams(logprobs=21), "logprobs must be at most 20, got 21"),
        ([3], SamplingParams(stop_token_ids=[999]), "stop_token_ids: token id 999 is not below"),
        ([3], SamplingParams(allowed_token_ids=[1, 320]), "allowed_token_ids: token id 320 is not below"),
    ],
)
def test_what_the_model_does_not_allow_is_refused_with_the_limit_and_the_llm_stays_usable(
    llm: LLM, prompt: list[int], params: SamplingParams, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate([[44], prompt], [GREEDY, params])
    assert len(llm.generate([44], GREEDY)[0].outputs[0].token_ids) == 12


def test_the_context_length_ends_a_request(llm: LLM) -> None:
    (output,) = llm.generate([[3] * 250], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 6
    assert output.outputs[0].finish_reason == "length"


def test_the_original_exception_of_a_step_is_raised(
    tiny_checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ZeroDivisionError("in the third step")
    submit, steps = Worker.submit, [0]

    def failing(self: Worker, index: int) -> None:
        steps[0] += 1
        if steps[0] == 3:
            raise error
        submit(self, index)

    monkeypatch.setattr(Worker, "submit", failing)
    with tiny_llm(tiny_checkpoint("llama")) as failed:
        with pytest.raises(ZeroDivisionError) as raised:
            failed.generate(PROMPTS, GREEDY)
        assert raised.value is error
        with pytest.raises(RuntimeError, match="in the third step"):
            failed.generate(PROMPTS, GREEDY)


def test_ctrl_c_stops_a_generation_and_the_llm_stays_usable(llm: LLM) -> None:
    endless = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    batch = [[token % 320] for token in range(2000)]
    started = time.monotonic()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(batch, endless)
    assert time.monotonic() - started < 5
    assert len(llm.generate([44], GREEDY)[0].outputs[0].token_ids) == 12


def test_the_progress_bar_counts_to_the_end(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY, use_tqdm=True)
    assert "3/3 requests" in capsys.readouterr().err


def test_the_plan_is_what_the_worker_decided(llm: LLM) -> None:
    assert {entry["name"] for entry in llm.plan["decisions"]} >= {"dtype", "max_model_len", "threads"}
    assert any(kernel["op"] == "attention.paged" for kernel in llm.plan["kernels"])


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected within: what is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("options", [{}, {"drafter": "ngram"}, {"enforce_eager": True}], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_closed_llm_keeps_nothing_of_its_model(
    tiny_checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch, device: str, options: dict[str, Any]
) -> None:
    made: list[weakref.ref[Any]] = []
    build = launch.build

    def building(*begun: Any) -> Worker:
        worker = build(*begun)
        made.extend((weakref.ref(worker), weakref.ref(worker._model)))
        return worker

    monkeypatch.setattr(launch, "build", building)
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    options = options | {"device": device, "kv_cache_memory": 2**28, "max_num_seqs": 8}
    with tiny_llm(tiny_checkpoint("llama"), **options) as llm:
        llm.generate(PROMPTS, GREEDY)
        llm.generate(PROMPTS, GREEDY)
    assert [reference() for reference in made] == [None, None]
    if device == "cuda":
        # Libraries keep what they work in; it is less than the cache was.
        assert torch.cuda.memory_allocated() < before + 2**27


def test_what_the_phases_of_its_start_took_is_known(tiny_checkpoint: CheckpointMaker) -> None:
    with tiny_llm(tiny_checkpoint("llama"), device="cpu") as llm:
        names, seconds = ([phase[key] for phase in llm.start] for key in ("phase", "seconds"))
    assert names == ["before", "import", "device", "plan", "load", "allocate", "compile", "warm up"]
    assert min(seconds) >= 0
