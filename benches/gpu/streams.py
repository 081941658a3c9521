"""Greedy streams of one model, however its steps are run: launched, as graphs, overlapped, in chunks.

In float32 all of them must be equal. In bfloat16, where the last bits depend on how many tokens a step has,
this tells how long they are.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benches.gpu.latent import V2_LITE
from benches.gpu.serving import greedy, observed, prompt, write_config
from benches.gpu.shape import QWEN3_30B_A3B
from benches.gpu.timing import write_results

WAYS: Mapping[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True, "overlap": False},
    "graph": {"overlap": False},
    "overlapped": {},
    "chunked": {"max_num_batched_tokens": 96},
}
"""Options of each way; the first is what the others are compared with."""

_VOCABULARY = 32_000


def main() -> None:
    """Prints and writes down how many streams are equal; fails if float32 ones are not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("qwen3-30b-a3b", "deepseek-v2-lite"), default="qwen3-30b-a3b")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/streams.json"))
    arguments = parser.parse_args()
    prompts = [prompt(1 + 13 * number, number, _VOCABULARY) for number in range(arguments.prompts)]
    rows: list[dict[str, object]] = []
    for dtype in arguments.dtypes:
        wanted: list[list[int]] = []
        with tempfile.TemporaryDirectory() as folder:
            model = _write(arguments.model, Path(folder), arguments.layers)
            for way, options in WAYS.items():
                limits = {"max_num_seqs": 32, "max_model_len": 2048, "kv_cache_memory": 2**30}
                with observed(model, device="cuda", dtype=dtype, **(limits | options)) as (llm, worker, _):
                    found = llm.generate(prompts, greedy(arguments.tokens))
                    counters = worker._counters(None)
                streams = [output.outputs[0].token_ids for output in found]
                wanted = wanted or streams
                same = [_same(stream, other) for stream, other in zip(streams, wanted, strict=True)]
                rows.append(
                    {
                        "model": arguments.model,
                        "dtype": dtype,
                        "way": way,
                        "streams": len(streams),
                        "equal": sum(length == arguments.tokens for length in same),
                        "equal_tokens": sum(same),
                        "tokens": len(streams) * arguments.tokens,
                        "graph_steps": counters["graph_steps"],
                        "late_compiles": counters["late_compiles"],
                    }
                )
                print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    write_results(arguments.out, "benches.gpu.streams", rows)
    if any(row["dtype"] == "float32" and row["equal"] != row["streams"] for row in rows):
        raise SystemExit("streams in float32 differ")


def _write(name: str, folder: Path, layers: int) -> Path:
    if name == V2_LITE.name:
        return replace(V2_LITE, vocabulary=_VOCABULARY, layers=layers).write(folder)
    return write_config(replace(QWEN3_30B_A3B, vocabulary=_VOCABULARY), folder, layers, eos_token_id=0)


def _same(stream: list[int], other: list[int]) -> int:
    """Tokens before the first that differs."""
    pairs = zip(stream, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(stream), len(other)))


if __name__ == "__main__":
    main()
