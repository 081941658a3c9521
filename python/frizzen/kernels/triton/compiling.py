"""Compiling ahead: on many threads, without launching; and telling what was compiled too late."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.runtime import build
from triton.runtime.jit import JITFunction

__all__ = ["LateCompiles", "compile_only"]

try:
    from triton.runtime._async_compile import AsyncCompileMode
except ImportError:  # An older triton, or one that moved it: everything works, on one thread.
    AsyncCompileMode = None


SWITCH_INTERVAL = 0.005
"""Seconds that a busy thread may keep the interpreter while kernels are compiled."""


class _Zeros(TorchFunctionMode):
    """New memory is zero: torch's operators read what kernels were to write, and may take it for indices."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.empty:
            func = torch.zeros
        elif func is torch.empty_like:
            func = torch.zeros_like
        return func(*args, **(kwargs or {}))


@contextmanager
def compile_only(threads: int) -> Iterator[Callable[[], None]]:
    """Within, a launch compiles its kernel and computes nothing: its results are zeros.

    On leaving, every kernel that was met is compiled and on the device. Not to be entered while another
    thread launches. Yields a function to call now and then: from then on, launches of what is compiled by
    then are fast.
    """
    met: dict[int, Any] = {}
    original, interval = JITFunction.run, sys.getswitchinterval()

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = original(self, *args, **(kwargs | {"warmup": True}))
        met[id(kernel)] = kernel
        return kernel

    # No launch tells a kernel to compile only: the class has one method that does either.
    setattr(JITFunction, "run", run)  # noqa: B010
    # Compilers take turns in Python: short turns, which suit a server, cost them as much as the work.
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        if AsyncCompileMode is None:
            with _Zeros():
                yield lambda: None
        else:
            with ThreadPoolExecutor(threads) as pool, AsyncCompileMode(pool) as compiling, _Zeros():
                yield partial(_settle, compiling, set())
    finally:
        sys.setswitchinterval(interval)
        setattr(JITFunction, "run", original)  # noqa: B010
    # What was compiled on another thread is the promise of a kernel, met once as that and once as itself.
    kernels = [kernel.result() if hasattr(kernel, "result") else kernel for kernel in met.values()]
    if kernels:
        with _modules_apart(), ThreadPoolExecutor(threads) as pool:
            load = partial(_load, device=torch.cuda.current_device())
            deque(pool.map(load, {id(kernel): kernel for kernel in kernels}.values()), 0)


@contextmanager
def _modules_apart() -> Iterator[None]:
    """Within, threads that load launchers get each its own.

    Triton gives all of them one name. Python loads an extension again, as for another kernel of the same
    signature, into whatever module has its name: with a second thread in between, a kernel would be launched
    by another's launcher. So what was loaded is copied before anything else is.
    """
    original, lock = getattr(build, "_load_module_from_path", None), Lock()
    if original is None:
        yield
        return

    def load(name: str, path: str) -> Any:
        with lock:
            return SimpleNamespace(**vars(original(name, path)))

    setattr(build, "_load_module_from_path", load)  # noqa: B010
    try:
        yield
    finally:
        setattr(build, "_load_module_from_path", original)  # noqa: B010


def _load(kernel: Any, device: int) -> None:
    """Does what a first launch does: builds the launcher (in C), takes the binary to the device."""
    torch.cuda.set_device(device)
    _ = kernel.run


def _settle(compiling: Any, settled: set[Any]) -> None:
    """Lets the launches know of the kernels that other threads have finished."""
    for future in compiling.raw_futures:
        if future.done() and future._key not in settled:
            compiling.future_kernels[future._key].result()
            settled.add(future._key)


class LateCompiles:
    """Counts compilations from :meth:`watch` on, by kernel and specialisation, as long as the process lives.

    Whoever watched before is still told.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._before: Callable[..., Any] | None = None

    def watch(self) -> None:
        """Begins to count."""
        self._before = knobs.runtime.jit_post_compile_hook
        knobs.runtime.jit_post_compile_hook = self._compiled

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        self._counts[str(kwargs.get("repr") or getattr(kwargs.get("fn"), "name", "unknown"))] += 1
        return self._before(*args, **kwargs) if self._before else None
