"""Every row of ``tests/parity/surface.toml`` against a running server: it is what the row says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mock_server import MockServer

ROOT = Path(__file__).resolve().parents[2]
ROWS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/parity/surface.toml").read_text())["row"]
DEFINITION = re.compile(r"^\s*(?:pub )?(?:async )?(?:fn|def) (\w+)", re.MULTILINE)
CHAT = {"messages": [{"role": "user", "content": "q"}]}
SMALLEST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "q"},
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    "/classify": {"input": "a"},
    "/score": {"queries": "a", "documents": ["b"]},
    "/rerank": {"query": "a", "documents": ["b", "c"]},
}
VECTORS = {"/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[MockServer, MockServer]]:
    """One that generates, and one that embeds."""
    flags = ["--served-model-name", "mock"]
    with (
        MockServer(*flags, "--say", "script", "--script", "hello") as generates,
        MockServer(*flags, "--embed-size", "4") as embeds,
    ):
        yield generates, embeds


def member(answer: Any, path: str) -> Any:
    for name in path.split("."):
        answer = answer[int(name)] if isinstance(answer, list) else answer[name]
    return answer


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['section']}: {row['row']}")
def test_a_row_is_what_it_is_said_to_be(servers: tuple[MockServer, MockServer], row: dict[str, Any]) -> None:
    for attempt in row.get("try", []):
        path = attempt.get("path", "/v1/chat/completions")
        body = SMALLEST.get(path, {}) | json.loads(attempt["with"])
        status, text = servers[path in VECTORS].call(path, json.dumps(body).encode())
        assert status == attempt["status"], (attempt, text)
        answer = json.loads(text)
        if "param" in attempt:
            assert answer["error"]["param"] == attempt["param"], (attempt, text)
        for name, value in attempt.get("holds", {}).items():
            assert member(answer, name) == value, (attempt, text)


def test_every_row_is_shown_and_no_row_stands_twice() -> None:
    sources = [*(ROOT / "rust").rglob("*.rs"), *(ROOT / "tests").rglob("test_*.py")]
    defined = {name for source in sources for name in DEFINITION.findall(source.read_text())}
    for row in ROWS:
        assert set(row) <= {"section", "row", "outcome", "tests", "try", "why"}, row
        assert row["outcome"] in {"supported", "refused", "ignored"}, row
        assert row.get("try") or row.get("tests"), row
        assert not set(row.get("tests", [])) - defined, row
    names = [(row["section"], row["row"]) for row in ROWS]
    assert len(names) == len(set(names))
    sections = {section for section, _ in names}
    assert sections == {"fields", "streams", "errors", "responses", "pooling"}
