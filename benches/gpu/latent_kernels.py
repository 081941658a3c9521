"""Latent attention by itself, in CUDA graphs: Triton's and torch's kernels, beside the bytes or operations.

The shapes are those of DeepSeek-V2-Lite (16 heads) and DeepSeek-V3 (128 heads). Everything between the
rotated queries and the input of the output projection counts: the products by head, the attention, the merge.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benches.gpu.latent import V2_LITE, V3, LatentShape
from benches.gpu.shape import MATRIX_RATE, READ_RATE
from benches.gpu.step import BLOCK_SIZE, decode_context, prefill_context
from benches.gpu.timing import DEVICE, graph_seconds, write_results
from frizzen.kernels.facts import Facts, detect_machine
from frizzen.kernels.mla_ops import ATTENTION_MLA
from frizzen.kernels.plan import default_registry
from frizzen.step import StepContext

CASES = ("1@1024", "1@8192", "8@8192", "32@8192", "128@2048", "256@128", "prefill@512", "prefill@8192")
_CACHES_BYTES = 3e8
"""Of the caches that a measurement goes through, so that no cache of the device holds them."""


def measure(shape: LatentShape, candidate: str, case: str) -> dict[str, Any]:
    """One row of the table."""
    rows, context = case.split("@")
    tokens = int(context)
    prefill = rows == "prefill"
    step = prefill_context(tokens) if prefill else decode_context(int(rows), tokens)
    limit = _prefill_seconds(shape, tokens) if prefill else _decode_seconds(shape, int(rows), tokens)
    seconds = graph_seconds(list(_work(shape, candidate, step)), replays=9)
    return {
        "heads": shape.heads,
        "case": case,
        "by": candidate,
        "us": round(seconds * 1e6, 1),
        "limit_us": round(limit * 1e6, 1),
        "of_limit": round(limit / seconds, 3),
    }


def _decode_seconds(shape: LatentShape, rows: int, context: int) -> float:
    """Every latent vector and the expansion's weights are read once, unless the products take longer."""
    width = shape.latent + shape.rotary
    expansion = shape.heads * (shape.nope + shape.value) * shape.latent
    products = 2 * rows * (context * shape.heads * (width + shape.latent) + expansion)
    return max(2 * (rows * context * width + expansion) / READ_RATE, products / MATRIX_RATE)


def _prefill_seconds(shape: LatentShape, tokens: int) -> float:
    expansion = (shape.nope + shape.value) * shape.latent
    attention = tokens * (shape.nope + shape.rotary + shape.value) / 2
    return 2 * tokens * shape.heads * (expansion + attention) / MATRIX_RATE


def _work(shape: LatentShape, candidate: str, step: StepContext) -> Iterator[Any]:
    sizes = {"nope_dim": shape.nope, "rope_dim": shape.rotary, "value_dim": shape.value}
    facts = Facts.of(
        detect_machine(DEVICE),
        torch.bfloat16,
        {
            "heads": shape.heads,
            **sizes,
            "latent_dim": shape.latent,
            "scale": (shape.nope + shape.rotary) ** -0.5,
            "block_size": BLOCK_SIZE,
        },
    )
    entries = default_registry().candidates(ATTENTION_MLA.name)
    kernel = next(entry for entry in entries if entry.name == candidate).build(facts)
    blocks = step.block_table.numel() + 1
    size = blocks * BLOCK_SIZE * kernel.bytes_per_token()
    q = _random(step.num_tokens, shape.heads * (shape.nope + shape.rotary))
    for _ in range(max(1, min(8, int(_CACHES_BYTES / size)))):
        cache = kernel.allocate(blocks, torch.device(DEVICE))
        cache.normal_()
        expansion = _random(shape.heads * (shape.nope + shape.value), shape.latent) * shape.latent**-0.5
        attend, state = kernel.prepare(cache, expansion), kernel.begin(step)
        yield lambda attend=attend, state=state: attend(q, state)


def _random(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.bfloat16, device=DEVICE)


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=CASES, metavar="ROWS@CONTEXT or prefill@TOKENS")
    parser.add_argument("--candidates", nargs="*", default=["triton", "torch_sdpa"])
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/latent_kernels.json"))
    arguments = parser.parse_args()
    results: list[dict[str, object]] = []
    with torch.inference_mode():
        for shape in (V2_LITE, V3):
            for case in arguments.cases:
                for candidate in arguments.candidates:
                    results.append(measure(shape, candidate, case))
                    print("  ".join(f"{key}={value}" for key, value in results[-1].items()), flush=True)
    write_results(arguments.out, "benches.gpu.latent_kernels", results)


if __name__ == "__main__":
    main()
