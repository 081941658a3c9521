"""Memory that a model takes, as the device or the kernel counts it."""

from __future__ import annotations

from pathlib import Path

import torch

from frizzen.worker.ledger import Budget
from frizzen.worker.machine import available_memory

__all__ = ["Meter", "budget_of"]

STATUS = Path("/proc/self/status")


class Meter:
    """What was taken since the meter was made.

    On a GPU the bytes of the tensors there. On a CPU the process's own resident pages: kernels keep weights
    outside of torch, so its allocator does not know them. Memory that nobody has touched yet, such as an
    empty KV cache, is not resident.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = self._now()

    def taken(self) -> int | None:
        """Bytes; None where the system does not say."""
        now = self._now()
        return None if now is None or self._before is None else now - self._before

    def start_peak(self) -> None:
        """From here on :meth:`peak` counts."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int | None:
        """The most that was taken since the meter was made; None on a CPU, which does not say."""
        if self._device.type != "cuda" or self._before is None:
            return None
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def _now(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        try:
            lines = STATUS.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)


def budget_of(device: torch.device) -> Budget:
    """The memory of a device of this machine."""
    if device.type == "cpu":
        free = available_memory()
        return Budget(free, free)
    # What tests of kernels left in torch's own pool is free too.
    torch.cuda.empty_cache()
    return Budget(*torch.cuda.mem_get_info(device))
