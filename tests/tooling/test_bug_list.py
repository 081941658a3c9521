"""Public bugs of structured output, tool calls and reasoning: each is covered by tests of these names."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUGS = json.loads((ROOT / "tests" / "data" / "bugs_structured.json").read_text())


def test_every_listed_bug_is_covered_by_tests_that_exist() -> None:
    sources = [*ROOT.glob("rust/*/src/**/*.rs"), *ROOT.glob("rust/*/tests/**/*.rs")]
    names = {name for path in sources for name in re.findall(r"fn (\w+)\(", path.read_text())}
    missing = {bug: [test for test in tests if test not in names] for bug, tests in BUGS.items()}
    assert not {bug: tests for bug, tests in missing.items() if tests}
    assert all(BUGS.values())
