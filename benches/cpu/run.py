"""The CPU benchmark: every engine that is installed, in turns, in one run, and a table of the ratios.

    python -m benches.cpu.run [--openvino-python target/bench-openvino/bin/python] [--rounds 2]

Writes one JSON file to benches/results. Engines run in processes of their own and take turns over the rounds,
so that a machine that slows down does so for all; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.cpu.weights import smollm2_gguf
from benches.cpu.workload import Result, Workload, add_arguments, from_arguments, note, to_arguments

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches" / "results"
OPENVINO_PYTHON = ROOT / "target" / "bench-openvino" / "bin" / "python"
TIME_LIMIT_S = 1_800


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine in one configuration: its key in ``--engines`` and the command that prints its result."""

    key: str
    command: tuple[str, ...]


def engines(openvino_python: Path, gguf: Path) -> list[Engine]:
    """All engines, ours first. openvino-genai is left out, with a note, where its environment is missing."""
    here = sys.executable
    found = [
        Engine("frizzen-bf16", (here, "-m", "benches.cpu.ours", "--dtype", "bfloat16")),
        Engine("frizzen-f32", (here, "-m", "benches.cpu.ours", "--dtype", "float32")),
        Engine("transformers-bf16", (here, "-m", "benches.cpu.peer_transformers", "--dtype", "bfloat16")),
        Engine("transformers-f32", (here, "-m", "benches.cpu.peer_transformers", "--dtype", "float32")),
    ]
    if openvino_python.exists():
        command = (str(openvino_python), "-m", "benches.cpu.peer_openvino", "--gguf", str(gguf))
        found.append(Engine("openvino-genai", command))
    else:
        note(
            f"without openvino-genai: there is no {openvino_python} (benches/README.md tells how to make it)"
        )
    return found


def run_engine(engine: Engine, workload: Workload) -> Result:
    """Runs one engine. Raises ``RuntimeError`` with the end of what it said if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(workload.threads)}
    run = subprocess.run(
        [*engine.command, *to_arguments(workload)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    lines = run.stdout.strip().splitlines()
    if run.returncode or not lines:
        raise RuntimeError(f"{engine.key} failed with status {run.returncode}; its last words are above")
    return Result(**json.loads(lines[-1]))


def better(one: Result, other: Result) -> Result:
    """The best of two rounds, measure by measure."""
    best = dataclasses.replace(one)
    best.decode_tok_s = {key: max(one.decode_tok_s[key], other.decode_tok_s[key]) for key in one.decode_tok_s}
    best.ttft_ms = {key: min(one.ttft_ms[key], other.ttft_ms[key]) for key in one.ttft_ms}
    best.prefill_tok_s = max(one.prefill_tok_s, other.prefill_tok_s)
    best.start_s = min(one.start_s, other.start_s)
    best.rss_mb = max(one.rss_mb, other.rss_mb)
    return best


def table(results: dict[str, Result], workload: Workload, limits: dict[str, float]) -> str:
    """Markdown: one row per engine, and for each peer how many times as fast the first engine is."""
    counts = [str(count) for count in workload.concurrency]
    heads = [
        "engine",
        "weights",
        *(f"C={count}" for count in counts),
        "prefill",
        "TTFT C=1 ms",
        "start s",
        "RSS MB",
    ]
    rows = [heads, ["---"] * len(heads)]
    for result in results.values():
        decode = [f"{result.decode_tok_s[count]:.1f}" for count in counts]
        ttft = f"{result.ttft_ms[counts[0]]:.0f}"
        measured = [
            *decode,
            f"{result.prefill_tok_s:.0f}",
            ttft,
            f"{result.start_s:.1f}",
            f"{result.rss_mb:.0f}",
        ]
        rows.append([f"{result.engine} {result.version} ({result.transport})", result.weights, *measured])
    bound = [f"{limits[f'decode_{count}']:.0f}" for count in counts]
    rows.append(["limit of this machine", "bfloat16", *bound, f"{limits['prefill']:.0f}", "", "", ""])
    ours, *peers = results.values()
    for peer in peers:
        ratios = [f"{ours.decode_tok_s[count] / peer.decode_tok_s[count]:.2f}x" for count in counts]
        prefill = f"{ours.prefill_tok_s / peer.prefill_tok_s:.2f}x"
        name = f"{ours.engine} {ours.weights} / {peer.engine} {peer.weights}"
        rows.append([name, "", *ratios, prefill, "", "", ""])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def measure_limits(workload: Workload) -> dict[str, float]:
    """The machine's limits for the workload, from a process of its own, so that its memory is gone again."""
    from benches.cpu.limits import Limits

    command = [sys.executable, "-m", "benches.cpu.limits", "--threads", str(workload.threads)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rates: dict[str, float] = json.loads(run.stdout)
    limits = Limits(**rates)
    decode = {f"decode_{count}": round(limits.decode_tok_s(count), 1) for count in workload.concurrency}
    return {**rates, **decode, "prefill": round(limits.prefill_tok_s(), 1)}


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    info: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    info["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    info["load_before"] = round(os.getloadavg()[0], 2)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return info
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {name.strip(): value.strip() for name, value in fields.items()}
    info["processor"] = values.get("model name", "")
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    info["instructions"] = [name for name in wanted if name in values.get("flags", "").split()]
    return info


def commit() -> str:
    """The commit that was measured, with a mark if the tree differs from it."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return run.stdout.strip()


def main() -> int:
    """Runs the benchmark, writes the JSON file and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--engines", nargs="+", help="keys of the engines to run, in this order; all by default"
    )
    parser.add_argument("--openvino-python", type=Path, default=OPENVINO_PYTHON)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, help="JSON file; benches/results/cpu-DATE.json by default")
    add_arguments(parser)
    arguments = parser.parse_args()
    workload = from_arguments(arguments)
    known = {engine.key: engine for engine in engines(arguments.openvino_python, smollm2_gguf())}
    chosen = arguments.engines or list(known)
    if unknown := [key for key in chosen if key not in known]:
        parser.error(f"unknown engine {', '.join(unknown)}; there are {', '.join(known)}")
    about = machine()
    limits = measure_limits(workload)
    results: dict[str, Result] = {}
    for number in range(1, arguments.rounds + 1):
        for key in chosen:
            note(f"round {number}: {key}")
            result = run_engine(known[key], workload)
            results[key] = better(results[key], result) if key in results else result
    now = datetime.datetime.now(tz=datetime.UTC)
    document = {
        "date": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": about,
        "limits": limits,
    }
    document |= {"workload": dataclasses.asdict(workload), "rounds": arguments.rounds}
    document["results"] = {key: dataclasses.asdict(result) for key, result in results.items()}
    output: Path = arguments.output or RESULTS / f"cpu-{now:%Y%m%d-%H%M%S}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(results, workload, limits))
    print(f"\n{about.get('processor', '')}, {workload.threads} threads, {about.get('instructions')}")
    note(f"written to {os.path.relpath(output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
