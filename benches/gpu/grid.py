"""The guard over a grid: `auto` beside `off` and the best constant length, by batch and forced acceptance.

A run is one call of ``generate``; what counts of it are the steps that decode all rows, but for the first
few, in every mode alike. Runs come in the order off, auto, best, best, auto, off, so that what drifts slowly
does so for all. A step in which something was captured, or that takes several times as long as the others of
its run, is left out of the rate in every mode, and its time is reported beside it; graphs that the worker
would capture one by one between steps of the first minutes (23 ms and more each) are captured before. The
best constant length is found by a sweep at the batch, since forced acceptance changes the tokens of a step
and not its time.

What two equal runs differ by is the noise of a cell; a bound that is nearer than that leaves it undecided.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot, nan
from typing import Any

from benches.gpu.serving import Steps, prompt
from frizzen import LLM, SamplingParams
from frizzen.worker.worker import Worker

__all__ = ["Bench", "Budget", "Mode", "Rate", "Row", "block", "cell", "expected", "noise", "rate", "verdict"]

LENGTHS = (1, 2, 3, 5)
GOAL_OFF, GOAL_BEST = 0.98, 0.95
PROMPT = 24
SETTLE = 4
"""First decode steps of a run that do not count."""
HICCUP = 2.5
"""Median steps from which on a step is one: the longest drafts do not double a step."""
TEACH, TEACH_ROWS = 12, 64
"""Least steps of the longest drafts with which an acceptance begins, and rows of them together: they show it
to the guard, whose counts are those of the acceptance before."""
FEWEST = 10
"""Steps of a run, at least."""
MOST_TOKENS = 3500
SHORTEST, LONGEST = 0.2, 2.0
"""Seconds of a run."""

Row = dict[str, object]
Mode = str | int
"""``off``, ``auto``, or a number of drafts."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A run."""

    tokens_per_s: float
    """Of all rows."""
    step_ms: float
    """Median."""
    tokens_per_step: float
    """And row."""
    steps: int = 0
    hiccup_ms: float = 0.0
    """What steps took that are left out."""
    kinds: list[tuple[float, int, int, float]] = field(default_factory=list)
    """Drafts and proposals per row, how many such steps, their median time."""


def rate(steps: Steps, rows: int, settle: int = SETTLE) -> Rate:
    """Of the steps that decode all ``rows`` after one that does; not a number if there are none."""
    most = rows * (1 + max(LENGTHS))
    both = [
        (after.at - before.at, after)
        for before, after in pairwise(steps.ends)
        if before.rows == after.rows == rows and before.tokens <= most and after.tokens <= most
    ]
    gaps = both[settle:] or both
    if not gaps:
        return Rate(nan, nan, nan)
    median = statistics.median(seconds for seconds, _ in gaps)
    counted = [
        (seconds, end) for seconds, end in gaps if seconds < HICCUP * median and not end.irregular
    ] or gaps
    seconds = sum(gap for gap, _ in counted)
    tokens = sum(end.sampled for _, end in counted)
    kinds: dict[tuple[float, int], list[float]] = {}
    for gap, end in counted:
        kinds.setdefault((round(end.tokens / rows - 1, 1), end.proposed), []).append(1e3 * gap)
    return Rate(
        tokens / seconds,
        1e3 * median,
        tokens / len(counted) / rows,
        len(counted),
        1e3 * (sum(gap for gap, _ in gaps) - seconds),
        [(*kind, len(times), round(statistics.median(times), 3)) for kind, times in sorted(kinds.items())],
    )


def expected(mode: Mode, acceptance: float) -> float:
    """Tokens per row and step under forced ``acceptance``."""
    if not isinstance(mode, int):
        return 1.0
    return 1 + sum(min(max(acceptance - 1 - place, 0.0), 1.0) for place in range(mode))


