"""Drives a model step by step as a worker would, with blocks in random order: tests need no scheduler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, Registry, default_registry
from frizzen.loading.load import LoadRequest, load_model
from frizzen.models.base import CausalLM
from frizzen.step import StepContext

BLOCK_SIZE = 16


def load(
    path: object,
    *,
    registry: Registry | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    **options: object,
) -> CausalLM:
    plan = PlanBuilder(registry or default_registry(), detect_machine(device))
    request = LoadRequest(model=str(path), dtype=dtype, device=device, block_size=BLOCK_SIZE, **options)
    return load_model(request, plan)


@dataclass
class Stream:
    """One request: its tokens, how many of them have keys and values, and where those are."""

    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class Driver:
    def __init__(self, model: CausalLM, num_blocks: int = 256, seed: int = 0) -> None:
        self.model = model
        self._free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self._free)
        model.allocate_kv(num_blocks, BLOCK_SIZE)

    def step(self, work: Sequence[tuple[Stream, int]]) -> list[torch.Tensor]:
        """Computes the next tokens of some streams; returns the logits ``[tokens, V]`` of each, in order."""
        work = list(work)
        order = sorted(range(len(work)), key=lambda index: work[index][1] > 1)
        rows = [work[index] for index in order]
        for stream, count in rows:
            while len(stream.blocks) * BLOCK_SIZE < stream.computed + count:
                stream.blocks.append(self._free.pop())
        ids, step = _arrays(rows, self.model.device)
        logits = self.model.logits(self.model.forward(ids, step)).cpu()
        parts = logits.split([count for _, count in rows])
        for stream, count in rows:
            stream.computed += count
        return [parts[order.index(index)] for index in range(len(work))]

    def prefill(self, stream: Stream, chunk: int | None = None) -> torch.Tensor:
        """All tokens that a stream has, ``chunk`` at a time; logits of every one."""
        parts = []
        while left := len(stream.tokens) - stream.computed:
            parts += self.step([(stream, min(left, chunk or left))])
        return torch.cat(parts)

    def greedy(
        self, prompts: Sequence[Sequence[int]], count: int, chunk: int | None = None
    ) -> list[list[int]]:
        """``count`` greedy tokens for each prompt, in one batch whose rows are in different phases."""
        streams = [Stream(list(prompt)) for prompt in prompts]
        ends = [len(prompt) + count for prompt in prompts]
        while True:
            active = [stream for stream, end in zip(streams, ends, strict=True) if len(stream.tokens) < end]
            if not active:
                break
            work = [(s, min(len(s.tokens) - s.computed, chunk or len(s.tokens))) for s in active]
            for stream, logits in zip(active, self.step(work), strict=True):
                if stream.computed == len(stream.tokens):
                    stream.tokens.append(int(logits[-1].argmax()))
        return [stream.tokens[-count:] for stream in streams]


def _arrays(rows: Sequence[tuple[Stream, int]], device: torch.device) -> tuple[torch.Tensor, StepContext]:
    widths = [len(stream.blocks) for stream, _ in rows]
    table = torch.zeros(len(rows), max(widths), dtype=torch.int32)
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for row, (stream, count) in enumerate(rows):
        table[row, : widths[row]] = torch.tensor(stream.blocks, dtype=torch.int32)
        for position in range(stream.computed, stream.computed + count):
            ids.append(stream.tokens[position])
            positions.append(position)
            slots.append(stream.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
    contexts = [stream.computed + count for stream, count in rows]
    counts = [count for _, count in rows]
    step = StepContext(
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        query_start=torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device),
        seq_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_table=table.to(device),
        num_rows=len(rows),
        num_single=counts.count(1),
        num_tokens=len(ids),
        max_query=max(counts),
        max_context=max(contexts),
    )
    return torch.tensor(ids, device=device), step
