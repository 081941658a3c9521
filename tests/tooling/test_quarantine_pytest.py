"""The pytest side of the quarantine, on small suites of its own."""

import datetime
from pathlib import Path

import pytest

from tools import quarantine

TESTS = """
    def test_bad():
        assert 1 == 2, "the clock runs backwards"

    def test_good():
        assert 1 + 1 == 2
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makepyfile(test_suite=TESTS)
    monkeypatch.setattr(quarantine, "LIST", pytester.path / "quarantine.toml")
    return pytester


def write_list(folder: Path, test: str, signature: str = "runs backwards", days: int = 7) -> None:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    added, expires = today - datetime.timedelta(days=30), today + datetime.timedelta(days=days)
    (folder / "quarantine.toml").write_text(
        f'[[quarantine]]\nid = "test_suite.py::{test}"\njob = "pytest"\nreason = "r"\n'
        f'signature = "{signature}"\n'
        f'added = {added}\nexpires = {expires}\nowner = "o"\nissue = "i"\n'
    )


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest("-p", "tools.quarantine_pytest", "-p", "no:cacheprovider", *arguments)


def test_a_quarantined_failure_with_its_signature_counts_as_expected(suite: pytest.Pytester) -> None:
    write_list(suite.path, "test_bad")
    result = run(suite, "--quarantine-complete")
    result.assert_outcomes(passed=1, xfailed=1)
    assert result.ret == pytest.ExitCode.OK


def test_a_failure_without_the_signature_fails(suite: pytest.Pytester) -> None:
    write_list(suite.path, "test_bad", signature="disk is full")
    result = run(suite)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*without the quarantined signature*disk is full*"])


def test_an_entry_that_passes_again_fails(suite: pytest.Pytester) -> None:
    write_list(suite.path, "test_good")
    result = run(suite, "--deselect", "test_suite.py::test_bad")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*is quarantined and passes again*"])


def test_an_unknown_id_fails_a_complete_run_only(suite: pytest.Pytester) -> None:
    write_list(suite.path, "test_gone")
    complete = run(suite, "--quarantine-complete", "--deselect", "test_suite.py::test_bad")
    assert complete.ret == pytest.ExitCode.USAGE_ERROR
    complete.stderr.fnmatch_lines(["*there is no such test: test_suite.py::test_gone*"])
    assert run(suite, "-k", "test_good").ret == pytest.ExitCode.OK


def test_an_expired_entry_stops_every_run(suite: pytest.Pytester) -> None:
    write_list(suite.path, "test_bad", days=-1)
    result = run(suite)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*expired on*"])


def test_a_failing_fixture_of_a_quarantined_test_is_judged_too(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_suite="""
        import pytest

        @pytest.fixture
        def broken():
            raise RuntimeError("the clock runs backwards")

        def test_bad(broken):
            assert broken
        """
    )
    write_list(suite.path, "test_bad")
    run(suite).assert_outcomes(xfailed=1)
