"""Speculation in the real engine: what drafting and verifying take, and the guard over a grid.

For each drafter one engine serves everything: lengths are a field of requests, and forced acceptance is
changed between runs. Throughput is that of decode steps while all rows of the batch are running. The best
constant length is found by a sweep over ``LENGTHS`` at the batch; since forced acceptance changes the tokens
of a step and not its time, one sweep serves all acceptances. The guard knows the sweep's times, as a server's
knows those of the steps before; each acceptance begins with steps of the longest drafts, which teach it. In a
cell ``auto``, ``off`` and the best length take turns, so that each is compared with what ran beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import torch

from benches.gpu import drafters
from benches.gpu.serving import Steps, observed, prompt, write_config
from benches.gpu.shape import QWEN3_30B_A3B, MoeShape
from benches.gpu.timeline import Timeline
from benches.gpu.timing import merge_results, write_results
from frizzen import LLM, SamplingParams
from frizzen.worker.worker import Worker

LENGTHS = (1, 2, 3, 5)
ACCEPTANCES = (4.0, 3.0, 2.0, 1.2)
BATCHES = {1: 160, 8: 80, 32: 50, 128: 30}
"""Steps of a run by rows."""
GOAL_OFF, GOAL_BEST, GOAL_OVERHEAD, GOAL_LOADED = 0.98, 0.95, 0.08, 0.99
TINY = replace(
    QWEN3_30B_A3B,
    name="tiny",
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    experts=8,
    top_k=2,
    intermediate=64,
    layers=4,
    vocabulary=1500,
)
PROMPT = 24
PROBED = (20, 28, 36)
"""Steps of a run in which the forward pass is measured."""

Row = dict[str, object]
Mode = str | int
"""``off``, ``auto``, or a number of drafts."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A run."""

    tokens_per_s: float
    step_ms: float
    """Median."""
    tokens_per_step: float
    """And row."""
    kinds: list[tuple[float, int, int, float]] = field(default_factory=list)
    """Drafts and proposals per row (-1: something was captured), how many such steps, their median time."""


@dataclass(slots=True)
class Bench:
    """One engine."""

    llm: LLM
    worker: Worker
    steps: Steps
    vocabulary: int
    scale: float = 1.0
    """Of the steps of a run."""
    runs: int = 0

    def run(
        self, rows: int, mode: Mode, acceptance: float, count: int | None = None, text: int | None = None
    ) -> Rate:
        """So many decode steps, about; prompts are new ones, or those of number ``text``."""
        # With fewer, the first rows end before the prompts of the last are computed.
        fewest = 6 + rows * PROMPT // 512
        steps = max(count or int(self.scale * BATCHES.get(rows, 60)), fewest)
        yielded = acceptance if mode == "auto" else expected(mode, acceptance)
        wish = {"max_tokens": mode} if isinstance(mode, int) else mode
        params = SamplingParams(
            temperature=0.0, max_tokens=int(steps * yielded) + 2, ignore_eos=True, speculation=wish
        )
        self.runs += 1
        number = self.runs if text is None else text
        prompts = [prompt(PROMPT, number * 131 + row, self.vocabulary) for row in range(rows)]
        self.steps.clear()
        self.llm.generate(prompts, params)
        return rate(self.steps, rows)

    def force(self, acceptance: float) -> None:
        """Verification is to give so many tokens per row and step from now on."""
        self.worker.control("synthetic_acceptance", str(acceptance))


def rate(steps: Steps, rows: int) -> Rate:
    """Of the steps that decode all ``rows`` after one that does; not a number if there are none."""
    most = rows * (1 + max(LENGTHS))
    gaps, tokens, kinds = [], 0, dict[tuple[float, int], list[float]]()
    for before, after in pairwise(steps.ends):
        if before.rows == after.rows == rows and before.tokens <= most and after.tokens <= most:
            gaps.append(after.at - before.at)
            tokens += after.sampled
            kind = (round(after.tokens / rows - 1, 2), -1 if after.irregular else after.proposed)
            kinds.setdefault(kind, []).append(1e3 * gaps[-1])
    if not gaps:
        return Rate(nan, nan, nan)
    chosen = [
        (*kind, len(times), round(statistics.median(times), 3)) for kind, times in sorted(kinds.items())
    ]
    return Rate(tokens / sum(gaps), 1e3 * statistics.median(gaps), tokens / len(gaps) / rows, chosen)


