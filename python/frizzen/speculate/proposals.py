"""How drafts are chosen from a drafter's logits, and what verification needs to know about it.

Greedy drafts are certain (a one-hot distribution): nothing is kept, and verification compares them with what
the target samples. Drawn drafts are drawn at their row's temperature, by numbers derived from the draw of the
row's last token; their distributions are kept per persistent row until the row's next step judges them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.kernels.largest import largest
from frizzen.speculate.draws import Draw, derived
from frizzen.speculate.rejection import Judge, one_hot
from frizzen.speculate.verify import DraftRows
from frizzen.worker.filtering import draw

__all__ = ["Chooser", "Kept", "certain", "greedy"]


def greedy(logits: Tensor, place: int, ids: Tensor | None = None) -> Tensor:
    """The likeliest token of each row; the lowest id of the drafter's among equals."""
    return largest(logits, ids)[1]


def certain(rows: DraftRows, vocab_size: int, method: str) -> Judge:
    """Judges drafts that were not drawn, by another rule than comparing them with the target's samples."""
    drafts = rows.drafts[rows.owners, rows.offsets]
    return Judge(rows, one_hot(drafts, vocab_size), method)


@dataclass(frozen=True, slots=True)
class Kept:
    """Drawn drafts and their distributions by persistent row, until they are judged."""

    tokens: Tensor
    """``[rows, K]`` int64; -1 where nothing was drafted yet."""
    q: Tensor
    """``[rows, K, V]`` float32."""
    method: str

    @classmethod
    def empty(cls, rows: int, count: int, vocab_size: int, method: str, device: torch.device) -> Kept:
        """Room for ``count`` drafts of each of ``rows`` rows."""
        tokens = torch.full((rows, count), -1, dtype=torch.int64, device=device)
        return cls(tokens, torch.zeros(rows, count, vocab_size, device=device), method)

    def forget(self, rows: Tensor) -> None:
        """Drops what is kept for persistent ``rows`` ``[N]`` int64: they are another request's now."""
        self.tokens.index_fill_(0, rows, -1)

    def judge(self, rows: DraftRows, row_index: Tensor) -> Judge:
        """For the drafts of a step; ``row_index`` ``[S]`` int64 are its positions' persistent rows.

        A draft that is not what was kept, or comes after one that is not, was not drawn from what is kept
        for its place: it is judged as certain, which is right for any draft.
        """
        width = min(rows.drafts.shape[1], self.tokens.shape[1])
        persistent = row_index[rows.index[:, 0]]
        same = torch.zeros_like(rows.drafts, dtype=torch.bool)
        same[:, :width] = (self.tokens[persistent, :width] == rows.drafts[:, :width]).cumprod(1).bool()
        drafts = rows.drafts[rows.owners, rows.offsets]
        drawn = same[rows.owners, rows.offsets] & (drafts >= 0)
        q = self.q[row_index, rows.offsets.clamp(max=self.tokens.shape[1] - 1)]
        return Judge(rows, torch.where(drawn[:, None], q, one_hot(drafts, q.shape[1])), self.method)


@dataclass(frozen=True, slots=True)
class Chooser:
    """Draws the drafts of ``R`` rows, and keeps their distributions."""

    kept: Kept
    rows: Tensor
    """``[R]`` int64, their persistent rows."""
    temperature: Tensor
    """``[R]`` float32; 0 is greedy."""
    uniforms: Tensor
    """``[R]`` float64, the draws of their last tokens."""

    def __call__(self, logits: Tensor, place: int, ids: Tensor | None = None) -> Tensor:
        """See ``drafter.Choose``. Only the temperature shapes a draft: whatever else does, shapes ``p``."""
        certain = greedy(logits, place, ids)
        random = self.temperature > 0
        scaled = logits / torch.where(random, self.temperature, 1)[:, None]
        q = torch.softmax(scaled, -1)
        if ids is not None:
            q = torch.zeros(len(q), self.kept.q.shape[2], device=q.device).index_copy_(1, ids, q)
        drawn = draw(q, derived(self.uniforms, Draw.DRAFT, place))
        tokens = torch.where(random, drawn, certain)
        self.kept.q[self.rows, place] = q
        self.kept.tokens[self.rows, place] = tokens
        return tokens
