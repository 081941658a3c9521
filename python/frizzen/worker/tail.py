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
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from frizzen.kernels.largest import largest
from frizzen.speculate.drafter import Proposed, Seen
from frizzen.speculate.drafting import Drafting, Sampling
from frizzen.speculate.verify import DraftRows, forced, verify
from frizzen.worker.arena import Sections, num_rows
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.graphs import Graph, GraphRunner, Replayed
from frizzen.worker.lattice import Shape
from frizzen.worker.results import write_proposed
from frizzen.worker.rows import PersistentBatch

__all__ = ["Ended", "Greedy", "Tails", "end_nothing", "end_rows"]


class _Key(NamedTuple):
    shape: Shape
    propose: int


@dataclass(frozen=True, slots=True)
class Greedy:
    """A step of which every token is sampled, the largest logit each, padded up to a shape."""

    shape: Shape
    plan: Sections
    batch: PersistentBatch
    ids: torch.Tensor
    """``[T]`` int64."""
    maximum: torch.Tensor
    """``[T]`` float32, the largest logits."""
    tokens: torch.Tensor
    """``[T]`` int64, their tokens."""
    acceptance: torch.Tensor | None
    """Float64 without dimension: tokens per row that verification is forced to give."""

    @property
    def count(self) -> torch.Tensor:
        """``[1]`` int32, the rows that are no padding."""
        return num_rows(self.plan)

    @property
    def padding(self) -> int:
        """The place among what rows sampled last that takes what padding samples."""
        return len(self.batch.last_sampled) - 1


class Ended(NamedTuple):
    """What the rows of a step, padding included, have come to; all int64 ``[B]``."""

    last: torch.Tensor
    """The last token that counts."""
    ends: torch.Tensor
    """The tokens that count."""
    persistent: torch.Tensor
    """Which persistent rows they are."""
    step_rows: torch.Tensor
    """From 0 on."""


EndRows = Callable[[Greedy], Ended]


def end_rows(step: Greedy) -> Ended:
    """Writes what the rows get, and makes it what they sampled last; by torch's operators, on any device."""
    plan, (rows, width) = step.plan, step.shape[:2]
    finite = step.maximum.abs() < torch.inf
    step_rows = torch.arange(rows, device=finite.device)
    real = step_rows < step.count
    drafts = DraftRows.of_decode(plan.query_start[: rows + 1], step.ids, real, width)
    accept = None
    if step.acceptance is not None:
        accept = forced(step.acceptance, plan.uniforms[: len(step.tokens)], drafts)
    persistent = torch.where(real, plan.rows[:rows].long(), step.padding)
    verified = verify(step.tokens, finite, persistent[drafts.owners], drafts, accept)
    plan.sampled[:rows, :width] = verified.tokens
    plan.num_sampled[:rows] = verified.num_sampled
    plan.row_status[:rows] = verified.num_sampled == 0
    step.batch.last_sampled.index_copy_(0, persistent, verified.last)
    reached = verified.num_sampled.clamp(min=1) - 1
    rejected = drafts.index[:, -1] - drafts.index[:, 0] - reached
    return Ended(verified.last, plan.seq_lens[:rows] - rejected, persistent, step_rows)


def _end_rows_on(device: torch.device) -> EndRows:
    if device.type == "cuda" and find_spec("triton") is not None:
        from frizzen.kernels.triton import steps

        return steps.end_rows
    return end_rows


def end_nothing(buffers: StepBuffers, acceptance: torch.Tensor | None) -> None:
    """Launches all that stands around the model in a step of a graph, for a step without rows.

    The kernels are those of any step: they know sizes as numbers only, but for the most drafts of a row.
    """
    shape, batch, one = Shape(1, 1, 1), buffers.batch, buffers.ids[:1]
    buffers.fill(shape)
    maximum, tokens = largest(torch.zeros(1, 2, device=one.device))
    _end_rows_on(one.device)(Greedy(shape, buffers.plan, batch, one, maximum, tokens, acceptance))
    if buffers.plan.proposed.shape[1]:
        write_proposed(Proposed(one[:, None]), one, buffers.plan)
        # With drafts that are not the worker's nothing writes these counts again, and every step sends them.
        buffers.plan.num_proposed.zero_()


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
        self._end_rows = _end_rows_on(batch.last_sampled.device)
        self._graphs: dict[_Key, Graph] = {}
        self._missed: tuple[_Key, Replayed] | None = None
        self._seconds = 0.0
        self.failure: str | None = None
        """Why no more graphs are captured, if one could not be."""
        self.steps = 0
        """Steps whose end a graph has computed."""

    def replay(self, propose: int) -> bool:
        """Ends the step that was just computed; False if no graph can."""
        step = self._forward.replayed
        if step is None or (self._drafting is not None and self._drafting.failed):
            return False
        key = _Key(step.shape, propose)
        graph = self._graphs.get(key)
        if graph is None:
            self._missed = key, step
            return False
        graph.replay()
        self.steps += 1
        return True

    def warm_up(self) -> None:
        """Ends a step without rows, so that none waits for libraries that initialise on first use."""
        end_nothing(self._forward.buffers, self._acceptance)

    def after_step(self) -> bool:
        """Captures what the last step missed; whether there was something."""
        missed, self._missed = self._missed, None
        if missed is None or self.failure is not None:
            return False
        key, step = missed
        started = time.monotonic()
        try:
            self._graphs[key] = self._forward.capture(lambda: self._compute(step, key.propose))
        # Whatever it is, the step without a graph serves as well, only slower; the reason is kept and shown.
        except Exception as error:  # noqa: BLE001
            self.failure = f"{key.shape}: {type(error).__name__}: {error}".splitlines()[0]
            sys.stderr.write(f"no more CUDA graphs of the ends of steps; {self.failure}\n")
        self._seconds += time.monotonic() - started
        return True

    def state(self) -> dict[str, Any]:
        """What there is, for ``Worker.control``."""
        return {
            "steps": self.steps,
            "captured": [[*key.shape, key.propose] for key in self._graphs],
            "capture_seconds": round(self._seconds, 3),
            "failure": self.failure,
        }

    def _compute(self, forward: Replayed, propose: int) -> torch.Tensor:
        shape, buffers = forward.shape, self._forward.buffers
        ids, step, plan = buffers.ids[: shape.tokens], buffers.step(shape), buffers.plan
        hidden: torch.Tensor = forward.output
        taps: tuple[torch.Tensor, ...] = ()
        if self._drafting is not None:
            hidden, taps = self._drafting.split(forward.output)
        maximum, tokens = largest(self._logits(hidden))
        ended = self._end_rows(Greedy(shape, plan, self._batch, ids, maximum, tokens, self._acceptance))
        if self._drafting is not None:
            sampling = Sampling(ended.step_rows, ended.persistent, ended.last, real=num_rows(plan))
            seen = Seen(ids, step, hidden, taps, ends=ended.ends)
            proposed = self._drafting.propose(seen, sampling, propose)
            if proposed is None:
                plan.num_proposed[: shape.rows] = 0
            else:
                write_proposed(proposed, ended.step_rows, plan)
        return plan.num_sampled[: shape.rows]
