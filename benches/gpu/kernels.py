"""Every kernel of a mixture-of-experts layer by itself: time, achieved rate, and the limit, in one table.

Each kernel is the one that the plan picks. Calls follow each other in one CUDA graph and use different
weights and caches, so that nothing but the activations stays in the L2 cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benches.gpu.shape import FP8_MATRIX_RATE, MATRIX_RATE, READ_RATE
from benches.gpu.shape import QWEN3_30B_A3B as SHAPE
from benches.gpu.step import BLOCK_SIZE, decode_context, prefill_context, random_fp8
from benches.gpu.step import Case as Part
from benches.gpu.timing import DEVICE, graph_seconds, write_results
from frizzen.kernels.facts import ShapeValue, detect_machine
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.moe_ops import MOE_EXPERTS, MOE_ROUTE
from frizzen.kernels.ops import ATTENTION_PAGED, LINEAR, LM_HEAD, NORM_RMS, ROPE
from frizzen.kernels.plan import Op, PlanBuilder, default_registry
from frizzen.step import StepContext

__all__ = ["Case", "cases", "fp8_cases"]

Work = Callable[[], object]

BLOCKS: dict[str, ShapeValue] = {"block_rows": 128, "block_columns": 128}
HEADS: dict[str, ShapeValue] = {"heads": SHAPE.heads, "kv_heads": SHAPE.kv_heads, "head_dim": SHAPE.head_dim}


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size."""

    op: Op[Any]
    site: str
    tokens: int
    facts: dict[str, ShapeValue]
    call: Callable[[Any], Work]
    """Prepares the kernel on fresh tensors."""
    nbytes: float
    """Least traffic of a call."""
    operations: float
    context: int = 0

    @property
    def copies(self) -> int:
        """Calls that together exceed the L2 cache several times, and hide how long a graph takes to start."""
        return max(4, min(16, int(4e8 / self.nbytes)))

    @property
    def limit_seconds(self) -> float:
        """The longer of traffic and arithmetic at the device's rates."""
        rate = FP8_MATRIX_RATE if self.op in (LINEAR_FP8, MOE_EXPERTS_FP8) else MATRIX_RATE
        return max(self.nbytes / READ_RATE, self.operations / rate)


def _normal(*size: int, scale: float | None = None) -> Tensor:
    scale = size[-1] ** -0.5 if scale is None else scale
    return torch.empty(size, dtype=torch.bfloat16, device=DEVICE).normal_(std=scale)


def _linear(op: Op[Any], site: str, tokens: int, size_in: int, size_out: int) -> Case:
    fp8 = op is LINEAR_FP8

    def call(kernel: Any) -> Work:
        weight = random_fp8(size_out, size_in) if fp8 else _normal(size_out, size_in)
        apply, x = kernel.prepare(weight, None), _normal(tokens, size_in, scale=1.0)
        return lambda: apply(x)

    width = 4 if op is LM_HEAD else 2
    nbytes = (1 if fp8 else 2) * size_in * size_out + tokens * (2 * size_in + width * size_out)
    facts: dict[str, ShapeValue] = {"in_features": size_in, "out_features": size_out, "bias": False}
    facts |= BLOCKS if fp8 else {}
    return Case(op, site, tokens, facts, call, nbytes, 2 * tokens * size_in * size_out)


def _norm(tokens: int) -> Case:
    def call(kernel: Any) -> Work:
        norm = kernel.prepare(_normal(SHAPE.hidden, scale=1.0), 1e-6)
        x, residual = (_normal(tokens, SHAPE.hidden, scale=1.0) for _ in range(2))
        return lambda: norm(x, residual)

    nbytes = 4 * 2 * tokens * SHAPE.hidden
    return Case(NORM_RMS, "norm", tokens, {"size": SHAPE.hidden}, call, nbytes, 0)


