"""Ctrl-C between the steps of a generation, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["deferred_interrupts"]


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], None]]:
    """Holds SIGINT back; gives a function that lets it through, to be called where stopping is harmless.

    Inside a step the interrupt would leave the worker half-way, and the engine would take it for a failure. A
    second Ctrl-C is let through at once: the step may hang. Outside the main thread, where no handler runs,
    this does nothing.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield lambda: None
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            previous(number, frame)

    def let_through() -> None:
        if held:
            previous(*held.pop())

    signal.signal(signal.SIGINT, hold)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, previous)
    let_through()
