"""Which drafts count: the one place that decides it, for every drafter.

A row with ``d`` drafts has ``d + 1`` sampled positions: position ``i`` gives the token that follows the row's
text and its first ``i`` drafts. The drafts that equal the tokens sampled before them are accepted; the token
at the first position that differs, or after the last draft, is the row's next token.

A drafter that proposes single tokens (a one-hot distribution) has draft ``x`` accepted with probability
``p(x)``, and a rejected one replaced by a token of ``p`` with ``x`` removed: sampling from ``p`` and
comparing is that rejection rule, with the acceptance test and the replacement drawn from one number. So the
output has the distribution of no speculation, and more: since the draw of a token depends on its position
alone, it is the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from frizzen.worker.arena import to_device

__all__ = ["DraftRows", "Verified", "forced", "verify"]


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The ``S`` sampled positions of ``R`` rows; ``W`` is one more than the most drafts of a row."""

    step_rows: torch.Tensor
    """``[R]`` int64, the rows of the step."""
    index: torch.Tensor
    """``[R, W]`` int64, the row's positions among the sampled ones; its last one is repeated."""
    drafts: torch.Tensor
    """``[R, W]`` int64, the draft that each position judges; -1 where there is none."""
    owners: torch.Tensor
    """``[S]`` int64, index among the ``R`` rows of each position's row."""
    offsets: torch.Tensor
    """``[S]`` int64, how many drafts of its row precede each position."""

    @classmethod
    def of(
        cls,
        step_rows: Sequence[int],
        num_drafts: Sequence[int],
        sample_tokens: torch.Tensor,
        input_ids: torch.Tensor,
    ) -> DraftRows:
        """The rows ``step_rows`` of a step, with so many drafts each.

        Args:
            step_rows: The rows that sample, in order.
            num_drafts: Their drafts.
            sample_tokens: ``[S]``, each position's index among the step's tokens.
            input_ids: ``[T]`` int64, the step's tokens; a draft follows the position that judges it.
        """
        device = input_ids.device
        width = max(num_drafts) + 1
        index: list[list[int]] = []
        owners: list[int] = []
        offsets: list[int] = []
        for owner, count in enumerate(num_drafts):
            start = len(owners)
            index.append([start + min(place, count) for place in range(width)])
            owners += [owner] * (count + 1)
            offsets += range(count + 1)
        places = to_device([place for row in index for place in row], device).view(-1, width)
        counts = to_device(num_drafts, device)
        following = (sample_tokens.long() + 1).clamp_(max=len(input_ids) - 1)
        drafts = input_ids[following[places]]
        judges = torch.arange(width, device=device) < counts[:, None]
        return cls(
            step_rows=to_device(step_rows, device),
            index=places,
            drafts=torch.where(judges, drafts, -1),
            owners=to_device(owners, device),
            offsets=to_device(offsets, device),
        )

    @classmethod
    def of_decode(
        cls, query_start: torch.Tensor, input_ids: torch.Tensor, real: torch.Tensor, width: int
    ) -> DraftRows:
        """Rows that all sample at each of their tokens, so that the device knows them without the host.

        Args:
            query_start: ``[R + 1]`` int32.
            input_ids: ``[T]`` int64; tokens past the last row's are of no row.
            real: ``[R]`` bool; a row that is padding has no drafts.
            width: No row has more tokens.
        """
        last, device = len(input_ids) - 1, input_ids.device
        starts = query_start.long()
        counts = torch.where(real, starts[1:] - starts[:-1] - 1, 0)[:, None]
        places = torch.arange(width, device=device)
        index = starts[:-1, None] + torch.minimum(places, counts)
        drafts = input_ids[(index + 1).clamp_(max=last)]
        tokens = torch.arange(last + 1, dtype=torch.int32, device=device)
        owners = torch.searchsorted(query_start[1:], tokens, right=True).clamp_(max=len(real) - 1)
        return cls(
            step_rows=torch.arange(len(real), device=device),
            index=index,
            drafts=torch.where(places < counts, drafts, -1),
            owners=owners,
            offsets=tokens - starts[owners],
        )

    def preceding(self) -> torch.Tensor:
        """``[S, W - 1]`` int64, the drafts of its row before each position; -1 where there are fewer."""
        drafts = self.drafts[self.owners, :-1]
        places = torch.arange(drafts.shape[1], device=drafts.device)
        return torch.where(places < self.offsets[:, None], drafts, -1)


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``R`` rows got."""

    tokens: torch.Tensor
    """``[R, W]`` int64, of which the first ``num_sampled`` count."""
    num_sampled: torch.Tensor
    """``[R]`` int64, accepted drafts + 1; 0 for a row whose logits were not finite where they were needed."""
    last: torch.Tensor
    """``[R]`` int64, the last token that counts."""
    row_index: torch.Tensor
    """``[R]`` int64, their persistent rows."""
    kept: torch.Tensor
    """``[S]`` bool, the positions whose tokens count."""


def verify(
    tokens: torch.Tensor,
    finite: torch.Tensor,
    row_index: torch.Tensor,
    rows: DraftRows,
    accept: torch.Tensor | None = None,
) -> Verified:
    """Compares sampled ``tokens`` int64 ``[S]`` with the drafts of ``rows``; never waits for the device.

    Args:
        tokens: What each position sampled.
        finite: ``[S]`` bool, whether its logits were finite. A row fails only by a position that is reached.
        row_index: ``[S]`` int64, its persistent row.
        rows: The rows and their drafts.
        accept: ``[R, W]`` bool, verdicts that replace the comparison, from ``forced``.
    """
    chosen = tokens[rows.index]
    fine = finite[rows.index]
    right = chosen == rows.drafts
    if accept is not None:
        right = accept & (rows.drafts >= 0)
        chosen = torch.where(right, rows.drafts, chosen)
    accepted = (right & fine).int().cumprod(1).sum(1)
    reached = accepted[:, None]
    return Verified(
        tokens=chosen,
        num_sampled=torch.where(fine.gather(1, reached).squeeze(1), accepted + 1, 0),
        last=chosen.gather(1, reached).squeeze(1),
        row_index=row_index[rows.index[:, 0]],
        kept=rows.offsets <= accepted[rows.owners],
    )


def forced(acceptance: torch.Tensor, uniforms: torch.Tensor, rows: DraftRows) -> torch.Tensor:
    """``[R, W]`` bool, verdicts that give ``acceptance`` (float64, no dimension) tokens per row and step.

    The mean counts the token after the drafts, as everywhere: 3.4 accepts two drafts always, and the third
    with probability 0.4. For studies of speed; the text means nothing. ``uniforms`` ``[S]`` are below 1.
    """
    places = torch.arange(1, rows.index.shape[1] + 1, device=uniforms.device)
    return uniforms[rows.index] < acceptance - places
