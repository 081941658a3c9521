"""The machine's limit for the workload, measured in the same run: memory read rate and bfloat16 matrix rate.

A decode step reads every weight once and computes two operations per weight and row, so it takes at least the
longer of ``weight bytes / read rate`` and ``2 * weights * rows / matrix rate``. Attention and the cache are
left out, which makes the limit a little too high and never too low.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

PARAMETERS = 134_515_008  # SmolLM2-135M, tied embeddings counted once: the head reads them every step


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates of this machine with the workload's threads."""

    read_gb_s: float
    bfloat16_gflop_s: float

    def decode_tok_s(self, rows: int, bytes_per_weight: float = 2.0) -> float:
        """Most tokens per second that ``rows`` streams can decode together."""
        read = PARAMETERS * bytes_per_weight / (self.read_gb_s * 1e9)
        compute = 2 * PARAMETERS * rows / (self.bfloat16_gflop_s * 1e9)
        return rows / max(read, compute)

    def prefill_tok_s(self) -> float:
        """Most prompt tokens per second."""
        return self.bfloat16_gflop_s * 1e9 / (2 * PARAMETERS)


def best_of(repeats: int, work: Callable[[], torch.Tensor]) -> float:
    """Shortest time that ``work`` took, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(threads: int) -> Limits:
    """Measures both rates; takes about a second and 0.5 GB."""
    torch.set_num_threads(threads)
    block = torch.ones(64 << 20, dtype=torch.int64)  # 512 MB, beyond any cache
    read = block.numel() * 8 / best_of(5, block.sum) / 1e9
    size = 2_048
    left, right = (torch.ones(size, size, dtype=torch.bfloat16) for _ in range(2))
    matrix = 2 * size**3 / best_of(5, lambda: left @ right) / 1e9
    return Limits(round(read, 1), round(matrix, 1))


def main() -> None:
    """Prints the limits as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    limits = measure(parser.parse_args().threads)
    print(json.dumps({"read_gb_s": limits.read_gb_s, "bfloat16_gflop_s": limits.bfloat16_gflop_s}))


if __name__ == "__main__":
    main()
