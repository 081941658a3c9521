"""What happens once, so that no step waits for it: compiling kernels, starting libraries.

A kernel exists in variants, and which one serves a step follows from the step's sizes alone. The shapes here
are the lattice's, and chunks of all lengths: between two of them nothing changes but numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from frizzen.step import StepContext
from frizzen.worker.arena import Arena, ArenaLayout
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.lattice import Lattice
from frizzen.worker.rows import PersistentBatch
from frizzen.worker.tail import end_nothing

__all__ = ["Warmed", "compile_ends", "compile_steps", "run_steps", "shapes_of", "step_of"]


class Warmed(Protocol):
    """What is warmed up."""

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Hidden states ``[T, H]``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[S, V]`` of ``[S, H]``."""


_SHORT = 512
"""Tokens of a chunk whose attention may be cut by context."""
_FEW = 16
"""Most tokens of a step whose kernels may be others because there are so few."""
_BETWEEN = (1024, 2048)
"""Contexts that are cut into another number of parts than the lattice's."""

Queries = tuple[Sequence[int], int]
"""Tokens of every row, and the longest context."""


def run_steps(model: Warmed, device: torch.device, block_size: int) -> None:
    """One prefill and one decode, so that no request waits for libraries that initialise on first use."""
    for queries in ([block_size], [1, 1]):
        ids, step = step_of(queries, max(queries), 1, device, block_size)
        hidden = model.forward(ids, step)
        model.logits(hidden[-1:]).argmax(-1).cpu()


def compile_steps(
    model: Warmed,
    lattice: Lattice,
    device: torch.device,
    block_size: int,
    settle: Callable[[], None],
) -> None:
    """Goes through the shapes in a mode in which launches only compile; ``settle`` is the mode's.

    Of layers that are alike, ``model`` needs two: the first layer of a model has no residual yet.
    """
    blocks = -(-lattice.contexts[-1] // block_size)
    for queries, context in shapes_of(lattice):
        ids, step = step_of(queries, context, blocks, device, block_size)
        hidden = model.forward(ids, step)
        # With drafts every token is sampled, in a prompt none but the last.
        model.logits(hidden if max(queries) <= lattice.widths[-1] else hidden[: len(queries)])
        settle()


def compile_ends(layout: ArenaLayout, acceptance: float | None, device: torch.device) -> None:
    """Does the same for what stands around the model in a step of a graph.

    ``layout`` may be of any size but for the drafts of a row.
    """
    batch = PersistentBatch(max_rows=1, max_blocks=1, max_model_len=1, vocab_size=1, device=device)
    arena = Arena(layout, device, mirrored=True)
    forced = None if acceptance is None else torch.tensor(acceptance, dtype=torch.float64, device=device)
    end_nothing(StepBuffers.allocate(arena.device, batch), forced)


def shapes_of(lattice: Lattice) -> Iterator[Queries]:
    """Steps of which each may need a variant of its own."""
    # Prompts and parts of them; what stands beside them in a step has its variants from below. First, since
    # the kernels of long prompts take longest to compile.
    longest = lattice.contexts[-1]
    contexts = {*lattice.contexts, *(context for context in _BETWEEN if context < longest)}
    for context in sorted(contexts, reverse=True):
        for tokens in sorted(_lengths(lattice.max_tokens), reverse=True):
            # A long part keeps the device busy, however its context is cut.
            if tokens <= _SHORT or context == longest:
                yield [tokens], max(context, tokens)
    yield from _together(lattice)
    for shape in reversed(lattice.shapes()):
        yield [shape.width] * shape.rows, shape.context


def _together(lattice: Lattice) -> Iterator[Queries]:
    """Short prompts in one step, and decodes beside a prompt: few tokens of a row, but many of the step.

    Decodes by themselves may rotate for themselves, and need other variants.
    """
    most = lattice.rows[-1]
    steps = [[tokens] * (_FEW // tokens + 1) for tokens in (16, 8, 4, 2)]
    steps += [[1] * singles + [4 * _FEW] for singles in sorted({1, min(most - 1, _FEW), most - 1})]
    for queries in steps:
        if len(queries) <= most and sum(queries) <= lattice.max_tokens:
            for context in sorted({lattice.contexts[0], lattice.contexts[-1]}):
                yield queries, max(context, *queries)


def _lengths(most: int) -> Iterator[int]:
    tokens = 2
    while tokens < most:
        yield tokens
        tokens *= 2
    yield most


def step_of(
    queries: Sequence[int], context: int, blocks: int, device: torch.device, block_size: int
) -> tuple[torch.Tensor, StepContext]:
    """A step without a real token, whose KV goes to block 1: the next owner overwrites what it reads."""
    count = sum(queries)
    lengths = torch.tensor(queries, dtype=torch.int32)
    ends = torch.tensor([0, *accumulate(queries)], dtype=torch.int32)
    positions = torch.cat([torch.arange(query) for query in queries])
    step = StepContext(
        positions=positions.to(device),
        slots=(block_size + positions % block_size).to(device),
        query_start=ends.to(device),
        seq_lens=lengths.to(device),
        block_table=torch.ones(len(queries), blocks, dtype=torch.int32, device=device),
        num_rows=len(queries),
        num_single=queries.count(1),
        num_tokens=count,
        max_query=max(queries),
        max_context=max(context, *queries),
        valid=torch.zeros(1, dtype=torch.int32, device=device) if device.type == "cuda" else None,
    )
    return torch.zeros(count, dtype=torch.int64, device=device), step
