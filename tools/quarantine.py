"""The list of tests that may fail for now (``tests/quarantine.toml``), and the gate that keeps it honest.

A quarantined test runs like any other; what changes is how its outcome counts (``judge``). So an entry that
is no longer needed shows itself, and a test that starts to fail in another way is not hidden.
``tools/quarantine_pytest.py`` applies the rules to pytest; ``python -m tools.quarantine cargo -- cargo test
...`` applies them to cargo's output.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "tests" / "quarantine.toml"
JOBS = ("pytest", "cargo")

RUNNING = re.compile(
    r"^\s+(?:Running (?:unittests )?(?P<source>\S+) \((?P<binary>.+)\)|Doc-tests (?P<crate>\S+))$"
)
OUTCOME = re.compile(r"^test (?P<name>.+?)(?: - should panic)? \.\.\. (?P<outcome>ok|FAILED|ignored)")
OUTPUT_OF = re.compile(r"^---- (?P<name>.+) stdout ----$")
SUMMARY = re.compile(r"^test result: ")


@dataclass(frozen=True, slots=True)
class Entry:
    """One quarantined test."""

    id: str
    job: str
    reason: str
    signature: str
    added: datetime.date
    expires: datetime.date
    owner: str
    issue: str


def read(text: str, today: datetime.date) -> tuple[list[Entry], list[str]]:
    """Parses the list. Returns (valid entries, faults); a faulty entry is not among the valid ones."""
    entries: list[Entry] = []
    faults: list[str] = []
    document = tomllib.loads(text)
    faults += [
        f"unknown table {key!r}, only [[quarantine]] is known" for key in document if key != "quarantine"
    ]
    for position, table in enumerate(document.get("quarantine", []), start=1):
        name = f"entry {position} ({table.get('id', 'no id')})"
        found = [f"{name}: {fault}" for fault in _faults(table, today)]
        if found:
            faults += found
        else:
            entries.append(Entry(**table))
    doubles = {entry.id for entry in entries if sum(other.id == entry.id for other in entries) > 1}
    faults += [f"{name} stands in the list more than once" for name in sorted(doubles)]
    return entries, faults


def _faults(table: Mapping[str, object], today: datetime.date) -> Iterable[str]:
    names = [item.name for item in fields(Entry)]
    for name in names:
        value = table.get(name)
        wanted = datetime.date if name in ("added", "expires") else str
        if not value:
            yield f"field {name!r} is missing or empty"
        elif type(value) is not wanted:
            yield f"field {name!r} is {value!r}, a {wanted.__name__} is needed"
    yield from (f"unknown field {name!r}" for name in table if name not in names)
    if (job := table.get("job")) and job not in JOBS:
        yield f"job is {job!r}, it must be one of {', '.join(JOBS)}"
    added, expires = table.get("added"), table.get("expires")
    if type(added) is datetime.date and type(expires) is datetime.date:
        if added > today:
            yield f"added on {added}, which is after today ({today})"
        if expires <= added:
            yield f"expires on {expires}, which is not after the day it was added ({added})"
        elif expires < today:
            yield f"expired on {expires}; today is {today}: mend the test or argue for more time"
    try:
        re.compile(str(table.get("signature", "")))
    except re.error as error:
        yield f"signature {table.get('signature')!r} is not a regular expression: {error}"


@dataclass(slots=True)
class Outcomes:
    """What one run of a test runner said: ids that passed, failed (with their text) or were ignored."""

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)


def judge(entries: Iterable[Entry], outcomes: Outcomes) -> list[str]:
    """Faults of a whole run: failures that nothing excuses, and entries that nothing needs any more."""
    listed = {entry.id: entry for entry in entries}
    faults = []
    for name, text in outcomes.failed.items():
        if name not in listed:
            faults.append(f"{name} failed")
        elif not re.search(listed[name].signature, text):
            faults.append(f"{name} failed, but without the quarantined signature {listed[name].signature!r}")
    for name in listed:
        if name in outcomes.passed:
            faults.append(f"{name} is quarantined and passes again: take its entry out")
        elif name not in outcomes.failed and name not in outcomes.ignored:
            faults.append(f"{name} is quarantined, and there is no such test")
    return faults


def parse_cargo(output: str) -> tuple[Outcomes, list[str]]:
    """Reads what ``cargo test`` printed, both streams together.

    Returns the outcomes and the binaries that never finished.

    The id of a test is ``crate::path::name``; of an integration test ``file::path::name``.
    """
    outcomes = Outcomes()
    unfinished: list[str] = []
    crate, captured = "", ""
    for line in output.splitlines():
        if match := RUNNING.match(line):
            crate = match["crate"] or re.sub(r"-[0-9a-f]{16}$", "", Path(match["binary"]).name)
            unfinished.append(crate)
            captured = ""
        elif match := OUTCOME.match(line):
            name = f"{crate}::{match['name']}"
            if match["outcome"] == "ok":
                outcomes.passed.add(name)
            elif match["outcome"] == "FAILED":
                outcomes.failed.setdefault(name, "")
            else:
                outcomes.ignored.add(name)
        elif match := OUTPUT_OF.match(line):
            captured = f"{crate}::{match['name']}"
        elif SUMMARY.match(line) or line == "failures:":
            captured = ""
            if SUMMARY.match(line) and unfinished:
                unfinished.pop()
        elif captured in outcomes.failed:
            outcomes.failed[captured] += line + "\n"
    return outcomes, unfinished


def run_cargo(command: list[str], entries: list[Entry]) -> int:
    """Runs cargo, passes its output on, and returns the status that its outcomes deserve under the list."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None, "stdout is a pipe"
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    outcomes, unfinished = parse_cargo("".join(lines))
    faults = judge(entries, outcomes)
    faults += [f"the tests of {crate} ended without a result" for crate in unfinished]
    if process.returncode and not outcomes.failed and not faults:
        faults.append(f"{' '.join(command)} failed with status {process.returncode}")
    for fault in faults:
        print(f"quarantine: {fault}", file=sys.stderr)
    return 1 if faults else 0


def load() -> tuple[list[Entry], list[str]]:
    """The project's own list, judged as of today."""
    return read(LIST.read_text(encoding="utf-8"), datetime.datetime.now(tz=datetime.UTC).date())


def main(arguments: list[str]) -> int:
    """``check`` the list, or run ``cargo -- COMMAND...`` under it."""
    entries, faults = load()
    for fault in faults:
        print(f"{LIST.name}: {fault}", file=sys.stderr)
    if faults:
        return 1
    match arguments:
        case ["check"]:
            print(f"{LIST.name}: {len(entries)} entries, all in order")
            return 0
        case ["cargo", "--", *command] if command:
            return run_cargo(command, [entry for entry in entries if entry.job == "cargo"])
        case _:
            print("usage: python -m tools.quarantine check | cargo -- COMMAND...", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
