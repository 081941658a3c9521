"""The memory ledger: bytes by owner, predicted before anything is read and measured once the model is there.

Invariants:

* the prediction needs headers only: it is the same whether or not the model is loaded afterwards;
* what is measured is what the weights' device says, never the prediction again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from frizzen.sizes_text import show_bytes
from frizzen.worker.footprint import Footprint

__all__ = ["Budget", "Ledger", "Owner"]

LEAST_MEASURED = 64 << 20
"""Weights below this drown in what the libraries take and give back meanwhile."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of the device that holds the model, in bytes."""

    free: int
    """What could be taken before the start."""
    total: int
    """All there is; the same as ``free`` on a CPU, whose memory is shared with everybody."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody who holds memory."""

    name: str
    predicted: int
    measured: int | None = None
    parts: tuple[tuple[str, int], ...] = ()
    """Predicted bytes of what it is made of, the largest first."""
    bound: bool = False
    """``predicted`` is a limit and not an expectation; ``measured`` is what was needed so far at most."""

    @property
    def deviation(self) -> float | None:
        """Measured over predicted, less 1; None of a limit."""
        known = self.measured is not None and not self.bound
        return (self.measured or 0) / max(self.predicted, 1) - 1 if known else None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Who holds how much of a device."""

    device: str
    budget: Budget
    owners: tuple[Owner, ...]

    @classmethod
    def of(
        cls,
        device: str,
        budget: Budget,
        weights: Mapping[str, int],
        kv_cache: int,
        reserve: int,
        *,
        drafts: int = 0,
        steps: Footprint | None = None,
    ) -> Ledger:
        """The prediction; ``weights`` by what they are part of, ``drafts`` for their distributions.

        ``reserve`` is all that is not given to weights, cache and drafts; ``steps`` are part of it.
        """
        parts = tuple(sorted(weights.items(), key=lambda part: (-part[1], part[0])))
        owners = [Owner("weights", sum(weights.values()), parts=parts), Owner("kv_cache", kv_cache)]
        if drafts:
            owners.append(Owner("drafts", drafts))
        for name, size in (("graphs", steps.graphs), ("workspaces", steps.workspaces)) if steps else ():
            if size:
                owners.append(Owner(name, size, bound=name == "workspaces"))
                reserve -= size
        if reserve > 0:
            owners.append(Owner("reserve", reserve, bound=True))
        return cls(device, budget, tuple(owners))

    @property
    def weights(self) -> int:
        """Predicted bytes of the parameters."""
        return self["weights"].predicted

    @property
    def total(self) -> int:
        """Predicted bytes of everybody."""
        return sum(owner.predicted for owner in self.owners)

    def predicted(self, name: str) -> int:
        """Predicted bytes of an owner; 0 if there is none of that name."""
        return next((owner.predicted for owner in self.owners if owner.name == name), 0)

    def __getitem__(self, name: str) -> Owner:
        for owner in self.owners:
            if owner.name == name:
                return owner
        raise KeyError(name)

    def predicting(self, **expected: int) -> Ledger:
        """The ledger with better predictions."""
        owners = [
            replace(owner, predicted=expected.get(owner.name, owner.predicted)) for owner in self.owners
        ]
        return replace(self, owners=tuple(owners))

    def measured(self, **found: int | None) -> Ledger:
        """The ledger with what owners were found to hold; ``None`` where that cannot be measured."""
        owners = [
            replace(owner, measured=found[owner.name]) if owner.name in found else owner
            for owner in self.owners
        ]
        return replace(self, owners=tuple(owners))

    def to_json(self) -> dict[str, Any]:
        """Bytes throughout."""
        return {
            "device": self.device,
            "free_before": self.budget.free,
            "device_total": self.budget.total,
            "owners": [
                {
                    "owner": owner.name,
                    "predicted": owner.predicted,
                    "measured": owner.measured,
                    "bound": owner.bound,
                    "parts": dict(owner.parts),
                }
                for owner in self.owners
            ],
        }

    def table(self) -> str:
        """A line per owner, and one per part of the weights."""
        lines = [f"memory of {self.device}: {show_bytes(self.budget.free)} were free"]
        for owner in self.owners:
            text = f"  {owner.name:<16}{show_bytes(owner.predicted):>11}"
            if owner.measured is not None:
                share = "of it at most so far" if owner.deviation is None else f"({owner.deviation:+.1%})"
                text += f"  measured {show_bytes(owner.measured)} {share}"
            lines.append(text)
            lines += [f"    {name:<14}{show_bytes(size):>11}" for name, size in owner.parts]
        return "\n".join([*lines, f"  {'together':<16}{show_bytes(self.total):>11}"])
