"""Where the time between two steps goes: stamps of the host and events of the device around a step's parts.

With drafts the next plan needs the results of the step before, so from the last kernel of a step to the first
one of the next the device waits for: results to come, the engine to verify and plan, the worker to upload,
and the launch of the step's graph. Stamps cost a few microseconds of their own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from frizzen.worker.worker import Worker

__all__ = ["Timeline"]

DEVICE = ("begin", "uploaded", "forward", "tail", "results")
"""Events of a step on the device, in their order."""
HOST = (*DEVICE, "returned", "waits", "waited", "collected")
"""Stamps of a step on the host."""


@dataclass(slots=True)
class _Step:
    """Host times in seconds, and the device's events, by name."""

    host: dict[str, float] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)


class Timeline:
    """Watches the steps of one worker; to be given the worker before the engine has bound its methods."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._steps: list[_Step] = []
        self._on = False
        self._instrument()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stamps the steps of the body; what was stamped before is forgotten."""
        self._steps.clear()
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def summary(self) -> dict[str, float]:
        """Medians in microseconds: ``host_*`` by the host's clock, ``device_*`` between events."""
        found: dict[str, list[float]] = {}

        def add(name: str, seconds: float) -> None:
            found.setdefault(name, []).append(1e6 * seconds)

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for before, after in pairwise(self._steps):
            first, then = before.host, after.host
            if "collected" not in first or "returned" not in then:
                continue
            add("host_engine", then["begin"] - first["collected"])
            self._spans(then, HOST, lambda one, two: two - one, lambda name, span: add(f"host_{name}", span))
            if "waited" in first and "waited" in then:
                add("host_period", then["waited"] - first["waited"])
            if "results" in before.device and "begin" in after.device:
                add("device_idle", before.device["results"].elapsed_time(after.device["begin"]) / 1e3)
                self._spans(
                    after.device,
                    DEVICE,
                    lambda one, two: one.elapsed_time(two) / 1e3,
                    lambda name, span: add(f"device_{name}", span),
                )
        return {name: round(statistics.median(times), 1) for name, times in found.items()}

    @staticmethod
    def _spans(
        marks: dict[str, Any],
        order: Sequence[str],
        between: Callable[[Any, Any], float],
        add: Callable[[str, float], None],
    ) -> None:
        """Of every mark since the one before it that there is."""
        there = [name for name in order if name in marks]
        for one, two in pairwise(there):
            add(two, between(marks[one], marks[two]))

    def _mark(self, name: str, *, device: bool = True) -> None:
        if not self._on or not self._steps:
            return
        step = self._steps[-1]
        step.host[name] = time.perf_counter()
        if device and torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            step.device[name] = event

    def _instrument(self) -> None:
        worker = self._worker
        submit, collect, bind = worker.submit, worker.collect, worker.bind

        def submitted(index: int) -> None:
            if self._on:
                self._steps.append(_Step())
            self._mark("begin")
            submit(index)
            self._mark("returned", device=False)

        def collected(index: int) -> None:
            collect(index)
            self._mark("collected", device=False)

        def bound(layout: Any) -> list[tuple[int, int]]:
            addresses = bind(layout)
            for arena in worker._arenas:
                self._after(arena, "upload", "uploaded")
                self._after(arena, "download", "results")
                self._around_wait(arena)
            if worker._graphs is not None and worker._tails is not None:
                self._after(worker._graphs, "replay", "forward")
                self._after(worker._tails, "replay", "tail")
            return addresses

        worker.submit = submitted  # type: ignore[method-assign]
        worker.collect = collected  # type: ignore[method-assign]
        worker.bind = bound  # type: ignore[method-assign]

    def _after(self, owner: object, method: str, name: str) -> None:
        call: Callable[..., object] = getattr(owner, method)

        def marked(*arguments: object, **named: object) -> object:
            result = call(*arguments, **named)
            self._mark(name)
            return result

        setattr(owner, method, marked)

    def _around_wait(self, arena: Any) -> None:
        wait: Callable[[], None] = arena.wait

        def waited() -> None:
            self._mark("waits", device=False)
            wait()
            self._mark("waited", device=False)

        arena.wait = waited
