"""The Python stacks of all threads, although one of them may hold the interpreter for ever."""

from __future__ import annotations

import faulthandler
import signal
import tempfile

__all__ = ["write_on_signal"]


def write_on_signal(number: int) -> int | None:
    """Lets the signal ``number`` append the stacks of all threads to an unnamed file; returns its descriptor.

    They are written by ``faulthandler`` inside of the signal's C handler, which takes no lock of the
    interpreter. None if the program handles the signal already.

    Raises:
        OSError: there is no room for the file.
    """
    if signal.getsignal(number) is not signal.SIG_DFL:
        return None
    # It has to stay open as long as the process: the handler keeps it.
    file = tempfile.TemporaryFile()  # noqa: SIM115
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    return file.fileno()
