"""From the sections of an arena to what the model's layers see of a step."""

from __future__ import annotations

import torch

from frizzen.step import StepContext
from frizzen.worker.arena import Arena, Header
from frizzen.worker.arena import num_tokens as real_tokens
from frizzen.worker.rows import PersistentBatch

__all__ = ["step_inputs"]


def step_inputs(
    arena: Arena, header: Header, batch: PersistentBatch, block_size: int
) -> tuple[torch.Tensor, StepContext]:
    """Token ids int64 ``[T]`` and the context of the step that ``arena`` holds.

    Placeholders among the ids become the tokens that their rows sampled last. The context's tensors may be
    views of the arena, valid until the engine writes the next step into it.
    """
    plan = arena.device
    num_rows, num_tokens = header.num_rows, header.num_tokens
    rows = plan.rows[:num_rows]
    query_start = plan.query_start[: num_rows + 1]
    token_rows = rows
    if header.num_single < num_rows:
        tokens = torch.arange(num_tokens, dtype=torch.int32, device=rows.device)
        token_rows = rows[torch.searchsorted(query_start[1:], tokens, right=True)]
    ids = plan.input_ids[:num_tokens].long()
    ids = torch.where(ids < 0, batch.last_sampled.index_select(0, token_rows), ids)
    columns = -(-header.max_context // block_size)
    return ids, StepContext(
        positions=plan.positions[:num_tokens].long(),
        slots=plan.slots[:num_tokens],
        query_start=query_start,
        seq_lens=plan.seq_lens[:num_rows],
        block_table=batch.block_table[:, :columns].index_select(0, rows),
        num_rows=num_rows,
        num_single=header.num_single,
        num_tokens=num_tokens,
        max_query=header.max_query,
        max_context=header.max_context,
        # All of them; but kernels are made for steps with padding or for steps without.
        valid=real_tokens(plan) if rows.device.type == "cuda" else None,
    )
