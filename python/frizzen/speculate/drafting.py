"""A drafter in the worker: when it is told what, and what becomes of it when it fails."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from frizzen.speculate.drafter import Asked, Asking, Choose, DraftBlocks, Drafter, Proposed, Seen, lay_out
from frizzen.speculate.proposals import Chooser, Kept, greedy
from frizzen.speculate.rejection import Judge
from frizzen.speculate.verify import DraftRows

__all__ = ["Drafting", "Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the ``R`` rows of a step that sampled got."""

    step_rows: Tensor
    """``[R]`` int64."""
    rows: Tensor
    """``[R]`` int64, their persistent rows."""
    tokens: Tensor
    """``[R]`` int64, the last that counts of each."""
    rejected: Tensor | None = None
    """``[R]`` int64, drafts of the step that do not count; ``None``: those seen have been left out."""
    draws: tuple[Tensor, Tensor] | None = None
    """``[R]`` float32, their temperatures, and ``[R]`` float64, the draws of their last positions; ``None``
    drafts greedily."""
    real: Tensor | None = None
    """``[1]`` int32, how many of the rows are no padding; ``None``: all."""


class Drafting:
    """One drafter, its private blocks, and the distributions of drawn drafts.

    Args:
        drafter: The drafter, its caches made.
        blocks: Where its drafts are written.
        kept: Where distributions of drawn drafts are kept; ``None`` drafts greedily.
        believed: Whether the drafter's own chances of its drafts mean something; where verdicts are forced,
            they do not.
    """

    def __init__(
        self,
        drafter: Drafter,
        blocks: DraftBlocks,
        kept: Kept | None = None,
        *,
        believed: bool = True,
        on_gpu: bool = False,
    ) -> None:
        self._drafter = drafter
        self._blocks = blocks
        self._kept = kept
        self._believed = believed
        self._lay_out = lay_out
        if on_gpu and find_spec("triton") is not None:
            from frizzen.kernels.triton import drafts

            self._lay_out = drafts.lay_out
        self.failed: str | None = None
        """Why the drafter is out of service; its context is not kept any more."""

    def info(self, max_drafts: int) -> dict[str, Any]:
        """The field ``drafter`` of the engine's ``WorkerInfo``.

        It needs no slots past a row's end.
        """
        return {
            "name": self._drafter.name,
            "max_drafts": max_drafts,
            "has_confidence": self._believed and self._drafter.has_confidence,
            "needs_context": True,
            "lookahead": 0,
        }

    def split(self, computed: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What a target made for its taps (``models.tapped``) returns: hidden states, and the taps."""
        if not self._drafter.taps:
            return computed, ()
        hidden, *taps = computed.chunk(1 + len(self._drafter.taps), dim=1)
        # Heads on a GPU take rows that lie apart.
        return hidden if hidden.is_cuda else hidden.contiguous(), tuple(taps)

    def admit(self, rows: Tensor) -> None:
        """Tells that persistent ``rows`` ``[N]`` int64 begin anew.

        A request that comes back to another row may bring drafts, and these must not meet the distributions
        of the row's last owner. Entries in the KV cache need no such care: they go with the blocks.
        """
        if self._kept is not None:
            self._kept.forget(rows)

    def judge(self, rows: DraftRows, row_index: Tensor) -> Judge | None:
        """Judges the step's drafts by how they were drawn; None where drafts are certain."""
        return None if self._kept is None else self._kept.judge(rows, row_index)

    def advance(
        self,
        seen: Seen,
        sampling: Sampling | None,
        count: int,
    ) -> Proposed | None:
        """Tells the drafter of a step; drafts ``count`` tokens for the rows that sampled in it.

        Whatever the drafter raises takes it out of service and nothing else: the target's step stands.
        """
        if self.failed:
            return None
        try:
            return self.propose(seen, sampling, count)
        # Any error at all: a drafter is a help, and serving goes on without it.
        except Exception as error:  # noqa: BLE001
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())
            self.failed = f"{type(error).__name__}: {text} ({place.name}, line {place.lineno})"
            return None

    def propose(self, seen: Seen, sampling: Sampling | None, count: int) -> Proposed | None:
        """The same, and raises what the drafter raises."""
        if sampling is not None and sampling.rejected is not None:
            seen = seen.without(sampling.step_rows, sampling.rejected)
        asked = self._asked(seen, sampling) if sampling is not None and count else None
        proposed = self._drafter.advance(seen, asked, self._choose(sampling), count)
        return proposed if self._believed or proposed is None else Proposed(proposed.tokens)

    def _asked(self, seen: Seen, sampling: Sampling) -> Asked:
        asking = Asking(
            seen.step, seen.ends, sampling.step_rows, sampling.rows, self._blocks, self._drafter.reach
        )
        return Asked(
            tokens=sampling.tokens,
            spots=self._lay_out(asking),
            max_context=asking.max_context,
            real=sampling.real,
        )

    def _choose(self, sampling: Sampling | None) -> Choose:
        if self._kept is None or sampling is None or sampling.draws is None:
            return greedy
        return Chooser(self._kept, sampling.rows, *sampling.draws)
