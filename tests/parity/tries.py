"""The tries of ``surface.toml`` on any running server; ``tests/http/test_surface.py`` runs them on the mock.

By hand, against a server of a real model, and one that embeds if there is one::

    frizzen serve smollm2-135m &
    python -m tests.parity.tries http://127.0.0.1:8000 --embeds http://127.0.0.1:8001

What a try ``holds`` is true of every model; what it ``says`` only of the mock that is told to say "hello".
"""

from __future__ import annotations

import argparse
import json
import tomllib
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("surface.toml")
PATIENCE_S = 120.0
MODEL = "$MODEL"
"""Stands in the table for the name under which the server's model answers."""

FRESH = "$FRESH"
"""Stands in the table for a text that no server has seen."""

SMALLEST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 16},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "q", "max_output_tokens": 16},
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    "/classify": {"input": "a"},
    "/score": {"queries": "a", "documents": ["b"]},
    "/rerank": {"query": "a", "documents": ["b", "c"]},
    "/v2/embed": {"texts": ["a"]},
}
VECTORS = frozenset({"/v1/embeddings", "/pooling", "/classify", "/score", "/rerank", "/v2/embed"})
"""Paths that are tried on a server that embeds."""

Call = Callable[[str, bytes | None], tuple[int, str]]
"""Status and text of the answer to a path and a body; a GET if there is none."""


def rows() -> list[dict[str, Any]]:
    """The table's rows, in order."""
    found: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["row"]
    return found


def member(answer: Any, path: str) -> Any:
    """The member of a JSON answer by its path, such as ``choices.0.text``; ``-1`` is the last of a list.

    Raises:
        KeyError, IndexError, TypeError: there is none.
    """
    for name in path.split("."):
        answer = answer[int(name)] if isinstance(answer, list) else answer[name]
    return answer


def events(stream: str) -> list[Any]:
    """What the events of a stream say, in order: JSON, or the end mark as it is. Comments say nothing."""
    lines = (line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: "))
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is tried."""

    call: Call
    model: str
    """The name under which its model answers."""
    scripted: bool
    """It is the mock that says "hello"."""


@dataclass(frozen=True, slots=True)
class Try:
    """One request, and what its answer must be."""

    path: str
    body: dict[str, Any] | None
    status: int
    param: str | None
    holds: dict[str, Any]
    says: dict[str, Any]

    def problems(self, server: Server) -> list[str]:
        """Sends it; a sentence for each thing that is not as it must be."""
        body = None if self.body is None else json.dumps(self.body).encode()
        status, text = server.call(self.path, body)
        if status != self.status:
            return [f"the status is {status}, not {self.status}: {text}"]
        streams = self.body is not None and self.body.get("stream") is True and status == 200
        answer = {"events": events(text)} if streams else json.loads(text)
        wanted = self.holds | (self.says if server.scripted else {})
        if self.param is not None:
            wanted["error.param"] = self.param
        found = []
        for name, value in wanted.items():
            expected = server.model if value == MODEL else value
            try:
                got = member(answer, name)
            except (KeyError, IndexError, TypeError):
                found.append(f"there is no {name}: {text}")
                continue
            if got != expected:
                found.append(f"{name} is {got!r}, not {expected!r}")
        return found


def fresh(text: str) -> str:
    """The text with an own name in each place that must be new."""
    return text.replace(FRESH, uuid.uuid4().hex)


def tries(row: dict[str, Any]) -> list[Try]:
    """The tries of a row, in order."""
    found = []
    for entry in row.get("try", []):
        path = entry.get("path", "/v1/chat/completions")
        body = SMALLEST.get(path, {}) | json.loads(fresh(entry["with"])) if "with" in entry else None
        outcome = (entry["status"], entry.get("param"), entry.get("holds", {}), entry.get("says", {}))
        found.append(Try(path, body, *outcome))
    return found


def _caller(url: str) -> Call:
    def call(path: str, body: bytes | None) -> tuple[int, str]:
        request = urllib.request.Request(url + path, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return call


def _server(url: str) -> Server:
    call = _caller(url.rstrip("/"))
    status, text = call("/v1/models", None)
    if status != 200:
        raise SystemExit(f"{url} does not say which model it has: {text}")
    return Server(call, json.loads(text)["data"][0]["id"], scripted=False)


def main() -> int:
    """Tries every row; how many were not what they are said to be."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("url", help="a server that generates")
    parser.add_argument("--embeds", metavar="URL", help="a server that embeds (its rows are left out)")
    options = parser.parse_args()
    generates = _server(options.url)
    embeds = _server(options.embeds) if options.embeds else None
    tried, left_out, wrong = 0, 0, 0
    for row in rows():
        problems = []
        for attempt in tries(row):
            server = embeds if attempt.path in VECTORS else generates
            if server is None:
                left_out += 1
                continue
            tried += 1
            problems += [f"  {attempt.path} {attempt.body}: {why}" for why in attempt.problems(server)]
        wrong += bool(problems)
        if problems:
            print(f"{row['section']}: {row['row']}", *problems, sep="\n")
    print(f"{tried} tries, {left_out} left out, {wrong} rows are not what they are said to be")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
