"""Reasoning and tool calls through the official ``openai`` client, unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator

import jsonschema
import openai
import pytest

from tests.mock_server import MockServer

ARGUMENTS = {"city": "Zürich “x”", "days": 3}
BODY = json.dumps({"name": "weather", "arguments": ARGUMENTS}, ensure_ascii=False)
CALL = f"<tool_call>\n{BODY}\n</tool_call>"
SCRIPT = f"<think>\nTwo calls.\n</think>\n\nI look.\n{CALL}\n{CALL}"
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
ASKED = {
    "model": "mock",
    "messages": [{"role": "user", "content": "Weather?"}],
    "max_tokens": 1000,
    "tools": [
        {
            "type": "function",
            "function": {"name": "weather", "parameters": {"type": "object", "properties": PROPERTIES}},
        }
    ],
}
FLAGS = ("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    script = ("--served-model-name", "mock", "--say", "script", "--script", SCRIPT)
    with (
        MockServer(*script, *FLAGS) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def test_the_streaming_helper_accumulates_the_whole_calls(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED).choices[0]
    with client.chat.completions.stream(**ASKED) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    assert final.message.content == whole.message.content == "I look."
    assert whole.message.reasoning == "Two calls."
    for choice in (final, whole):
        calls = choice.message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == [ARGUMENTS, ARGUMENTS]
        assert [call.function.name for call in calls] == ["weather", "weather"]
        assert len({call.id for call in calls}) == 2
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") >= 2


def test_raw_chunks_join_to_the_same_calls(client: openai.OpenAI) -> None:
    calls: list[dict[str, str]] = []
    reasoning = ""
    reasons = []
    for chunk in client.chat.completions.create(**ASKED, stream=True):
        choice = chunk.choices[0]
        reasoning += getattr(choice.delta, "reasoning", None) or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls)
                calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments or ""
    assert (reasoning, reasons) == ("Two calls.", ["tool_calls"])
    assert [json.loads(call["arguments"]) for call in calls] == [ARGUMENTS, ARGUMENTS]


def test_the_answer_can_be_sent_back_with_the_tools_results(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(**ASKED).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or []
    ]
    history = [*ASKED["messages"], message.model_dump(exclude_none=True), *results]
    again = client.chat.completions.create(**{**ASKED, "messages": history})
    assert again.choices[0].finish_reason == "tool_calls"


def test_a_call_is_forced_by_name(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    schema = {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["days"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": schema}}]
    made = client.chat.completions.create(**{**ASKED, "tools": tools}, tool_choice=named)
    (call,) = made.choices[0].message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), schema)
    assert (call.function.name, made.choices[0].finish_reason) == ("weather", "stop")
    assert made.grammar_enforced is True


def test_a_call_that_cannot_be_enforced_is_refused(client: openai.OpenAI) -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}
    tools = [{"type": "function", "function": function}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**ASKED, "tools": tools}, tool_choice="required")
    assert refused.value.param == "tools"
