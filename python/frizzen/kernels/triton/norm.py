"""RMS norm with the addition to the residual stream; one program per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.triton.launch import Target, await_inputs, release_next, round_up_power

__all__ = ["RmsNorm", "Weighted"]


@triton.jit
def _rms_norm(
    x, residual, weight, out, x_stride, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    await_inputs(PDL)
    y = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        stream = residual + row * size + column
        y += tl.load(stream, mask=inside, other=0.0).to(tl.float32)
        rounded = y.to(residual.dtype.element_ty)
        tl.store(stream, rounded, mask=inside)
        y = rounded.to(tl.float32)
    release_next(PDL)
    y = y * tl.rsqrt(tl.sum(y * y, axis=0) / size + eps) * scale
    tl.store(out + row * size + column, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rms_norms(
    x, y, x_weight, y_weight, out, x_stride, y_stride, size, x_eps, y_eps,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of ``x`` and ``y``, beside each other; one program per token and half."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) == 0
    column = tl.arange(0, BLOCK)
    inside = column < size
    scale = tl.load(tl.where(first, x_weight, y_weight) + column, mask=inside, other=0.0).to(tl.float32)
    release_next(PDL)
    await_inputs(PDL)
    source = tl.where(first, x + row * x_stride, y + row * y_stride)
    z = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    z = z * tl.rsqrt(tl.sum(z * z, axis=0) / size + tl.where(first, x_eps, y_eps)) * scale
    at = out + (2 * row + tl.program_id(1)) * size + column
    tl.store(at, z.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Weighted:
    """A norm: ``(x [T, H], residual [T, H] | None)`` to ``[T, H]``."""

    weight: Tensor
    eps: float
    block: int
    options: Mapping[str, Any]
    """Of launches."""

    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """See ``norm.rms``."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if len(x):
            _rms_norm[(len(x),)](
                x, residual, self.weight, out, x.stride(0), len(self.weight), self.eps,
                ADD=residual is not None, BLOCK=self.block, **self.options,
            )  # fmt: skip
        return out

    def beside(self, x: Tensor, other: Weighted, y: Tensor) -> Tensor:
        """``[self(x), other(y)]``, ``[T, 2 H]``."""
        size = len(self.weight)
        out = torch.empty(len(x), 2 * size, dtype=x.dtype, device=x.device)
        if len(x):
            _rms_norms[(len(x), 2)](
                x, y, self.weight, other.weight, out, x.stride(0), y.stride(0), size, self.eps, other.eps,
                BLOCK=self.block, **self.options,
            )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """See ``norm.rms``."""

    size: int
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> RmsNorm:
        """The kernel for one hidden size."""
        return cls(facts.size("size"), Target.of(facts))

    def prepare(self, weight: Tensor, eps: float) -> Weighted:
        """``weight [H]``."""
        block = round_up_power(self.size, 32)
        warps = {"num_warps": min(max(block // 512, 1), 8)}
        return Weighted(weight, eps, block, warps | self.target.options())
