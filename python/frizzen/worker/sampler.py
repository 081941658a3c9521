"""Chooses one token per sampled position; which of them count is decided in ``frizzen.speculate.verify``.

Order of processing, as in vLLM: log-probabilities are of the raw logits; then masks, the rules about single
tokens, penalties, temperature, min-p, top-k, top-p. Which of it a step does is decided by flags on the
host; a batch in which every row is greedy and asks for nothing costs one argmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from operator import or_

import torch

from frizzen.speculate.rejection import Judge, Judged
from frizzen.speculate.verify import Verified
from frizzen.worker.arena import Admit, AdmitFloat, to_device
from frizzen.worker.filtering import draw, floor_of_top_k, floor_of_top_p, softmax_weights, zero_below
from frizzen.worker.history import HistoryEnds
from frizzen.worker.logprobs import Listed, Logprobs, score
from frizzen.worker.masks import TokenMasks
from frizzen.worker.rows import LOGPROBS, MIN_P, PENALTIES, RANDOM, RULES, TOP_K, TOP_P, PersistentBatch

__all__ = ["Positions", "Sampled", "Sampler"]


@dataclass(frozen=True, slots=True)
class Positions:
    """The ``S`` sampled positions of a step: on the host to decide by, on the device to compute with."""

    rows: Sequence[int]
    """The persistent row of each."""
    row_index: torch.Tensor
    """The same, ``[S]`` int64."""
    lengths: Sequence[int]
    """Tokens of the row before the new one, which is also the new one's position."""
    uniforms: torch.Tensor
    """``[S]`` float64, the draws, in ``[0, 1)``."""
    drafts: torch.Tensor | None = None
    """``[S, k]`` int64, drafts before each in its row, -1 where there are fewer; ``None`` without any."""

    def take(self, samples: Sequence[int], index: torch.Tensor) -> Positions:
        """Some of them; ``index`` is ``samples`` on the device."""
        return Positions(
            [self.rows[sample] for sample in samples],
            self.row_index[index],
            [self.lengths[sample] for sample in samples],
            self.uniforms[index],
            None if self.drafts is None else self.drafts[index],
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen for ``S`` positions."""

    tokens: torch.Tensor
    """``[S]`` int64; the lowest id among equals where the choice is greedy."""
    finite: torch.Tensor
    """``[S]`` bool, false where the logits were not finite and the token means nothing."""
    row_index: torch.Tensor
    """``[S]`` int64, their persistent rows."""
    scored: torch.Tensor | None = None
    """``[N]`` int64, the positions that asked for log-probabilities."""
    logprobs: Logprobs | None = None
    """Of the positions ``scored``, with as many alternatives as the most that one of them asked for."""
    ends: HistoryEnds | None = None
    """Where the tokens of rows that keep a history go in it."""
    accepted: torch.Tensor | None = None
    """``[S]`` bool, verdicts on the drafts where a judge gave them; otherwise a draft must be the token."""


class Sampler:
    """Samples for the rows of a persistent batch."""

    def __init__(self, batch: PersistentBatch, device: torch.device) -> None:
        self._batch = batch
        # The same subsets of a batch come back step after step.
        self._index = lru_cache(maxsize=64)(partial(to_device, device=device))

    def sample(
        self,
        logits: torch.Tensor,
        positions: Positions,
        masks: TokenMasks | None = None,
        judge: Judge | None = None,
    ) -> Sampled:
        """Samples from ``logits`` float32 ``[S, V]``, which is overwritten; changes no state of the rows.

        With a ``judge``, drafts of random rows are accepted and replaced by it.
        """
        flags = self._flags(positions)
        needs = reduce(or_, flags, 0)
        if not needs and masks is None:
            maximum, tokens = logits.max(-1)
            return Sampled(tokens, _finite(maximum), positions.row_index)
        scored = raw = ends = logprobs = None
        if needs & LOGPROBS:
            scored = self._index(_having(flags, LOGPROBS))
            unchanged = needs == LOGPROBS and masks is None and len(scored) == len(flags)
            raw = logits if unchanged else logits.index_select(0, scored)
        if masks is not None:
            masks.apply(logits)
        if needs & RULES:
            for sample in _having(flags, RULES):
                self._batch.rules[positions.rows[sample]].apply(logits[sample], positions.lengths[sample])
        if needs & PENALTIES:
            ends = self._penalise(logits, _having(flags, PENALTIES), positions)
        tokens, finite, accepted = self._choose(logits, flags, positions, judge)
        if scored is not None and raw is not None:
            logprobs = self._score(raw, tokens[scored], [positions.rows[i] for i in _having(flags, LOGPROBS)])
            finite[scored] &= logprobs.finite
        return Sampled(tokens, finite, positions.row_index, scored, logprobs, ends, accepted)

    def remember(self, sampled: Sampled, verified: Verified | None = None) -> None:
        """Makes the tokens part of their rows; to be called once, when the step can no longer fail.

        ``verified`` says which of them count, if there were drafts.
        """
        if verified is None:
            self._batch.last_sampled.index_copy_(0, sampled.row_index, sampled.tokens)
        else:
            self._batch.last_sampled.index_copy_(0, verified.row_index, verified.last)
        if sampled.ends is not None:
            kept = None if verified is None else verified.kept
            self._batch.history.append(sampled.ends, sampled.tokens, kept)

    def _score(self, logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[int]) -> Logprobs:
        """Scores ``tokens`` int64 ``[N]``, and what their rows asked for, under ``logits`` ``[N, V]``."""
        alternatives = 0
        listed: list[Listed] = []
        for position, row in enumerate(rows):
            columns = self._batch.num_logprobs[row]
            rules = self._batch.rules.get(row)
            if rules is not None and rules.scored is not None:
                listed.append(Listed(position, columns, rules.scored))
                columns += len(rules.scored)
            alternatives = max(alternatives, columns)
        return score(logits, tokens, alternatives, listed)

    def _flags(self, positions: Positions) -> list[int]:
        return [self._batch.flags[row] for row in positions.rows]

    def _penalise(self, logits: torch.Tensor, samples: Sequence[int], positions: Positions) -> HistoryEnds:
        """Applies the penalties of the positions ``samples`` to their logits, in place."""
        part = positions.take(samples, self._index(samples))
        ends = self._batch.history.ends(self._index(samples), part.rows, part.lengths, part.drafts)
        floats = self._batch.floats.index_select(0, part.row_index)
        self._batch.history.penalise(logits, ends, floats[:, AdmitFloat.PRESENCE : AdmitFloat.REPETITION + 1])
        return ends

    def _choose(
        self, logits: torch.Tensor, flags: Sequence[int], positions: Positions, judge: Judge | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Tokens ``[S]``, whether the logits were finite ``[S]``, and what the judge accepted ``[S]``."""
        random = _having(flags, RANDOM)
        if random and len(random) == len(flags):
            maximum = logits.amax(-1)
            drawn = self._draw(logits, maximum, positions, judge)
            return drawn.tokens, _finite(maximum), None if judge is None else drawn.accepted
        maximum, tokens = logits.max(-1)
        accepted = None if judge is None else tokens == judge.drafts
        if random:
            index = self._index(random)
            part = positions.take(random, index)
            drawn = self._draw(logits.index_select(0, index), maximum[index], part, judge, index)
            tokens[index] = drawn.tokens
            if accepted is not None:
                accepted[index] = drawn.accepted
        return tokens, _finite(maximum), accepted

    def _draw(
        self,
        logits: torch.Tensor,
        maximum: torch.Tensor,
        positions: Positions,
        judge: Judge | None,
        index: torch.Tensor | None = None,
    ) -> Judged:
        """Tokens of positions that are all random, those of ``index``; ``logits`` is overwritten."""
        needs = reduce(or_, self._flags(positions))
        floats = self._batch.floats.index_select(0, positions.row_index)
        weights = softmax_weights(logits, maximum, floats[:, AdmitFloat.TEMPERATURE])
        if needs & MIN_P:
            zero_below(weights, floats[:, AdmitFloat.MIN_P])
        if needs & TOP_K:
            top_k = self._batch.ints.index_select(0, positions.row_index)[:, Admit.TOP_K].long()
            greatest = max(self._batch.top_k[row] for row in positions.rows)
            zero_below(weights, floor_of_top_k(weights, top_k, greatest))
        if needs & TOP_P:
            zero_below(weights, floor_of_top_p(weights, floats[:, AdmitFloat.TOP_P]))
        tokens = draw(weights, positions.uniforms)
        if judge is None:
            return Judged(tokens, tokens.new_zeros(0, dtype=torch.bool))
        return judge(weights, tokens, positions.uniforms, index)


def _finite(values: torch.Tensor) -> torch.Tensor:
    """As ``isfinite``, in two launches where that takes four."""
    return values.abs() < torch.inf


def _having(flags: Sequence[int], flag: int) -> tuple[int, ...]:
    return tuple([sample for sample, own in enumerate(flags) if own & flag])
