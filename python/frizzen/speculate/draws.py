"""More random numbers out of one: what verification with draft probabilities needs beyond a draw per token.

The scheduler sends one uniform number per sampled position, a pure function of (seed, position). Drawing a
draft, testing it and replacing it must be independent of each other and of the draw itself, or the output's
distribution would not be the target's. Each purpose is therefore a counter, and a number is hashed with it:
SplitMix64 started at the number's 64 bits, counter steps ahead. Nothing is kept between steps, so a request
preempted and computed again sees the same numbers.
"""

from __future__ import annotations

from enum import IntEnum

import torch

__all__ = ["Draw", "derived"]


class Draw(IntEnum):
    """What a derived number is for."""

    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3
    """Counts on with the draft's place: drafts are drawn before the numbers of their own positions exist."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


def derived(uniforms: torch.Tensor, purpose: Draw, place: int = 0) -> torch.Tensor:
    """Uniform numbers ``[N]`` float64 in ``[0, 1)``, of ``uniforms`` ``[N]`` float64 and a purpose."""
    x = uniforms.contiguous().view(torch.int64) + _signed((purpose + place) * _STEP % (1 << 64))
    for shift, factor in _ROUNDS:
        x = (x ^ _shifted(x, shift)) * factor
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).double() * 2.0**-53


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """A logical shift to the right: torch's own repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
