"""The largest logit of each row, where nothing else is asked of them."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

__all__ = ["largest"]


def largest(logits: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``logits [T, V]`` float32 -> the largest ``[T]`` and where they are, int64 ``[T]``.

    The first among equals; with ``ids`` ``[V]`` int64, the id at its place. A row that holds a NaN has the
    largest NaN.
    """
    if logits.device.type == "cuda" and find_spec("triton") is not None:
        from frizzen.kernels.triton import steps

        return steps.largest(logits, ids)
    maximum, places = logits.max(-1)
    return maximum, places if ids is None else ids[places]
