"""Layer norm with the addition to the residual stream; one program per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.triton.launch import Target, await_inputs, release_next, round_up_power

__all__ = ["LayerNorm"]


@triton.jit
def _layer_norm(
    x, residual, weight, bias, out, x_stride, size, eps,
    ADD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    await_inputs(PDL)
    y = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        stream = residual + row * size + column
        y += tl.load(stream, mask=inside, other=0.0).to(tl.float32)
        rounded = y.to(residual.dtype.element_ty)
        tl.store(stream, rounded, mask=inside)
        y = rounded.to(tl.float32)
    release_next(PDL)
    # The distances from the mean, not the difference of two squares, which cancel.
    y = tl.where(inside, y - tl.sum(y, axis=0) / size, 0.0)
    y = y * tl.rsqrt(tl.sum(y * y, axis=0) / size + eps) * scale + shift
    tl.store(out + row * size + column, y.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """See ``norm.layer``."""

    size: int
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> LayerNorm:
        """The kernel for one hidden size."""
        return cls(facts.size("size"), Target.of(facts))

    def prepare(self, weight: Tensor, bias: Tensor, eps: float) -> Callable[[Tensor, Tensor | None], Tensor]:
        """``weight [H]``, ``bias [H]``."""
        block = round_up_power(self.size, 32)
        warps = min(max(block // 512, 1), 8)

        def norm(x: Tensor, residual: Tensor | None) -> Tensor:
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            if len(x):
                _layer_norm[(len(x),)](
                    x, residual, weight, bias, out, x.stride(0), self.size, eps,
                    ADD=residual is not None, BLOCK=block, num_warps=warps, **self.target.options(),
                )  # fmt: skip
            return out

        return norm
