"""Problems of the ops that few families need, for the conformance test; ``problems`` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels import encoder
from frizzen.kernels.facts import Facts, ShapeValue
from frizzen.kernels.mla_ops import ATTENTION_MLA, ROPE_MLA
from frizzen.kernels.plan import Op
from frizzen.kernels.problem_inputs import Inputs, Run, paged_step
from frizzen.kernels.sparsemixer import MOE_ROUTE_SPARSEMIXER

__all__ = ["OPS", "SHAPES", "runs"]

OPS: tuple[Op[Any], ...] = (MOE_ROUTE_SPARSEMIXER, ROPE_MLA, ATTENTION_MLA, encoder.ATTENTION_ENCODER)

_TOKENS = (1, 2, 7, 33)


def _sparsemixer(tokens: int, valid: int | None = None) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        hidden, experts = facts.size("hidden"), facts.size("experts")
        weight = inputs.normal(experts, hidden, scale=hidden**-0.5)
        count = None if valid is None else torch.tensor([valid], dtype=torch.int32, device=inputs.device)
        weights, ids = kernel.prepare(weight)(inputs.normal(tokens, hidden, scale=0.1), count)
        return {"weights": weights, "ids": ids}

    return run


def _rope(tokens: int) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        heads, nope, rotary, latent = (
            facts.size(name) for name in ("heads", "nope_dim", "rope_dim", "latent_dim")
        )
        block_size = 16
        num_blocks = tokens // block_size + 3
        shape = (num_blocks, block_size, latent + rotary)
        cache = torch.zeros(shape, dtype=inputs.dtype, device=inputs.device)
        angles = torch.rand(tokens, rotary // 2, generator=inputs.generator) * 6.3
        slots = torch.randperm((num_blocks - 1) * block_size, generator=inputs.generator)[:tokens]
        width = heads * (nope + rotary)
        both = inputs.normal(tokens, width + latent + rotary)
        q, kv = both[:, :width], both[:, width:]
        kernel.prepare(cache, inputs.normal(latent), 1e-6)(
            q,
            kv,
            angles.cos().to(inputs.device),
            angles.sin().to(inputs.device),
            (slots + block_size).to(inputs.device),
        )
        return {"q": q, "cache": cache}

    return run


def _attention(*rows: tuple[int, int]) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        heads, nope, rotary, value, latent = (
            facts.size(name) for name in ("heads", "nope_dim", "rope_dim", "value_dim", "latent_dim")
        )
        block_size = facts.size("block_size")
        step, num_blocks = paged_step(rows, block_size, inputs.generator, inputs.device)
        cache = kernel.allocate(num_blocks, inputs.device)
        # What an earlier owner left in a block must not matter: only the null block stays zero.
        cache[1:] = torch.nan
        for row, (context, _) in enumerate(rows):
            position = torch.arange(context, device=inputs.device)
            block = step.block_table[row].long()[position // block_size]
            cache[block, position % block_size] = inputs.normal(context, latent + rotary)
        expansion = inputs.normal(heads * (nope + value), latent, scale=latent**-0.5)
        q = inputs.normal(step.num_tokens, heads * (nope + rotary))
        return {"out": kernel.prepare(cache, expansion)(q, kernel.begin(step))}

    return run


def runs(op: str) -> Iterator[tuple[str, Run]]:
    """Labels and problems of an op; nothing for an op of another file."""
    if op == MOE_ROUTE_SPARSEMIXER.name:
        for tokens in _TOKENS:
            yield f"{tokens} tokens", _sparsemixer(tokens)
        yield "9 tokens, 6 of them real", _sparsemixer(9, 6)
    if op == ROPE_MLA.name:
        for tokens in _TOKENS:
            yield f"{tokens} tokens", _rope(tokens)
    if op == encoder.ATTENTION_ENCODER.name:
        yield from encoder.runs()
    if op == ATTENTION_MLA.name:
        yield "one decode", _attention((1, 1))
        yield "decodes", _attention((5, 1), (16, 1), (17, 1), (130, 1), (1, 1))
        yield "whole prompts", _attention((37, 37), (16, 16), (2, 2))
        yield "long contexts", _attention((700, 1), (3, 1), (530, 5))
        yield "long prompts", _attention((70, 1), (420, 290), (270, 270))
        yield "everything", _attention((9, 1), (70, 1), (64, 64), (33, 7), (150, 40))


def _latent(
    heads: int, nope_dim: int, rope_dim: int, value_dim: int, latent_dim: int
) -> dict[str, ShapeValue]:
    sizes = {"nope_dim": nope_dim, "rope_dim": rope_dim, "value_dim": value_dim, "latent_dim": latent_dim}
    return {"heads": heads, "scale": (nope_dim + rope_dim) ** -0.5, "block_size": 16, **sizes}


_LATENT = (
    _latent(4, 128, 64, 128, 512),
    _latent(3, 24, 8, 40, 48),
    _latent(16, 128, 64, 128, 512),
    _latent(128, 128, 64, 128, 512),
)

SHAPES: Mapping[str, tuple[Mapping[str, ShapeValue], ...]] = {
    MOE_ROUTE_SPARSEMIXER.name: tuple(
        {"hidden": hidden, "experts": experts, "jitter": jitter}
        for hidden, experts, jitter in ((128, 16, 0.01), (40, 5, 0.3))
    ),
    ROPE_MLA.name: tuple({name: shape[name] for name in ROPE_MLA.shape} for shape in _LATENT),
    ATTENTION_MLA.name: _LATENT,
    encoder.ATTENTION_ENCODER.name: encoder.SHAPES,
}
"""Shapes for the conformance test, by op."""
