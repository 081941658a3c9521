"""Ctrl-C is let through where the generation may stop, and nowhere else."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from frizzen.interrupts import deferred_interrupts


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def generation(reached: list[str], *, interrupts: int, let_through_after: bool) -> None:
    """Notes the points that it reaches while it is interrupted."""
    with deferred_interrupts() as let_through:
        let_through()
        for _ in range(interrupts):
            interrupt()
        reached.append("end of the step")
        if let_through_after:
            let_through()
        reached.append("end")


@pytest.mark.parametrize(
    ("interrupts", "let_through_after", "expected"),
    [
        (1, True, ["end of the step"]),
        (1, False, ["end of the step", "end"]),
        (2, True, []),
    ],
    ids=["waits_until_let_through", "comes_at_the_end", "a_second_one_does_not_wait"],
)
def test_an_interrupt_comes_where_it_does_no_harm(
    interrupts: int, let_through_after: bool, expected: list[str]
) -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        generation(reached, interrupts=interrupts, let_through_after=let_through_after)
    assert reached == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_callers_own_handler_is_the_one_that_is_called() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with deferred_interrupts() as let_through:
            interrupt()
            assert seen == []
            let_through()
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_need_no_handler() -> None:
    done: list[bool] = []

    def run() -> None:
        with deferred_interrupts() as let_through:
            let_through()
        done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]