def expected(mode: Mode, acceptance: float) -> float:
    """Tokens per row and step under forced ``acceptance``."""
    if not isinstance(mode, int):
        return 1.0
    return 1 + sum(min(max(acceptance - 1 - place, 0.0), 1.0) for place in range(mode))


def sweep(bench: Bench, rows: int) -> dict[Mode, Rate]:
    """Every constant length at a batch, each after a few steps that capture its graphs."""
    bench.force(2.0)
    found: dict[Mode, Rate] = {}
    for mode in ("off", *LENGTHS):
        bench.run(rows, mode, 2.0, count=5)
        found[mode] = bench.run(rows, mode, 2.0)
    return found


def cells(
    bench: Bench, name: str, sweeps: dict[int, dict[Mode, Rate]], acceptances: Sequence[float]
) -> Iterator[Row]:
    """``auto``, ``off`` and the constant length that the sweep says is best, in turns there and back.

    ``noise`` is how far the two runs of ``off`` or of the best length differ.
    """
    for acceptance in acceptances:
        bench.force(acceptance)
        bench.run(max(sweeps), max(LENGTHS), acceptance, count=12)
        for rows, swept in sweeps.items():
            best = max(swept, key=lambda mode: expected(mode, acceptance) / swept[mode].step_ms)
            bench.run(rows, "auto", acceptance)
            turns: list[Mode] = ["off", "auto"] if best == "off" else ["off", best, "auto"]
            found: dict[Mode, list[Rate]] = {}
            for mode in (*turns, *reversed(turns)):
                found.setdefault(mode, []).append(bench.run(rows, mode, acceptance))
            off, auto, fixed = (
                statistics.harmonic_mean([one.tokens_per_s for one in found[mode]])
                for mode in ("off", "auto", best)
            )
            speeds = [[one.tokens_per_s for one in found[mode]] for mode in turns if mode != "auto"]
            yield {
                "what": "cell",
                "drafter": name,
                "acceptance": acceptance,
                "rows": rows,
                "off_tok_s": round(off, 1),
                "auto_tok_s": round(auto, 1),
                "auto_tokens_per_step": round(found["auto"][-1].tokens_per_step, 3),
                "auto_of_off": round(auto / off, 3),
                "best": best,
                "best_of_off": round(fixed / off, 3),
                "auto_of_best": round(auto / fixed, 3),
                "noise": round(max(max(two) / min(two) for two in speeds) - 1, 3),
                "holds": auto >= GOAL_OFF * off and auto >= GOAL_BEST * fixed,
                "auto_steps": [step for one in found["auto"] for step in one.kinds],
                "best_steps": [step for one in found[best] for step in one.kinds],
            }


def natural(bench: Bench, name: str, batches: Sequence[int]) -> Iterator[Row]:
    """The grid with the acceptance that the text has: every length is measured by its tokens.

    All lengths get the same prompts, whose texts the suffix drafter has seen by the time it is measured.
    """
    for rows in batches:
        found: dict[Mode, Rate] = {}
        for mode in ("off", *LENGTHS, "auto"):
            bench.run(rows, mode, 1.0, count=None if mode == "auto" else 5, text=0)
            found[mode] = bench.run(rows, mode, 1.0, text=0)
        off, auto = found["off"].tokens_per_s, found.pop("auto")
        best = max(found, key=lambda mode: found[mode].tokens_per_s)
        of_best = auto.tokens_per_s / found[best].tokens_per_s
        yield {
            "what": "cell",
            "drafter": name,
            "acceptance": "text",
            "rows": rows,
            "off_tok_s": round(off, 1),
            "auto_tok_s": round(auto.tokens_per_s, 1),
            "auto_tokens_per_step": round(auto.tokens_per_step, 3),
            "auto_of_off": round(auto.tokens_per_s / off, 3),
            "best": best,
            "best_of_off": round(found[best].tokens_per_s / off, 3),
            "auto_of_best": round(of_best, 3),
            "holds": auto.tokens_per_s >= GOAL_OFF * off and of_best >= GOAL_BEST,
        }


