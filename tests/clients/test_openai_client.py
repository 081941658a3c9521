"""The official ``openai`` client, unchanged, against the real server over a mock worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.mock_server import MockServer

MESSAGES = [{"role": "user", "content": "Say something, please."}]


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with MockServer("--served-model-name", "mock", "--say", "anything") as running:
        yield running


def connect(server: MockServer, *, api_key: str = "none", max_retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=max_retries)


@pytest.fixture
def client(server: MockServer) -> Iterator[openai.OpenAI]:
    with connect(server) as made:
        yield made


@pytest.mark.parametrize("seed", range(5))
def test_joined_chat_deltas_equal_the_whole_message(client: openai.OpenAI, seed: int) -> None:
    whole = client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=80, seed=seed, n=2)
    texts = ["", ""]
    reasons = [[], []]
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model="mock", messages=MESSAGES, max_tokens=80, seed=seed, n=2, stream=True, stream_options=options
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index].append(choice.finish_reason)
        if not chunk.choices:
            assert chunk.usage == whole.usage.model_copy(
                update={"prompt_tokens_details": chunk.usage.prompt_tokens_details}
            )
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [[choice.finish_reason] for choice in whole.choices]
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0


@pytest.mark.parametrize("seed", range(5))
def test_joined_completion_deltas_equal_the_whole_text(client: openai.OpenAI, seed: int) -> None:
    asked = {
        "model": "mock",
        "prompt": ["one", [1, 2, 3]],
        "max_tokens": 60,
        "seed": seed,
        "echo": seed % 2 == 0,
    }
    whole = client.completions.create(**asked)
    texts = ["", ""]
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_the_streaming_helper_accumulates_the_same_message() -> None:
    flags = ("--say", "script", "--script", "hello 😀 “world”", "--served-model-name", "mock")
    asked = {"model": "mock", "messages": MESSAGES, "max_tokens": 60, "logprobs": True, "top_logprobs": 2}
    with MockServer(*flags) as server, connect(server) as client:
        whole = client.chat.completions.create(**asked)
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content == "hello 😀 “world”"
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    entries = whole.choices[0].logprobs.content
    assert final.choices[0].logprobs.content == entries
    assert len(entries) == whole.usage.completion_tokens


def test_concurrent_streams_do_not_mix(server: MockServer) -> None:
    async def text(client: openai.AsyncOpenAI, seed: int, *, stream: bool) -> str:
        asked = {"model": "mock", "messages": MESSAGES, "max_tokens": 50, "seed": seed}
        if not stream:
            return (await client.chat.completions.create(**asked)).choices[0].message.content
        chunks = await client.chat.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            streams = await asyncio.gather(*(text(client, seed, stream=True) for seed in range(16)))
            wholes = await asyncio.gather(*(text(client, seed, stream=False) for seed in range(16)))
        assert streams == wholes
        assert len(set(wholes)) == 16

    asyncio.run(main())


def test_logprobs_are_typed_objects(client: openai.OpenAI) -> None:
    asked = {"model": "mock", "messages": MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 3}
    entry = client.chat.completions.create(**asked).choices[0].logprobs.content[0]
    assert len(entry.top_logprobs) == 3
    assert entry.logprob <= 0
    legacy = client.completions.create(model="mock", prompt="x", max_tokens=2, logprobs=2).choices[0].logprobs
    lists = (legacy.tokens, legacy.token_logprobs, legacy.top_logprobs, legacy.text_offset)
    assert len({len(entries) for entries in lists}) == 1


def test_extra_fields_of_the_peers_pass_through(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True, "top_k": 5, "ignore_eos": True, "skip_special_tokens": False}
    whole = client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=7, extra_body=extra)
    assert len(whole.choices[0].token_ids) == 7
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens


def test_errors_become_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-none", messages=MESSAGES)
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="mock", messages=MESSAGES, temperature=-1)
    assert (bad.value.param, bad.value.type, bad.value.code) == (
        "temperature",
        "BadRequestError",
        "400",
    )
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="mock", prompt="x" * 5000)
    assert "4096" in str(long.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_what_is_not_supported_is_not_tried_again(server: MockServer) -> None:
    with connect(server, max_retries=5) as client:
        handler = 'http_requests_total{method="POST",status="5xx",handler="/v1/chat/completions"}'
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="mock", messages=MESSAGES, modalities=["text", "audio"])
    assert refused.value.status_code == 501
    assert f"{handler} 1\n" in server.text("/metrics")


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["mock"]
    assert client.models.retrieve("mock").owned_by == "frizzen"


def test_request_ids_travel_both_ways(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="mock", messages=MESSAGES, max_tokens=1, extra_headers={"x-request-id": "mine"}
    )
    assert whole.id == "chatcmpl-mine"
    assert whole._request_id == "mine"


def test_a_client_that_stops_reading_frees_its_request() -> None:
    flags = ("--step-ms", "2", "--served-model-name", "mock")
    with MockServer(*flags) as server, connect(server) as client:
        stream = client.chat.completions.create(model="mock", messages=MESSAGES, stream=True)
        for _, _chunk in zip(range(3), stream, strict=False):
            pass
        stream.close()
        server.wait_until("the request is gone", lambda: server.load()["server_load"] == 0)
        server.wait_until("its blocks are free", lambda: server.load()["used_blocks"] == 0)


def test_a_wrong_key_is_an_authentication_error() -> None:
    with MockServer("--api-key", "right", "--served-model-name", "mock") as server:
        for key, allowed in [("right", True), ("wrong", False)]:
            with connect(server, api_key=key) as client:
                if allowed:
                    assert client.models.list().data
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.models.list()


def test_a_failing_engine_is_an_error_of_the_stream() -> None:
    flags = ("--step-ms", "2", "--fault", "raise@20", "--served-model-name", "mock")
    with (
        MockServer(*flags) as server,
        connect(server) as client,
    ):
        stream = client.chat.completions.create(model="mock", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="engine failed"):
            for _chunk in stream:
                pass
        assert server.status("/health") == 503
