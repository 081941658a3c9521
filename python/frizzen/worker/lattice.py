"""Which shapes of steps get a CUDA graph, and which of them serves a step. Plain arithmetic, no device.

A graph is right for every step that is at most as large: rows and tokens that are not there are padding, and
lengths are read on the device. So a shape is a bound, and the lattice is where the bounds lie.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["Lattice", "Shape", "StepSizes", "bucket"]

_CONTEXTS = (512, 4096)
"""Bounds of the context below the longest one: attention cuts longer contexts into more parts, which costs
steps with short ones."""
_MOST_TOKENS = 1024
"""Steps of more tokens keep the device busy for longer than it takes to launch them."""
_FREE_PADDING = 64
"""Tokens of padding that cost no more than the launch of a step without a graph."""


class StepSizes(Protocol):
    """What the host knows of a step."""

    @property
    def num_rows(self) -> int:
        """Rows."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""

    @property
    def max_query(self) -> int:
        """Tokens of the longest row."""

    @property
    def max_context(self) -> int:
        """Its longest context."""


class Shape(NamedTuple):
    """What a graph can serve."""

    rows: int
    width: int
    """Tokens per row."""
    context: int

    @property
    def tokens(self) -> int:
        """All tokens, padding included."""
        return self.rows * self.width


@dataclass(frozen=True, slots=True)
class Lattice:
    """Bounds of rows, of query widths and of contexts, each ascending."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    max_tokens: int
    """Of one step."""

    @classmethod
    def of(cls, *, max_rows: int, max_drafts: int, max_context: int, max_tokens: int) -> Lattice:
        """The lattice of an engine with these limits: finer where a row more costs relatively more."""
        rows = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32)]
        rows += range(256, max(max_rows, 256) + 1, 64)
        # Padding is multiplied with the dense weights: finer where a draft more is relatively more.
        widths = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, *range(33, 2 + max_drafts, 16)]
        return cls(
            rows=_up_to(rows, max_rows),
            widths=_up_to(widths, 1 + max_drafts),
            contexts=_up_to(_CONTEXTS, max_context),
            max_tokens=max_tokens,
        )

    def shapes(self) -> list[Shape]:
        """All shapes, largest first: then a smaller graph finds room in the memory of the larger ones."""
        every = (Shape(r, w, c) for r in self.rows for w in self.widths for c in self.contexts)
        most = min(self.max_tokens, _MOST_TOKENS)
        return sorted(
            (shape for shape in every if shape.tokens <= most),
            key=lambda shape: (shape.tokens, shape.context, shape.rows),
            reverse=True,
        )

    def fit(self, step: StepSizes) -> Shape | None:
        """The smallest shape that serves ``step``; ``None`` if there is none, or if it is mostly padding."""
        rows = _at_least(self.rows, step.num_rows)
        width = _at_least(self.widths, step.max_query)
        context = _at_least(self.contexts, step.max_context)
        if rows is None or width is None or context is None:
            return None
        shape = Shape(rows, width, context)
        if shape.tokens > min(self.max_tokens, _MOST_TOKENS, 2 * step.num_tokens + _FREE_PADDING):
            return None
        return shape


def bucket(step: StepSizes) -> str:
    """A step's shape as a label, of which there are few: powers of two that bound its rows and tokens."""
    rows, tokens = (1 << max(count - 1, 0).bit_length() for count in (step.num_rows, step.num_tokens))
    return f"{rows}x{tokens}"


def _up_to(bounds: list[int] | tuple[int, ...], last: int) -> tuple[int, ...]:
    return (*(bound for bound in bounds if bound < last), last)


def _at_least(bounds: tuple[int, ...], value: int) -> int | None:
    place = bisect_left(bounds, value)
    return bounds[place] if place < len(bounds) else None
