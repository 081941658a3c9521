"""What routers share: scores of experts, and which of them a token goes to."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["choose", "limit_groups", "score_logits", "sort_keys"]


@triton.jit
def sort_keys(scores, column, COUNT: tl.constexpr):
    """Integers in the order of (score, lower column first): one maximum names value and place."""
    bits = scores.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (COUNT - 1 - column).to(tl.int64)


@triton.jit
def _best(keys, COUNT: tl.constexpr):
    """Column and score of the highest key of each row, and the keys without it."""
    highest = tl.max(keys, axis=1)
    place = (COUNT - 1 - (highest & 0xFFFFFFFF)).to(tl.int32)
    ordered = (highest >> 32).to(tl.int32)
    score = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return place, score, tl.where(keys == highest[:, None], -0x7FFFFFFFFFFFFFFF, keys)


@triton.jit
def limit_groups(choice, E: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, PAIR: tl.constexpr):
    """Puts the experts of all but the best groups out of reach: ``choice [tokens, E]``."""
    tokens: tl.constexpr = choice.shape[0]
    members = tl.reshape(choice, (tokens, GROUPS, E // GROUPS))
    best, place = tl.max(members, axis=2, return_indices=True, return_indices_tie_break_left=True)
    if PAIR:
        column = tl.arange(0, E // GROUPS)[None, None, :]
        best += tl.max(tl.where(column == place[:, :, None], float("-inf"), members), axis=2)
    group = tl.arange(0, GROUPS)[None, :]
    keys = sort_keys(best, group, GROUPS)
    kept = tl.zeros([tokens, GROUPS], dtype=tl.int32)
    for _ in range(TOP_GROUPS):
        chosen, _, keys = _best(keys, GROUPS)
        kept = tl.where(group == chosen[:, None], 1, kept)
    return tl.reshape(tl.where(kept[:, :, None] > 0, members, float("-inf")), (tokens, E))


@triton.jit
def score_logits(logits, exists, SCORING: tl.constexpr):
    """Scores of ``logits [tokens, E]`` by softmax, sigmoid or the root of softplus."""
    if SCORING == "softmax":
        logits = tl.where(exists, logits, float("-inf"))
        scores = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        scores = scores / tl.sum(scores, axis=1)[:, None]
    elif SCORING == "sigmoid":
        scores = tl.sigmoid(logits)
    else:
        softplus = tl.log(1.0 + tl.exp(tl.minimum(logits, 20.0)))
        scores = tl.sqrt(tl.where(logits > 20.0, logits, softplus))
    return scores


@triton.jit
def choose(
    scores, correction, expert, exists,
    E: tl.constexpr, EXPERTS: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr, CORRECTION: tl.constexpr,
):  # fmt: skip
    """Experts of every token ``[tokens, TOP]``, best first, and their scores."""
    tokens: tl.constexpr = scores.shape[0]
    choice = scores
    if CORRECTION:
        choice += tl.load(correction + expert, mask=exists, other=0.0)
    # What is not a number must not win, and must still leave ids that exist.
    choice = tl.where((choice > float("-inf")) & exists, choice, float("-inf"))
    if GROUPS > 1:
        choice = limit_groups(choice, E, GROUPS, TOP_GROUPS, CORRECTION)
    keys = sort_keys(choice, expert, EXPERTS)
    place = tl.arange(0, TOP)[None, :]
    chosen = tl.zeros([tokens, TOP], dtype=tl.int32)
    gains = tl.zeros([tokens, TOP], dtype=tl.float32)
    for position in range(K):
        best, score, keys = _best(keys, EXPERTS)
        if CORRECTION:
            score = tl.sum(tl.where(expert == best[:, None], scores, 0.0), axis=1)
        chosen = tl.where(place == position, best[:, None], chosen)
        gains = tl.where(place == position, score[:, None], gains)
    return chosen, gains
