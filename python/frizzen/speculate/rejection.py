"""Verification of drafts that were drawn from a distribution: standard rejection, and block verification.

``p`` is what the request would be sampled from (masks, rules, penalties, temperature and filters applied),
``q`` what its draft was drawn from. Whatever ``q`` is, the tokens that come out are distributed as ``p``:

* ``standard`` (arXiv 2211.17192): draft ``x`` is accepted with probability ``min(1, p(x) / q(x))``; the first
  one rejected is replaced by a draw from ``max(p - q, 0)``.
* ``block`` (arXiv 2403.10444): the drafts of a row are judged together, which accepts at least as many. With
  ``pi[0] = 1`` and ``pi[i] = min(pi[i - 1] * p(x[i]) / q(x[i]), 1)``, the accepted drafts are the first ``i``
  for the largest ``i`` at which a uniform number is below ``R / (R + 1 - pi[i])``, ``R`` being the mass of
  ``max(pi[i] * p - q, 0)`` at the next position; that is also what the replacement is drawn from.

A position without a draft, or with a placeholder, has ``q = 0``: the rules then say by themselves that
nothing is accepted there and that the token comes from ``p``. All of it is flat over the step's positions and
never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from frizzen.speculate.draws import Draw, derived
from frizzen.speculate.verify import DraftRows
from frizzen.worker.filtering import draw

__all__ = ["METHODS", "Judge", "Judged", "one_hot", "reject"]

METHODS = ("standard", "block")


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts of ``N`` positions."""

    tokens: torch.Tensor
    """``[N]`` int64: the draft if it is accepted, else what replaces it, or the draw of a row's last one."""
    accepted: torch.Tensor
    """``[N]`` bool; only those up to a row's first rejection count."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The drafts of a step's ``S`` sampled positions and the distributions that they were drawn from."""

    rows: DraftRows
    q: torch.Tensor
    """``[S, V]`` float32, zeros where there is no draft."""
    method: str

    @property
    def drafts(self) -> torch.Tensor:
        """``[S]`` int64, the draft that each position judges; -1 where there is none."""
        return self.rows.drafts[self.rows.owners, self.rows.offsets]

    def __call__(
        self,
        weights: torch.Tensor,
        tokens: torch.Tensor,
        uniforms: torch.Tensor,
        index: torch.Tensor | None,
    ) -> Judged:
        """Judges positions of whole rows, all or those in ``index`` ``[N]``.

        Args:
            weights: ``[N, V]`` float32, ``p`` but for its scale; overwritten.
            tokens: ``[N]`` int64, drawn from them.
            uniforms: ``[N]`` float64, the draws of the positions.
            index: Which of the step's sampled positions these are.
        """
        owners, offsets, q, drafts = self.rows.owners, self.rows.offsets, self.q, self.drafts
        if index is not None:
            owners, offsets, q, drafts = owners[index], offsets[index], q[index], drafts[index]
        shape = (len(self.rows.index), self.rows.index.shape[1])
        return reject(weights, q, drafts, tokens, uniforms, owners, offsets, shape=shape, method=self.method)


def one_hot(drafts: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """``[N, V]`` float32, the distributions of drafts int64 ``[N]`` that are certain; zeros for -1."""
    q = torch.zeros(len(drafts), vocab_size, device=drafts.device)
    return q.scatter_(1, drafts.clamp(min=0)[:, None], (drafts >= 0).float()[:, None])


def reject(
    weights: torch.Tensor,
    q: torch.Tensor,
    drafts: torch.Tensor,
    tokens: torch.Tensor,
    uniforms: torch.Tensor,
    owners: torch.Tensor,
    offsets: torch.Tensor,
    *,
    shape: tuple[int, int],
    method: str,
) -> Judged:
    """Verdicts on ``drafts`` int64 ``[N]``; position ``n`` is ``offsets[n]`` of row ``owners[n]``.

    ``shape`` is the number of rows and the most positions of one; the rest is as in :class:`Judge`.
    """
    p = weights.div_(weights.sum(-1, keepdim=True, dtype=torch.float64).float())
    there = drafts >= 0
    at = drafts.clamp(min=0)[:, None]
    p_draft, q_draft = (values.gather(1, at).squeeze(1).double() for values in (p, q))
    chance = derived(uniforms, Draw.ACCEPT)
    if method == "standard":
        accepted = there & (p_draft > chance * q_draft)
        residual = (p - q).clamp_(min=0)
    else:
        ratio = torch.where(there, p_draft / q_draft.clamp(min=1e-300), 0)
        kept = _running(ratio, owners, offsets, shape)
        residual = (p * kept.float()[:, None] - q).clamp_(min=0)
        accepted = there & _longest(kept, residual, chance, owners, offsets, shape)
    # Where p and q are equal nothing is left, and nothing is rejected but by rounding.
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)
    replaced = draw(residual, derived(uniforms, Draw.RESIDUAL))
    replaced = torch.where(accepted, drafts, replaced)
    return Judged(torch.where(there, replaced, tokens), accepted)


def _running(
    ratio: torch.Tensor, owners: torch.Tensor, offsets: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """``pi`` before each position, ``[N]`` float64."""
    by_row = torch.zeros(shape, dtype=torch.float64, device=ratio.device)
    by_row[owners, offsets] = ratio
    before = torch.ones_like(by_row)
    for place in range(1, shape[1]):
        before[:, place] = (before[:, place - 1] * by_row[:, place - 1]).clamp(max=1)
    return before[owners, offsets]


def _longest(
    kept: torch.Tensor,
    residual: torch.Tensor,
    chance: torch.Tensor,
    owners: torch.Tensor,
    offsets: torch.Tensor,
    shape: tuple[int, int],
) -> torch.Tensor:
    """Whether each position's draft is among the accepted ones of its row, ``[N]`` bool."""
    mass = residual.sum(-1, dtype=torch.float64)
    below = mass + 1 - kept
    height = torch.where(below > 0, mass / below, 1)
    # The chance of a draft is at its own position, the height that it is held against at the next one.
    heights = torch.zeros(shape, dtype=torch.float64, device=kept.device)
    chances = torch.ones_like(heights)
    heights[owners, offsets] = height
    chances[owners, offsets] = chance
    fits = chances[:, :-1] < heights[:, 1:]
    places = torch.arange(1, shape[1], device=kept.device)
    length = (fits * places).amax(1) if shape[1] > 1 else torch.zeros_like(owners[: shape[0]])
    return offsets < length[owners]