@dataclass(slots=True)
class Bench:
    """One engine."""

    llm: LLM
    worker: Worker
    steps: Steps
    vocabulary: int
    runs: int = 0
    usage: Row = field(default_factory=dict)
    """What speculation did in the last run, over all rows."""

    def run(self, rows: int, mode: Mode, tokens: int, text: int | None = None) -> Rate:
        """So many tokens a row; prompts are new ones, or those of number ``text``."""
        # With fewer, the first rows end before the prompts of the last are computed.
        tokens = min(max(tokens, FEWEST + rows * PROMPT // 512), MOST_TOKENS)
        wish = {"max_tokens": mode} if isinstance(mode, int) else mode
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, speculation=wish)
        self.runs += 1
        number = self.runs if text is None else text
        prompts = [prompt(PROMPT, number * 131 + row, self.vocabulary) for row in range(rows)]
        self.steps.clear()
        self.usage = usage(self.llm.generate(prompts, params))
        return rate(self.steps, rows)

    def force(self, acceptance: float) -> None:
        """Verification is to give so many tokens per row and step from now on."""
        self.worker.control("synthetic_acceptance", str(acceptance))

    def capture(self) -> None:
        """Captures what the worker would between later steps, so that no run is held up by it."""
        graphs = self.worker._graphs
        while graphs is not None and graphs.capture_next():
            pass

    def captured(self) -> int:
        """Graphs, of whole steps and of their ends."""
        graphs = self.worker._graph_state(None)
        return 0 if graphs is None else len(graphs["captured"]) + len(graphs["ends"]["captured"])


def usage(outputs: Sequence[Any]) -> Row:
    """The accounts of all rows together: counts of steps by length and by reason, drafts, accepted."""
    accounts = [output.speculation or {} for output in outputs]
    found: Row = {}
    for key in ("lengths", "reasons"):
        counts: Counter[str] = Counter()
        for account in accounts:
            counts.update(account.get(key, {}))
        found[key] = {name: count for name, count in counts.items() if count}
    for key in ("drafts", "accepted"):
        found[key] = sum(account.get(key, 0) for account in accounts)
    found["saved_ms"] = round(sum(account.get("saved_ms", 0.0) for account in accounts), 2)
    return found


@dataclass(slots=True)
class Budget:
    """Seconds that are left, shared out over the blocks (a drafter and a batch) that are left."""

    end: float
    batches: Sequence[int]
    acceptances: int
    drafters: int
    load: float
    """Seconds that an engine takes to be ready."""

    def runs(self) -> float:
        """Runs of full length of a block: half a run per length and what ``cell`` makes."""
        return (1 + len(LENGTHS)) / 2 + 7 * self.acceptances

    def beside(self, rows: int) -> float:
        """Seconds of a block beside them: prompts, graphs, and the ends of runs."""
        short = 2 * (1 + len(LENGTHS)) + 8 * self.acceptances
        return short * (0.05 + 0.001 * rows)

    def seconds(self, batches: Sequence[int], engines: int) -> float:
        """Of a run, if these batches and so many whole engines are still to be measured."""
        left = self.end - time.perf_counter() - engines * self.load
        blocks = [*batches, *(rows for _ in range(engines) for rows in self.batches)]
        left -= sum(self.beside(rows) for rows in blocks)
        return min(max(left / len(blocks) / self.runs(), SHORTEST), LONGEST)

    def estimate(self) -> str:
        """What the whole grid takes, in words."""
        each = self.seconds((), self.drafters)
        blocks = self.drafters * sum(self.beside(rows) + each * self.runs() for rows in self.batches)
        total = blocks + self.drafters * self.load
        cells = self.drafters * len(self.batches) * self.acceptances
        return f"{cells} cells, runs of {each:.2f} s, about {total:.0f} s in all"


def _sweep(bench: Bench, rows: int, acceptance: float, seconds: float) -> dict[Mode, Rate]:
    """Every constant length at a batch, each after a few steps that capture its graphs."""
    bench.force(acceptance)
    found: dict[Mode, Rate] = {}
    for mode in ("off", *LENGTHS):
        first = bench.run(rows, mode, 0)
        tokens = expected(mode, acceptance)
        found[mode] = bench.run(rows, mode, int(tokens * 1e3 * seconds / 2 / first.step_ms) + SETTLE)
    return found


def cell(
    bench: Bench, rows: int, acceptance: float, swept: dict[Mode, Rate], seconds: float
) -> tuple[Row, list[float]]:
    """One cell of the grid; and what runs of ``off`` gave."""
    bench.force(acceptance)
    gains: dict[Mode, float] = {
        mode: expected(mode, acceptance) * swept["off"].step_ms / one.step_ms for mode, one in swept.items()
    }
    best = max(gains, key=lambda mode: gains[mode])

    def tokens(mode: Mode) -> int:
        like = best if mode == "auto" else mode
        steps = 1e3 * seconds / swept[like].step_ms + SETTLE
        return int(steps * expected(like, acceptance)) + 2

    teach = max(TEACH, TEACH_ROWS // rows)
    bench.run(rows, max(LENGTHS), int(teach * expected(max(LENGTHS), acceptance)))
    first = bench.run(rows, "auto", tokens("auto"))
    graphs = bench.captured()
    found: dict[Mode, list[Rate]] = {"off": [], "auto": [], best: []}
    accounts: list[Row] = []
    order: tuple[Mode, ...] = ("off", "auto", best, best, "auto", "off")
    for mode in order if best != "off" else ("off", "auto", "auto", "off"):
        found[mode].append(bench.run(rows, mode, tokens(mode)))
        if mode == "auto":
            accounts.append(bench.usage)
            state = bench.llm.speculation
    captured = bench.captured() - graphs
    rates = {mode: [one.tokens_per_s for one in runs] for mode, runs in found.items()}
    middle = {mode: statistics.fmean(each) for mode, each in rates.items()}
    errors = {mode: abs(each[0] - each[1]) / 2 / middle[mode] for mode, each in rates.items()}
    of_off, of_best = middle["auto"] / middle["off"], middle["auto"] / middle[best]
    noises = [hypot(errors["auto"], errors["off"]), hypot(errors["auto"], errors[best])]
    row: Row = {
        "what": "cell",
        "acceptance": acceptance,
        "rows": rows,
        "off_tok_s": round(middle["off"], 1),
        "auto_tok_s": round(middle["auto"], 1),
        "auto_tokens_per_step": round(statistics.fmean(one.tokens_per_step for one in found["auto"]), 3),
        "auto_of_off": round(of_off, 3),
        "best": best,
        "best_of_off": round(middle[best] / middle["off"], 3),
        "auto_of_best": round(of_best, 3),
        "noise": [round(one, 3) for one in noises],
        "verdict": verdict(((of_off, GOAL_OFF, noises[0]), (of_best, GOAL_BEST, noises[1]))),
        "first_of_off": round(first.tokens_per_s / middle["off"], 3),
        "runs": {str(mode): [_short(one) for one in runs] for mode, runs in found.items()},
        "captured": captured,
        "guard": accounts,
        "state": state,
    }
    return row, rates["off"]


def _short(one: Rate) -> Row:
    return {
        "tok_s": round(one.tokens_per_s, 1),
        "step_ms": round(one.step_ms, 3),
        "steps": one.steps,
        "hiccup_ms": round(one.hiccup_ms, 1),
        "kinds": [kind for kind in one.kinds if kind[2] > 1],
    }


def verdict(bounds: Sequence[tuple[float, float, float]]) -> str:
    """``holds``, ``fails`` or ``undecided``, by triples of a ratio, its bound and its noise."""
    if any(ratio + noise < bound for ratio, bound, noise in bounds):
        return "fails"
    return "holds" if all(ratio - noise >= bound for ratio, bound, noise in bounds) else "undecided"


def block(
    bench: Bench, name: str, rows: int, acceptances: Sequence[float], seconds: float, found: dict[Mode, Rate]
) -> Iterator[Row]:
    """The sweep at a batch, which goes to ``found`` too, its cells, and how far runs of ``off`` lie apart."""
    found |= _sweep(bench, rows, acceptances[0], seconds)
    for mode, one in found.items():
        yield {"what": "step", "drafter": name, "rows": rows, "drafts": mode, "ms": round(one.step_ms, 3)}
    plain: list[float] = []
    for acceptance in acceptances:
        row, rates = cell(bench, rows, acceptance, found, seconds)
        plain += rates
        yield {"what": "cell", "drafter": name} | row
    if plain:
        apart = (max(plain) - min(plain)) / statistics.fmean(plain)
        yield {
            "what": "apart",
            "drafter": name,
            "rows": rows,
            "off_runs": len(plain),
            "apart": round(apart, 4),
        }


def noise(bench: Bench, rows: int, tokens: int, runs: int = 6) -> Iterator[Row]:
    """Equal runs of ``off``: what they differ by, and what the longest steps coincide with.

    Half of them begin after the device was idle for a while.
    """
    collections: list[tuple[float, float, int]] = []
    began = 0.0

    def collected(phase: str, about: dict[str, int]) -> None:
        nonlocal began
        now = time.perf_counter()
        if phase == "start":
            began = now
        else:
            collections.append((began, now, about["generation"]))

    gc.callbacks.append(collected)
    try:
        for turn in range(runs):
            idle = 0.3 * (turn % 2)
            time.sleep(idle)
            collections.clear()
            one = bench.run(rows, "off", tokens)
            ends = [end.at for end in bench.steps.ends if end.rows == end.tokens == rows]
            gaps = [after - before for before, after in pairwise(ends)]
            median = statistics.median(gaps)
            long = [at for at, gap in enumerate(gaps) if gap > 1.5 * median]
            parts = [
                1e3 * statistics.median(gaps[at : at + 20]) for at in range(0, 80, 20) if gaps[at : at + 20]
            ]
            whole = rows * len(gaps) / sum(gaps)
            yield {
                "what": "noise",
                "rows": rows,
                "idle_before_s": idle,
                "tok_s": round(one.tokens_per_s, 1),
                "all_steps_tok_s": round(whole, 1),
                "step_ms": round(1e3 * median, 3),
                "medians_of_20_ms": [round(part, 3) for part in parts],
                "long_steps": [[at, round(1e3 * gaps[at], 2)] for at in long[:12]],
                "collections": [
                    [sum(end < start for end in ends), generation, round(1e3 * (end - start), 2)]
                    for start, end, generation in collections
                    if end - start > 2e-4
                ][:12],
            }
    finally:
        gc.callbacks.remove(collected)
