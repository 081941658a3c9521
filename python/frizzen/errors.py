"""Exceptions of the package. Every text names the offending value and the limit it broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "CatalogError",
    "CheckpointError",
    "ConfigError",
    "CorruptFileError",
    "DoesNotFitError",
    "FrizzenError",
    "LoadError",
    "PlanError",
    "RequestError",
    "ShapeMismatch",
    "UnsupportedModelError",
]


class FrizzenError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(FrizzenError, ValueError):
    """A configuration value that cannot be served."""


class DoesNotFitError(ConfigError):
    """A model that needs more memory than there is; the text has the ledger and what would fit."""


class RequestError(FrizzenError, ValueError):
    """A request that is refused before it is scheduled."""


class PlanError(FrizzenError):
    """No kernel serves an op, or ``--strict`` found a faster one that the user could have enabled."""


class LoadError(FrizzenError):
    """A model that cannot be loaded."""


class CatalogError(LoadError):
    """A model name that leads to no weights: unknown, not installed, or a hub that cannot be reached."""


class UnsupportedModelError(LoadError):
    """An architecture, or a value in its configuration, that no family here computes."""


class CorruptFileError(LoadError):
    """A checkpoint file that is truncated or whose bytes contradict its own header."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} is damaged: {problem}")
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ShapeMismatch:
    """One tensor whose shape is not what the configuration implies."""

    name: str
    expected: tuple[int, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} has shape {list(self.found)}, expected {list(self.expected)}"


class CheckpointError(LoadError):
    """A checkpoint whose tensors are not those of the model: every difference at once."""

    def __init__(
        self,
        path: Path,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[ShapeMismatch] = (),
    ) -> None:
        parts = [
            *_listing("missing", missing),
            *_listing("unexpected", unexpected),
            *(str(entry) for entry in mismatched[:8]),
        ]
        if len(mismatched) > 8:
            parts.append(f"and {len(mismatched) - 8} more shapes differ")
        super().__init__(f"{path} does not hold this model: {'; '.join(parts)}")
        self.path = path
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = tuple(mismatched)


def _listing(kind: str, names: Sequence[str]) -> list[str]:
    """``names`` as one phrase, cut after eight so that a wrong directory stays readable."""
    if not names:
        return []
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return [f"{kind} {', '.join(names[:8])}{rest}"]
