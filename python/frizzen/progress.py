"""Progress on standard error: a bar for generation, a line for each long phase of a start, its timeline."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["ProgressBar", "Timeline", "phase", "process_age"]

WIDTH = 24
INTERVAL = 0.1
"""Seconds between two drawings."""


class ProgressBar:
    """One line that is drawn over and over; made to be called often."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._next = self._start
        self._drawn = 0

    def update(self, done: int, total: int, tokens: int) -> None:
        """Draws requests and token rate, unless they were drawn just now and more is to come."""
        if self._due(final=done >= total):
            filled = WIDTH * done // max(total, 1)
            rate = tokens / max(time.monotonic() - self._start, 1e-9)
            bar = "#" * filled + " " * (WIDTH - filled)
            self.draw(f"[{bar}] {done}/{total} requests, {rate:,.0f} tokens/s")

    def share(self, name: str, done: int, total: int) -> None:
        """Draws how far the phase ``name`` is, unless that was drawn just now."""
        if self._due(final=False):
            self.draw(f"{name}: {100 * done // max(total, 1)} %")

    def draw(self, line: str) -> None:
        """Replaces the line."""
        sys.stderr.write(("\r" if self._drawn else "") + line.ljust(self._drawn))
        sys.stderr.flush()
        self._drawn = len(line)

    def close(self) -> None:
        """Ends the line."""
        if self._drawn:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._drawn = 0

    def _due(self, *, final: bool) -> bool:
        now = time.monotonic()
        if now < self._next and not final:
            return False
        self._next = now + INTERVAL
        return True


@contextmanager
def phase(name: str) -> Iterator[Callable[[int, int], None]]:
    """Reports a phase and how long it took; gives a function to call with (done, total).

    On a terminal the line is there from the start and shows how far the phase is; elsewhere it comes at
    the end.
    """
    bar = ProgressBar()
    live = sys.stderr.isatty()
    if live:
        bar.draw(f"{name} ...")
    started = time.monotonic()
    try:
        yield lambda done, total: bar.share(name, done, total) if live else None
        bar.draw(f"{name}: {time.monotonic() - started:.1f} s")
    finally:
        bar.close()


class Timeline:
    """Seconds of the phases of a start, without a gap between them; ``before`` began with the process."""

    def __init__(self, age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self.phases: dict[str, float] = {"before": age}

    def mark(self, name: str) -> None:
        """Ends the phase ``name``, which may have been there before."""
        now = self._clock()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._last
        self._last = now

    def to_json(self) -> list[dict[str, Any]]:
        """``phase`` and its ``seconds``, in order."""
        return [{"phase": name, "seconds": round(seconds, 3)} for name, seconds in self.phases.items()]

    def table(self) -> str:
        """A line per phase: its seconds, and seconds since the process began."""
        lines, at = [], 0.0
        for name, seconds in self.phases.items():
            at += seconds
            lines.append(f"  {name:<17} {seconds:7.2f} s  until {at:7.2f} s")
        return "\n".join([f"started in {at:.2f} s", *lines])


def process_age(stat: Path = Path("/proc/self/stat")) -> float:
    """Seconds since this process began; 0 where the system does not say."""
    try:
        # The 20th number behind the name, which may hold blanks, is the start in ticks since the boot.
        ticks = int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
