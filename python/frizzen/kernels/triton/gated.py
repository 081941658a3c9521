"""The first half of a gated network: the product as in ``linear``, then the activation in one launch.

One program per token and block of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.triton.launch import Target, await_inputs, release_next, round_up_power
from frizzen.kernels.triton.linear import Skinny, SkinnyLinear

__all__ = ["LinearSiluMul"]


@triton.jit
def _silu_mul(x, out, x_stride, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    await_inputs(PDL)
    gate = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + size + column, mask=inside, other=0.0).to(tl.float32)
    release_next(PDL)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out + row * size + column, y.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class LinearSiluMul:
    """See ``linear.silu_mul``."""

    linear: SkinnyLinear
    size: int
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> LinearSiluMul:
        """The kernel for one intermediate size."""
        size, target = facts.size("out_features"), Target.of(facts, shared_memory=150_000)
        skinny = Skinny.of(facts.size("in_features"), 2 * size, target, facts.device)
        return cls(SkinnyLinear(skinny), size, target)

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""
        linear = self.linear.prepare(weight, bias)
        block = min(round_up_power(self.size, 32), 1024)
        columns = triton.cdiv(self.size, block)

        def linear_silu_mul(x: Tensor) -> Tensor:
            products = linear(x)
            out = torch.empty(len(x), self.size, dtype=x.dtype, device=x.device)
            if len(x):
                _silu_mul[(len(x), columns)](
                    products, out, products.stride(0), self.size,
                    BLOCK=block, num_warps=4, **self.target.options(),
                )  # fmt: skip
            return out

        return linear_silu_mul
