"""The CPU kernels, op by op, beside the other candidates of the kernel plan.

    python -m benches.cpu.kernels [--dtype bfloat16] [--rows 1 8 32 1024]

Sizes are SmolLM2-135M's. A number is the time of one step's calls of an op [ms], all layers together, in the
order of the model, so that weights and cache come from memory as they do when it serves; the best of some
steps. Rows are decodes over a context of 256 tokens, from 257 rows on one prompt of that length. ``fused`` is
the whole step, all layers in one call, beside ``sum``, the same op by op. The last line is the time that
reading the weights takes at the rate at which this machine reads memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benches.cpu.limits import PARAMETERS, measure
from frizzen.kernels.facts import Facts, Machine, ShapeValue, detect_machine
from frizzen.kernels.native import LayerKernels, fuse
from frizzen.kernels.ops import ATTENTION_PAGED, LINEAR, LINEAR_SILU_MUL, LM_HEAD_TIED, NORM_RMS, ROPE
from frizzen.kernels.plan import Registry, default_registry
from frizzen.step import StepContext

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, LAYERS = 576, 1536, 9, 3, 64, 49152, 30
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
CONTEXT, BLOCK_SIZE, EPS = 256, 16, 1e-5

GROUPS = {
    "native": ("native", "native_threads"),
    "onednn": ("onednn_packed", "torch", "torch_sdpa", "reference"),
    "torch": ("torch", "torch_sdpa", "reference"),
}
"""Candidates in order of preference: oneDNN has linears only."""

Times = dict[str, float]


@dataclass(frozen=True, slots=True)
class Model:
    """Kernels of one group, bound to random weights."""

    layers: tuple[LayerKernels, ...]
    attention: Any
    logits: Callable[[Tensor], Tensor]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes kernels of one group."""

    registry: Registry
    machine: Machine
    dtype: torch.dtype
    names: tuple[str, ...]
    blocks: int

    def model(self) -> Model:
        """All layers and the head; the attention kernel is one for all."""
        attention = self.kernel(
            ATTENTION_PAGED.name,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            scale=HEAD_DIM**-0.5,
            window=0,
            block_size=BLOCK_SIZE,
            sinks=False,
            kv_dtype="auto",
        )
        head = self.kernel(LM_HEAD_TIED.name, in_features=HIDDEN, out_features=VOCABULARY)
        _, logits = head.prepare(self.weight(VOCABULARY, HIDDEN))
        return Model(tuple(self.layer(attention) for _ in range(LAYERS)), attention, logits, self.dtype)

    def layer(self, attention: Any) -> LayerKernels:
        """One layer with its cache, full of numbers."""
        cache = attention.allocate(self.blocks, torch.device("cpu"))
        cache.data.normal_()
        rope = self.kernel(
            ROPE.name,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            rotary_dim=HEAD_DIM,
            qk_norm=False,
            layout=attention.layout,
        )
        norm = self.kernel(NORM_RMS.name, size=HIDDEN).prepare(torch.ones(HIDDEN, dtype=self.dtype), EPS)
        return LayerKernels(
            input_norm=norm,
            qkv=self.product(LINEAR.name, HIDDEN, QKV),
            rope=rope.prepare(cache, None, None, EPS),
            attend=attention.prepare(cache),
            out=self.product(LINEAR.name, HEADS * HEAD_DIM, HIDDEN),
            mlp_norm=norm,
            gate_up=self.product(LINEAR_SILU_MUL.name, HIDDEN, INTERMEDIATE, halves=2),
            down=self.product(LINEAR.name, INTERMEDIATE, HIDDEN),
        )

    def product(self, op: str, size_in: int, size_out: int, halves: int = 1) -> Any:
        """A bound linear layer."""
        kernel = self.kernel(op, in_features=size_in, out_features=size_out, bias=False)
        return kernel.prepare(self.weight(size_out * halves, size_in), None)

    def kernel(self, op: str, **shape: ShapeValue) -> Any:
        """The group's first candidate that can serve an op."""
        facts = Facts.of(self.machine, self.dtype, shape)
        candidates = {candidate.name: candidate for candidate in self.registry.candidates(op)}
        for name in self.names:
            if name in candidates and candidates[name].requires(facts) is None:
                return candidates[name].build(facts)
        raise SystemExit(f"none of {', '.join(self.names)} can serve {op} here")

    def weight(self, rows: int, cols: int) -> Tensor:
        """Random numbers of a weight's size."""
        return torch.randn(rows, cols).mul_(cols**-0.5).to(self.dtype)


