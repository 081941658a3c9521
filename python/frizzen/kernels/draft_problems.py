"""Problems of the draft layers' attention, for the conformance test; ``problems`` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels.draft_ops import ATTENTION_DRAFT, ATTENTION_DRAFT_MLA
from frizzen.kernels.facts import Facts, ShapeValue
from frizzen.kernels.plan import Op
from frizzen.kernels.problem_inputs import Inputs, Run, paged_step

__all__ = ["OPS", "SHAPES", "runs"]

OPS: tuple[Op[Any], ...] = (ATTENTION_DRAFT, ATTENTION_DRAFT_MLA)


def _fill(caches: Sequence[Tensor], contexts: Sequence[int], table: Tensor, first: int, new: Inputs) -> None:
    """Writes the rows' contexts; everything else is what an earlier owner left, and must not matter."""
    for cache in caches:
        cache[1:] = torch.nan
    for row, context in enumerate(contexts):
        position = torch.arange(first, context, device=new.device)
        block, offset = table[row].long()[position // caches[0].shape[1]], position % caches[0].shape[1]
        for cache in caches:
            cache[block, offset] = new.normal(len(position), *cache.shape[2:])


def _attention(width: int, *contexts: int) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        heads, kv_heads, dim = facts.size("heads"), facts.size("kv_heads"), facts.size("head_dim")
        rows = [(context, width) for context in contexts]
        step, blocks = paged_step(rows, facts.size("block_size"), inputs.generator, inputs.device)
        cache = kernel.allocate(blocks, inputs.device)
        _fill((cache.k, cache.v), contexts, step.block_table, facts.size("first"), inputs)
        qkv = inputs.normal(step.num_tokens, (heads + 2 * kv_heads) * dim)
        return {"out": kernel.prepare(cache)(qkv, kernel.begin(step))}

    return run


def _latent(*contexts: int) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        heads, nope, rotary, value, latent = (
            facts.size(name) for name in ("heads", "nope_dim", "rope_dim", "value_dim", "latent_dim")
        )
        rows = [(context, 1) for context in contexts]
        step, blocks = paged_step(rows, facts.size("block_size"), inputs.generator, inputs.device)
        cache = kernel.allocate(blocks, inputs.device)
        _fill((cache,), contexts, step.block_table, facts.size("first"), inputs)
        expansion = inputs.normal(heads * (nope + value), latent, scale=latent**-0.5)
        q = inputs.normal(step.num_tokens, heads * (nope + rotary))
        return {"out": kernel.prepare(cache, expansion)(q, kernel.begin(step))}

    return run


def runs(op: str) -> Iterator[tuple[str, Run]]:
    """Labels and problems of an op; nothing for an op of another file."""
    if op == ATTENTION_DRAFT.name:
        yield "one token", _attention(1, 2)
        yield "single tokens", _attention(1, 5, 16, 17, 130, 2)
        yield "blocks of 5", _attention(5, 8, 21, 16, 131)
        yield "one block of 17", _attention(17, 40)
    if op == ATTENTION_DRAFT_MLA.name:
        yield "one token", _latent(2)
        yield "single tokens", _latent(5, 16, 17, 130, 2)


SHAPES: Mapping[str, tuple[Mapping[str, ShapeValue], ...]] = {
    ATTENTION_DRAFT.name: tuple(
        {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": dim,
            "scale": dim**-0.5,
            "window": window,
            "block_size": block_size,
            "causal": causal,
            "first": first,
        }
        for heads, kv_heads, dim, block_size in ((9, 3, 64, 16), (4, 4, 24, 8), (4, 2, 128, 32))
        for window in (0, 24)
        for causal in (True, False)
        for first in (0, 1)
    ),
    ATTENTION_DRAFT_MLA.name: tuple(
        {
            "heads": heads,
            "nope_dim": nope,
            "rope_dim": rotary,
            "value_dim": value,
            "latent_dim": latent,
            "scale": (nope + rotary) ** -0.5,
            "block_size": 16,
            "first": first,
        }
        for heads, nope, rotary, value, latent in ((4, 128, 64, 128, 512), (3, 24, 8, 40, 48))
        for first in (0, 1)
    ),
}
"""Shapes for the conformance test, by op."""
