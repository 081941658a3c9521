"""The quarantine list: what is refused in it, and how the outcomes of a run are judged under it."""

import datetime
import sys
from pathlib import Path

import pytest

from tools import quarantine
from tools.quarantine import Entry, Outcomes, judge, parse_cargo, read

TODAY = datetime.date(2026, 12, 1)
GOOD = """
[[quarantine]]
id = "crate::module::test"
job = "cargo"
reason = "the clock runs backwards"
signature = "left: 3"
added = 2026-11-30
expires = 2026-12-14
owner = "maintainers"
issue = "12"
"""


def entry(signature: str = "left: 3") -> Entry:
    (good,), faults = read(GOOD.replace("left: 3", signature), TODAY)
    assert faults == []
    return good


def test_a_complete_entry_is_read() -> None:
    assert entry().id == "crate::module::test"
    assert entry().expires == datetime.date(2026, 12, 14)


@pytest.mark.parametrize("name", ["id", "job", "reason", "signature", "added", "expires", "owner", "issue"])
def test_a_missing_field_is_a_fault(name: str) -> None:
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith(f"{name} ="))
    entries, faults = read(text, TODAY)
    assert entries == []
    assert any(f"field '{name}' is missing" in fault for fault in faults)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('reason = "the clock runs backwards"', 'reason = ""', "'reason' is missing or empty"),
        ("expires = 2026-12-14", "expires = 2026-11-30", "not after the day it was added"),
        ("expires = 2026-12-14", 'expires = "2026-12-14"', "a date is needed"),
        ("expires = 2026-12-14", "expires = 2026-12-14T00:00:00Z", "a date is needed"),
        ("added = 2026-11-30", "added = 2026-12-02", "after today"),
        ('job = "cargo"', 'job = "make"', "one of pytest, cargo"),
        ('signature = "left: 3"', 'signature = "("', "not a regular expression"),
        ('owner = "maintainers"', 'owner = "maintainers"\nlabel = "x"', "unknown field 'label'"),
    ],
)
def test_a_wrong_field_is_a_fault(old: str, new: str, said: str) -> None:
    entries, faults = read(GOOD.replace(old, new), TODAY)
    assert entries == []
    assert any(said in fault for fault in faults), faults


def test_an_entry_holds_to_the_end_of_its_last_day() -> None:
    assert read(GOOD, datetime.date(2026, 12, 14))[1] == []
    assert "expired on 2026-12-14" in read(GOOD, datetime.date(2026, 12, 15))[1][0]


def test_a_double_and_an_unknown_table_are_faults() -> None:
    assert "more than once" in read(GOOD + GOOD, TODAY)[1][0]
    assert (
        "unknown table 'quarantined'" in read(GOOD.replace("[[quarantine]]", "[[quarantined]]"), TODAY)[1][0]
    )


def test_a_failure_with_the_signature_is_let_through() -> None:
    assert judge([entry()], Outcomes(failed={"crate::module::test": "assertion failed\n  left: 3"})) == []


def test_a_failure_in_another_way_is_not_hidden() -> None:
    (fault,) = judge([entry()], Outcomes(failed={"crate::module::test": "index out of bounds"}))
    assert "without the quarantined signature" in fault


def test_an_entry_that_passes_again_or_does_not_exist_is_a_fault() -> None:
    assert "passes again" in judge([entry()], Outcomes(passed={"crate::module::test"}))[0]
    assert "no such test" in judge([entry()], Outcomes(passed={"crate::module::other"}))[0]


def test_a_failure_outside_the_list_is_a_fault() -> None:
    assert judge([], Outcomes(failed={"crate::other": ""})) == ["crate::other failed"]


CARGO = """\
   Compiling frizzen-sched v0.1.0
    Finished `test` profile [unoptimized] target(s) in 0.10s
     Running unittests src/lib.rs (target/debug/deps/crate-0123456789abcdef)

running 4 tests
test module::test ... FAILED
test module::fine ... ok
test module::boom - should panic ... ok
test module::costly ... ignored, needs a device

failures:

---- module::test stdout ----
thread 'module::test' panicked at src/lib.rs:9:9:
assertion `left == right` failed
  left: 3
 right: 4

failures:
    module::test

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/http.rs (target/debug/deps/http-fedcba9876543210)

running 1 test
test streams ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests crate

running 1 test
test src/lib.rs - module (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.20s
"""


def test_cargos_output_is_read_into_outcomes() -> None:
    outcomes, unfinished = parse_cargo(CARGO)
    assert unfinished == []
    assert outcomes.passed == {
        "crate::module::fine",
        "crate::module::boom",
        "http::streams",
        "crate::src/lib.rs - module (line 3)",
    }
    assert outcomes.ignored == {"crate::module::costly"}
    assert list(outcomes.failed) == ["crate::module::test"]
    assert "left: 3" in outcomes.failed["crate::module::test"]
    assert "finished in" not in outcomes.failed["crate::module::test"]


def test_a_binary_that_dies_without_a_result_is_named() -> None:
    cut = CARGO[: CARGO.index("failures:")] + CARGO[CARGO.index("     Running tests/http.rs") :]
    assert parse_cargo(cut)[1] == ["crate"]


def fake_cargo(folder: Path, output: str, status: int) -> list[str]:
    script = folder / "fake_cargo.py"
    script.write_text(f"import sys\nprint({output!r})\nsys.exit({status})\n")
    return [sys.executable, str(script)]


@pytest.mark.parametrize(
    ("output", "status", "entries", "expected"),
    [
        (CARGO, 101, [entry()], 0),
        (CARGO, 101, [], 1),
        (CARGO, 101, [entry("another way")], 1),
        ("error: could not compile `crate`", 101, [], 1),
        ("error: could not compile `crate`", 101, [entry()], 1),
        (CARGO[CARGO.index("     Running tests/http.rs") :], 0, [], 0),
        (CARGO[CARGO.index("     Running tests/http.rs") :], 0, [entry()], 1),
    ],
    ids=["excused", "not-listed", "other-way", "no-compile", "no-compile-listed", "all-pass", "unknown-id"],
)
def test_the_status_of_a_cargo_run_is_what_its_outcomes_deserve(
    tmp_path: Path, output: str, status: int, entries: list[Entry], expected: int
) -> None:
    assert quarantine.run_cargo(fake_cargo(tmp_path, output, status), entries) == expected


def test_the_projects_own_list_is_in_order() -> None:
    assert quarantine.load()[1] == []
