"""What every launch needs: the device's abilities, and how a kernel starts and ends.

Kernels of one stream are launched dependently (programmatic dependent launch) where the device can: a
kernel may start while the one before it still runs. Two rules keep that invisible:

* every kernel calls :func:`await_inputs` before it reads or writes anything that a step changes;
* what it touches before that call are constants (weights, norms), what is older than the model's first
  kernel, which is torch's and waits for everything (borders, lengths and blocks of a step, keys of steps
  before), or, behind a kernel that awaited its own inputs before it let the next one start, what is older
  than that kernel.

:func:`release_next` lets the next kernel start. That one waits by itself, so for kernels that read constants
alone before it, where the call stands is a matter of speed only: after the loads, or at once where its
successors have weights to load. Rope, attention of several tokens and the first product of one token's
experts call it after :func:`await_inputs`.

Integers that follow the step (numbers of tokens, rows, splits) are never specialised, so that a step of
another size compiles nothing.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from frizzen.kernels.facts import Facts

__all__ = [
    "Target",
    "await_inputs",
    "multiply_add",
    "options_on",
    "precision",
    "release_next",
    "round_up_power",
]


@dataclass(frozen=True, slots=True)
class Target:
    """The device that kernels are launched on."""

    dependent: bool
    """Whether launches may overlap the kernel before them."""
    processors: int
    """Multiprocessors: how many programs it takes to keep the device busy."""

    @classmethod
    def of(cls, facts: Facts, shared_memory: int = 0) -> Target:
        """Reads the device that ``facts`` describe.

        Raises:
            RuntimeError: a program can have less than ``shared_memory`` bytes there.
        """
        if facts.device != "cuda":
            return cls(dependent=False, processors=16)
        device = torch.cuda.current_device()
        properties = triton.runtime.driver.active.utils.get_device_properties(device)
        if (most := properties["max_shared_mem"]) < shared_memory:
            raise RuntimeError(f"tiles take {shared_memory} bytes of shared memory, the device has {most}")
        majors = (int(found[1]) for flag in facts.capability if (found := re.match(r"sm_(\d+)\d", flag)))
        return cls(max(majors, default=0) >= 9, properties["multiprocessor_count"])

    def options(self) -> dict[str, Any]:
        """Keyword arguments of every launch; the interpreter does not know ``launch_pdl``."""
        return {"PDL": True, "launch_pdl": True} if self.dependent else {"PDL": False}


@functools.cache
def options_on(device: torch.device) -> dict[str, Any]:
    """As ``Target.options``, for kernels that no plan names."""
    dependent = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return Target(dependent, 0).options()


def round_up_power(value: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``value`` and ``least``."""
    return max(least, 1 << max(value - 1, 0).bit_length())


def precision(dtype: torch.dtype) -> str:
    """``PRECISION`` of :func:`multiply_add`.

    float32 must not become tf32, and the interpreter cannot multiply bfloat16.
    """
    return "ieee" if dtype == torch.float32 or triton.knobs.runtime.interpret else "native"


@triton.jit
def await_inputs(PDL: tl.constexpr):
    """Waits until all that earlier kernels wrote is visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release_next(PDL: tl.constexpr):
    """Lets the next kernel start as soon as every program of this one has said so or ended."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def multiply_add(a, b, total, PRECISION: tl.constexpr):
    """``a @ b + total`` in float32."""
    if PRECISION == "ieee":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, b, total)
