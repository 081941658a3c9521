"""``/v1/responses`` through the official ``openai`` client, unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tests.mock_server import MockServer

ARGUMENTS = {"city": "Zürich “x”", "days": 3}
BODY = json.dumps({"name": "weather", "arguments": ARGUMENTS}, ensure_ascii=False)
CALL = f"<tool_call>\n{BODY}\n</tool_call>"
SCRIPT = f"<think>\nTwo calls.\n</think>\n\nI look.\n{CALL}\n{CALL}"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}]
FLAGS = ("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@contextmanager
def talking(script: str, *flags: str) -> Iterator[openai.OpenAI]:
    said = ("--served-model-name", "mock", "--say", "script", "--script", script)
    with (
        MockServer(*said, *flags) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with talking(SCRIPT, *FLAGS) as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[openai.OpenAI]:
    with talking("hello 😀 “world”") as made:
        yield made


def shape(item: Any) -> Any:
    """An item without its ids."""
    return item.model_dump(exclude={"id", "call_id"})


def events_of(client: openai.OpenAI, **asked: Any) -> list[Any]:
    events = list(client.responses.create(model="mock", stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def test_a_text_is_one_message(plain: openai.OpenAI) -> None:
    response = plain.responses.create(model="mock", input="hi", instructions="Be kind.", metadata={"a": "b"})
    assert (response.status, response.output_text) == ("completed", "hello 😀 “world”")
    assert [item.type for item in response.output] == ["message"]
    assert (response.instructions, response.metadata) == ("Be kind.", {"a": "b"})
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert response.incomplete_details is None
    assert response.error is None


def test_the_order_of_events_is_the_documented_one(client: openai.OpenAI) -> None:
    events = events_of(client, input="Weather?", tools=TOOLS)
    names = [event.type.removeprefix("response.") for event in events]
    merged = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    text = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    assert merged == [
        "created",
        "in_progress",
        *(name.format("reasoning_text") for name in text),
        "output_item.done",
        *(name.format("output_text") for name in text),
        "output_item.done",
        *call,
        "output_item.done",
        *call,
        "output_item.done",
        "completed",
    ]
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [
        0,
        1,
        2,
        3,
    ]


def test_the_streamed_response_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="mock", input="Weather?", tools=TOOLS)
    events = events_of(client, input="Weather?", tools=TOOLS)
    final = events[-1].response
    assert [shape(item) for item in final.output] == [shape(item) for item in whole.output]
    assert final.usage.output_tokens_details == whole.usage.output_tokens_details
    assert final.usage.output_tokens_details.reasoning_tokens == len("Two calls.")
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == final.output
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [ARGUMENTS, ARGUMENTS]
    assert len({call.call_id for call in calls}) == 2
    assert whole.output[0].content[0].text == "Two calls."
    assert whole.output_text == "I look."


def test_deltas_join_to_what_is_done(client: openai.OpenAI) -> None:
    joined: dict[str, str] = {}
    done: dict[str, str] = {}
    for event in events_of(client, input="Weather?", tools=TOOLS):
        if event.type.endswith(".delta"):
            joined[event.item_id] = joined.get(event.item_id, "") + event.delta
        elif event.type.endswith(("text.done", "arguments.done")):
            done[event.item_id] = getattr(event, "text", None) or event.arguments
    assert joined == done
    assert len(done) == 4


def test_the_streaming_helper_accumulates_the_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="mock", input="Weather?", tools=TOOLS) as stream:
        for _event in stream:
            pass
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert final.output_text == "I look."


@pytest.mark.parametrize("limit", [4, 14, 30, 40, 90])
def test_a_response_that_is_cut_off_is_incomplete_in_both_modes_vllm_53269(
    client: openai.OpenAI, limit: int
) -> None:
    asked = {"input": "Weather?", "tools": TOOLS, "max_output_tokens": limit}
    whole = client.responses.create(model="mock", **asked)
    last = events_of(client, **asked)[-1]
    assert (last.type, whole.status) == ("response.incomplete", "incomplete")
    for response in (whole, last.response):
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage.output_tokens == limit
        assert all(item.status == "completed" for item in response.output[:-1])
        # Cut between two items, the last one is whole.
        assert not response.output or response.output[-1].status in {"completed", "incomplete"}
    assert [shape(item) for item in last.response.output] == [shape(item) for item in whole.output]


def test_history_with_calls_reasoning_and_results_goes_back_in(client: openai.OpenAI) -> None:
    first = client.responses.create(model="mock", input="Weather?", tools=TOOLS)
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    user = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
    history = [user, *(item.model_dump(exclude_none=True) for item in first.output), *results]
    second = client.responses.create(model="mock", input=history, tools=TOOLS, store=False)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.store is False
    continued = client.responses.create(
        model="mock", input=results, tools=TOOLS, previous_response_id=first.id
    )
    assert continued.previous_response_id == first.id
    assert continued.usage.input_tokens == second.usage.input_tokens


def test_stored_responses_come_back_and_unstored_ones_do_not(plain: openai.OpenAI) -> None:
    kept = plain.responses.create(model="mock", input="hi")
    assert plain.responses.retrieve(kept.id).output_text == kept.output_text
    gone = plain.responses.create(model="mock", input="hi", store=False)
    for call in (
        lambda: plain.responses.retrieve(gone.id),
        lambda: plain.responses.create(model="mock", input="x", previous_response_id=gone.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    with pytest.raises(openai.BadRequestError, match="background"):
        plain.responses.cancel(kept.id)


def test_a_stream_in_the_background_is_resumed_where_it_broke_off(client: openai.OpenAI) -> None:
    seen = []
    for event in client.responses.create(
        model="mock", input="Weather?", tools=TOOLS, background=True, stream=True
    ):
        seen.append(event)
        if len(seen) == 7:
            break
    response = seen[0].response
    assert (response.status, response.background) == ("in_progress", True)
    rest = client.responses.retrieve(response.id, stream=True, starting_after=seen[-1].sequence_number)
    seen.extend(rest)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    assert client.responses.retrieve(response.id) == seen[-1].response
    assert list(client.responses.retrieve(response.id, stream=True)) == seen


def test_instructions_are_not_carried_over(plain: openai.OpenAI) -> None:
    first = plain.responses.create(model="mock", input="hi", instructions="x" * 100)
    second = plain.responses.create(model="mock", input="hi", previous_response_id=first.id)
    assert second.instructions is None
    assert second.usage.input_tokens < first.usage.input_tokens + 100


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_output_tokens", 0, "max_output_tokens"),
        ("temperature", -1, "temperature"),
        ("input", [], "input"),
        ("input", [{"role": "user", "content": 5}], "input"),
        ("input", [{"type": "message", "content": "no role"}], "input"),
        ("metadata", {"a": 5}, "metadata"),
        ("tools", [{"type": "function"}], "tools"),
        ("tool_choice", "required", "tool_choice"),
        ("text", {"format": {"type": "json_schema", "name": "x"}}, "text"),
        ("extra_body", {"n": 2}, "n"),
        ("top_logprobs", 3, "top_logprobs"),
        ("include", [5], "include"),
        ("truncation", "auto", "truncation"),
    ],
)
def test_bad_fields_are_named_as_this_dialect_names_them(
    plain: openai.OpenAI, field: str, value: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        plain.responses.create(**{"model": "mock", "input": "hi", field: value})
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("conversation", "conv_1"),
        ("tools", [{"type": "web_search"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x.test/a"}]}]),
        ("input", [{"type": "computer_call_output", "call_id": "x"}]),
    ],
)
def test_what_is_not_served_is_a_typed_501(plain: openai.OpenAI, field: str, value: Any) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        plain.responses.create(**{"model": "mock", "input": "hi", field: value})
    assert (refused.value.status_code, refused.value.param) == (501, field)


def test_logprobs_of_the_text_are_the_same_in_both_modes_and_join_to_it(plain: openai.OpenAI) -> None:
    asked = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = plain.responses.create(model="mock", **asked)
    assert whole.top_logprobs == 2
    entries = whole.output[0].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == whole.output_text
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    events = events_of(plain, **asked)
    deltas = [event.logprobs for event in events if event.type == "response.output_text.delta"]
    joined = [entry.model_dump(include={"token", "logprob"}) for delta in deltas for entry in delta]
    assert joined == [entry.model_dump(include={"token", "logprob"}) for entry in entries]
    assert events[-1].response.output[0].content == whole.output[0].content
    assert plain.responses.create(model="mock", input="hi").output[0].content[0].logprobs == []


def test_logprobs_of_a_text_beside_reasoning_and_calls_are_those_of_its_tokens(
    client: openai.OpenAI,
) -> None:
    asked = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    whole = client.responses.create(model="mock", **asked)
    messages = [item for item in whole.output if item.type == "message"]
    assert len(whole.output) > len(messages) > 0, "the test needs more than a text"
    for message in messages:
        (part,) = message.content
        assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode() == part.text
    events = events_of(client, **asked)
    for event in events:
        if event.type == "response.output_text.delta":
            assert b"".join(bytes(entry.bytes) for entry in event.logprobs).decode() == event.delta
    last = [item.content for item in events[-1].response.output if item.type == "message"]
    assert last == [item.content for item in messages]


def test_a_too_long_input_says_so(plain: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="4096") as refused:
        plain.responses.create(model="mock", input="x" * 5000)
    assert refused.value.param == "input"


def test_a_schema_is_enforced() -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    with talking("no JSON at all") as client:
        form = {"type": "json_schema", "name": "r", "schema": schema, "strict": True}
        response = client.responses.create(
            model="mock", input="hi", text={"format": form}, max_output_tokens=200
        )
    assert response.model_dump()["grammar_enforced"] is True
    if response.status == "completed":
        assert isinstance(json.loads(response.output_text)["x"], int)


def test_a_failing_engine_ends_the_stream_with_response_failed() -> None:
    flags = ("--step-ms", "2", "--fault", "raise@20", "--served-model-name", "mock")
    with (
        MockServer(*flags) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        last = events_of(client, input="hi")[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert "engine failed" in last.response.error.message
