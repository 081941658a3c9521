"""Processes that compile kernels: threads of one process wait for each other in triton's compiler.

They are forked before this process uses a device, never use one themselves, and fill the cache of compiled
kernels, where this process then finds what it asks for. Whatever goes wrong there only means that nothing is
found: then it compiles here.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pickle
import pkgutil
import queue
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, Protocol

__all__ = ["MOST", "Helpers"]

MOST = 24
"""Helpers; with more of them the longest kernel still takes as long."""

PATIENCE = 120.0
"""Seconds after which a kernel is compiled here rather than waited for."""


class Source(Protocol):
    """As much of triton's ``ASTSource`` as is needed here."""

    name: str


class Helpers:
    """Compilers of this process; to be asked by as many threads as there are of them."""

    def __init__(self, helpers: Sequence[Connection], first: int) -> None:
        self._idle: queue.LifoQueue[Connection | None] = queue.LifoQueue()
        for helper in helpers:
            self._idle.put(helper)
        self._first = first
        self._open = True
        self.compiled: list[tuple[float, str]] = []
        """Seconds and name of every kernel that a helper has compiled."""

    @classmethod
    def start(cls, count: int) -> Helpers | None:
        """Forks ``count`` helpers, which import what they need meanwhile; ``None`` where nothing forks."""
        if not hasattr(os, "fork"):
            return None
        try:
            pairs = [Pipe() for _ in range(min(count, MOST))]
            with warnings.catch_warnings():
                # Threads of this process hold nothing that a compiler asks for.
                warnings.simplefilter("ignore", DeprecationWarning)
                first = os.fork()
        # Too many files or processes.
        except OSError:
            return None
        if first == 0:
            _forked([theirs for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        return cls([ours for ours, _ in pairs], first)

    def summary(self) -> str | None:
        """What was compiled, in a line, if anything was."""
        if not self.compiled:
            return None
        together = sum(seconds for seconds, _ in self.compiled)
        longest = ", ".join(f"{name} {seconds:.1f} s" for seconds, name in sorted(self.compiled)[:-4:-1])
        return f"{len(self.compiled)} kernels compiled in {together:.0f} s of processes beside; {longest}"

    def compile(self, source: Source, target: Any, options: dict[str, Any]) -> None:
        """Has ``source`` compiled into the cache, if a helper can."""
        if not self._open:
            return
        try:
            job = _pickled((source, target, options))
        # A function without a name to find it by, or a constant that is none.
        except (pickle.PicklingError, TypeError, AttributeError):
            return
        helper = self._idle.get()
        if helper is not None:
            try:
                helper.send_bytes(job)
                if not helper.poll(PATIENCE):
                    raise TimeoutError(f"no answer within {PATIENCE} s")
                if answer := helper.recv_bytes():
                    self.compiled.append((float(answer), source.name))
            except (OSError, EOFError):
                helper.close()
                helper = None
        self._idle.put(helper)

    def close(self) -> None:
        """Lets the helpers end; from now on nothing is compiled elsewhere."""
        self._open = False
        with contextlib.suppress(queue.Empty):
            while True:
                if (helper := self._idle.get_nowait()) is not None:
                    helper.close()
        threading.Thread(target=_reap, args=(self._first,), daemon=True).start()


def _reap(child: int) -> None:
    """Waits for the first child, which waits for the others."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


class _Pickler(pickle.Pickler):
    """Takes kernels by their names."""

    def reducer_override(self, value: Any) -> Any:
        from triton.runtime.jit import JITCallable

        if isinstance(value, JITCallable):
            return _named, (value.fn.__module__, value.fn.__qualname__)
        return NotImplemented


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _pickled(job: object) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream).dump(job)
    return stream.getvalue()


def _forked(ends: list[Connection]) -> None:
    """The first child: imports once for all helpers, forks them, waits for them. Does not return."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _keep_open([end.fileno() for end in ends])
        gc.disable()
        _prepare()
        gc.freeze()
        while ends:
            end = ends.pop()
            if os.fork() == 0:
                for other in ends:
                    other.close()
                _serve(end)
                os._exit(0)
            end.close()
        while True:
            os.wait()
    # No child is left, or nothing came of it; whoever waits for an answer sees the end of the connection.
    finally:
        os._exit(0)


def _keep_open(files: Sequence[int]) -> None:
    """Closes what else the parent has open: sockets of clients, pipes that are read to their end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in {0, 1, 2, *files}:
            # The one of the listing itself is closed already.
            with contextlib.suppress(OSError):
                os.close(int(name))


def _prepare() -> None:
    """Imports kernels, and computes what triton computes once."""
    from triton.runtime.cache import triton_key

    triton_key()
    package = importlib.import_module("frizzen.kernels.triton")
    for module in pkgutil.iter_modules(package.__path__, "frizzen.kernels.triton."):
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(module.name)


def _serve(parent: Connection) -> None:
    """Compiles what it is sent until the other end is closed, and answers with the seconds, or nothing.

    Only here is anything unpickled: what the process sends that forked this one.
    """
    from frizzen.kernels.triton.compiling import compile_to_cache

    while True:
        try:
            job = parent.recv_bytes()
        except (EOFError, OSError):
            return
        began = time.monotonic()
        try:
            compile_to_cache(*pickle.loads(job))
            answer = str(time.monotonic() - began).encode()
        # The parent compiles what failed here, and raises what there is to raise.
        except Exception:  # noqa: BLE001
            answer = b""
        parent.send_bytes(answer)
