"""The front end without a model: ``frizzen mock-serve`` loaded by ``frizzen bench serve``.

    cargo build --release -p frizzen-cli
    python -m benches.cpu.front_end --binary target/release/frizzen

Of every load the lowest, the median and the highest of its runs are printed; the JSON has every run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.cpu.ours import free_port, served
from benches.cpu.run import RESULTS, commit, machine
from benches.cpu.weights import smollm2_gguf
from benches.cpu.workload import note, resident_mb

LONG_PROMPTS = 6
LONG_CHARACTERS = 560_000  # about 140,000 tokens of SmolLM2
LONG_CONTEXT = 262_144
WORDS = ("alpha", "beta", "gamma", "delta", "window", "kernel", "stream", "token")


@dataclass(frozen=True, slots=True)
class Load:
    """A mock server's options, and what ``frizzen bench serve`` sends to it ``rounds`` times."""

    server: tuple[str, ...]
    client: tuple[str, ...]
    concurrency: tuple[int, ...]
    rounds: int = 3
    reads_text: bool = False


CHAT = ("--num-prompts", "512", "--input-len", "256", "--output-len", "128", "--warmup", "64")
SHORT = ("--input-len", "32", "--output-len", "16")
PROMPT = ("--num-prompts", "2000", "--input-len", "2048", "--output-len", "1", "--warmup", "40")
STEPS_10 = ("--step-ms", "10")
NO_STEPS = ("--step-ms", "0")
LOADS = {
    "64 chats, 10 ms": Load(STEPS_10, ("--api", "chat", *CHAT), (64,), rounds=7),
    "64 completions, 10 ms": Load(STEPS_10, CHAT, (64,), rounds=7),
    "256 of 32/16, 5 ms": Load(
        ("--step-ms", "5"), ("--num-prompts", "10000", "--warmup", "256", *SHORT), (256,)
    ),
    "requests of 32/16": Load(
        (*NO_STEPS, "--max-num-seqs", "1024"),
        ("--num-prompts", "60000", "--warmup", "64", *SHORT),
        (64, 256, 1024),
        rounds=1,
    ),
    "prompts of 2,048, text": Load(NO_STEPS, ("--api", "chat", *PROMPT), (4,), reads_text=True),
    "prompts of 2,048, ids": Load(NO_STEPS, PROMPT, (4,), reads_text=True),
}


@dataclass(frozen=True, slots=True)
class Mock:
    """A running mock server."""

    url: str
    pid: int


@contextmanager
def mock(binary: Path, options: tuple[str, ...], reads_text: bool) -> Iterator[Mock]:
    """Runs ``frizzen mock-serve`` for the duration of the block, on request with SmolLM2's tokenizer."""
    port = free_port()
    command = [str(binary), "mock-serve", "--port", str(port), *options]
    if reads_text:
        command += ["--tokenizer", str(smollm2_gguf())]
    with served(command, f"http://127.0.0.1:{port}", threads=1) as process:
        yield Mock(f"http://127.0.0.1:{port}", process.pid)


def bench(
    binary: Path, server: Mock, options: tuple[str, ...], concurrency: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Summaries of ``frizzen bench serve``, one for every concurrency."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        sweep = ",".join(map(str, concurrency))
        command = [str(binary), "bench", "serve", "--url", server.url, "--server-pid", str(server.pid)]
        command += ["--sweep-concurrency", sweep, *options, "--result-json", str(result)]
        subprocess.run(command, check=True, capture_output=True)
        runs = json.loads(result.read_text())["runs"]
    return [{"concurrency": at, **run["summary"]} for at, run in zip(concurrency, runs, strict=True)]


def post_long_prompts(url: str) -> list[int]:
    """Prompts of text one after the other, each its own words; returns their lengths in tokens."""
    tokens = []
    for turn in range(LONG_PROMPTS):
        words = WORDS[turn:] + WORDS[:turn]
        text = f"{turn} " + " ".join(words) * (LONG_CHARACTERS // len(" ".join(words)))
        body = json.dumps({"model": "mock", "prompt": text, "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            tokens.append(json.load(answer)["usage"]["prompt_tokens"])
        time.sleep(0.2)
    return tokens


def head_of_line(binary: Path) -> dict[str, Any]:
    """ITL of 16 streams at 10 ms steps, alone and while long prompts are tokenised beside them."""
    options = ("--step-ms", "10", "--max-model-len", str(LONG_CONTEXT), "--max-num-batched-tokens", "262144")
    load = ("--num-prompts", "48", "--input-len", "64", "--output-len", "200", "--warmup", "16")
    with mock(binary, options, reads_text=True) as server:
        alone = bench(binary, server, load, (16,))[0]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            lengths = pool.submit(post_long_prompts, server.url)
            beside = bench(binary, server, load, (16,))[0]
            return {
                "long_prompts_tokens": lengths.result(),
                "alone_itl_ms": alone["itl_ms"],
                "beside_itl_ms": beside["itl_ms"],
            }


def spread(values: list[float], digits: int = 2) -> str:
    """Lowest, median and highest."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{low:.{digits}f} / {middle:.{digits}f} / {high:.{digits}f}"


def tell(name: str, runs: list[dict[str, Any]]) -> None:
    """Prints a load's runs, one line for every concurrency."""
    for concurrency in dict.fromkeys(run["concurrency"] for run in runs):
        chosen = [run for run in runs if run["concurrency"] == concurrency]
        cpu = spread([run["server"]["cpu_us_per_output_token"] for run in chosen])
        request = spread([run["server"]["cpu_us_per_request"] for run in chosen], 1)
        rate = spread([run["requests_per_s"] for run in chosen], 0)
        times = [run["itl_ms"]["p99"] for run in chosen if run["itl_ms"]]
        itl = f"ITL p99 {spread(times)} ms, " if times else ""
        peak = max(run["server"]["peak_resident_kib"] for run in chosen)
        note(f"{name}, {concurrency} at once: CPU {cpu} us a token, {request} us a request,")
        note(f"    {rate} requests/s, {itl}memory at most {peak:,} KiB")


def main() -> None:
    """Runs the loads and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, default=Path("target/release/frizzen"))
    parser.add_argument("--only", nargs="+", choices=[*LOADS, "head of line"], help="some of the loads")
    parser.add_argument("--rounds", type=int, help="runs of each load")
    parser.add_argument("--output", type=Path, default=RESULTS / "front_end.json")
    arguments = parser.parse_args()
    chosen = arguments.only or [*LOADS, "head of line"]
    results: dict[str, Any] = {"machine": machine(), "commit": commit(), "loads": {}}
    for name, load in LOADS.items():
        if name not in chosen:
            continue
        runs = []
        with mock(arguments.binary, load.server, load.reads_text) as server:
            idle = resident_mb(server.pid)
            for _ in range(arguments.rounds or load.rounds):
                runs += bench(arguments.binary, server, load.client, load.concurrency)
        results["loads"][name] = {
            "server": load.server,
            "client": load.client,
            "idle_resident_mb": idle,
            "runs": runs,
        }
        tell(name, runs)
    if "head of line" in chosen:
        results["head of line"] = head_of_line(arguments.binary)
        alone, beside = (results["head of line"][f"{which}_itl_ms"]["p99"] for which in ("alone", "beside"))
        note(f"head of line: ITL p99 {alone:.2f} ms alone, {beside:.2f} ms beside long prompts")
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
