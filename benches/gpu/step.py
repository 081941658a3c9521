"""Whole steps of a synthetic mixture-of-experts decoder, by the kernels that the plan picks, in CUDA graphs.

Weights are random and routing is close to uniform; there is no engine and no sampling but the largest logit.
Prints milliseconds per step beside the limit and the goal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benches.gpu.shape import QWEN3_30B_A3B, MoeShape
from benches.gpu.timing import DEVICE, capture, graph_seconds, write_results
from frizzen.kernels.facts import Machine, detect_machine
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.kv_layout import KV_DTYPES
from frizzen.kernels.moe_ops import MOE_EXPERTS, MOE_ROUTE, Experts
from frizzen.kernels.ops import (
    ATTENTION_PAGED,
    LINEAR,
    LM_HEAD,
    NORM_RMS,
    ROPE,
    KVCache,
    PagedAttentionKernel,
)
from frizzen.kernels.plan import Plan, PlanBuilder, default_registry
from frizzen.quantize.fp8 import Fp8Weight, quantize
from frizzen.step import StepContext

__all__ = ["Model", "decode_context", "prefill_context", "random_fp8"]

BLOCK_SIZE = 16
PREFILLS = ("1x8192", "4x2048", "1x8192@32768")
DECODES = ("1@129", "8@129", "32@129", "128@129", "256@129", "1@8192", "32@4096")
GOALS_MS = {
    ("decode", 1, 129): 2.1,
    ("decode", 8, 129): 7.3,
    ("decode", 32, 129): 14.5,
    ("decode", 128, 129): 16.5,
    ("decode", 256, 129): 18.5,
    ("prefill", 8192, 8192): 115.0,
}
"""What the project wants to reach for the default shape, by phase, rows or tokens, and context."""

Map = Callable[[Tensor], Tensor]
Norm = Callable[[Tensor, Tensor | None], Tensor]
NormedMap = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""The norm of ``x`` plus the residual, mapped; and the updated residual."""
AddedMap = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""``x`` mapped and the residual, or their sum and None."""
NormedRoute = Callable[[Tensor, Tensor | None, None], tuple[Tensor, Tensor, Tensor]]
"""The norm of ``x`` plus the residual, weights, ids; the residual is updated in place."""


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: NormedMap
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, Any], Tensor]
    out: AddedMap
    route: NormedRoute
    experts: Experts


class Model:
    """The decoder: random weights, a cache of ``num_blocks`` blocks per layer."""

    def __init__(
        self,
        shape: MoeShape,
        machine: Machine,
        num_blocks: int,
        kernels: dict[str, str],
        layers: int | None = None,
        *,
        fused: bool = True,
        fp8: bool = False,
        kv_dtype: str = "auto",
    ) -> None:
        self.kv_dtype = kv_dtype
        self.shape = shape
        self.fp8 = fp8
        """Whether the products of the layers have weights in FP8, with scales for blocks of 128 by 128."""
        self._fused = fused
        self._builder = PlanBuilder(default_registry().restricted(kernels), machine)
        self._num_blocks = num_blocks
        self.layers = [self._layer(index) for index in range(layers or shape.layers)]
        self._norm = self._make_norm("norm", None, _gain(shape.hidden))
        self._embedding = _random(shape.vocabulary, shape.hidden, scale=1.0)
        head = self._builder.resolve(
            LM_HEAD,
            torch.bfloat16,
            site="lm_head",
            in_features=shape.hidden,
            out_features=shape.vocabulary,
            bias=False,
        )
        self._head = head.prepare(_random(shape.vocabulary, shape.hidden), None)

    @property
    def plan(self) -> Plan:
        """What serves it."""
        return self._builder.plan()

    def forward(self, ids: Tensor, step: StepContext, cos: Tensor, sin: Tensor, last: Tensor) -> Tensor:
        """``ids [T]`` to the next ids of the tokens ``last [B]``."""
        state = self.attention.begin(step)
        x, residual = torch.nn.functional.embedding(ids, self._embedding), None
        for layer in self.layers:
            qkv, residual = layer.qkv(x, residual)
            attended = layer.attend(qkv, cos, sin, step.slots, state)
            x, rest = layer.out(attended, residual)
            residual = x if rest is None else rest
            normed, weights, chosen = layer.route(x, rest, None)
            x = layer.experts(normed, weights, chosen)
        hidden = self._norm(x, residual)
        if len(last) < len(ids):
            hidden = hidden.index_select(0, last)
        return self._head(hidden).argmax(-1)

    def _layer(self, index: int) -> _Layer:
        shape = self.shape
        heads = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
        self.attention: PagedAttentionKernel = self._builder.resolve(
            ATTENTION_PAGED,
            torch.bfloat16,
            site="attention",
            layer=index,
            scale=shape.head_dim**-0.5,
            window=0,
            block_size=BLOCK_SIZE,
            sinks=False,
            kv_dtype=self.kv_dtype,
            **heads,
        )
        cache = self.attention.allocate(self._num_blocks, torch.device(DEVICE))
        cache.data.copy_(torch.randn(cache.data.shape, dtype=torch.bfloat16, device=DEVICE))
        return _Layer(
            self._make_qkv(index),
            self._make_attend(index, cache, heads),
            self._make_added_linear("attention_out", index, shape.heads * shape.head_dim, shape.hidden),
            self._make_route(index),
            self._make_experts(index),
        )

    def _make_norm(self, site: str, layer: int | None, gain: Tensor) -> Norm:
        kernel = self._builder.resolve(
            NORM_RMS, torch.bfloat16, site=site, layer=layer, size=self.shape.hidden
        )
        return kernel.prepare(gain, 1e-6)

    def _make_qkv(self, layer: int) -> NormedMap:
        shape = self.shape
        kernel, weight = self._resolve_linear("qkv", layer, shape.hidden, shape.qkv_features)
        gain = _gain(shape.hidden)
        if self._fused and hasattr(kernel, "prepare_normed"):
            fused: NormedMap = kernel.prepare_normed(gain, 1e-6, weight, None)
            return fused
        norm, linear = self._make_norm("input_norm", layer, gain), kernel.prepare(weight, None)
        return lambda x, residual: (linear(norm(x, residual)), x if residual is None else residual)

    def _make_added_linear(self, site: str, layer: int, size_in: int, size_out: int) -> AddedMap:
        kernel, weight = self._resolve_linear(site, layer, size_in, size_out)
        if self._fused and hasattr(kernel, "prepare_added"):
            added: AddedMap = kernel.prepare_added(weight, None)
            return added
        linear = kernel.prepare(weight, None)
        return lambda x, residual: (linear(x), residual)

    def _make_linear(self, site: str, layer: int, size_in: int, size_out: int) -> Map:
        kernel, weight = self._resolve_linear(site, layer, size_in, size_out)
        linear: Map = kernel.prepare(weight, None)
        return linear

    def _resolve_linear(self, site: str, layer: int, size_in: int, size_out: int) -> tuple[Any, Any]:
        """The kernel of a product, and a weight."""
        place: dict[str, Any] = {"site": site, "layer": layer}
        sizes: dict[str, Any] = {"in_features": size_in, "out_features": size_out, "bias": False}
        if self.fp8:
            sizes |= {"block_rows": 128, "block_columns": 128}
            quantised = self._builder.resolve(LINEAR_FP8, torch.bfloat16, **place, **sizes)
            return quantised, random_fp8(size_out, size_in)
        return self._builder.resolve(LINEAR, torch.bfloat16, **place, **sizes), _random(size_out, size_in)

    def _make_attend(
        self, layer: int, cache: KVCache, heads: dict[str, int]
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor, Any], Tensor]:
        """Rotation and attention: ``(qkv, cos, sin, slots, state)`` to what attention returns."""
        kernel = self._builder.resolve(
            ROPE,
            torch.bfloat16,
            site="attention",
            layer=layer,
            rotary_dim=self.shape.head_dim,
            qk_norm=True,
            layout=self.attention.layout,
            **heads,
        )
        norms = _gain(self.shape.head_dim), _gain(self.shape.head_dim), 1e-6
        attention: Any = self.attention
        if self._fused and isinstance(kernel, getattr(attention, "turns", ())):
            fused: Callable[[Tensor, Tensor, Tensor, Tensor, Any], Tensor] = attention.prepare_turned(
                kernel, cache, norms
            )
            return fused
        turn, attend = kernel.prepare(cache, *norms), attention.prepare(cache)

        def turn_and_attend(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: Any) -> Tensor:
            turn(qkv, cos, sin, slots)
            attended: Tensor = attend(qkv, state)
            return attended

        return turn_and_attend

    def _make_route(self, layer: int) -> NormedRoute:
        shape = self.shape
        kernel: Any = self._builder.resolve(
            MOE_ROUTE,
            torch.bfloat16,
            site="router",
            layer=layer,
            hidden=shape.hidden,
            experts=shape.experts,
            top_k=shape.top_k,
            scoring="softmax",
            renormalize=True,
            scaling=1.0,
            groups=1,
            top_groups=1,
            bias=False,
            correction=False,
        )
        weight, gain = _random(shape.experts, shape.hidden), _gain(shape.hidden)
        if self._fused and hasattr(kernel, "prepare_normed"):
            fused: NormedRoute = kernel.prepare_normed(gain, 1e-6, weight, None, None)
            return fused
        norm, route = self._make_norm("mlp_norm", layer, gain), kernel.prepare(weight, None, None)

        def normed_route(x: Tensor, residual: Tensor | None, valid: None) -> tuple[Tensor, Tensor, Tensor]:
            normed = norm(x, residual)
            return (normed, *route(normed, valid))

        return normed_route

    def _make_experts(self, layer: int) -> Experts:
        shape = self.shape
        facts: dict[str, Any] = {
            "hidden": shape.hidden,
            "intermediate": shape.intermediate,
            "experts": shape.experts,
            "top_k": shape.top_k,
            "bias": False,
            "clamp": 0.0,
            "alpha": 1.0,
            "beta": 0.0,
        }
        size13 = shape.experts, 2 * shape.intermediate, shape.hidden
        size2 = shape.experts, shape.hidden, shape.intermediate
        place: dict[str, Any] = {"site": "experts", "layer": layer}
        if self.fp8:
            facts |= {"block_rows": 128, "block_columns": 128}
            quantised = self._builder.resolve(MOE_EXPERTS_FP8, torch.bfloat16, **place, **facts)
            return quantised.prepare(random_fp8(*size13), random_fp8(*size2), None, None)
        kernel = self._builder.resolve(MOE_EXPERTS, torch.bfloat16, **place, **facts)
        return kernel.prepare(_random(*size13), _random(*size2), None, None)


def _random(*size: int, scale: float | None = None) -> Tensor:
    scale = size[-1] ** -0.5 if scale is None else scale
    return torch.empty(size, dtype=torch.bfloat16, device=DEVICE).normal_(std=scale)


def random_fp8(*size: int) -> Fp8Weight:
    """As :func:`_random`, in FP8."""
    return quantize(_random(*size), 128, 128)


def _gain(size: int) -> Tensor:
    return 1 + _random(size, scale=0.1)


def decode_context(rows: int, context: int, bound: int | None = None) -> StepContext:
    """One token for each of ``rows`` rows of one length; ``bound`` is the longest that a graph must serve."""
    blocks = -(-max(context, bound or 0) // BLOCK_SIZE)
    table = (torch.randperm(rows * blocks, device=DEVICE) + 1).int().view(rows, blocks)
    positions = torch.full((rows,), context - 1, dtype=torch.int64, device=DEVICE)
    block, offset = (context - 1) // BLOCK_SIZE, (context - 1) % BLOCK_SIZE
    return StepContext(
        positions=positions,
        slots=table[:, block].long() * BLOCK_SIZE + offset,
        query_start=torch.arange(rows + 1, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.full((rows,), context, dtype=torch.int32, device=DEVICE),
        block_table=table,
        num_rows=rows,
        num_single=rows,
        num_tokens=rows,
        max_query=1,
        max_context=max(context, bound or 0),
    )


def prefill_context(tokens: int, rows: int = 1, context: int | None = None) -> StepContext:
    """The last ``tokens`` of each of ``rows`` prompts of ``context`` tokens; by default all of them."""
    context = context or tokens
    blocks = -(-context // BLOCK_SIZE)
    table = (torch.randperm(rows * blocks, device=DEVICE) + 1).int().view(rows, blocks)
    positions = torch.arange(context - tokens, context, device=DEVICE)
    slots = table.long()[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return StepContext(
        positions=positions.repeat(rows),
        slots=slots.flatten(),
        query_start=torch.arange(rows + 1, dtype=torch.int32, device=DEVICE) * tokens,
        seq_lens=torch.full((rows,), context, dtype=torch.int32, device=DEVICE),
        block_table=table,
        num_rows=rows,
        num_single=0,
        num_tokens=rows * tokens,
        max_query=tokens,
        max_context=context,
    )


def step_work(model: Model, step: StepContext) -> Callable[[], Tensor]:
    """A step with fixed inputs."""
    shape, device = model.shape, DEVICE
    ids = torch.randint(0, shape.vocabulary, (step.num_tokens,), device=device)
    exponent = torch.arange(shape.head_dim // 2, device=device) * (2 / shape.head_dim)
    angle = step.positions.unsqueeze(1) * 1e6**-exponent
    cos, sin = angle.cos().float(), angle.sin().float()
    last = step.query_start[1:].long() - 1
    return lambda: model.forward(ids, step, cos, sin, last)


def profile(work: Callable[[], Tensor], steps: int = 5) -> list[tuple[str, float, float]]:
    """Per kernel of a step: its name, microseconds per step, launches per step; the longest first.

    Kernels overlap where launches are dependent, so the sum can exceed the step.
    """
    graph = capture([work])
    graph.replay()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            graph.replay()
        torch.cuda.synchronize()
    rows = [
        (event.key, event.self_device_time_total / steps, event.count / steps)
        for event in trace.key_averages()
        if event.self_device_time_total
    ]
    return sorted(rows, key=lambda row: -row[1])


class Case(NamedTuple):
    """A step of ``rows`` rows of ``tokens`` tokens each, the last of contexts of ``context`` tokens."""

    rows: int
    tokens: int
    context: int

    @classmethod
    def decode(cls, text: str) -> Case:
        """``ROWS@CONTEXT``."""
        rows, context = text.split("@")
        return cls(int(rows), 1, int(context))

    @classmethod
    def prefill(cls, text: str) -> Case:
        """``ROWSxTOKENS``, or ``ROWSxTOKENS@CONTEXT`` for the last part of longer prompts."""
        size, _, context = text.partition("@")
        rows, tokens = size.split("x")
        return cls(int(rows), int(tokens), int(context or tokens))

    @property
    def phase(self) -> str:
        """``decode`` or ``prefill``."""
        return "decode" if self.tokens == 1 else "prefill"

    @property
    def goal_ms(self) -> float | None:
        """What the project wants to reach, if anything."""
        if self.phase == "decode":
            return GOALS_MS.get(("decode", self.rows, self.context))
        return GOALS_MS.get(("prefill", self.tokens, self.context)) if self.rows == 1 else None


def measure(model: Model, case: Case, bound: int | None, *, profiled: bool) -> dict[str, object]:
    """One row of the table."""
    shape = model.shape
    scale = len(model.layers) / shape.layers
    width = 1 if model.fp8 else 2
    if case.phase == "decode":
        step = decode_context(case.rows, case.context, bound)
        limit = shape.decode_seconds(case.rows, case.context, width, 2 if model.kv_dtype == "auto" else 1)
    else:
        step = prefill_context(case.tokens, case.rows, case.context)
        limit = case.rows * shape.prefill_seconds(case.tokens, width, case.context)
    work = step_work(model, step)
    seconds = graph_seconds([work], replays=20 if case.phase == "decode" else 5)
    if profiled:
        for name, microseconds, launches in profile(work):
            print(f"    {microseconds:10.1f} us {launches:6.0f} x  {name[:90]}")
    return {
        "phase": case.phase,
        "rows": case.rows,
        "tokens": case.tokens,
        "context": case.context,
        "weights": "fp8" if model.fp8 else "bfloat16",
        "kv": model.kv_dtype,
        "layers": len(model.layers),
        "ms": round(seconds * 1e3, 3),
        "limit_ms": round(limit * 1e3 * scale, 3),
        "of_limit": round(limit * scale / seconds, 3),
        "goal_ms": case.goal_ms if scale == 1 and not model.fp8 else None,
    }


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decode", nargs="*", default=DECODES, metavar="ROWS@CONTEXT")
    parser.add_argument("--bound", type=int, help="longest context that graphs serve; default: the context")
    parser.add_argument("--prefill", nargs="*", default=PREFILLS, metavar="ROWSxTOKENS[@CONTEXT]")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has; limits are scaled")
    parser.add_argument("--separate", action="store_true", help="norms and rotation as launches of their own")
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="OP=NAME", help="use this candidate alone"
    )
    parser.add_argument("--kv-cache-dtype", choices=KV_DTYPES, default="auto")
    parser.add_argument("--weights", choices=("bfloat16", "fp8"), default="bfloat16")
    parser.add_argument("--profile", action="store_true", help="also print the time of every kernel")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/step.json"))
    arguments = parser.parse_args()
    cases = [Case.decode(text) for text in arguments.decode]
    cases += [Case.prefill(text) for text in arguments.prefill]
    bound = arguments.bound or 0
    blocks = max(case.rows * -(-max(case.context, bound) // BLOCK_SIZE) for case in cases)
    kernels = dict(entry.split("=", 1) for entry in arguments.kernel)
    with torch.inference_mode():
        model = Model(
            QWEN3_30B_A3B,
            detect_machine(DEVICE),
            blocks + 2,
            kernels,
            arguments.layers,
            fused=not arguments.separate,
            fp8=arguments.weights == "fp8",
            kv_dtype=arguments.kv_cache_dtype,
        )
        print(model.plan.table(), flush=True)
        results = []
        for case in cases:
            results.append(measure(model, case, arguments.bound, profiled=arguments.profile))
            print("  ".join(f"{key}={value}" for key, value in results[-1].items()), flush=True)
    write_results(arguments.out, "benches.gpu.step", results)


if __name__ == "__main__":
    main()
