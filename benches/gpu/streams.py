"""Greedy streams of one model, whatever runs its steps: launches, graphs, overlap, chunks, drafts.

In float32 all of them must be equal. In bfloat16, where the last bits depend on how many tokens a step has,
this tells how long they are, and how close the call was where they part: by how much the first way holds its
own token for likelier than the other's, in nats.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benches.gpu import drafters
from benches.gpu.latent import V2_LITE
from benches.gpu.serving import greedy, observed, prompt, write_config
from benches.gpu.shape import QWEN3_30B_A3B
from benches.gpu.timing import write_results
from frizzen import Logprob

WAYS: Mapping[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True, "overlap": False},
    "graph": {"overlap": False},
    "overlapped": {},
    "chunked": {"max_num_batched_tokens": 96},
    "ngram": {"drafter": "ngram"},
    "eagle3": {"drafter": "eagle3"},
}
"""Options of each way; the first is what the others are compared with."""
DRAFTS = 3
ALTERNATIVES = 20
"""Likeliest tokens whose log-probabilities the first way is asked for."""

_VOCABULARY = 32_000


def main() -> None:
    """Prints and writes down how many streams are equal; fails if float32 ones are not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("qwen3-30b-a3b", "deepseek-v2-lite"), default="qwen3-30b-a3b")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ways", nargs="*", choices=[*WAYS], default=[*WAYS])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/streams.json"))
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for dtype in arguments.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            for row in _compare(Path(folder), dtype, arguments):
                rows.append({"model": arguments.model, "dtype": dtype, **row})
                print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    write_results(arguments.out, "benches.gpu.streams", rows)
    if any(row["dtype"] == "float32" and row["equal"] != row["streams"] for row in rows):
        raise SystemExit("streams in float32 differ")


def _compare(folder: Path, dtype: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Runs every way and compares its streams with those of the first."""
    model = _write(arguments.model, folder / "model", arguments.layers)
    prompts = [prompt(1 + 13 * number, number, _VOCABULARY) for number in range(arguments.prompts)]
    params = greedy(arguments.tokens)
    wanted: list[list[int]] = []
    likely: list[list[dict[int, Logprob]]] = []
    for way in dict.fromkeys([next(iter(WAYS)), *arguments.ways]):
        options = {"max_num_seqs": 32, "max_model_len": 2048, "kv_cache_memory": 2**30, **WAYS[way]}
        if drafter := options.get("drafter"):
            shape = replace(QWEN3_30B_A3B, vocabulary=_VOCABULARY)
            options |= {"speculation": DRAFTS, "speculation_cache": "off"}
            options |= drafters.options(drafter, shape, arguments.layers, folder, DRAFTS)
        with observed(model, device=arguments.device, dtype=dtype, **options) as (llm, worker, _):
            found = llm.generate(prompts, params)
            counters = worker._counters(None)
            if not wanted:
                scored = llm.generate(prompts, replace(params, logprobs=ALTERNATIVES))
                likely = [output.outputs[0].logprobs or [] for output in scored]
        streams = [output.outputs[0].token_ids for output in found]
        wanted = wanted or streams
        same = [_same(stream, other) for stream, other in zip(streams, wanted, strict=True)]
        parted = [
            _gap(scores[place], stream[place])
            for stream, scores, place in zip(streams, likely, same, strict=True)
            if place < arguments.tokens
        ]
        yield {
            "way": way,
            "streams": len(streams),
            "equal": sum(length == arguments.tokens for length in same),
            "equal_tokens": sum(same),
            "tokens": len(streams) * arguments.tokens,
            "largest_gap": round(max(parted, default=0.0), 4),
            "graph_steps": counters["graph_steps"],
            "late_compiles": counters["late_compiles"],
        }


def _gap(scores: dict[int, Logprob], token: int) -> float:
    """How much likelier the likeliest token is than ``token``; infinite if it has no score."""
    best = max(score.logprob for score in scores.values())
    return best - scores[token].logprob if token in scores else math.inf


def _write(name: str, folder: Path, layers: int) -> Path:
    folder.mkdir()
    # Whoever asks for log-probabilities is told the tokens' texts.
    vocabulary = {f"t{token} ": token for token in range(_VOCABULARY)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    if name == V2_LITE.name:
        return replace(V2_LITE, vocabulary=_VOCABULARY, layers=layers).write(folder)
    return write_config(replace(QWEN3_30B_A3B, vocabulary=_VOCABULARY), folder, layers, eos_token_id=0)


def _same(stream: list[int], other: list[int]) -> int:
    """Tokens before the first that differs."""
    pairs = zip(stream, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(stream), len(other)))


if __name__ == "__main__":
    main()