def forward_ms(bench: Bench, mode: Mode) -> float:
    """The forward pass of a step of one row on the device, by replays of its graph in the midst of a run."""
    graphs, steps = bench.worker._graphs, 0
    found: list[float] = []
    assert graphs is not None

    def measured() -> None:
        nonlocal steps
        steps += 1
        if steps in PROBED and graphs.replayed is not None:
            replay = graphs._graphs[graphs.replayed.shape].replay
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            # The first keeps the device busy until the others are launched.
            replay()
            start.record()
            for _ in range(4):
                replay()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 4)

    bench.steps.after = measured
    try:
        bench.run(1, mode, 2.0, count=PROBED[-1] + 10)
    finally:
        bench.steps.after = None
    return statistics.median(found)


def overhead(bench: Bench, name: str, shape: MoeShape, swept: dict[Mode, Rate]) -> Iterator[Row]:
    """What drafting and verifying add to a step of one row beside its forward pass.

    The forward pass, which touches the experts of the drafts, is measured on the device; what else a plain
    step takes belongs to any step. The drafter's own weights have to be read all the same: their part, at the
    rate that the device reads with, stands beside what is left.
    """
    passes = {mode: forward_ms(bench, mode) for mode in swept}
    off = swept["off"].step_ms
    for mode in LENGTHS:
        bare = passes[mode] + off - passes["off"]
        took = swept[mode].step_ms / bare - 1
        read = 1e3 * drafters.drafting_seconds(name, shape, mode) / bare
        yield {
            "what": "overhead",
            "drafter": name,
            "drafts": mode,
            "step_ms": round(swept[mode].step_ms, 3),
            "forward_ms": round(passes[mode], 3),
            "off_ms": round(off, 3),
            "off_forward_ms": round(passes["off"], 3),
            "overhead": round(took, 3),
            "drafters_bytes": round(read, 3),
            "beyond_bytes": round(took - read, 3),
            "goal": GOAL_OVERHEAD,
        }


def timeline(bench: Bench, line: Timeline, name: str) -> Iterator[Row]:
    """Parts of a step of one row in microseconds."""
    for mode in ("off", *LENGTHS):
        with line.watching():
            bench.run(1, mode, 2.0)
        yield {"what": "timeline", "drafter": name, "drafts": mode, **line.summary()}


def loaded(bench: Bench, other: Bench, batches: Sequence[int]) -> Iterator[Row]:
    """A drafter that is loaded and off beside no drafter at all, in turns."""
    for rows in batches:
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(4):
            for one, rates in ((bench, ours), (other, theirs)):
                found = one.run(rows, "off", 1.0, count=None if turn else 5)
                if turn:
                    rates.append(found.tokens_per_s)
        ratio = statistics.median(ours) / statistics.median(theirs)
        yield {"what": "loaded", "rows": rows, "of_no_drafter": round(ratio, 4), "goal": GOAL_LOADED}


