"""Log-probabilities of the raw logits: of chosen and listed tokens, their ranks, the likeliest ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

__all__ = ["Listed", "Logprobs", "score"]


@dataclass(frozen=True, slots=True)
class Listed:
    """Tokens that one position is asked for by name."""

    position: int
    column: int
    """Where their entries begin: behind the likeliest tokens that the position asked for."""
    tokens: torch.Tensor
    """``[m]`` int64."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of ``N`` positions with ``n`` alternatives each."""

    finite: torch.Tensor
    """``[N]`` bool, false where the logits hold a NaN, an infinity or nothing finite; the rest means nothing
    there.
    """
    chosen: torch.Tensor
    """``[N]`` float32, log-probability of the chosen token."""
    ranks: torch.Tensor
    """``[N]`` int32, one more than the number of tokens that are more likely."""
    top_tokens: torch.Tensor
    """``[N, n]`` int32, most likely first, lower id first among equals; then listed ones in order."""
    top: torch.Tensor
    """``[N, n]`` float32."""


def score(
    logits: torch.Tensor, tokens: torch.Tensor, num_alternatives: int, listed: Iterable[Listed] = ()
) -> Logprobs:
    """Scores ``tokens`` int64 ``[N]`` under ``logits`` float32 ``[N, V]``, which stay as they are.

    ``num_alternatives`` columns have room for the listed tokens too.
    """
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(1, tokens[:, None])
    more_likely = torch.empty_like(logits)
    # Counted in float32, which is exact up to 2**24 tokens.
    torch.gt(logits, chosen, out=more_likely)
    ranks = more_likely.sum(-1).to(torch.int32) + 1
    # Twice sorted: by id, then stably by value, so that equals stand in an order that does not depend on the
    # device.
    top_tokens = logits.topk(num_alternatives).indices.sort(-1).values
    top, order = logits.gather(1, top_tokens).sort(dim=-1, descending=True, stable=True)
    top_tokens = top_tokens.gather(1, order).to(torch.int32)
    for own in listed:
        columns = slice(own.column, own.column + len(own.tokens))
        top_tokens[own.position, columns] = own.tokens.to(torch.int32)
        top[own.position, columns] = logits[own.position].index_select(0, own.tokens)
    return Logprobs(
        finite=normaliser.isfinite(),
        chosen=chosen.squeeze(1) - normaliser,
        ranks=ranks,
        top_tokens=top_tokens,
        top=top - normaliser[:, None],
    )
