"""Compiling ahead: by many processes, without launching; and telling what was compiled too late."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import triton.compiler
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.backends.nvidia import driver
from triton.runtime.cache import get_cache_key, get_cache_manager
from triton.runtime.jit import JITFunction

from frizzen.kernels.helpers import Helpers

__all__ = ["LateCompiles", "compile_only", "compile_to_cache", "distinct_launchers"]

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
def compile_only(threads: int, helpers: Helpers | None = None) -> Iterator[Callable[[], None]]:
    """Within, a launch compiles its kernel and computes nothing: its results are zeros.

    On leaving, every kernel that was met is compiled and on the device, and ``helpers`` are closed. Not to be
    entered while another thread launches. Yields a function to call now and then: from then on, launches of
    what is compiled by then are fast.
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
        with _helped(helpers):
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
        with distinct_launchers(), ThreadPoolExecutor(threads) as pool:
            load = partial(_load, device=torch.cuda.current_device())
            deque(pool.map(load, {id(kernel): kernel for kernel in kernels}.values()), 0)


@contextmanager
def _helped(helpers: Helpers | None) -> Iterator[None]:
    """Within, what is not in the cache is compiled by ``helpers`` first; they are closed on leaving."""
    original: Callable[..., Any] = triton.compiler.compile

    def compile_(source: Any, target: Any = None, options: Any = None, **others: Any) -> Any:
        if helpers is not None and target is not None and not _is_cached(source, target, options, others):
            helpers.compile(source, target, options)
        return original(source, target=target, options=options, **others)

    setattr(triton.compiler, "compile", compile_)  # noqa: B010
    try:
        yield
    finally:
        setattr(triton.compiler, "compile", original)  # noqa: B010
        if helpers is not None:
            helpers.close()


def _is_cached(source: Any, target: Any, options: Any, others: dict[str, Any]) -> bool:
    backend = triton.compiler.make_backend(target)
    environment = others.get("_env_vars")
    if environment is None:
        return False
    key = get_cache_key(source, backend, backend.parse_options(dict(options)), environment)
    cache = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    name = f"{source.name[:150]}.json"
    return name in (cache.get_group(name) or {})


def compile_to_cache(source: Any, target: Any, options: dict[str, Any]) -> None:
    """Compiles a kernel, and in C the launcher that triton up to 3.6 has for it, without a device."""
    kernel = triton.compiler.compile(source, target=target, options=options)
    if hasattr(driver, "make_launcher"):
        # Without a C compiler or the device's driver, the launch says so.
        with distinct_launchers(), contextlib.suppress(Exception):
            driver.CudaLauncher(source, kernel.metadata)


@contextmanager
def distinct_launchers() -> Iterator[None]:
    """Within, extension modules of different sources have different names, so that threads may load them.

    Triton up to 3.6 compiles a launcher per signature, all of one module name. Python fills a module that is
    loaded again into whatever has its name by then: another thread's kernel would get that launcher.
    """
    original: Callable[..., Any] = driver.compile_module_from_src

    def named(src: str, name: str, **others: Any) -> Any:
        # The part before the dot is a package that does not exist; what initialises it is named by the rest.
        digest = hashlib.sha256(src.encode()).hexdigest()[:16]
        return original(src=src, name=f"frizzen_{digest}.{name}", **others)

    setattr(driver, "compile_module_from_src", named)  # noqa: B010
    try:
        yield
    finally:
        setattr(driver, "compile_module_from_src", original)  # noqa: B010


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
