"""The kernel plan: which implementation serves each layer, and why nothing faster does.

Invariants:

* resolution happens at load time only, and the same facts always give the same kernel object;
* every candidate of an op appears in its :class:`Choice`: as the winner, or with the reason why it lost;
* the plan is a value. Nothing reads it to decide anything later, so printing it cannot change what runs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch

from frizzen.errors import PlanError
from frizzen.kernels.facts import Facts, Machine, ShapeValue

__all__ = [
    "Candidate",
    "Choice",
    "Decision",
    "Op",
    "Place",
    "Plan",
    "PlanBuilder",
    "Reason",
    "Registry",
    "Rejection",
    "default_registry",
]

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Op(Generic[K]):
    """A named contract; ``K`` is the type of the kernels that fulfil it."""

    name: str
    shape: tuple[str, ...]
    """Names of the dimensions that its facts carry."""
    contract: str
    """What a kernel takes, returns and may change, with shapes."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a candidate does not serve a layer."""

    code: str
    """Stable, for metrics: ``device``, ``dtype``, ``missing_package``, ``build_failed``, ``disagrees`` ..."""
    message: str
    """One sentence with the value that failed and the value wanted."""
    fix: str | None = None
    """What the user can do about it, if anything."""

    @classmethod
    def of(cls, code: str, error: BaseException) -> Reason:
        """The reason that an exception is."""
        return cls(code, f"{type(error).__name__}: {error}".splitlines()[0])


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of one op."""

    op: str
    name: str
    rank: int
    """The highest rank that can serve a layer wins; the reference has 0."""
    requires: Callable[[Facts], Reason | None]
    """None if it can serve these facts."""
    build: Callable[[Facts], Any]
    """Makes the kernel. What only a run can tell is found out here: raising rejects the candidate."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that does not serve a layer."""

    candidate: str
    rank: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Choice:
    """What serves one place of one layer."""

    op: str
    site: str
    """The place in the layer: ``qkv``, ``input_norm``, ..."""
    layer: int | None
    """None for what stands outside the layers."""
    winner: str
    rank: int
    rejected: tuple[Rejection, ...]

    @property
    def degraded(self) -> tuple[Rejection, ...]:
        """Candidates of a higher rank than the winner."""
        return tuple(loser for loser in self.rejected if loser.rank > self.rank)


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice that is not a kernel, such as the dtype that ``auto`` stands for."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was decided at load time."""

    device: str
    decisions: tuple[Decision, ...]
    choices: tuple[Choice, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-able data; equal layers are one entry with ``layers: [[first, last], ...]``."""
        return {
            "device": self.device,
            "decisions": [
                {"name": entry.name, "value": entry.value, "reason": entry.reason} for entry in self.decisions
            ],
            "kernels": [
                {
                    "op": choice.op,
                    "site": choice.site,
                    "layers": ranges,
                    "kernel": choice.winner,
                    "rejected": [
                        {
                            "kernel": loser.candidate,
                            "code": loser.reason.code,
                            "message": loser.reason.message,
                            "fix": loser.reason.fix,
                            "faster": loser.rank > choice.rank,
                        }
                        for loser in choice.rejected
                    ],
                }
                for choice, ranges in self._groups()
            ],
        }

    def table(self) -> str:
        """The plan as text: a line per group of equal layers, and below it why nothing faster serves them."""
        groups = self._groups()
        cells = [("op", "site", "layers", "kernel")]
        cells += [(c.op, c.site, _show_ranges(ranges), c.winner) for c, ranges in groups]
        widths = [max(len(row[i]) for row in cells) for i in range(4)]
        lines = [f"kernel plan ({self.device})"]
        lines += [f"  {entry.name} = {entry.value}: {entry.reason}" for entry in self.decisions]
        for row, group in zip(cells, [None, *groups], strict=True):
            lines.append(
                "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            )
            # What is made for another device says nothing about this one; the JSON lists it all the same.
            here = [loser for loser in group[0].degraded if loser.reason.code != "device"] if group else []
            for loser in here:
                fix = f" (fix: {loser.reason.fix})" if loser.reason.fix else ""
                lines.append(f"      not {loser.candidate}: {loser.reason.code}: {loser.reason.message}{fix}")
        return "\n".join(lines)

    def strict(self) -> None:
        """Raises :class:`PlanError` if a faster candidate was rejected for a reason that the user can fix."""
        faults = dict.fromkeys(
            f"{choice.op}: {loser.candidate} is not used ({loser.reason.message}); fix: {loser.reason.fix}"
            for choice in self.choices
            for loser in choice.degraded
            if loser.reason.fix
        )
        if faults:
            raise PlanError("strict: " + "; ".join(faults))

    def _groups(self) -> list[tuple[Choice, list[list[int]]]]:
        """Choices that differ in the layer only, by first appearance, with the ranges of their layers."""
        groups: dict[tuple[object, ...], tuple[Choice, list[list[int]]]] = {}
        for choice in self.choices:
            key = (choice.op, choice.site, choice.winner, choice.rejected, choice.layer is None)
            _, ranges = groups.setdefault(key, (choice, []))
            if choice.layer is None:
                continue
            if ranges and ranges[-1][1] == choice.layer - 1:
                ranges[-1][1] = choice.layer
            else:
                ranges.append([choice.layer, choice.layer])
        return list(groups.values())


def _show_ranges(ranges: list[list[int]]) -> str:
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges) or "-"


class Registry:
    """The candidates of every op. Immutable once made."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        by_op: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            peers = by_op.setdefault(candidate.op, [])
            if any(candidate.name == peer.name or candidate.rank == peer.rank for peer in peers):
                raise PlanError(
                    f"{candidate.op} has two candidates with name {candidate.name} or rank {candidate.rank}"
                )
            peers.append(candidate)
        self._by_op = {
            op: tuple(sorted(peers, key=lambda peer: -peer.rank)) for op, peers in sorted(by_op.items())
        }

    def ops(self) -> tuple[str, ...]:
        """Names of the ops, sorted."""
        return tuple(self._by_op)

    def candidates(self, op: str) -> tuple[Candidate, ...]:
        """Candidates of an op, highest rank first."""
        return self._by_op.get(op, ())

    def restricted(self, allowed: Mapping[str, str]) -> Registry:
        """A registry in which each op of ``allowed`` has only the candidate named there."""
        for op, name in allowed.items():
            if name not in (names := [peer.name for peer in self.candidates(op)]):
                raise PlanError(f"{op} has no candidate {name}, only {', '.join(names) or 'none'}")
        return Registry(
            candidate
            for peers in self._by_op.values()
            for candidate in peers
            if allowed.get(candidate.op, candidate.name) == candidate.name
        )


def default_registry() -> Registry:
    """Collects ``CANDIDATES`` from every module of this package, so that a new backend is one new file."""
    package = importlib.import_module("frizzen.kernels")
    candidates: list[Candidate] = []
    for module in pkgutil.iter_modules(package.__path__, "frizzen.kernels."):
        candidates += getattr(importlib.import_module(module.name), "CANDIDATES", ())
    return Registry(candidates)


Check = Callable[[Op[Any], Candidate, Facts, Any], Reason | None]
"""Compares a kernel with the reference; a Reason (code ``disagrees``) takes the candidate out of service."""

Wrap = Callable[["Place", Any], Any]
"""What the layers get in place of a kernel: ``frizzen.kernels.stand_ins`` has two."""


class Place(NamedTuple):
    """A candidate in the service of equal layers."""

    op: str
    facts: Facts
    candidate: str


@dataclass(slots=True)
class PlanBuilder:
    """Resolves ops while a model is built, and writes down the outcome."""

    registry: Registry
    machine: Machine
    check: Check | None = None
    """Run on every kernel before it is accepted (``--self-test``)."""
    scope: str = ""
    """Goes before the names of decisions and sites: a draft model's stand beside the target's."""
    first_layer: int = 0
    """Where layers are counted from."""
    wrap: Wrap | None = None
    described: bool = False
    """The machine is not this one: a kernel that cannot be built here is taken at its ``requires``' word."""
    _decisions: list[Decision] = field(default_factory=list)
    _choices: list[Choice] = field(default_factory=list)
    _kernels: dict[int, list[tuple[str, str, int]]] = field(default_factory=dict)
    _resolved: dict[tuple[str, Facts], tuple[Any, Candidate, tuple[Rejection, ...]]] = field(
        default_factory=dict
    )
    _quarantined: dict[Place, Reason] = field(default_factory=dict)

    def again(self, wrap: Wrap | None) -> PlanBuilder:
        """A builder for the same model once more: what was resolved stays, what was written down does not."""
        return replace(self, wrap=wrap, _decisions=list(self._decisions), _choices=[], _kernels={})

    def quarantine(self, place: Place, reason: Reason) -> None:
        """Takes a candidate out of service where it failed; what follows resolves without it."""
        self._quarantined[place] = reason
        self._resolved.pop((place.op, place.facts), None)

    def decide(self, name: str, value: str, reason: str) -> None:
        """Records a decision that is not a kernel."""
        self._decisions.append(Decision(self.scope + name, value, reason))

    def scoped(self, scope: str, first_layer: int) -> PlanBuilder:
        """This very plan for a second model, whose layers come after ``first_layer`` others.

        Registry, kernels and record are shared by reference: what one resolves, the other has.
        """
        return replace(self, scope=scope, first_layer=first_layer)

    def resolve(
        self, op: Op[K], dtype: torch.dtype, *, site: str, layer: int | None = None, **shape: ShapeValue
    ) -> K:
        """The kernel for one place of one layer.

        Raises:
            PlanError: no candidate can serve it; the text has every reason.
        """
        if set(shape) != set(op.shape):
            raise PlanError(f"{op.name} is described by {sorted(op.shape)}, got {sorted(shape)}")
        facts = Facts.of(self.machine, dtype, shape)
        key = (op.name, facts)
        if key not in self._resolved:
            self._resolved[key] = self._walk(op, facts)
        kernel, winner, rejected = self._resolved[key]
        place = None if layer is None else layer + self.first_layer
        self._choices.append(Choice(op.name, self.scope + site, place, winner.name, winner.rank, rejected))
        if layer is not None and not self.scope:
            self._kernels.setdefault(layer, []).append((op.name, site, id(kernel)))
        if self.wrap is not None:
            kernel = self.wrap(Place(op.name, facts, winner.name), kernel)
        return cast("K", kernel)

    def distinct_layers(self, of_each: int) -> tuple[int, ...]:
        """The first ``of_each`` layers of every kind: those of one kind have the same kernels everywhere."""
        kinds: dict[frozenset[tuple[str, str, int]], list[int]] = {}
        for layer, kernels in sorted(self._kernels.items()):
            kinds.setdefault(frozenset(kernels), []).append(layer)
        return tuple(sorted(layer for layers in kinds.values() for layer in layers[:of_each]))

    def plan(self) -> Plan:
        """What was decided so far."""
        return Plan(self.machine.device, tuple(self._decisions), tuple(self._choices))

    def _walk(self, op: Op[Any], facts: Facts) -> tuple[Any, Candidate, tuple[Rejection, ...]]:
        rejected: list[Rejection] = []
        won: tuple[Any, Candidate] | None = None
        for candidate in self.registry.candidates(op.name):
            if won is not None:
                below = f"rank {candidate.rank} is below {won[1].rank} of {won[1].name}"
                reason = candidate.requires(facts) or Reason("outranked", below)
            else:
                kernel, failure = self._try(op, candidate, facts)
                if failure is None:
                    won = (kernel, candidate)
                    continue
                reason = failure
            rejected.append(Rejection(candidate.name, candidate.rank, reason))
        if won is None:
            reasons = "; ".join(f"{entry.candidate}: {entry.reason.message}" for entry in rejected)
            raise PlanError(f"nothing serves {op.name} for {dict(facts.shape)}: {reasons or 'no candidates'}")
        return (*won, tuple(rejected))

    def _try(self, op: Op[Any], candidate: Candidate, facts: Facts) -> tuple[Any, Reason | None]:
        reason = self._quarantined.get(Place(op.name, facts, candidate.name)) or candidate.requires(facts)
        if reason is not None:
            return None, reason
        try:
            kernel = candidate.build(facts)
        # An outside package fails in ways of its own; whichever it was, the next candidate serves and the
        # plan says why.
        except Exception as error:  # noqa: BLE001
            if self.described:
                return self.registry.candidates(op.name)[-1].build(facts), None
            return None, Reason.of("build_failed", error)
        return kernel, self.check(op, candidate, facts, kernel) if self.check else None
