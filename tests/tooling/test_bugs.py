"""The lists of public bug reports (``tests/bugs/*.toml``) name tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "tests" / "bugs").glob("*.toml"))
DEFINITION = re.compile(r"^\s*(?:pub )?(?:async )?(?:fn|def) (\w+)", re.MULTILINE)
FIELDS = {"id", "areas", "test", "tests", "reason"}


def entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(path.read_text())["bug"]
    return found


def names_in(entry: dict[str, Any]) -> list[str]:
    one = entry.get("test")
    return [*entry.get("tests", []), *([one] if isinstance(one, str) else one or [])]


@pytest.fixture(scope="module")
def defined() -> set[str]:
    sources = [*(ROOT / "rust").rglob("*.rs"), *(ROOT / "tests").rglob("test_*.py")]
    return {name for source in sources for name in DEFINITION.findall(source.read_text())}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_report_has_tests_or_a_reason(path: Path, defined: set[str]) -> None:
    for entry in entries(path):
        assert set(entry) <= FIELDS, entry
        assert re.fullmatch(r"[A-Z]{2}-\d\d|\w+#\d+", entry["id"]), entry
        assert entry["areas"], entry
        assert names_in(entry) or entry.get("reason"), entry
        missing = [test for test in names_in(entry) if test not in defined]
        assert not missing, (entry["id"], missing)


def test_no_report_stands_twice() -> None:
    ids = [entry["id"] for path in LISTS for entry in entries(path)]
    assert sorted(ids) == sorted(set(ids))
