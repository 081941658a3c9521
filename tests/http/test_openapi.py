"""``/openapi.json`` is valid OpenAPI 3.1, and the server keeps to what it says there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.mock_server import MockServer

GOOD = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 2},
    "/v1/completions": {"prompt": ["a", [1, 2]], "max_tokens": 2, "stop": "x", "logit_bias": {"5": -100}},
    "/v1/responses": {"input": "q", "max_output_tokens": 2, "metadata": {"a": "b"}},
    "/v1/messages": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 2},
    "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"max_tokens": 2}},
    "/generate": {"text": ["a"], "sampling_params": {"max_new_tokens": 2}},
    "/v1/embeddings": {"input": ["a", [1, 2]]},
    "/pooling": {"input": "a", "task": "token_embed"},
    "/score": {"queries": "a", "documents": ["b"]},
    "/rerank": {"query": "a", "documents": ["b"], "top_n": 1},
    "/v2/embed": {"texts": ["a"], "embedding_types": ["float", "ubinary"]},
}
VECTORS = {"/v1/embeddings", "/pooling", "/score", "/rerank", "/v2/embed"}


OTHERS = {
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "q"}]},
    "/tokenize": {"prompt": "x", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/parse": {"text": "x"},
    "/invocations": {"prompt": "x", "max_tokens": 2},
    "/abort_requests": {"request_ids": ["x"]},
}
"""Bodies of routes that have no table of fields."""

POOLING = {
    "/v1/embeddings": {"input": ["a", "b"]},
    "/pooling": {"input": [1, 2], "encoding_format": "base64"},
    "/classify": {"input": "a"},
    "/score": {"queries": "a", "documents": ["b", {"text": "c"}]},
    "/rerank": {"query": "a", "documents": ["b"], "top_n": 1},
}


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with MockServer() as running:
        yield running


@pytest.fixture(scope="module")
def embeds() -> Iterator[MockServer]:
    with MockServer("--embed-size", "4") as running:
        yield running


@pytest.fixture(scope="module")
def document(server: MockServer) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(server.text("/openapi.json"))
    return made


def schema_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return {**body, "components": document["components"]}


def test_it_is_valid(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()


def test_the_bounds_are_those_of_the_model(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["TokenId"]["maximum"] == 258
    assert schemas["Alternatives"]["maximum"] == 20


def answer_of(document: dict[str, Any], path: str, verb: str) -> dict[str, Any]:
    schema = document["paths"][path][verb]["responses"]["200"]["content"]["application/json"]["schema"]
    return {**schema, "components": document["components"]}


@pytest.mark.parametrize("path", [*GOOD, *OTHERS])
def test_what_it_takes_is_taken_and_answered_as_it_says(
    server: MockServer, document: dict[str, Any], path: str
) -> None:
    body = {**GOOD, **OTHERS}[path]
    jsonschema.validate(body, schema_of(document, path))
    status, text = server.call(path, json.dumps(body).encode())
    assert status == 200, text
    jsonschema.validate(json.loads(text), answer_of(document, path, "post"))


@pytest.mark.parametrize("path", POOLING)
def test_answers_of_a_pooling_model_are_as_it_says(path: str) -> None:
    flags = ("--classes", "3") if path == "/classify" else ("--embed-size", "4")
    with MockServer(*flags) as server:
        document = json.loads(server.text("/openapi.json"))
        jsonschema.validate(POOLING[path], schema_of(document, path))
        status, text = server.call(path, json.dumps(POOLING[path]).encode())
        assert status == 200, text
        jsonschema.validate(json.loads(text), answer_of(document, path, "post"))


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/version", "/load", "/is_paused", "/is_sleeping"])
def test_what_is_asked_without_a_body_is_answered_as_it_says(
    server: MockServer, document: dict[str, Any], path: str
) -> None:
    jsonschema.validate(json.loads(server.text(path)), answer_of(document, path, "get"))


@pytest.mark.parametrize("path", GOOD)
def test_what_it_refuses_is_refused(
    server: MockServer, embeds: MockServer, document: dict[str, Any], path: str
) -> None:
    server = embeds if path in VECTORS else server
    schema = schema_of(document, path)
    name = schema["$ref"].rsplit("/", 1)[1]
    fields = document["components"]["schemas"][name]["properties"]
    tried = 0
    for field in fields:
        for value in (-5, "", 1.5, True, [[]], {"x": []}):
            body = {**GOOD[path], field: value}
            try:
                jsonschema.validate(body, schema)
            except jsonschema.ValidationError:
                status, text = server.call(path, json.dumps(body).encode())
                # 501: a feature that is not there.
                assert status in {400, 404, 501}, (field, value, text)
                error = json.loads(text)["error"]
                assert error["message"]
                tried += 1
    assert tried > 20 or path == "/inference/v1/generate"


def test_every_path_answers_as_it_says(server: MockServer, document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        for verb, operation in item.items():
            if operation["tags"] == ["not served"]:
                assert server.call(path, b"{}" if verb == "post" else None)[0] == 501, path
