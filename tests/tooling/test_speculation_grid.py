"""The grid of the speculation benchmark: which steps count, what decides a cell, how time is shared out."""

import json
import sys
from pathlib import Path

import pytest

from benches.gpu import grid, speculation
from benches.gpu.serving import StepEnd, Steps


def steps(gaps: list[float], *, rows: int = 2, irregular: int | None = None) -> Steps:
    """Decode steps of two tokens a row, so far apart."""
    ends = [StepEnd(0.0, rows, 3 * rows, 2 * rows, 0, False)]
    for at, gap in enumerate(gaps):
        ends.append(StepEnd(ends[-1].at + gap, rows, 3 * rows, 2 * rows, 0, at == irregular))
    return Steps(ends)


def test_hiccups_and_captures_are_reported_and_do_not_count() -> None:
    plain = grid.rate(steps([0.01] * 20), 2)
    disturbed = grid.rate(steps([0.01] * 10 + [0.06] + [0.01] * 4 + [0.02] + [0.01] * 6, irregular=15), 2)
    assert [plain.tokens_per_s, disturbed.tokens_per_s] == pytest.approx([400, 400])
    assert disturbed.hiccup_ms == pytest.approx(80)
    assert (plain.steps, disturbed.steps, plain.hiccup_ms) == (16, 16, pytest.approx(0))


def test_first_steps_and_those_of_other_rows_do_not_count() -> None:
    slow_start = steps([0.02] * grid.SETTLE + [0.01] * 10)
    slow_start.ends += [StepEnd(slow_start.ends[-1].at + 1.0, 1, 1, 1, 0, False)]
    found = grid.rate(slow_start, 2)
    assert (found.tokens_per_s, found.tokens_per_step, found.steps) == (pytest.approx(400), 2, 10)


def test_long_drafts_are_no_hiccups() -> None:
    found = grid.rate(steps([0.01] * 12 + [0.02] * 8), 2)
    assert (found.steps, found.hiccup_ms) == (16, pytest.approx(0))


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ([(1.00, 0.98, 0.01), (0.97, 0.95, 0.01)], "holds"),
        ([(1.00, 0.98, 0.03), (0.97, 0.95, 0.01)], "undecided"),
        ([(1.00, 0.98, 0.03), (0.93, 0.95, 0.01)], "fails"),
        ([(1.00, 0.98, 0.01), (0.94, 0.95, 0.02)], "undecided"),
    ],
)
def test_a_bound_that_is_nearer_than_the_noise_decides_nothing(
    bounds: list[tuple[float, float, float]], said: str
) -> None:
    assert grid.verdict(bounds) == said


def test_forced_acceptance_gives_the_tokens_that_the_worker_accepts() -> None:
    assert [grid.expected(mode, 2.4) for mode in ("off", 1, 2, 3, 5)] == pytest.approx([1, 2, 2.4, 2.4, 2.4])


def test_runs_get_longer_with_the_time_there_is_and_never_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid.time, "perf_counter", lambda: 0.0)

    def seconds(budget: float, engines: int = 1) -> float:
        return grid.Budget(budget, (1, 8), 4, 2, 9.0).seconds((1, 8), engines)

    assert seconds(10) == grid.SHORTEST < seconds(100) < seconds(200) < seconds(10_000) == grid.LONGEST
    assert seconds(100, engines=0) > seconds(100)


def test_the_estimate_is_the_time_that_was_given_if_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid.time, "perf_counter", lambda: 0.0)
    said = grid.Budget(200.0, (1, 8), 4, 2, 9.0).estimate()
    assert said.startswith("16 cells")
    assert said.endswith("about 200 s in all")


def test_the_benchmark_runs_on_a_cpu_and_says_what_the_guard_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "grid.json"
    command = (
        "speculation --device cpu --tiny --layers 2 --drafters mtp --batches 2 --acceptances 3 --seconds 1"
    )
    monkeypatch.setattr(sys, "argv", [*command.split(), "--out", str(out)])
    monkeypatch.setattr(grid, "SHORTEST", 0.03)
    speculation.main()
    rows = json.loads(out.read_text())["results"]
    (cell,) = (row for row in rows if row["what"] == "cell")
    assert [row["drafts"] for row in rows if row["what"] == "step"] == ["off", 1, 2, 3, 5]
    assert cell["runs"].keys() == {"off", "auto", str(cell["best"])}
    assert cell["state"]["drafter"] == "mtp"
    assert cell["state"]["synthetic"]
    for account in cell["guard"]:
        assert sum(account["reasons"].values()) == sum(account["lengths"].values()) > 0