def step_of(rows: int) -> StepContext:
    """Decodes, or one prompt; blocks in random order."""
    count, query, context = (rows, 1, CONTEXT) if rows <= CONTEXT else (1, rows, rows)
    width = -(-context // BLOCK_SIZE)
    table = (torch.randperm(count * width) + 1).int().view(count, width)
    positions = torch.arange(context - query, context).repeat(count)
    row_of = torch.arange(count).repeat_interleave(query)
    return StepContext(
        positions=positions,
        slots=table[row_of, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_start=torch.arange(0, rows + 1, query, dtype=torch.int32),
        seq_lens=torch.full((count,), context, dtype=torch.int32),
        block_table=table,
        num_rows=count,
        num_single=count if query == 1 else 0,
        num_tokens=rows,
        max_query=query,
        max_context=context,
    )


@torch.inference_mode()
def times(model: Model, rows: int, repeats: int) -> Times:
    """Milliseconds by op. Inputs are random and stay the same: no op's time depends on their values."""
    step = step_of(rows)
    state = model.attention.begin(step)
    hidden, qkv, attended, gated = (
        torch.randn(rows, size).to(model.dtype) for size in (HIDDEN, QKV, HEADS * HEAD_DIM, INTERMEDIATE)
    )
    residual, angles = hidden.clone(), torch.rand(rows, HEAD_DIM // 2)
    sampled = hidden[: rows if rows <= CONTEXT else 1].clone()
    arguments: dict[str, tuple[Any, ...]] = {
        "input_norm": (hidden, residual),
        "qkv": (hidden,),
        "rope": (qkv, angles, angles, step.slots),
        "attend": (qkv, state),
        "out": (attended,),
        "mlp_norm": (hidden, residual),
        "gate_up": (hidden,),
        "down": (gated,),
    }
    found = dict.fromkeys((*arguments, "lm_head"), torch.inf)
    for _ in range(repeats):
        step_times = dict.fromkeys(arguments, 0.0)
        for layer in model.layers:
            kernels: Iterable[Any] = layer
            for (name, inputs), kernel in zip(arguments.items(), kernels, strict=True):
                started = time.perf_counter()
                kernel(*inputs)
                step_times[name] += 1e3 * (time.perf_counter() - started)
        step_times["lm_head"] = best_ms(1, lambda: model.logits(sampled))
        found = {name: min(best, step_times[name]) for name, best in found.items()}
    found["sum"] = sum(found.values())
    decoder = fuse(model.layers, model.layers[0].input_norm)
    if decoder is not None:
        found["fused"] = best_ms(
            repeats,
            lambda: model.logits(
                decoder(residual.zero_(), angles, angles, step.slots, model.attention.begin(step))[
                    : len(sampled)
                ]
            ),
        )
    return found


def best_ms(repeats: int, call: Callable[[], object]) -> float:
    """Shortest time of a call [ms]."""
    durations = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        durations.append(time.perf_counter() - started)
    return min(durations) * 1e3


def table(found: dict[str, list[Times]], counts: Sequence[int]) -> str:
    """Markdown: one row per op, one column per group and number of rows."""
    heads = ["op", *(f"{group} {count}" for group in found for count in counts)]
    ops = dict.fromkeys(op for columns in found.values() for column in columns for op in column)
    lines = [heads, ["---"] * len(heads)]
    for op in ops:
        cells = (column.get(op) for columns in found.values() for column in columns)
        lines.append([op, *("" if cell is None else f"{cell:.2f}" for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 1024])
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    decodes = [rows for rows in arguments.rows if rows <= CONTEXT]
    blocks = max(max(decodes, default=0) * CONTEXT, *arguments.rows) // BLOCK_SIZE + 2
    machine, found = detect_machine("cpu"), {}
    for group in arguments.groups:
        with torch.inference_mode():
            model = Builder(default_registry(), machine, dtype, GROUPS[group], blocks).model()
        found[group] = [
            times(model, rows, arguments.repeats if rows <= CONTEXT else 3) for rows in arguments.rows
        ]
    print(table(found, arguments.rows))
    limits = measure(arguments.threads)
    reading = PARAMETERS * dtype.itemsize / limits.read_gb_s / 1e6
    print(f"\nreading the weights at {limits.read_gb_s} GB/s takes {reading:.2f} ms")


if __name__ == "__main__":
    main()