def main() -> None:
    """Prints the rows as they come and writes them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafters", nargs="*", default=list(drafters.DRAFTERS), choices=drafters.DRAFTERS)
    parser.add_argument("--acceptances", type=float, nargs="*", default=ACCEPTANCES)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of a run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no more is begun")
    parser.add_argument("--natural", nargs="*", default=["suffix"], help="drafters of the text's acceptance")
    parser.add_argument("--loaded", default="eagle3", help="drafter to be loaded and off; none: leave it out")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--tiny", action="store_true", help="a model that takes no time, to try the script")
    parser.add_argument("--model", help="a model with weights instead of the shape")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--timeline", action="store_true", help="where the time of a step of one row goes")
    parser.add_argument("--merge", type=Path, nargs="+", help="joins results of other runs, runs nothing")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/speculation.json"))
    arguments = parser.parse_args()
    if arguments.merge:
        merge_results(arguments.out, arguments.merge)
        return
    results: list[Row] = []
    arguments.end = time.perf_counter() + arguments.seconds

    def show(found: Iterator[Row]) -> None:
        while time.perf_counter() < arguments.end and (row := next(found, None)) is not None:
            results.append(row)
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            write_results(arguments.out, "benches.gpu.speculation", results)

    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.drafters:
            if time.perf_counter() < arguments.end:
                measure(arguments, name, Path(folder), show)


def engine(
    arguments: argparse.Namespace, shape: MoeShape, folder: Path, drafter: str = "", **more: Any
) -> Any:
    """An engine of the model that the arguments name."""
    layers = arguments.layers or shape.layers
    changes = drafters.target(drafter, shape)
    model = arguments.model or write_config(shape, folder / "target" / drafter, layers, **changes)
    if drafter:
        more["drafter"] = drafter
    limits = {
        "device": arguments.device,
        "dtype": "bfloat16" if arguments.device == "cuda" else "float32",
        "max_num_seqs": max(arguments.batches),
        "max_model_len": 1024,
        # All prompts of a batch in one step, as on a GPU anyway: then its rows decode together.
        "max_num_batched_tokens": 8192,
        "kv_cache_memory": 2**33 if arguments.device == "cuda" else 2**27,
        "speculation_cache": "off",
        "load_format": "auto" if arguments.model else "dummy",
    }
    return observed(model, **({"counting": True} | limits | more))


def measure(arguments: argparse.Namespace, name: str, folder: Path, show: Any) -> None:
    """Everything that is asked for of one drafter."""
    shape = TINY if arguments.tiny else QWEN3_30B_A3B
    layers, vocabulary = arguments.layers or shape.layers, 49_000 if arguments.model else shape.vocabulary
    draft = drafters.options(name, shape, layers, folder, max(LENGTHS))
    began = time.perf_counter()
    lines: list[Timeline] = []
    if arguments.timeline:
        draft["watch"] = lambda worker: lines.append(Timeline(worker))
    with engine(arguments, shape, folder, **draft, spec_synthetic_acceptance=2.0) as (llm, worker, steps):
        print(f"{name}: ready after {time.perf_counter() - began:.1f} s", flush=True)
        bench = Bench(llm, worker, steps, vocabulary, arguments.scale)
        sweeps: dict[int, dict[Mode, Rate]] = {}
        for rows in arguments.batches:
            sweeps[rows] = sweep(bench, rows)
            show(
                iter(
                    {
                        "what": "step",
                        "drafter": name,
                        "rows": rows,
                        "drafts": mode,
                        "ms": round(one.step_ms, 3),
                    }
                    for mode, one in sweeps[rows].items()
                )
            )
        if 1 in sweeps and worker._graphs is not None:
            show(overhead(bench, name, shape, sweeps[1]))
        for line in lines:
            show(timeline(bench, line, name))
        show(cells(bench, name, sweeps, arguments.acceptances))
        seconds = round(time.perf_counter() - began)
        show(iter([{"what": "worker", "drafter": name, "seconds": seconds, **_graphs(worker)}]))
        if name == arguments.loaded and time.perf_counter() < arguments.end:
            with engine(arguments, shape, folder / "plain") as (other, its_worker, its_steps):
                plain = Bench(other, its_worker, its_steps, vocabulary, arguments.scale)
                show(loaded(bench, plain, arguments.batches))
    if name in arguments.natural and time.perf_counter() < arguments.end:
        with engine(arguments, shape, folder, **draft) as (llm, worker, steps):
            bench = Bench(llm, worker, steps, vocabulary, arguments.scale)
            show(natural(bench, name, arguments.batches))


def _graphs(worker: Worker) -> Row:
    graphs, counters = worker._graph_state(None), worker._counters(None)
    if graphs is None:
        return counters
    ends = graphs["ends"]
    return {
        **counters,
        "graphs": len(graphs["captured"]),
        "ends": len(ends["captured"]),
        "end_steps": ends["steps"],
        "end_capture_s": ends["capture_seconds"],
        "failure": graphs["failure"] or ends["failure"],
    }


if __name__ == "__main__":
    main()
