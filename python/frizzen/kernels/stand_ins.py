"""What layers get in place of a kernel while a model is built: one that is watched, or one that only counts.

A watched kernel is the kernel itself; if it fails while it prepares a layer, the failure names it, so that
the start can go on without it. A rehearsed kernel is handed tensors without data (torch's device ``meta``)
and never touches them: that is how a model's plan and memory are known before anything of it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels.plan import Place, Reason

__all__ = ["KernelFaultError", "Rehearsal", "Rehearsed", "Watch", "Watched"]


class Watch:
    """Watches every kernel of a model; a plan builder's ``wrap``."""

    def __init__(self) -> None:
        self._watched: dict[Place, Watched] = {}

    def __call__(self, place: Place, kernel: Any) -> Watched:
        """The same object for the same place: layers that share a kernel share its preparation of a step."""
        return self._watched.setdefault(place, Watched(place, kernel))

    def cache_bytes(self) -> int:
        """Bytes of the KV caches that were allocated."""
        return sum(watched.cache_bytes for watched in self._watched.values())


class Rehearsal:
    """Rehearses every kernel of a model; a plan builder's ``wrap``."""

    def __init__(self) -> None:
        self._rehearsed: list[Rehearsed] = []

    def __call__(self, _: Place, kernel: Any) -> Rehearsed:
        """One object per layer."""
        self._rehearsed.append(Rehearsed(kernel))
        return self._rehearsed[-1]

    def extra_bytes(self) -> int:
        """What kernels will keep besides the parameters."""
        return sum(rehearsed.extra_bytes for rehearsed in self._rehearsed)


class KernelFaultError(Exception):
    """A kernel raised while it prepared a layer; ``reason`` is for the plan."""

    def __init__(self, place: Place, reason: Reason) -> None:
        super().__init__(f"{place.op}: {place.candidate} failed: {reason.message}")
        self.place = place
        self.reason = reason


class Watched:
    """A kernel whose ``prepare`` raises :class:`KernelFaultError`, and whose caches are counted.

    Everything else is the kernel's own, its class included: a layer that asks for a kind of kernel finds it.
    """

    def __init__(self, place: Place, kernel: Any) -> None:
        self.__place = place
        self.__kernel = kernel
        self.cache_bytes = 0
        """Of the caches that it allocated."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__kernel)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__kernel, name)
        if name.startswith("prepare"):
            value = self.__watched(value)
        # A method stays the same, so that a step finds it without coming here.
        if callable(value):
            self.__dict__[name] = value
        return value

    def allocate(self, num_blocks: int, device: torch.device) -> Any:
        """The kernel's own."""
        cache = self.__kernel.allocate(num_blocks, device)
        self.cache_bytes += _storage_bytes(cache)
        return cache

    def __watched(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*constants: Any) -> Any:
            try:
                return prepare(*constants)
            # Too little memory is nobody's fault.
            except (torch.OutOfMemoryError, MemoryError):
                raise
            # Whatever an outside package raises means the same: this kernel does not serve this layer.
            except Exception as error:
                raise KernelFaultError(self.__place, Reason.of("prepare_failed", error)) from error

        return watched


class Rehearsed:
    """A kernel that is asked for its layout, its sizes and its class only."""

    def __init__(self, kernel: Any) -> None:
        self.__kernel = kernel
        self.extra_bytes = 0
        """What the kernel will keep besides the constants that it was given."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__kernel)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__kernel, name)
        return self.__prepared if name.startswith("prepare") else value

    def __prepared(self, *constants: Any) -> _Anything:
        """Counts; returns something that stands for whatever a kernel would return."""
        extra = getattr(self.__kernel, "extra_bytes", None)
        if extra is not None:
            self.extra_bytes += extra(*constants)
        return _Anything()


class _Anything:
    """Called, taken apart or asked for an attribute, it gives itself."""

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return self

    def __iter__(self) -> Iterator[_Anything]:
        return iter((self, self))

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def _storage_bytes(cache: Any) -> int:
    """Bytes of a tensor, or of those in a dataclass; views of one memory count once."""
    parts = [getattr(cache, field.name) for field in fields(cache)] if is_dataclass(cache) else [cache]
    storages = [part.untyped_storage() for part in parts if isinstance(part, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
