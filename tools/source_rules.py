"""Rules of the house that no linter knows: a forbidden pattern, where it may stand, and why.

A rule is one line of ``RULES``. ``check`` reads every source file that git tracks or would track and returns
the breaches.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Rule:
    """``pattern`` is looked for in ``files`` and may stand only in those of them that fit ``allowed``."""

    name: str
    pattern: re.Pattern[str]
    files: tuple[str, ...]
    allowed: tuple[str, ...]
    reason: str


RULES = (
    Rule(
        "only_py_attaches",
        re.compile(r"Python::(attach|detach|with_gil|assume_attached|allow_threads)|\.detach\(\|\|"),
        ("rust/*.rs",),
        ("rust/py/src/*",),
        "tokio and the engine never touch the interpreter: only rust/py attaches to Python",
    ),
    Rule(
        "only_py_depends_on_pyo3",
        re.compile(r"^\s*pyo3\b"),
        ("rust/*/Cargo.toml",),
        ("rust/py/Cargo.toml",),
        "only rust/py depends on pyo3",
    ),
    Rule(
        "one_stream_owner",
        re.compile(r"\bset_stream\(|\bcuda\.stream\("),
        ("python/*.py",),
        ("python/frizzen/parallel/streams.py",),
        "the stream owner switches streams, by a context manager that waits both ways",
    ),
    Rule(
        "kernel_packages_behind_adapters",
        re.compile(r"^\s*(import|from)\s+(deep_gemm|deep_ep|flashinfer)\b"),
        ("python/*.py",),
        ("python/frizzen/kernels/*",),
        "a kernel package is imported by its adapter alone, never as a hard import",
    ),
    Rule(
        "no_skip_outside_the_quarantine",
        re.compile(r"#\[ignore|pytest\.mark\.(skip|xfail)\b|pytest\.xfail\(|unittest\.skip\b"),
        ("*.rs", "*.py"),
        ("tools/source_rules.py", "tests/tooling/test_source_rules.py", "conftest.py"),
        "a faulty test stands in tests/quarantine.toml; for environments there is skipif",
    ),
    Rule(
        "no_machine_paths",
        re.compile(r"(^|[\s\"'=(])/(root|home/\w+|Users/\w+|work)/"),
        ("*",),
        ("tools/source_rules.py", "tests/tooling/test_source_rules.py"),
        "a path of one machine is of no use on another",
    ),
    Rule(
        "no_unfinished_code",
        re.compile(r"\b(todo|unimplemented)!\(|raise NotImplementedError|\b(TODO|FIXME|XXX)\b"),
        ("*.rs", "*.py"),
        ("tools/source_rules.py", "tests/tooling/test_source_rules.py"),
        "what is missing is an issue, not a comment",
    ),
)


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def breaches(rules: tuple[Rule, ...], name: str, text: str) -> list[str]:
    """Lines of the file ``name`` that break a rule, as ``name:line: reason``."""
    applicable = [rule for rule in rules if _fits(name, rule.files) and not _fits(name, rule.allowed)]
    return [
        f"{name}:{number}: {rule.reason} ({rule.name})"
        for number, line in enumerate(text.splitlines(), start=1)
        for rule in applicable
        if rule.pattern.search(line)
    ]


def source_files(root: Path) -> list[str]:
    """Text files that git tracks or would track, without lock files and recorded data."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = (".rs", ".py", ".pyi", ".toml", ".md", ".sh", ".yml", ".yaml")
    return [name for name in listed if name.endswith(wanted) or name in ("Makefile", ".ci/run")]


def check(root: Path) -> list[str]:
    """Every breach in the tree under ``root``."""
    found: list[str] = []
    for name in source_files(root):
        path = root / name
        if path.is_file():
            found += breaches(RULES, name, path.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Prints the breaches; status 1 if there is one."""
    found = check(ROOT)
    print("\n".join(found) if found else f"{len(RULES)} source rules hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
