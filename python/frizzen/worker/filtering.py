"""The arithmetic of random sampling: temperature, top-k, top-p, min-p, and the draw itself.

Weights are unnormalised probabilities, float32 ``[N, V]``, whose greatest is 1 in every row. Every filter is
a floor on the weights of a row, so no filter sorts the vocabulary in token order, and tokens of equal weight
share their fate. A draw is the inverse of the cumulative distribution in token-id order at a given uniform
number, in float64: what a row gets depends on its own logits and number, never on the other rows.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["draw", "floor_of_top_k", "floor_of_top_p", "softmax_weights", "zero_below"]

BLOCK = 64
"""Entries whose sum is one step of the coarse search in ``cdf_index``."""

BELOW_ONE = 1 - 2**-53


def softmax_weights(logits: torch.Tensor, maximum: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """``exp((logits - maximum) / temperature)`` in place, with ``maximum`` and ``temperature`` ``[N]``.

    The maximum is subtracted first, so that no temperature, however small, overflows.
    """
    return logits.sub_(maximum[:, None]).div_(temperature[:, None]).exp_()


def zero_below(weights: torch.Tensor, floor: torch.Tensor) -> None:
    """Zeroes in place the weights below ``floor`` ``[N]``."""
    weights.mul_(_at_least(weights, floor))


def floor_of_top_k(weights: torch.Tensor, top_k: torch.Tensor, max_k: int) -> torch.Tensor:
    """``[N]``, the weight of the last token that top-k keeps; 0 where it is off.

    ``top_k`` is int64 ``[N]`` (0 = off) and ``max_k`` the greatest of them.
    """
    max_k = min(max_k, weights.shape[1])
    last = top_k.clamp(1, max_k)[:, None] - 1
    return torch.where(top_k > 0, largest(weights, max_k).gather(1, last).squeeze(1), 0)


def floor_of_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """``[N]``, the weight of the token with which top-p is reached, which it keeps; 0 where it is off.

    ``top_p`` is float32 ``[N]`` (1 = off).
    """
    mass = weights.sum(-1, dtype=torch.float64)
    ordered = largest(weights, _nucleus_width(weights, top_p, mass))
    last = cdf_index(ordered, top_p * mass, strict=False)
    # At 1 the search stops early, where the rest no longer changes the sum: 1 must keep everything.
    return torch.where(top_p < 1, ordered.gather(1, last[:, None]).squeeze(1), 0)


def _nucleus_width(weights: torch.Tensor, top_p: torch.Tensor, mass: torch.Tensor) -> int:
    """How many of the greatest weights hold the nucleus of every row, not counting rows whose top-p is off.

    What weighs less than an even share of the mass outside the nucleus cannot be needed to reach it. On a GPU
    the answer is the whole vocabulary, because counting would wait for the device.
    """
    vocab = weights.shape[1]
    if not weights.is_cpu:
        return vocab
    share = (1 - top_p.double()) * mass / vocab
    counts = _at_least(weights, torch.where(top_p < 1, share.float(), torch.inf)).sum(-1)
    return max(1, int(counts.max().item()))


def largest(weights: torch.Tensor, count: int) -> torch.Tensor:
    """``[N, count]``, the greatest weights of each row in descending order."""
    if not weights.is_cpu:
        whole = count == weights.shape[1]
        return weights.sort(-1, descending=True).values if whole else weights.topk(count).values
    # numpy orders floats with vector instructions, several times faster than torch on a CPU.
    negated = weights.neg().numpy()
    if count < weights.shape[1]:
        negated = np.partition(negated, count - 1, axis=-1)[:, :count]
    return torch.from_numpy(np.sort(negated, axis=-1)).neg_()


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """``[N]`` int64, a token per row at the draws ``uniforms``, float64 ``[N]`` in ``[0, 1)``."""
    return cdf_index(weights, uniforms, strict=True, relative=True)


def cdf_index(
    weights: torch.Tensor, target: torch.Tensor, *, strict: bool, relative: bool = False
) -> torch.Tensor:
    """``[N]``, the first index at which the running sum of ``weights`` ``[N, M]`` reaches ``target``.

    Targets are float64 ``[N]``. With ``strict`` the sum must exceed it; with ``relative`` it is a share of
    the total. If both hold and the share is below 1, the entry found is never a zero. Two searches, over
    sums of blocks and within one block, read the weights once.
    """
    rows, size = weights.shape
    whole = size // BLOCK * BLOCK
    sums = weights[:, :whole].view(rows, size // BLOCK, BLOCK).sum(-1, dtype=torch.float64)
    rest = weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)
    running = torch.cat([sums, rest], 1).cumsum_(1)
    wanted = target[:, None] * running[:, -1:] if relative else target[:, None]
    # No block is found if the target is out of reach or the row is not finite.
    block = torch.searchsorted(running, wanted, right=strict).clamp_(max=size // BLOCK)
    before = torch.where(block > 0, running.gather(1, (block - 1).clamp_(min=0)), 0)

    columns = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=size - 1)).double()
    inside = torch.where(columns < size, inside, 0).cumsum_(1)
    # The same entries are summed in another order here: the block's own total bounds what is wanted.
    wanted = torch.minimum(wanted - before, inside[:, -1:] * BELOW_ONE)
    index = block * BLOCK + torch.searchsorted(inside, wanted, right=strict)
    return index.squeeze(1).clamp_(max=size - 1)


def _at_least(weights: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """1 where a weight is at least its row's floor, else 0, as floats.

    Comparing into bool and multiplying types that differ takes several times as long on a CPU.
    """
    return torch.ge(weights, floor[:, None], out=torch.empty_like(weights))
