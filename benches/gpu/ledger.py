"""The memory ledger against a GPU: bytes by owner, predicted from headers and measured in the real engine.

Each model, of dummy weights, in a process of its own: it starts, all its graphs are captured, it decodes as
many rows as fit and computes a prompt as long as a step. ``whole`` is what the device has less of than before
the start; what belongs to the reserve, such as the code of kernels and what torch's allocator rounds up, is
in what is measured of it and not in what is predicted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benches.gpu import mxfp4
from benches.gpu.latent import V2_LITE
from benches.gpu.serving import greedy, observed, prompt, write_config
from benches.gpu.shape import QWEN3_30B_A3B
from benches.gpu.timing import write_results

__all__ = ["MODELS"]

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "eos_token_id": 151645,
    "tie_word_embeddings": False,
}
"""Qwen3-8B without its layers."""
VOCABULARY = 100_000
"""All of them have more."""


def _dense(folder: Path, layers: int | None) -> Path:
    values = DENSE | {"num_hidden_layers": layers or 36}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


MODELS: dict[str, Callable[[Path, int | None], Path]] = {
    "qwen3-30b-a3b": lambda folder, layers: write_config(QWEN3_30B_A3B, folder, layers),
    "deepseek-v2-lite": lambda folder, layers: V2_LITE.write(
        folder, num_hidden_layers=layers or V2_LITE.layers
    ),
    "gpt-oss-20b": lambda folder, layers: mxfp4.write_config("gpt-oss-20b", folder, layers),
    "dense-8b": _dense,
}
"""Write a ``config.json`` with so many layers, or all; return its folder."""


def measure(name: str, layers: int | None) -> list[dict[str, object]]:
    """A row per owner, and one of all together."""
    with tempfile.TemporaryDirectory() as folder:
        model = MODELS[name](Path(folder), layers)
        with observed(model, device="cuda") as (llm, worker, _):
            while worker.idle():
                pass
            longest = min(8000, worker.info["max_model_len"] - 8)
            llm.generate([prompt(longest, 0, VOCABULARY)], greedy(2))
            llm.generate([prompt(64, row, VOCABULARY) for row in range(128)], greedy(8))
            torch.cuda.synchronize()
            after = torch.cuda.mem_get_info()[0]
            memory: dict[str, Any] = worker.info["plan"]["memory"]
            graphs = json.loads(worker.control("graphs", ""))
    owners = {owner["owner"]: owner for owner in memory["owners"]}
    found = {owner: values["measured"] for owner, values in owners.items()} | {"graphs": graphs["held_bytes"]}
    named = {owner: values["predicted"] for owner, values in owners.items() if owner != "reserve"}
    rows = [_row(name, owner, predicted, found[owner]) for owner, predicted in named.items()]
    rows.append(_row(name, "whole", sum(named.values()), memory["free_before"] - after))
    return [row | {"layers": layers, "graphs": len(graphs["captured"])} for row in rows]


def _row(model: str, owner: str, predicted: int, measured: int | None) -> dict[str, object]:
    return {
        "model": model,
        "owner": owner,
        "predicted": predicted,
        "measured": measured,
        "deviation": None if measured is None else round(measured / predicted - 1, 4),
    }


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--layers", type=int, help="fewer layers than the models have")
    parser.add_argument("--here", action="store_true", help="in this process; prints JSON")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/ledger.json"))
    arguments = parser.parse_args()
    if arguments.here:
        (name,) = arguments.models
        sys.stdout.write(json.dumps(measure(name, arguments.layers)) + "\n")
        return
    rows: list[dict[str, object]] = []
    for name in arguments.models:
        command = [sys.executable, "-m", "benches.gpu.ledger", "--here", "--models", name]
        if arguments.layers:
            command += ["--layers", str(arguments.layers)]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(run.stdout.splitlines()[-1])
        for row in found:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        rows += found
        write_results(arguments.out, "benches.gpu.ledger", rows)


if __name__ == "__main__":
    main()
