"""Static facts about the machine and one layer: all that a candidate may base its answer on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

__all__ = ["Facts", "Machine", "ShapeValue", "default_dtype", "detect_machine"]

ShapeValue = int | float | bool | str

_PACKAGES = ("torch", "triton", "flashinfer-python", "sgl-deep-gemm", "sgl-deep-ep")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the model runs."""

    device: str
    """torch's device type: ``cpu`` or ``cuda``."""
    capability: frozenset[str]
    """Instruction sets of a CPU as Linux spells them (``avx512_bf16``), or ``sm_90`` for a GPU."""
    threads: int
    """Threads that torch computes with."""
    packages: tuple[tuple[str, str], ...]
    """Installed kernel packages and their versions: for reasons, never the test of whether one works."""

    def version(self, package: str) -> str | None:
        """Version of an installed package, or None."""
        return dict(self.packages).get(package)


@dataclass(frozen=True, slots=True)
class Facts:
    """One layer's problem. Hashable: equal facts share one kernel."""

    machine: Machine
    dtype: torch.dtype
    """Type of activations and weights."""
    shape: tuple[tuple[str, ShapeValue], ...]
    """The op's dimensions by name, as its contract lists them."""

    @classmethod
    def of(cls, machine: Machine, dtype: torch.dtype, shape: Mapping[str, ShapeValue]) -> Facts:
        """Facts with the shape in a canonical order."""
        return cls(machine, dtype, tuple(sorted(shape.items())))

    @property
    def device(self) -> str:
        """Torch's device type."""
        return self.machine.device

    @property
    def capability(self) -> frozenset[str]:
        """See :attr:`Machine.capability`."""
        return self.machine.capability

    def __getitem__(self, name: str) -> ShapeValue:
        for key, value in self.shape:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.shape)

    def size(self, name: str) -> int:
        """A dimension that is a whole number."""
        value = self[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, expected an integer")
        return value

    def number(self, name: str) -> float:
        """A dimension that is a real number."""
        value = self[name]
        if isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, expected a number")
        return value * 1.0


def detect_machine(device: str) -> Machine:
    """Looks at this machine. Touches a GPU only if ``device`` is one."""
    kind = torch.device(device).type
    if kind == "cuda":
        major, minor = torch.cuda.get_device_capability(torch.device(device))
        capability = frozenset({f"sm_{major}{minor}"})
    else:
        capability = _cpu_flags()
    return Machine(kind, capability, torch.get_num_threads(), _packages())


def default_dtype(machine: Machine) -> tuple[torch.dtype, str]:
    """The type that ``--dtype auto`` means on this machine, and why.

    bfloat16 halves the bytes that a decode step reads; without instructions for it a CPU converts every
    weight on the fly and loses more than that.
    """
    if machine.device != "cpu":
        return torch.bfloat16, f"{machine.device} computes in bfloat16"
    for flag in ("amx_bf16", "avx512_bf16"):
        if flag in machine.capability:
            return torch.bfloat16, f"the cpu has {flag}"
    return (
        torch.float32,
        "the cpu has neither avx512_bf16 nor amx_bf16, so bfloat16 would be converted on the fly",
    )


def _cpu_flags() -> frozenset[str]:
    if platform.machine() not in {"x86_64", "AMD64", "aarch64"}:
        return frozenset()
    info = Path("/proc/cpuinfo")
    if info.is_file() and os.access(info, os.R_OK):
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"flags", "Features"}:
                return frozenset(value.split())
    # Not Linux: torch names only the best vector width that it was dispatched to.
    return frozenset({torch.backends.cpu.get_cpu_capability().lower()})


def _packages() -> tuple[tuple[str, str], ...]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)
