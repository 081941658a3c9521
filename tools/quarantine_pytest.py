"""pytest plugin: applies ``tests/quarantine.toml`` to the outcome of each test.

A quarantined test that fails with its signature is reported as xfailed, one that passes as failed. With
``--quarantine-complete`` (a run of the whole suite) an entry whose test was not collected fails the session.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tools.quarantine import Entry, Outcomes, judge, load


class Quarantine:
    """The entries of this run. ``complete``: every test was collected, so an unknown id is a fault."""

    def __init__(self, entries: list[Entry], complete: bool) -> None:
        """Keeps the entries by the id of their test."""
        self.entries = {entry.id: entry for entry in entries if entry.job == "pytest"}
        self.complete = complete

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Refuses entries whose test does not exist."""
        unknown = self.entries.keys() - {item.nodeid for item in session.items}
        if self.complete and unknown:
            raise pytest.UsageError(f"quarantined, and there is no such test: {', '.join(sorted(unknown))}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turns the report of a quarantined test into what the list makes of it."""
        report = yield
        entry = self.entries.get(item.nodeid)
        if entry is None or (report.passed and report.when != "call") or report.skipped:
            return report
        outcomes = Outcomes()
        if report.failed:
            outcomes.failed[entry.id] = report.longreprtext
        else:
            outcomes.passed.add(entry.id)
        if faults := judge([entry], outcomes):
            report.outcome = "failed"
            report.longrepr = "\n".join([*faults, report.longreprtext]).rstrip()
        else:
            report.outcome = "skipped"
            report.wasxfail = f"quarantined until {entry.expires}: {entry.reason}"
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--quarantine-complete``."""
    parser.addoption(
        "--quarantine-complete",
        action="store_true",
        help="every test runs: unknown quarantined ids are faults",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Reads the list. Raises ``pytest.UsageError`` if it is faulty: no run may hide that."""
    entries, faults = load()
    if faults:
        raise pytest.UsageError("\n".join(f"tests/quarantine.toml: {fault}" for fault in faults))
    config.pluginmanager.register(
        Quarantine(entries, bool(config.getoption("quarantine_complete"))), "quarantine"
    )
