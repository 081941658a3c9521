"""What follows the forward pass of a greedy decode step, as CUDA graphs: logits, verification, drafts.

Launched one by one these are up to a few hundred small kernels, a drafter's passes among them; the device is
done with each before the host has launched the next. A graph serves a step if

* a graph has computed its hidden states, so that all inputs are at fixed addresses, padded up to its shape;
* every token is sampled: then the device knows from the rows' tokens alone which of them are drafts;
* every row is greedy and asks for nothing else, so that a token is the largest logit.

What must hold beside the invariants of ``graphs``: a row that is padding has no drafts and an empty context,
and what it samples and drafts goes to places that belong to no request.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from frizzen.speculate.drafter import Seen
from frizzen.speculate.drafting import Drafting, Sampling
from frizzen.speculate.verify import DraftRows, forced, verify
from frizzen.worker.arena import RowStatus, Sections, num_rows
from frizzen.worker.graphs import Graph, GraphRunner, Replayed
from frizzen.worker.lattice import Shape
from frizzen.worker.results import write_proposed
from frizzen.worker.rows import PersistentBatch

__all__ = ["Tails"]


class _Key(NamedTuple):
    shape: Shape
    propose: int
    plan: int
    """Where the plan is."""


class Tails:
    """Graphs of the steps' ends, captured when a step has missed one.

    Args:
        logits: float32 ``[T, V]`` of hidden states ``[T, H]``.
        batch: The persistent rows.
        graphs: Runs the forward passes.
        drafting: The drafter, if there is one.
        acceptance: Float64 without dimension: tokens per row and step that verification is forced to give.
    """

    def __init__(
        self,
        logits: Callable[[torch.Tensor], torch.Tensor],
        batch: PersistentBatch,
        graphs: GraphRunner,
        drafting: Drafting | None,
        acceptance: torch.Tensor | None,
    ) -> None:
        self._logits = logits
        self._batch = batch
        self._forward = graphs
        self._drafting = drafting
        self._acceptance = acceptance
        self._graphs: dict[_Key, Graph] = {}
        self._missed: tuple[_Key, torch.Tensor, Sections] | None = None
        self._seconds = 0.0
        self.failure: str | None = None
        """Why no more graphs are captured, if one could not be."""
        self.steps = 0
        """Steps whose end a graph has computed."""

    def replay(self, plan: Sections, propose: int) -> bool:
        """Ends the step that was just computed, whose plan is ``plan``; False if no graph can."""
        step = self._forward.replayed
        if step is None or (self._drafting is not None and self._drafting.failed):
            return False
        key = _Key(step.shape, propose, plan.header.data_ptr())
        graph = self._graphs.get(key)
        if graph is None:
            self._missed = key, step.output, plan
            return False
        graph.replay()
        self.steps += 1
        return True

    def after_step(self) -> None:
        """Captures what the last step missed."""
        missed, self._missed = self._missed, None
        if missed is None or self.failure is not None:
            return
        key, output, plan = missed
        started = time.monotonic()
        try:
            self._graphs[key] = self._forward.capture(
                lambda: self._compute(Replayed(key.shape, output), plan, key.propose)
            )
        # Whatever it is, the step without a graph serves as well, only slower; the reason is kept and shown.
        except Exception as error:  # noqa: BLE001
            self.failure = f"{key.shape}: {type(error).__name__}: {error}".splitlines()[0]
            sys.stderr.write(f"no more CUDA graphs of the ends of steps; {self.failure}\n")
        self._seconds += time.monotonic() - started

    def state(self) -> dict[str, Any]:
        """What there is, for ``Worker.control``."""
        return {
            "steps": self.steps,
            "captured": [[*key.shape, key.propose] for key in self._graphs],
            "capture_seconds": round(self._seconds, 3),
            "failure": self.failure,
        }

    def _compute(self, forward: Replayed, plan: Sections, propose: int) -> torch.Tensor:
        rows, buffers = forward.shape.rows, self._forward.buffers
        ids, step = buffers.ids[: forward.shape.tokens], buffers.step(forward.shape)
        hidden, taps = (
            (forward.output, ()) if self._drafting is None else self._drafting.split(forward.output)
        )
        maximum, tokens = self._logits(hidden).max(-1)
        finite = maximum.abs() < torch.inf
        real = torch.arange(rows, device=tokens.device) < num_rows(plan)
        # What padding samples goes to the entry past the last row.
        persistent = torch.where(real, plan.rows[:rows].long(), len(self._batch.last_sampled) - 1)
        if forward.shape.width == 1:
            plan.sampled[:rows, 0] = tokens
            plan.num_sampled[:rows] = finite
            plan.row_status[:rows] = torch.where(finite, RowStatus.OK, RowStatus.NOT_FINITE)
            last, rejected = tokens, torch.zeros_like(tokens)
        else:
            drafts = DraftRows.of_decode(step.query_start, ids, real, forward.shape.width)
            last, rejected = self._verify(tokens, finite, persistent, drafts, plan)
        self._batch.last_sampled.index_copy_(0, persistent, last)
        if self._drafting is not None:
            everywhere = torch.arange(rows, device=tokens.device)
            sampling = Sampling(everywhere, persistent, last, rejected, real=num_rows(plan))
            proposed = self._drafting.propose(Seen.of(ids, step, hidden, taps), sampling, propose)
            plan.num_proposed[:rows] = 0
            if proposed is not None:
                write_proposed(proposed, everywhere, plan)
        return plan.num_sampled[:rows]

    def _verify(
        self,
        tokens: torch.Tensor,
        finite: torch.Tensor,
        persistent: torch.Tensor,
        drafts: DraftRows,
        plan: Sections,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes what counts; returns the last token of each row, and how many of its drafts do not count."""
        rows, width = drafts.index.shape
        accept = None
        if self._acceptance is not None:
            accept = forced(self._acceptance, plan.uniforms[: len(tokens)], drafts)
        verified = verify(tokens, finite, persistent[drafts.owners], drafts, accept)
        plan.sampled[:rows, :width] = verified.tokens
        plan.num_sampled[:rows] = verified.num_sampled
        plan.row_status[:rows] = verified.num_sampled == 0
        reached = verified.num_sampled.clamp(min=1) - 1
        return verified.last, drafts.index[:, -1] - drafts.index[:, 0] - reached
