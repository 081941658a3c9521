"""Small problems for every op, and the comparison of a candidate with the reference on them.

The reference computes in float32 from inputs that were first rounded to the candidate's dtype, so that what
is left is the candidate's own error. Sizes are ragged on purpose: one token, an odd number, more than a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels import (
    draft_problems,
    draft_reference,
    encoder,
    family_problems,
    fp8_problems,
    fp8_reference,
    mla_reference,
    moe_problems,
    moe_reference,
    mxfp4_problems,
    mxfp4_reference,
    reference,
    sparsemixer,
)
from frizzen.kernels.facts import Facts, ShapeValue
from frizzen.kernels.kv_layout import KV_DTYPES, LAYOUTS, allocate, rounded
from frizzen.kernels.ops import (
    ATTENTION_PAGED,
    LINEAR,
    LINEAR_SILU_MUL,
    LM_HEAD,
    LM_HEAD_TIED,
    NORM_LAYER,
    NORM_RMS,
    ROPE,
)
from frizzen.kernels.plan import Candidate, Op, Reason
from frizzen.kernels.problem_inputs import Inputs, Run, paged_step
from frizzen.quantize.fp8 import FP8

__all__ = ["OPS", "SHAPES", "TOLERANCE", "Inputs", "Run", "disagreement", "paged_step", "runs"]

OPS: tuple[Op[Any], ...] = (
    LINEAR,
    LINEAR_SILU_MUL,
    LM_HEAD,
    LM_HEAD_TIED,
    NORM_RMS,
    NORM_LAYER,
    ROPE,
    ATTENTION_PAGED,
    *moe_problems.OPS,
    *family_problems.OPS,
    *fp8_problems.OPS,
    *mxfp4_problems.OPS,
    *draft_problems.OPS,
)

TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (3e-3, 3e-3)}
"""Absolute and relative error that a kernel may have, by dtype; outputs are of the order of 1."""

_TOKENS = (1, 2, 7, 33, 130)


def _linear(tokens: int, halves: int = 1) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        size_in, size_out = facts.size("in_features"), facts.size("out_features")
        rows = size_out * halves
        weight = inputs.normal(rows, size_in, scale=size_in**-0.5)
        bias = inputs.normal(rows) if facts["bias"] else None
        return {"out": kernel.prepare(weight, bias)(inputs.normal(tokens, size_in))}

    return run


def _norm(tokens: int, constants: int = 1) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        size = facts.size("size")
        norm = kernel.prepare(*(inputs.normal(size) for _ in range(constants)), 1e-5)
        x, residual = inputs.normal(tokens, size), inputs.normal(tokens, size)
        apart = norm(inputs.normal(tokens, size + 3)[:, 3:], None)
        return {
            "plain": norm(x.clone(), None),
            "apart": apart,
            "added": norm(x, residual),
            "residual": residual,
        }

    return run


def _tied_head(tokens: int) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        size, vocabulary = facts.size("in_features"), facts.size("out_features")
        embed, head = kernel.prepare(inputs.normal(vocabulary, size, scale=size**-0.5))
        ids = torch.randint(0, vocabulary, (tokens,), generator=inputs.generator).to(inputs.device)
        return {"embedded": embed(ids), "logits": head(inputs.normal(tokens, size))}

    return run


def _rope(tokens: int) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        heads, kv_heads, dim = facts.size("heads"), facts.size("kv_heads"), facts.size("head_dim")
        block_size = 16
        num_blocks = tokens // block_size + 3
        in_fp8 = facts["layout"] == "token_fp8"
        dtype = FP8 if in_fp8 else inputs.dtype
        cache = allocate(str(facts["layout"]), num_blocks, block_size, kv_heads, dim, dtype, inputs.device)
        norms = [inputs.normal(dim) if facts["qk_norm"] else None for _ in range(2)]
        angles = torch.rand(tokens, facts.size("rotary_dim") // 2, generator=inputs.generator) * 6.3
        cos, sin = angles.cos().to(inputs.device), angles.sin().to(inputs.device)
        slots = (
            torch.randperm((num_blocks - 1) * block_size, generator=inputs.generator)[:tokens] + block_size
        )
        qkv = inputs.normal(tokens, (heads + 2 * kv_heads) * dim)
        if in_fp8:
            # Quarter turns of numbers that FP8 holds, so that one result is right.
            qkv = rounded(qkv, FP8).to(inputs.dtype)
            cos, sin = cos.round(), sin.round() * (cos.round() == 0)
        kernel.prepare(cache, *norms, 1e-5)(qkv, cos, sin, slots.to(inputs.device))
        return {"q": qkv[:, : heads * dim], "k": cache.k.float(), "v": cache.v.float()}

    return run


def _attention(*rows: tuple[int, int]) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        heads, kv_heads, dim = facts.size("heads"), facts.size("kv_heads"), facts.size("head_dim")
        block_size = facts.size("block_size")
        step, num_blocks = paged_step(rows, block_size, inputs.generator, inputs.device)
        cache = kernel.allocate(num_blocks, inputs.device)
        # What an earlier owner left in a block must not matter: only the null block stays zero.
        cache.k[1:], cache.v[1:] = torch.nan, torch.nan
        dtype = cache.k.dtype
        for row, (context, _) in enumerate(rows):
            position = torch.arange(context, device=inputs.device)
            block = step.block_table[row].long()[position // block_size]
            cache.k[block, position % block_size] = rounded(inputs.normal(context, kv_heads, dim), dtype)
            cache.v[block, position % block_size] = rounded(inputs.normal(context, kv_heads, dim), dtype)
        qkv = inputs.normal(step.num_tokens, (heads + 2 * kv_heads) * dim)
        sinks = (inputs.normal(heads),) if facts["sinks"] else ()
        return {"out": kernel.prepare(cache, *sinks)(qkv, kernel.begin(step))}

    return run


def runs(op: str) -> Iterator[tuple[str, Run]]:
    """Labels and problems of an op."""
    makers: dict[str, Callable[[int], Run]] = {
        LINEAR.name: _linear,
        LM_HEAD.name: _linear,
        NORM_RMS.name: _norm,
        NORM_LAYER.name: partial(_norm, constants=2),
        LINEAR_SILU_MUL.name: partial(_linear, halves=2),
        LM_HEAD_TIED.name: _tied_head,
        ROPE.name: _rope,
    }
    if op in makers:
        yield from ((f"{tokens} tokens", makers[op](tokens)) for tokens in _TOKENS)
        return
    if op != ATTENTION_PAGED.name:
        yield from moe_problems.runs(op)
        yield from family_problems.runs(op)
        yield from fp8_problems.runs(op)
        yield from mxfp4_problems.runs(op)
        yield from draft_problems.runs(op)
        return
    yield "one decode", _attention((1, 1))
    yield "decodes", _attention((5, 1), (16, 1), (17, 1), (130, 1), (1, 1))
    yield "whole prompts", _attention((37, 37), (16, 16), (2, 2))
    yield "chunks", _attention((37, 5), (48, 16), (131, 2))
    yield "everything", _attention((9, 1), (70, 1), (64, 64), (33, 7), (150, 40))
    yield "long rows", _attention((9, 1), (260, 130), (300, 300), (141, 141), (389, 5))


def _dense(heads: int, kv_heads: int, dim: int) -> dict[str, ShapeValue]:
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": dim}


SHAPES: Mapping[str, tuple[Mapping[str, ShapeValue], ...]] = {
    LINEAR.name: tuple(
        {"in_features": size_in, "out_features": size_out, "bias": bias}
        for size_in, size_out in ((576, 960), (1536, 576), (67, 45), (8, 1))
        for bias in (False, True)
    ),
    LM_HEAD.name: (
        {"in_features": 576, "out_features": 1001, "bias": False},
        {"in_features": 40, "out_features": 65, "bias": True},
    ),
    NORM_RMS.name: ({"size": 576}, {"size": 64}, {"size": 37}),
    NORM_LAYER.name: ({"size": 576}, {"size": 37}),
    LINEAR_SILU_MUL.name: (
        {"in_features": 576, "out_features": 1536, "bias": False},
        {"in_features": 67, "out_features": 37, "bias": True},
    ),
    LM_HEAD_TIED.name: (
        {"in_features": 576, "out_features": 1001},
        {"in_features": 40, "out_features": 65},
    ),
    ROPE.name: tuple(
        {**_dense(heads, kv_heads, dim), "rotary_dim": rotary, "qk_norm": norm, "layout": layout}
        for heads, kv_heads, dim, rotary in ((9, 3, 64, 64), (4, 4, 16, 8), (8, 1, 80, 80), (2, 1, 128, 128))
        for norm in (False, True)
        for layout in LAYOUTS
        if layout != "token_fp8" or not norm
    ),
    ATTENTION_PAGED.name: tuple(
        {
            **_dense(heads, kv_heads, dim),
            "scale": dim**-0.5,
            "window": window,
            "block_size": block_size,
            "sinks": sinks,
            "kv_dtype": kv_dtype,
        }
        for heads, kv_heads, dim, block_size, sinks in (
            (9, 3, 64, 16, False),
            (4, 4, 16, 8, False),
            (8, 1, 80, 16, False),
            (4, 2, 128, 32, False),
            (8, 2, 64, 16, True),
        )
        for window, kv_dtype in ((0, "auto"), (24, "auto"), (0, KV_DTYPES[1]))
    ),
    **moe_problems.SHAPES,
    **family_problems.SHAPES,
    **fp8_problems.SHAPES,
    **mxfp4_problems.SHAPES,
    **draft_problems.SHAPES,
}
"""Shapes for the conformance test, by op: real ones, and ones that no tile divides."""


_ORACLES = (
    *reference.CANDIDATES,
    *moe_reference.CANDIDATES,
    *mla_reference.CANDIDATES,
    *draft_reference.CANDIDATES,
    *sparsemixer.CANDIDATES,
    *encoder.CANDIDATES[-1:],
    *fp8_reference.ORACLES,
    *mxfp4_reference.ORACLES,
)


def disagreement(
    op: Op[Any], candidate: Candidate, facts: Facts, kernel: Any, *, brief: bool = False
) -> Reason | None:
    """Compares a kernel with the reference on the shape of ``facts``; None if they agree.

    A plan builder's ``check``. ``brief`` runs three of the op's problems: the smallest, one in the middle and
    the last.
    """
    oracle_facts = replace(facts, dtype=torch.float32)
    oracles = {entry.op: entry for entry in _ORACLES}
    oracle = oracles[op.name].build(oracle_facts)
    absolute, relative = TOLERANCE[facts.dtype]
    device = torch.device(facts.device)
    problems = list(runs(op.name))
    if brief:
        problems = [problems[index] for index in sorted({0, len(problems) // 2, len(problems) - 1})]
    for label, run in problems:
        found = run(kernel, facts, _inputs(facts.dtype, facts.dtype, device))
        wanted = run(oracle, oracle_facts, _inputs(facts.dtype, torch.float32, device))
        for name, want in wanted.items():
            got = found[name].float()
            if want.shape != got.shape:
                return Reason(
                    "disagrees", f"{label}: {name} has shape {list(got.shape)}, expected {list(want.shape)}"
                )
            error = torch.nan_to_num((got - want).abs(), nan=torch.inf)
            if (bound := fp8_problems.ROUNDED.get(op.name)) is not None:
                row, whole = want.square().mean(-1).sqrt(), want.square().mean().sqrt()
                share = error.square().mean(-1).sqrt() / torch.maximum(row, whole)
                if not (worst := share.max().item()) <= bound:
                    return Reason(
                        "disagrees",
                        f"{label}: {name} has a row off by {worst:.2g}, at most {bound} is allowed",
                    )
                continue
            error -= relative * want.abs()
            if (worst := error.max().item()) > absolute:
                by = f"is off by {worst:.2g}, at most {absolute:.2g} is allowed"
                problem = "has values that are not finite" if worst == torch.inf else by
                return Reason("disagrees", f"{label}: {name} {problem}")
    return None


def _inputs(rounded_to: torch.dtype, dtype: torch.dtype, device: torch.device) -> Inputs:
    return Inputs(torch.Generator().manual_seed(0), rounded_to, dtype, device)
