"""Everything that the server sends fits the official clients' own models, validated strictly.

The clients themselves build their models without validation: a wrong type or a missing member shows up
only where somebody reads it.
"""

from __future__ import annotations

import json
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, ConfigDict, TypeAdapter

from tests.mock_server import PATIENCE_S, MockServer

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
SCRIPT = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "parameters": PARAMETERS}
MESSAGES = [{"role": "user", "content": "q"}]
FLAGS = ("--say", "script", "--script", SCRIPT, "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes")

BODIES: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": FUNCTION}],
            "logprobs": True,
            "top_logprobs": 2,
            "n": 2,
            "max_tokens": 500,
        },
        ChatCompletion,
        ChatCompletionChunk,
    ),
    "completion": (
        "/v1/completions",
        # With echo the first token has no log-probability, here as at OpenAI; their model does not know.
        {"prompt": ["a", [98, 99]], "logprobs": 2, "n": 2, "max_tokens": 40},
        Completion,
        Completion,
    ),
    "responses": (
        "/v1/responses",
        {"input": "q", "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 500},
        Response,
        ResponseStreamEvent,
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": MESSAGES,
            "max_tokens": 500,
            "tools": [{"name": "weather", "input_schema": PARAMETERS}],
        },
        Message,
        RawMessageStreamEvent,
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with MockServer("--served-model-name", "mock", *FLAGS) as running:
        yield running


def answer(server: MockServer, path: str, body: dict[str, Any]) -> str:
    status, text = server.call(path, json.dumps({"model": "mock", **body}).encode())
    assert status == 200, text
    return text


def events(server: MockServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of each event; the names of events, where there are any, are those in the data."""
    request = urllib.request.Request(
        server.url + path,
        json.dumps({"model": "mock", "stream": True, **body}).encode(),
        {"content-type": "application/json"},
    )
    found = []
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
        for block in stream.read().decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if lines and lines["data"] != "[DONE]":
                data = json.loads(lines["data"])
                assert lines.get("event") in {None, data.get("type")}
                found.append(data)
    return found


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("name", BODIES)
def test_answers_and_events_fit_the_clients_models(server: MockServer, name: str, cut: bool) -> None:
    path, body, whole, event = BODIES[name]
    if cut:
        limit = "max_output_tokens" if name == "responses" else "max_tokens"
        body = {**body, limit: 20}
    TypeAdapter(whole).validate_json(answer(server, path, body), strict=True)
    options = {"stream_options": {"include_usage": True}} if name in {"chat", "completion"} else {}
    sent = events(server, path, {**body, **options})
    assert len(sent) > 2
    adapter: TypeAdapter[Any] = TypeAdapter(event)
    for data in sent:
        for choice in data["choices"] if name == "completion" else []:
            # Null before the end, here as at OpenAI; their model is that of a whole answer.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        adapter.validate_json(json.dumps(data), strict=True)


def test_small_answers_fit_too(server: MockServer) -> None:
    counted = answer(server, "/v1/messages/count_tokens", {"messages": MESSAGES})
    MessageTokensCount.model_validate_json(counted, strict=True)
    for model in json.loads(server.text("/v1/models"))["data"]:
        Model.model_validate(model, strict=True)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_fit_and_are_numbers_for_the_client(encoding: Literal["float", "base64"]) -> None:
    with MockServer("--embed-size", "4", "--served-model-name", "mock") as server:
        if encoding == "float":
            text = answer(server, "/v1/embeddings", {"input": ["a", "b"]})
            CreateEmbeddingResponse.model_validate_json(text, strict=True)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            asked: dict[str, Any] = {"model": "mock", "input": [[1, 2], [3]], "encoding_format": encoding}
            made = client.embeddings.create(**asked)
            # Not asked for, the client asks for base64 and decodes it.
            plain = client.embeddings.create(model="mock", input=[[1, 2], [3]])
    assert [len(entry.embedding) for entry in plain.data] == [4, 4]
    if encoding == "float":
        for entry, other in zip(made.data, plain.data, strict=True):
            assert entry.embedding == pytest.approx(other.embedding, rel=1e-6)


class Place(BaseModel):
    """What the model is to say."""

    model_config = ConfigDict(extra="forbid")

    city: str
    days: int | None
    kind: Literal["big", "small"]


SAID = '{"city": "Zürich", "days": null, "kind": "big"}'


def test_pydantic_models_are_parsed_by_both_interfaces_of_openai() -> None:
    with (
        MockServer("--say", "script", "--script", SAID, "--served-model-name", "mock") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        chat = client.chat.completions.parse(model="mock", messages=MESSAGES, response_format=Place)
        response = client.responses.parse(model="mock", input="q", text_format=Place)
        with client.chat.completions.stream(model="mock", messages=MESSAGES, response_format=Place) as stream:
            streamed = stream.get_final_completion()
    parsed = [chat.choices[0].message.parsed, response.output_parsed, streamed.choices[0].message.parsed]
    assert parsed == [Place(city="Zürich", days=None, kind="big")] * 3


def test_tools_made_of_pydantic_models_are_parsed() -> None:
    tools = [openai.pydantic_function_tool(Place, name="place")]
    said = f'<tool_call>\n{{"name": "place", "arguments": {SAID}}}\n</tool_call>'
    flags = ("--say", "script", "--script", said, "--tool-call-parser", "hermes")
    with (
        MockServer(*flags, "--served-model-name", "mock") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        chat = client.chat.completions.parse(model="mock", messages=MESSAGES, tools=tools)
    [call] = chat.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Place(city="Zürich", days=None, kind="big")


def test_pydantic_models_are_parsed_by_anthropics_client() -> None:
    with (
        MockServer("--say", "script", "--script", SAID, "--served-model-name", "mock") as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        message = client.messages.parse(model="mock", max_tokens=200, messages=MESSAGES, output_format=Place)
    assert message.parsed_output == Place(city="Zürich", days=None, kind="big")