def _rope(tokens: int) -> Case:
    def call(kernel: Any) -> Work:
        from frizzen.kernels.kv_layout import allocate

        cache = allocate(
            "token",
            tokens // BLOCK_SIZE + 2,
            BLOCK_SIZE,
            SHAPE.kv_heads,
            SHAPE.head_dim,
            torch.bfloat16,
            torch.device(DEVICE),
        )
        rope = kernel.prepare(cache, *(_normal(SHAPE.head_dim, scale=1.0) for _ in range(2)), 1e-6)
        qkv = _normal(tokens, SHAPE.qkv_features, scale=1.0)
        angle = torch.rand(tokens, SHAPE.head_dim // 2, device=DEVICE)
        cos, sin, slots = angle.cos(), angle.sin(), torch.arange(tokens, device=DEVICE) + BLOCK_SIZE
        return lambda: rope(qkv, cos, sin, slots)

    facts = {**HEADS, "rotary_dim": SHAPE.head_dim, "qk_norm": True, "layout": "token"}
    nbytes = 2 * 2 * tokens * SHAPE.qkv_features + 4 * tokens * SHAPE.head_dim
    return Case(ROPE, "rope", tokens, facts, call, nbytes, 0)


def _attention(step: StepContext, rows: int, context: int) -> Case:
    tokens = step.num_tokens

    def call(kernel: Any) -> Work:
        cache = kernel.allocate(rows * -(-context // BLOCK_SIZE) + 1, torch.device(DEVICE))
        cache.data.normal_()
        attend, state, qkv = (
            kernel.prepare(cache),
            kernel.begin(step),
            _normal(tokens, SHAPE.qkv_features, scale=1.0),
        )
        return lambda: attend(qkv, state)

    facts = {**HEADS, "scale": SHAPE.head_dim**-0.5, "window": 0, "block_size": BLOCK_SIZE, "sinks": False}
    facts["kv_dtype"] = "auto"
    width = SHAPE.heads * SHAPE.head_dim
    nbytes = 2 * 2 * SHAPE.kv_heads * SHAPE.head_dim * rows * context + 2 * 2 * tokens * width
    keys = context if step.max_query == 1 else context - step.max_query / 2
    return Case(ATTENTION_PAGED, "attention", tokens, facts, call, nbytes, 4 * tokens * keys * width, context)


def _route(tokens: int) -> Case:
    def call(kernel: Any) -> Work:
        route, x = (
            kernel.prepare(_normal(SHAPE.experts, SHAPE.hidden), None, None),
            _normal(tokens, SHAPE.hidden, scale=1.0),
        )
        return lambda: route(x, None)

    facts: dict[str, ShapeValue] = {
        "hidden": SHAPE.hidden,
        "experts": SHAPE.experts,
        "top_k": SHAPE.top_k,
        "scoring": "softmax",
        "renormalize": True,
        "scaling": 1.0,
        "groups": 1,
        "top_groups": 1,
        "bias": False,
        "correction": False,
    }
    nbytes = 2 * SHAPE.hidden * (SHAPE.experts + tokens) + 8 * tokens * SHAPE.top_k
    return Case(MOE_ROUTE, "router", tokens, facts, call, nbytes, 2 * tokens * SHAPE.hidden * SHAPE.experts)


def _experts(tokens: int, *, fp8: bool) -> Case:
    def call(kernel: Any) -> Work:
        draw: Callable[..., Any] = random_fp8 if fp8 else _normal
        w13 = draw(SHAPE.experts, 2 * SHAPE.intermediate, SHAPE.hidden)
        w2 = draw(SHAPE.experts, SHAPE.hidden, SHAPE.intermediate)
        experts, x = kernel.prepare(w13, w2, None, None), _normal(tokens, SHAPE.hidden, scale=1.0)
        weights, ids = torch.rand(tokens, SHAPE.experts, device=DEVICE).topk(SHAPE.top_k)
        chosen = ids.int()
        return lambda: experts(x, weights, chosen)

    facts: dict[str, ShapeValue] = {
        "hidden": SHAPE.hidden,
        "intermediate": SHAPE.intermediate,
        "experts": SHAPE.experts,
        "top_k": SHAPE.top_k,
        "bias": False,
        "clamp": 0.0,
        "alpha": 1.0,
        "beta": 0.0,
    }
    facts |= BLOCKS if fp8 else {}
    weights = SHAPE.experts_hit(tokens) * SHAPE.expert_weights
    nbytes = (1 if fp8 else 2) * weights + 4 * tokens * SHAPE.hidden
    operations = 2 * tokens * SHAPE.top_k * SHAPE.expert_weights
    op: Op[Any] = MOE_EXPERTS_FP8 if fp8 else MOE_EXPERTS
    return Case(op, "experts", tokens, facts, call, nbytes, operations)


def fp8_cases(sizes: list[int]) -> Iterator[Case]:
    """The products of a layer with weights in FP8."""
    for tokens in sizes:
        yield _linear(LINEAR_FP8, "qkv", tokens, SHAPE.hidden, SHAPE.qkv_features)
        yield _linear(LINEAR_FP8, "attention_out", tokens, SHAPE.heads * SHAPE.head_dim, SHAPE.hidden)
        yield _experts(tokens, fp8=True)


def cases(rows: list[int], context: int, prefill: list[int], parts: list[Part]) -> Iterator[Case]:
    """Decodes of ``rows`` at ``context`` and at long contexts, prefills, and the attention of ``parts``."""
    for tokens in rows + prefill:
        yield _norm(tokens)
        yield _linear(LINEAR, "qkv", tokens, SHAPE.hidden, SHAPE.qkv_features)
        yield _rope(tokens)
        if tokens in prefill:
            yield _attention(prefill_context(tokens), 1, tokens)
        else:
            yield _attention(decode_context(tokens, context), tokens, context)
        yield _linear(LINEAR, "attention_out", tokens, SHAPE.heads * SHAPE.head_dim, SHAPE.hidden)
        yield _route(tokens)
        yield _experts(tokens, fp8=False)
        if tokens in rows:
            yield _linear(LM_HEAD, "lm_head", tokens, SHAPE.hidden, SHAPE.vocabulary)
    yield _attention(decode_context(1, 8192), 1, 8192)
    yield _attention(decode_context(32, 4096), 32, 4096)
    for part in parts:
        yield _attention(prefill_context(part.tokens, part.rows, part.context), part.rows, part.context)


def measure(case: Case, builder: PlanBuilder) -> dict[str, object]:
    """One row of the table."""
    facts: dict[str, Any] = case.facts
    kernel = builder.resolve(case.op, torch.bfloat16, site=case.site, **facts)
    seconds = graph_seconds([case.call(kernel) for _ in range(case.copies)], replays=10)
    return {
        "site": case.site,
        "kernel": builder.plan().choices[-1].winner,
        "tokens": case.tokens,
        "context": case.context,
        "us": round(seconds * 1e6, 2),
        "limit_us": round(case.limit_seconds * 1e6, 2),
        "of_limit": round(case.limit_seconds / seconds, 3),
        "tb_s": round(case.nbytes / seconds / 1e12, 3),
        "tflop_s": round(case.operations / seconds / 1e12, 1),
    }


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128, 256])
    parser.add_argument("--context", type=int, default=129)
    parser.add_argument("--prefill", type=int, nargs="*", default=[8192])
    parser.add_argument(
        "--attention",
        nargs="*",
        default=["4x2048", "1x8192@32768", "1x2048@8192"],
        metavar="ROWSxTOKENS[@CONTEXT]",
        help="attention alone: of several prompts, or of the last part of longer ones",
    )
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="OP=NAME", help="use this candidate alone"
    )
    parser.add_argument("--weights", choices=("bfloat16", "fp8"), default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/kernels.json"))
    arguments = parser.parse_args()
    kernels = dict(entry.split("=", 1) for entry in arguments.kernel)
    builder = PlanBuilder(default_registry().restricted(kernels), detect_machine(DEVICE))
    results = []
    with torch.inference_mode():
        parts = [Part.prefill(text) for text in arguments.attention]
        chosen = cases(arguments.rows, arguments.context, arguments.prefill, parts)
        if arguments.weights == "fp8":
            chosen = fp8_cases(arguments.rows + arguments.prefill)
        for case in chosen:
            row = measure(case, builder)
            results.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    write_results(arguments.out, "benches.gpu.kernels", results)


if __name__ == "__main__":
    main()
