"""Every row of ``tests/parity/surface.toml`` against a running server: it is what the row says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mock_server import MockServer
from tests.parity import tries

ROOT = Path(__file__).resolve().parents[2]
ROWS = tries.rows()
DEFINITION = re.compile(r"^\s*(?:pub )?(?:async )?(?:fn|def) (\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[tries.Server, tries.Server]]:
    """One that generates, and one that embeds."""
    flags = ["--served-model-name", "mock"]
    with (
        MockServer(*flags, "--say", "script", "--script", "hello") as generates,
        MockServer(*flags, "--embed-size", "4") as embeds,
    ):
        yield tries.Server(generates.call, "mock", True), tries.Server(embeds.call, "mock", True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['section']}: {row['row']}")
def test_a_row_is_what_it_is_said_to_be(
    servers: tuple[tries.Server, tries.Server], row: dict[str, Any]
) -> None:
    for attempt in tries.tries(row):
        assert not attempt.problems(servers[attempt.path in tries.VECTORS]), attempt


def test_every_row_is_shown_and_no_row_stands_twice() -> None:
    sources = [*(ROOT / "rust").rglob("*.rs"), *(ROOT / "tests").rglob("test_*.py")]
    defined = {name for source in sources for name in DEFINITION.findall(source.read_text())}
    for row in ROWS:
        assert set(row) <= {"section", "row", "outcome", "tests", "try", "why"}, row
        assert row["outcome"] in {"supported", "refused", "ignored"}, row
        assert row.get("try") or row.get("tests"), row
        assert not set(row.get("tests", [])) - defined, row
        for attempt in row.get("try", []):
            assert set(attempt) <= {"path", "with", "status", "param", "holds", "says"}, row
    names = [(row["section"], row["row"]) for row in ROWS]
    assert len(names) == len(set(names))
    sections = {section for section, _ in names}
    assert sections == {"fields", "streams", "errors", "responses", "pooling", "routes"}
