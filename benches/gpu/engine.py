"""The real engine (``frizzen.LLM``) on a model of dummy weights: start, steps, prefill, throughput.

Every number is of whole steps: planning, upload, the model, sampling, results. Beside each stand the limit
and the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benches.gpu.serving import Steps, greedy, observed, prompt, write_config
from benches.gpu.shape import QWEN3_30B_A3B
from benches.gpu.start import OPTIONS
from benches.gpu.step import GOALS_MS, Case
from benches.gpu.timing import write_results
from frizzen import LLM
from frizzen.worker.worker import Worker

SHAPE = QWEN3_30B_A3B
DECODES = ("1@128", "8@128", "32@128", "128@128", "256@128", "1@8192", "32@4096")
PREFILLS = ("1x8192", "4x2048", "1x32768")
GOALS_START_S = {"cold": 20.0, "warm": 8.0}
GOAL_THROUGHPUT = 9000.0


def measure_starts(model: Path) -> Iterator[dict[str, object]]:
    """Twice, with an empty and with a full cache of compiled kernels."""
    with tempfile.TemporaryDirectory() as cache:
        for kind, goal in GOALS_START_S.items():
            began = {"FRIZZEN_BENCH_BEGAN": str(time.time())}
            run = subprocess.run(
                [sys.executable, "-m", "benches.gpu.start", str(model)],
                env=os.environ | {"TRITON_CACHE_DIR": cache} | began,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            seconds = json.loads(run.stdout.splitlines()[-1])
            yield {"what": "start", "kernel_cache": kind, **seconds, "goal_s": goal}


def measure_decode(llm: LLM, steps: Steps, rows: int, context: int, tokens: int) -> dict[str, object]:
    """Steady steps of ``rows`` rows; the first of two runs captures what it needs."""
    prompts = [prompt(context, row, SHAPE.vocabulary) for row in range(rows)]
    # Rows whose prompts are computed first are ahead of the others; all must be running for a while.
    tokens += rows * context // 4096
    for _ in range(2):
        steps.clear()
        llm.generate(prompts, greedy(tokens))
    limit = SHAPE.decode_seconds(rows, context) * 1e3
    found = steps.decode_ms(rows)
    return {
        "what": "decode",
        "rows": rows,
        "context": context,
        "ms": found,
        "limit_ms": round(limit, 3),
        "goal_ms": GOALS_MS.get(("decode", rows, context + 1)),
    }


def measure_prefill(llm: LLM, case: Case) -> dict[str, object]:
    """From the call to the last first token of ``rows`` prompts; those longer than a step come in chunks."""
    times = []
    for number in range(4):
        prompts = [
            prompt(case.tokens, number * case.rows + row, SHAPE.vocabulary) for row in range(case.rows)
        ]
        began = time.perf_counter()
        llm.generate(prompts, greedy(1))
        times.append(time.perf_counter() - began)
    return {
        "what": "prefill",
        "rows": case.rows,
        "tokens": case.tokens,
        "ms": round(statistics.median(times[1:]) * 1e3, 1),
        "limit_ms": round(case.rows * SHAPE.prefill_seconds(case.tokens) * 1e3, 1),
        "goal_ms": case.goal_ms,
    }


def measure_throughput(llm: LLM, requests: int, inputs: int, outputs: int) -> dict[str, object]:
    """All requests at once."""
    prompts = [prompt(inputs, row, SHAPE.vocabulary) for row in range(requests)]
    rates = []
    for _ in range(2):
        began = time.perf_counter()
        found = llm.generate(prompts, greedy(outputs))
        seconds = time.perf_counter() - began
        rates.append(sum(len(output.outputs[0].token_ids) for output in found) / seconds)
    return {
        "what": "throughput",
        "requests": requests,
        "inputs": inputs,
        "outputs": outputs,
        "first_run_tok_s": round(rates[0]),
        "output_tok_s": round(rates[1]),
        "goal_tok_s": GOAL_THROUGHPUT,
    }


def describe(worker: Worker, model_layers: int) -> dict[str, object]:
    """What the worker counted, and how evenly the router spread the tokens."""
    counters = json.loads(worker.control("counters", ""))
    graphs = json.loads(worker.control("graphs", ""))
    memory = json.loads(worker.control("memory", ""))
    load = worker._model.expert_load.read().double()  # type: ignore[attr-defined]
    shares = load / load.sum(1, keepdim=True).clamp(min=1)
    hit = {
        rows: round((1 - (1 - shares * SHAPE.top_k).clamp(min=0) ** rows).sum(1).mean().item(), 1)
        for rows in (8, 32, 128, 256)
    }
    return {
        "what": "worker",
        "layers": model_layers,
        "graphs": (graphs | {"captured": len(graphs["captured"])}) if graphs else None,
        "counters": counters,
        "device_allocated_gb": round(memory["device_allocated"] / 1e9, 2),
        "experts_hit": hit,
        "experts_hit_if_uniform": {rows: round(SHAPE.experts_hit(rows), 1) for rows in hit},
    }


def profile(llm: LLM, rows: int, context: int) -> dict[str, object]:
    """Microseconds and launches per step of the slowest kernels, over a prefill and 23 decode steps.

    Kernels overlap where launches are dependent, and wait for each other: the sum exceeds the step.
    """
    prompts = [prompt(context, row, SHAPE.vocabulary) for row in range(rows)]
    llm.generate(prompts, greedy(8))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        llm.generate(prompts, greedy(24))
        torch.cuda.synchronize()
    events = [event for event in trace.key_averages() if event.self_device_time_total]
    longest = sorted(events, key=lambda event: -event.self_device_time_total)[:25]
    kernels = [
        (event.key[:60], round(event.self_device_time_total / 23, 1), round(event.count / 23, 1))
        for event in longest
    ]
    return {"what": "profile", "rows": rows, "context": context, "kernels": kernels}


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decode", nargs="*", default=DECODES, metavar="ROWS@CONTEXT")
    parser.add_argument("--tokens", type=int, default=64, help="steps per decode measurement")
    parser.add_argument("--prefill", nargs="*", default=PREFILLS, metavar="ROWSxTOKENS")
    parser.add_argument("--throughput", nargs="*", default=["256@512@256"], metavar="REQUESTS@IN@OUT")
    parser.add_argument("--no-start", action="store_true", help="leave the starts out")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--eager", action="store_true", help="no graphs")
    parser.add_argument("--profile", nargs="*", default=[], metavar="ROWS@CONTEXT")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/engine.json"))
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []

    def show(row: dict[str, object]) -> None:
        rows.append(row)
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        write_results(arguments.out, "benches.gpu.engine", rows)

    with tempfile.TemporaryDirectory() as folder:
        model = write_config(SHAPE, Path(folder), arguments.layers)
        if not arguments.no_start:
            for row in measure_starts(model):
                show(row)
        with observed(model, **OPTIONS, enforce_eager=arguments.eager) as (llm, worker, steps):
            for case in arguments.decode:
                batch, context = map(int, case.split("@"))
                show(measure_decode(llm, steps, batch, context, arguments.tokens))
            for case in arguments.prefill:
                show(measure_prefill(llm, Case.prefill(case)))
            for case in arguments.throughput:
                show(measure_throughput(llm, *map(int, case.split("@"))))
            show(describe(worker, arguments.layers or SHAPE.layers))
            for case in arguments.profile:
                show(profile(llm, *map(int, case.split("@"))))


if __name__ == "__main__":
    main()
