"""``/v1/messages`` through the official ``anthropic`` client, unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import pytest

from tests.mock_server import MockServer

ARGUMENTS = {"city": "Zürich “x”", "days": 3}
BODY = json.dumps({"name": "weather", "arguments": ARGUMENTS}, ensure_ascii=False)
CALL = f"<tool_call>\n{BODY}\n</tool_call>"
SCRIPT = f"<think>\nTwo calls.\n</think>\n\nI look.\n{CALL}\n{CALL}"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
ASKED = {"model": "mock", "max_tokens": 1000, "messages": [{"role": "user", "content": "Weather?"}]}
TOOLS = [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]
FLAGS = ("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@contextmanager
def talking(script: str, *flags: str, key: str = "none") -> Iterator[anthropic.Anthropic]:
    said = ("--served-model-name", "mock", "--say", "script", "--script", script)
    with (
        MockServer(*said, *flags) as server,
        anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    with talking(SCRIPT, *FLAGS) as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[anthropic.Anthropic]:
    with talking("hello 😀 “world”") as made:
        yield made


def shape(message: Any) -> Any:
    """Blocks without ids, and how it ended."""
    return [block.model_dump(exclude={"id"}) for block in message.content], message.stop_reason


def test_a_text_is_one_block(plain: anthropic.Anthropic) -> None:
    message = plain.messages.create(**ASKED, system="Be kind.", metadata={"user_id": "u"})
    assert shape(message)[1] == "end_turn"
    assert [(block.type, block.text) for block in message.content] == [("text", "hello 😀 “world”")]
    assert (message.role, message.type, message.model) == ("assistant", "message", "mock")
    assert message.id.startswith("msg_")
    assert message._request_id


def test_usage_counts_cached_tokens_apart(plain: anthropic.Anthropic) -> None:
    asked = {**ASKED, "messages": [{"role": "user", "content": "x" * 600}]}
    first, second = (plain.messages.create(**asked).usage for _ in range(2))
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens >= 512
    for usage in (first, second):
        assert usage.input_tokens + usage.cache_read_input_tokens == first.input_tokens
    counted = plain.messages.count_tokens(model="mock", messages=asked["messages"])
    assert counted.input_tokens == first.input_tokens


def test_the_order_of_events_is_the_documented_one(client: anthropic.Anthropic) -> None:
    events = list(client.messages.create(**ASKED, tools=TOOLS, stream=True))
    names = [event.type for event in events]
    merged = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert merged == ["message_start", *block * 4, "message_delta", "message_stop"]
    assert [event.index for event in events if event.type == "content_block_stop"] == [0, 1, 2, 3]
    start, end = events[0].message, events[-2]
    assert (start.content, start.stop_reason, start.usage.output_tokens) == ([], None, 0)
    assert (end.delta.stop_reason, end.delta.stop_sequence) == ("tool_use", None)
    assert end.usage.output_tokens == len(SCRIPT.encode()) + 1


def test_the_streaming_helper_accumulates_the_whole_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASKED, tools=TOOLS)
    with client.messages.stream(**ASKED, tools=TOOLS) as stream:
        for _event in stream:
            pass
        final = stream.get_final_message()
    assert shape(final) == shape(whole)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole.content[0].thinking == "Two calls."
    assert whole.content[1].text == "I look."
    calls = whole.content[2:]
    assert [call.input for call in calls] == [ARGUMENTS, ARGUMENTS]
    assert len({call.id for call in calls}) == 2
    assert whole.stop_reason == "tool_use"


@pytest.mark.parametrize("limit", [4, 14, 30, 40, 90])
def test_a_message_that_is_cut_off_says_max_tokens_in_both_modes_vllm_53269(
    client: anthropic.Anthropic, limit: int
) -> None:
    asked = {**ASKED, "tools": TOOLS, "max_tokens": limit}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert whole.stop_reason == final.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == final.usage.output_tokens == limit
    assert [block.type for block in whole.content] == [block.type for block in final.content]


def test_stop_sequences_are_named(plain: anthropic.Anthropic) -> None:
    asked = {**ASKED, "stop_sequences": ["never", "😀"]}
    whole = plain.messages.create(**asked)
    with plain.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "😀")
        assert message.content[0].text == "hello "


def test_history_with_thinking_calls_and_results_goes_back_in(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**ASKED, tools=TOOLS)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "sunny"}]}
        for block in first.content
        if block.type == "tool_use"
    ]
    history = [
        *ASKED["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "And?"}]},
    ]
    second = client.messages.create(**{**ASKED, "messages": history}, tools=TOOLS)
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens > first.usage.input_tokens


def test_a_last_message_of_the_assistant_is_continued(plain: anthropic.Anthropic) -> None:
    user = {"role": "user", "content": "Say it."}
    begun = {"role": "assistant", "content": "It is"}
    count = plain.messages.count_tokens
    alone = count(model="mock", messages=[user]).input_tokens
    # The header of the assistant's message, which is there either way, and the text; no end of the message.
    assert count(model="mock", messages=[user, begun]).input_tokens == alone + len("It is")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1),
        ("messages", []),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("stop_sequences", [""]),
        ("tool_choice", {"type": "any"}),
        ("thinking", {"type": "perhaps"}),
    ],
)
def test_bad_fields_are_invalid_requests(plain: anthropic.Anthropic, field: str, value: Any) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        plain.messages.create(**ASKED, extra_body={field: value})
    body = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert field in body["error"]["message"]
    assert body["request_id"] == refused.value.response.headers["request-id"]


def test_what_is_not_served_is_a_501_that_is_not_tried_again(plain: anthropic.Anthropic) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}
    bodies = [
        {"messages": [{"role": "user", "content": [image]}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    ]
    for body in bodies:
        with pytest.raises(anthropic.APIStatusError) as refused:
            plain.with_options(max_retries=3).messages.create(**{**ASKED, **body})
        assert refused.value.status_code == 501


def test_errors_have_the_types_of_this_dialect(plain: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        plain.messages.create(**{**ASKED, "model": "nobody"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    with talking("x", "--api-key", "right", key="wrong") as client:
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**ASKED)
        assert client.with_options(api_key="right").messages.create(**ASKED).content[0].text == "x"


def test_a_schema_is_enforced(plain: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "boolean"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = plain.messages.create(**{**ASKED, "max_tokens": 100}, extra_body={"output_config": config})
    assert isinstance(json.loads(message.content[0].text)["x"], bool)
    assert message.model_dump()["grammar_enforced"] is True


def test_a_failing_engine_is_an_error_event() -> None:
    flags = ("--step-ms", "2", "--fault", "raise@20", "--served-model-name", "mock")
    with (
        MockServer(*flags) as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError, match="engine failed"),
    ):
        for _event in client.messages.create(**ASKED, stream=True):
            pass
