"""Experts in MXFP4: one layer of gpt-oss packed and expanded, and decode steps of the whole model.

A layer is measured in CUDA graphs, each call with other tokens and experts; its limit is the bytes of the
experts that are hit, or the operations. Steps are those of ``frizzen.LLM`` with dummy weights.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benches.gpu.serving import Steps, greedy, observed, prompt
from benches.gpu.shape import MATRIX_RATE, READ_RATE
from benches.gpu.timing import DEVICE, graph_seconds, write_results
from frizzen import LLM
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts
from frizzen.kernels.moe_problems import mlp_shape
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.quantize.mxfp4 import BLOCK, Mxfp4Weight

LAYERS = {"gpt-oss-20b": 24, "gpt-oss-120b": 36}
EXPERTS = {"gpt-oss-20b": 32, "gpt-oss-120b": 128}
HIDDEN = INNER = 2880
TOP_K = 4
VOCABULARY = 201_088
BITS = {"packed": 4 + 8 / BLOCK, "expanded": 16.0}
"""Of a weight."""
LEAST_BYTES = 3e8
"""Of the experts that the calls of a measurement go through, so that no cache of the device holds them."""


def _bytes(experts: int, *shape: int) -> Mxfp4Weight:
    """Random bits; the values are of the order of the root of their number."""
    *rows, columns = shape
    data = torch.randint(256, (experts, *rows, columns // 2), dtype=torch.uint8, device=DEVICE)
    scale = torch.randint(119, 122, (experts, *rows, columns // BLOCK), dtype=torch.uint8, device=DEVICE)
    return Mxfp4Weight(data, scale)


def layers(name: str) -> dict[str, Experts]:
    """The same experts packed and expanded, each by the kernel that the plan picks."""
    experts, plan = EXPERTS[name], PlanBuilder(default_registry(), detect_machine(DEVICE))
    shape: dict[str, Any] = mlp_shape(
        HIDDEN, INNER, experts, TOP_K, bias=True, clamp=7.0, alpha=1.702, beta=1.0
    )
    w13, w2 = _bytes(experts, 2 * INNER, HIDDEN), _bytes(experts, HIDDEN, INNER)
    biases = [torch.randn(experts, size, dtype=torch.bfloat16, device=DEVICE) for size in (2 * INNER, HIDDEN)]
    plain: Any = plan.resolve(MOE_EXPERTS, torch.bfloat16, site="experts", **shape)
    expanded = plain.prepare(w13.expand(torch.bfloat16), w2.expand(torch.bfloat16), *biases)
    kept: Any = plan.resolve(MOE_EXPERTS_MXFP4, torch.bfloat16, site="experts", **shape)
    print({choice.op: choice.winner for choice in plan.plan().choices}, flush=True)
    return {"expanded": expanded, "packed": kept.prepare(w13, w2, *biases)}


def _inputs(name: str, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    weights, ids = torch.rand(tokens, EXPERTS[name], device=DEVICE).topk(TOP_K)
    return torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device=DEVICE), weights, ids.int()


def measure_layer(name: str, tokens: int, by: dict[str, Experts]) -> Iterator[dict[str, object]]:
    """A row for each way; the error is the root mean square of the difference, over that of the result."""
    weights = 3 * HIDDEN * INNER
    calls = max(2, min(16, round(LEAST_BYTES / (min(tokens * TOP_K, EXPERTS[name]) * weights / 2))))
    inputs = [_inputs(name, tokens) for _ in range(calls)]
    chosen = [torch.bincount(ids.flatten().long(), minlength=EXPERTS[name]) for _, _, ids in inputs]
    hit = sum(int((counts > 0).sum()) for counts in chosen) / calls
    wanted = by["expanded"](*inputs[0]).float()
    for kind, experts in by.items():
        error = (experts(*inputs[0]).float() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        work = [lambda run=experts, of=of: run(*of) for of in inputs]
        seconds = graph_seconds(work, replays=10)
        limit = max(hit * weights * BITS[kind] / 8 / READ_RATE, 2 * tokens * TOP_K * weights / MATRIX_RATE)
        yield {
            "what": "layer",
            "shape": name,
            "tokens": tokens,
            "weights": kind,
            "experts_hit": round(hit, 1),
            "us": round(seconds * 1e6, 1),
            "limit_us": round(limit * 1e6, 1),
            "of_limit": round(limit / seconds, 3),
            "error": round(error.item(), 5),
        }


def write_config(name: str, folder: Path, layers: int | None) -> Path:
    """The ``config.json`` of a gpt-oss model whose experts are in MXFP4."""
    values = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "head_dim": 64,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 64,
        "num_experts_per_tok": TOP_K,
        "num_hidden_layers": layers or LAYERS[name],
        "num_key_value_heads": 8,
        "num_local_experts": EXPERTS[name],
        "quantization_config": {"quant_method": "mxfp4"},
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "yarn",
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        "rope_theta": 150_000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "vocab_size": VOCABULARY,
        "eos_token_id": 200_002,
    }
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def measure_steps(llm: LLM, steps: Steps, name: str, rows: int, context: int) -> dict[str, object]:
    """Steady decode steps; the first of two runs captures what it needs."""
    prompts = [prompt(context, row, VOCABULARY) for row in range(rows)]
    for _ in range(2):
        steps.clear()
        llm.generate(prompts, greedy(48))
    return {"what": "decode", "shape": name, "rows": rows, "context": context, "ms": steps.decode_ms(rows)}


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=list(EXPERTS), choices=list(EXPERTS))
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 8, 32, 128, 256, 1024, 4096])
    parser.add_argument("--steps", nargs="*", default=["1@128", "8@128", "32@128"], metavar="ROWS@CONTEXT")
    parser.add_argument("--model", choices=list(EXPERTS), default="gpt-oss-20b", help="whose steps")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/mxfp4.json"))
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []

    def show(row: dict[str, object]) -> None:
        rows.append(row)
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        write_results(arguments.out, "benches.gpu.mxfp4", rows)

    with torch.inference_mode():
        for name in arguments.shapes:
            by = layers(name)
            for tokens in arguments.tokens:
                for row in measure_layer(name, tokens, by):
                    show(row)
            by.clear()
            torch.cuda.empty_cache()
    if not arguments.steps:
        return
    with tempfile.TemporaryDirectory() as folder:
        model = write_config(arguments.model, Path(folder), arguments.layers)
        options: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_num_seqs": 32}
        with observed(model, **options) as (llm, worker, steps):
            for case in arguments.steps:
                batch, context = map(int, case.split("@"))
                show(measure_steps(llm, steps, arguments.model, batch, context))
            memory = json.loads(worker.control("memory", ""))
            counters = json.loads(worker.control("counters", ""))
            show({"what": "worker", "shape": arguments.model, "memory": memory, "counters": counters})


if __name__ == "__main__":
    main()
