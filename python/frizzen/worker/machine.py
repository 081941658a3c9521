"""What this process may use of the machine, container limits included."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["available_cpus", "available_memory"]

CGROUP = Path("/sys/fs/cgroup")


def available_cpus(cgroup: Path = CGROUP) -> int:
    """CPUs that this process may use: its affinity, and the quota of its container, rounded up.

    More threads than that wait for each other at every barrier of an operator.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        count = min(count, math.ceil(int(quota) / int(period)))
    return max(count, 1)


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int:
    """Bytes that this process can take without swapping; where unknown, half of the machine's memory."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    for line in _read(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(int(limit) - int(used), 0))
    return free


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
