"""What every engine is given and what it reports. Standard library only: peers have their own environments.

Each of ``concurrency`` streams gets its own random prompt of ``prompt_tokens`` ids, no prefix shared, and
generates exactly ``output_tokens`` greedily, the end token ignored. Rates are defined once, here:

- decode: tokens of all streams after each stream's first, divided by the time from the first first-token to
  the last token [tok/s]. In-process peers that cannot report single tokens subtract the time of the same
  batch with one output token.
- prefill: ``prefill_tokens`` divided by the time to the first token of a lone prompt, best of
  ``prefill_repeats`` [tok/s].
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from dataclasses import dataclass, field

FIRST_ID, LAST_ID = 1_000, 40_000  # ordinary text: no control token of SmolLM2 lies between


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes in tokens; ``threads`` is what each engine may use."""

    concurrency: tuple[int, ...] = (1, 8, 32)
    prompt_tokens: int = 128
    output_tokens: int = 128
    prefill_tokens: int = 1_024
    prefill_repeats: int = 3
    threads: int = 2
    seed: int = 1

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """``count`` prompts of ``tokens`` ids, the same for every engine."""
        rng = random.Random(f"{self.seed} {count} {tokens}")
        return [[rng.randrange(FIRST_ID, LAST_ID) for _ in range(tokens)] for _ in range(count)]


@dataclass(slots=True)
class Result:
    """What one engine reached. Keys of the tables are concurrencies, as text, since the result is JSON."""

    engine: str
    version: str
    weights: str
    transport: str  # "http" or "in process"
    start_s: float = 0.0
    decode_tok_s: dict[str, float] = field(default_factory=dict)
    ttft_ms: dict[str, float] = field(default_factory=dict)  # mean over the streams of a batch
    prefill_tok_s: float = 0.0
    rss_mb: float = 0.0  # of the engine's process, after the last measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that change the workload, common to all engines."""
    default = Workload()
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(default.concurrency))
    parser.add_argument("--prompt-tokens", type=int, default=default.prompt_tokens)
    parser.add_argument("--output-tokens", type=int, default=default.output_tokens)
    parser.add_argument("--prefill-tokens", type=int, default=default.prefill_tokens)
    parser.add_argument("--prefill-repeats", type=int, default=default.prefill_repeats)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--seed", type=int, default=default.seed)


def from_arguments(arguments: argparse.Namespace) -> Workload:
    """The workload that these options describe. Raises ``ValueError`` on a size that cannot be timed."""
    values = {item.name: getattr(arguments, item.name) for item in dataclasses.fields(Workload)}
    workload = Workload(**{**values, "concurrency": tuple(arguments.concurrency)})
    if workload.output_tokens < 2:
        raise ValueError(f"output_tokens is {workload.output_tokens}; a decode rate needs at least 2")
    if (
        min(workload.concurrency) < 1
        or min(workload.prompt_tokens, workload.prefill_tokens, workload.threads) < 1
    ):
        raise ValueError(f"every size must be at least 1: {workload}")
    return workload


def to_arguments(workload: Workload) -> list[str]:
    """The inverse of ``from_arguments``, for a peer's command line."""
    words: list[str] = []
    for name, value in dataclasses.asdict(workload).items():
        words.append(f"--{name.replace('_', '-')}")
        words += [str(part) for part in value] if isinstance(value, tuple) else [str(value)]
    return words


def resident_mb(process: int | str = "self") -> float:
    """Resident memory of a process in MB; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/status") as status:
            (line,) = (line for line in status if line.startswith("VmRSS:"))
    except (OSError, ValueError):
        return 0.0
    return int(line.split()[1]) * 1_024 / 1e6


def report(result: Result) -> None:
    """Prints the result as the last line of a peer's output, where the driver reads it."""
    print(json.dumps(dataclasses.asdict(result)), flush=True)


def note(text: str) -> None:
    """Progress, kept apart from the result."""
    print(text, file=sys.stderr, flush=True)
