"""The LLM class over an engine that only records: what it passes on, and the shape of what it returns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from frizzen import LLM, ConfigError, Logprob, RequestError, SamplingParams


def core_output(tokens: Sequence[int], **changes: Any) -> SimpleNamespace:
    values = {
        "prompt": None,
        "prompt_token_ids": [1, 2],
        "text": "".join(map(chr, tokens)),
        "token_ids": list(tokens),
        "finish_reason": "length",
        "stop_reason": None,
        "cached_tokens": 0,
        "logprobs": None,
        "prompt_logprobs": None,
        "speculation_json": None,
        "timings_json": '{"queue_ms": 1.5}',
    }
    return SimpleNamespace(**(values | changes))


class RecordingEngine:
    """Stands in for ``frizzen._core.Engine``."""

    def __init__(self, config_json: str) -> None:
        self.config = json.loads(config_json)
        self.calls: list[tuple[list[Any], list[dict[str, Any]]]] = []
        self.rendered: list[tuple[Any, dict[str, Any]]] = []
        self.closed = 0
        self.error: BaseException | None = None
        self.changes: dict[str, Any] = {}

    def generate(
        self, prompts: list[Any], params: list[str], progress: Callable[[int, int, int], None] | None
    ) -> list[SimpleNamespace]:
        self.calls.append((prompts, [json.loads(text) for text in params]))
        if progress:
            progress(0, len(prompts), 0)
        if self.error is not None:
            raise self.error
        if progress:
            progress(len(prompts), len(prompts), 40)
        return [core_output([65, 66], **self.changes) for _ in prompts]

    def render_chat(self, messages: str, options: str) -> str:
        self.rendered.append((json.loads(messages), json.loads(options)))
        return "<rendered>"

    def encode(self, text: str, add_special: bool) -> list[int]:
        return [9, int(add_special)]

    def decode(self, ids: list[int], skip_special: bool) -> str:
        return "".join(map(chr, ids))

    plan_json = '{"kernels": []}'

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    core = ModuleType("frizzen._core")
    core.Engine = RecordingEngine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "frizzen._core", core)
    return LLM("some-model", max_model_len=64)


def engine_of(llm: LLM) -> RecordingEngine:
    engine: Any = llm._engine
    return engine  # type: ignore[no-any-return]


def test_options_become_the_engines_configuration(llm: LLM) -> None:
    config = engine_of(llm).config
    assert (config["model"], config["max_model_len"], config["dtype"]) == ("some-model", 64, "auto")
    with pytest.raises(ConfigError, match="no option 'max_len'"):
        LLM("some-model", max_len=3)


def test_one_set_of_parameters_serves_all_prompts_and_a_list_each_its_own(llm: LLM) -> None:
    llm.generate(["a", [1, 2]], SamplingParams(top_k=5))
    llm.generate(["a", "b"], [SamplingParams(seed=1), SamplingParams(seed=2)])
    (first, params), (_, own) = engine_of(llm).calls
    assert first == ["a", [1, 2]]
    assert [entry["top_k"] for entry in params] == [5, 5]
    assert [entry["seed"] for entry in own] == [1, 2]


def test_parameters_that_do_not_match_the_prompts_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="one, or one per prompt: got 1 for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(RequestError, match=r"sampling_params\[0\] must be SamplingParams, got dict"):
        llm.generate(["a"], [{"top_k": 3}])  # type: ignore[list-item]
    assert engine_of(llm).calls == []


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert engine_of(llm).calls == []


def test_outputs_have_the_shape_of_vllm(llm: LLM) -> None:
    entry = SimpleNamespace(token_id=66, logprob=-1.5, rank=3, top=[(65, -0.1), (67, -0.9)])
    engine_of(llm).changes = {"logprobs": [entry] * 2, "prompt_logprobs": [entry], "cached_tokens": 16}
    (output,) = llm.generate("a", SamplingParams(logprobs=2, prompt_logprobs=2))
    completion = output.outputs[0]
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("AB", [65, 66], "length")
    assert output.num_cached_tokens == 16
    assert output.timings == {"queue_ms": 1.5}
    expected = {66: Logprob(-1.5, 3, "B"), 65: Logprob(-0.1, 1, "A"), 67: Logprob(-0.9, 2, "C")}
    assert completion.logprobs == [expected, expected]
    assert list(completion.logprobs[0]) == [66, 65, 67]
    assert output.prompt_logprobs == [None, expected]


def test_chat_renders_and_tokenises_without_adding_special_tokens(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    (output,) = llm.chat(messages, chat_template_kwargs={"thinking": False}, tools=tools)
    (rendered,) = engine_of(llm).rendered
    assert rendered == (
        messages,
        {
            "add_generation_prompt": True,
            "continue_final_message": False,
            "chat_template_kwargs": {"thinking": False},
            "tools": tools,
        },
    )
    assert engine_of(llm).calls[0][0] == [[9, 0]]
    assert output.prompt == "<rendered>"


def test_chat_takes_several_conversations(llm: LLM) -> None:
    outputs = llm.chat([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]])
    assert len(outputs) == 2
    assert [messages[0]["content"] for messages, _ in engine_of(llm).rendered] == ["a", "b"]


def test_chat_refuses_a_turn_that_is_both_new_and_continued(llm: LLM) -> None:
    with pytest.raises(RequestError, match="continue_final_message needs add_generation_prompt=False"):
        llm.chat([{"role": "assistant", "content": "a"}], continue_final_message=True)
    with pytest.raises(RequestError, match="messages must not be empty"):
        llm.chat([])


@pytest.mark.parametrize("error", [ZeroDivisionError("step"), KeyboardInterrupt()])
def test_the_original_exception_is_raised_and_the_object_stays_usable(
    llm: LLM, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    engine_of(llm).error = error
    with pytest.raises(type(error)) as raised:
        llm.generate("a", use_tqdm=True)
    assert raised.value is error
    assert capsys.readouterr().err.endswith("\n")
    engine_of(llm).error = None
    assert llm.generate("a")[0].outputs[0].text == "AB"


def test_the_progress_bar_is_shown_when_asked_and_never_in_a_log_by_default(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate(["a", "b"])
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], use_tqdm=True)
    drawn = capsys.readouterr().err
    assert "2/2 requests" in drawn
    assert drawn.endswith(" tokens/s\n")


@pytest.mark.parametrize("messages", ["hi", {"role": "user", "content": "hi"}, 5])
def test_messages_that_are_no_list_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match=f"must be a list of messages, got {type(messages).__name__}"):
        llm.chat(messages)


def test_another_thread_is_told_that_the_llm_is_not_its_own_pounce_477(llm: LLM) -> None:
    with ThreadPoolExecutor(1) as other:
        for use in (lambda: llm.generate("a"), llm.close):
            with pytest.raises(RuntimeError, match="belongs to the thread that made it"):
                other.submit(use).result()
    assert engine_of(llm).closed == 0
    assert len(llm.generate("a")) == 1


def test_a_closed_llm_says_so(llm: LLM) -> None:
    engine = engine_of(llm)
    with llm:
        assert llm.plan == {"kernels": []}
    llm.close()
    assert engine.closed == 1
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        llm.generate("a")
