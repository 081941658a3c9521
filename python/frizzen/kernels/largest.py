"""The largest logit of each row, where nothing else is asked of them."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

__all__ = ["largest"]


def largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """``logits [T, V]`` float32 -> the largest ``[T]`` and their ids int64 ``[T]``, the lowest among equals.

    A row that holds a NaN has the largest NaN.
    """
    if logits.device.type == "cuda" and find_spec("triton") is not None:
        from frizzen.kernels.triton import steps

        return steps.largest(logits)
    maximum, tokens = logits.max(-1)
    return maximum, tokens
