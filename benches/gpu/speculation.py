"""Speculation in the real engine: what drafting and verifying take, and the guard over a grid.

For each drafter one engine serves everything: lengths are a field of requests, and forced acceptance is
changed between runs. The grid is ``grid.py``'s: each cell begins with steps of the longest drafts, which
teach the guard, and a run of ``auto``, whose rate is reported and does not decide.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benches.gpu import drafters
from benches.gpu.grid import GOAL_BEST, GOAL_OFF, LENGTHS, Bench, Budget, Mode, Rate, Row, block, noise
from benches.gpu.serving import observed, write_config
from benches.gpu.shape import QWEN3_30B_A3B, MoeShape
from benches.gpu.timeline import Timeline
from benches.gpu.timing import merge_results, write_results
from frizzen.worker.worker import Worker

ACCEPTANCES = (4.0, 3.0, 2.0, 1.2)
BATCHES = (1, 8, 32, 128)
STEPS = 60
"""Of a run that is not of the grid, times ``--scale``."""
GOAL_OVERHEAD, GOAL_LOADED = 0.08, 0.99
LOAD = {"cuda": 9.0, "cpu": 3.0}
"""Seconds until an engine is ready, for the estimate."""
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
PROBED = (20, 28, 36)
"""Steps of a run in which the forward pass is measured."""


def natural(bench: Bench, name: str, batches: Sequence[int], tokens: int) -> Iterator[Row]:
    """The grid with the acceptance that the text has: every length is measured by its tokens.

    All lengths get the same prompts, whose texts the suffix drafter has seen by the time it is measured.
    """
    for rows in batches:
        found: dict[Mode, Rate] = {}
        for mode in ("off", *LENGTHS, "auto"):
            bench.run(rows, mode, tokens if mode == "auto" else 0, text=0)
            found[mode] = bench.run(rows, mode, tokens, text=0)
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
            "verdict": "holds" if auto.tokens_per_s >= GOAL_OFF * off and of_best >= GOAL_BEST else "fails",
            "guard": bench.usage,
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
        bench.run(1, mode, 2 * (PROBED[-1] + 10))
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
            bench.run(1, mode, 2 * STEPS)
        yield {"what": "timeline", "drafter": name, "drafts": mode, **line.summary()}


def loaded(bench: Bench, other: Bench, batches: Sequence[int], tokens: int) -> Iterator[Row]:
    """A drafter that is loaded and off beside no drafter at all, in turns."""
    for rows in batches:
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(4):
            for one, rates in ((bench, ours), (other, theirs)):
                found = one.run(rows, "off", tokens if turn else 0)
                if turn:
                    rates.append(found.tokens_per_s)
        ratio = statistics.median(ours) / statistics.median(theirs)
        yield {"what": "loaded", "rows": rows, "of_no_drafter": round(ratio, 4), "goal": GOAL_LOADED}


def main() -> None:
    """Prints the rows as they come and writes them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafters", nargs="*", default=list(drafters.DRAFTERS), choices=drafters.DRAFTERS)
    parser.add_argument("--acceptances", type=float, nargs="*", default=ACCEPTANCES)
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of runs beside the grid")
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="for all; runs become as long as that allows"
    )
    parser.add_argument("--noise", action="store_true", help="equal runs, and what their longest steps are")
    parser.add_argument(
        "--overhead", action="store_true", help="what drafts add to the forward pass at one row"
    )
    parser.add_argument("--natural", nargs="*", default=[], help="drafters of the text's acceptance")
    parser.add_argument("--loaded", default="none", help="drafter to be loaded and off beside none")
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
    arguments.budget = Budget(
        time.perf_counter() + arguments.seconds,
        arguments.batches,
        len(arguments.acceptances),
        len(arguments.drafters),
        LOAD[arguments.device],
    )
    arguments.end = arguments.budget.end
    print(arguments.budget.estimate(), flush=True)

    def show(found: Iterator[Row]) -> None:
        while time.perf_counter() < arguments.end and (row := next(found, None)) is not None:
            results.append(row)
            shown = (f"{key}={value}" for key, value in row.items() if key not in ("runs", "guard", "state"))
            print("  ".join(shown), flush=True)
            write_results(arguments.out, "benches.gpu.speculation", results)

    with tempfile.TemporaryDirectory() as folder:
        for at, name in enumerate(arguments.drafters):
            if time.perf_counter() < arguments.end:
                measure(arguments, name, Path(folder), show, len(arguments.drafters) - 1 - at)


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
        "max_model_len": 4096,
        # All prompts of a batch in one step, as on a GPU anyway: then its rows decode together.
        "max_num_batched_tokens": 8192,
        "kv_cache_memory": 2**33 if arguments.device == "cuda" else 2**27,
        "speculation_cache": "off",
        "load_format": "auto" if arguments.model else "dummy",
    }
    return observed(model, **({"counting": True} | limits | more))


def measure(arguments: argparse.Namespace, name: str, folder: Path, show: Any, later: int) -> None:
    """Everything that is asked for of one drafter, after which as many as ``later`` follow."""
    shape = TINY if arguments.tiny else QWEN3_30B_A3B
    layers, vocabulary = arguments.layers or shape.layers, 49_000 if arguments.model else shape.vocabulary
    count = int(arguments.scale * STEPS)
    draft = drafters.options(name, shape, layers, folder, max(LENGTHS))
    began = time.perf_counter()
    lines: list[Timeline] = []
    if arguments.timeline:
        draft["watch"] = lambda worker: lines.append(Timeline(worker))
    with engine(arguments, shape, folder, **draft, spec_synthetic_acceptance=2.0) as (llm, worker, steps):
        print(f"{name}: ready after {time.perf_counter() - began:.1f} s", flush=True)
        bench = Bench(llm, worker, steps, vocabulary)
        bench.capture()
        if arguments.noise:
            for rows in arguments.batches[:1]:
                show(noise(bench, rows, int(5 * count)))
        for at, rows in enumerate(arguments.batches):
            swept: dict[Mode, Rate] = {}
            seconds = arguments.budget.seconds(arguments.batches[at:], later)
            show(block(bench, name, rows, arguments.acceptances, seconds, swept))
            if rows == 1 and arguments.overhead and worker._graphs is not None:
                show(overhead(bench, name, shape, swept))
        for line in lines:
            show(timeline(bench, line, name))
        took = round(time.perf_counter() - began)
        show(iter([{"what": "worker", "drafter": name, "seconds": took, **_graphs(worker)}]))
        if name == arguments.loaded and time.perf_counter() < arguments.end:
            with engine(arguments, shape, folder / "plain") as (other, its_worker, its_steps):
                plain = Bench(other, its_worker, its_steps, vocabulary)
                plain.capture()
                show(loaded(bench, plain, arguments.batches, count))
    if name in arguments.natural and time.perf_counter() < arguments.end:
        with engine(arguments, shape, folder, **draft) as (llm, worker, steps):
            bench = Bench(llm, worker, steps, vocabulary)
            bench.capture()
            show(natural(bench, name, arguments.batches, count))


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
