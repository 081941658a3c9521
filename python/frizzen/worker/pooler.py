"""From hidden states to one vector per text, however many steps its tokens take, or to one per token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from frizzen.step import StepContext
from frizzen.worker.arena import Admit, Arena, Header, RowStatus
from frizzen.worker.rows import PersistentBatch

__all__ = ["Pooler"]


class Pooler:
    """Adds up each row's hidden states in float32, in the order of its tokens.

    So the sum of a text does not depend on the chunks that it was computed in.

    Args:
        kind: ``mean`` of all tokens, or the state of the first (``cls``) or ``last`` one; ``all`` makes
            none of a text but one of each token.
        hidden_size: Size ``H`` of a hidden state.
        vectors: What the model makes of a pooled state, ``[S, H]`` float32 -> ``[S, size]`` float32.
        batch: The rows.
        device: Where the model computes.
    """

    def __init__(
        self,
        kind: str,
        hidden_size: int,
        vectors: Callable[[Tensor], Tensor],
        batch: PersistentBatch,
        device: torch.device,
    ) -> None:
        self._kind = kind
        self._vectors = vectors
        self._batch = batch
        # The last token's state is in the step that ends a text: nothing is kept from earlier ones.
        self._sums_up = kind in {"mean", "cls"}
        rows = len(batch.flags) if self._sums_up else 0
        self._sums = torch.zeros(rows, hidden_size, device=device)

    def begin(self, arena: Arena, header: Header, step: StepContext) -> Tensor:
        """Prepares for a step and tells its tokens which text of a pair they are of.

        Returns ``[T]`` int64, the row of the persistent batch of each token.
        """
        plan = arena.device
        if header.num_admits and self._sums_up:
            self._sums.index_fill_(0, plan.admit_rows[: header.num_admits].long(), 0)
        tokens = torch.arange(header.num_tokens, dtype=torch.int32, device=step.positions.device)
        of_step = torch.searchsorted(step.query_start[1:], tokens, right=True)
        rows = plan.rows[: header.num_rows].long()[of_step]
        second = self._batch.ints[:, Admit.SECOND_START].index_select(0, rows)
        step.segments = ((second > 0) & (step.positions >= second)).long()
        return rows

    def finish(self, hidden: Tensor, rows: Tensor, arena: Arena, header: Header, step: StepContext) -> None:
        """Takes the step's hidden states ``[T, H]`` in; writes the vectors of the texts that end in it."""
        plan, count = arena.device, header.num_samples
        if header.token_vectors:
            self._of_tokens(hidden, arena, header, step)
        states = hidden
        if self._kind == "cls":
            states = hidden.masked_fill((step.positions > 0).unsqueeze(1), 0)
        if self._sums_up:
            self._sums.index_add_(0, rows, states.float())
        if count == 0:
            return
        places = plan.sample_rows[:count].long()
        if not self._sums_up:
            pooled = hidden.index_select(0, plan.sample_tokens[:count]).float()
        else:
            pooled = self._sums.index_select(0, plan.rows[: header.num_rows].long()[places])
        if self._kind == "mean":
            pooled = pooled / step.seq_lens[places].unsqueeze(1)
        vectors = self._vectors(pooled)
        plan.pooled.index_copy_(0, places, vectors)
        finite = vectors.isfinite().all(dim=1)
        failed = torch.where(finite, RowStatus.OK, RowStatus.NOT_FINITE).int()
        plan.row_status.index_copy_(0, places, torch.maximum(plan.row_status[places], failed))

    def _of_tokens(self, hidden: Tensor, arena: Arena, header: Header, step: StepContext) -> None:
        """Writes the vector of each of the step's tokens; a row with one that is not finite has failed."""
        plan = arena.device
        vectors = self._vectors(hidden.float())
        plan.token_vectors[: header.num_tokens].copy_(vectors)
        tokens = torch.arange(header.num_tokens, dtype=torch.int32, device=hidden.device)
        rows = torch.searchsorted(step.query_start[1:], tokens, right=True)
        failed = torch.where(vectors.isfinite().all(dim=1), RowStatus.OK, RowStatus.NOT_FINITE).int()
        plan.row_status.scatter_reduce_(0, rows.long(), failed, "amax")
