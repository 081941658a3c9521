"""``linear.fp8`` by torch's own scaled product, for weights with a scale per channel or tensor.

Every token is rounded with one scale, so that the product needs no more than a factor per row and column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.fp8_ops import LINEAR_FP8
from frizzen.kernels.plan import Candidate, Reason
from frizzen.quantize.fp8 import Fp8Weight, quantize

__all__ = ["CANDIDATES", "ScaledLinear"]

_CAPABILITIES = frozenset({"sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"})
_MULTIPLE = 16
"""What inputs and outputs must be multiples of on CUDA."""


@dataclass(frozen=True, slots=True)
class ScaledLinear:
    """See ``linear.fp8``."""

    product: Callable[..., Tensor]

    @classmethod
    def build(cls, facts: Facts) -> ScaledLinear:
        """The kernel, for any shape.

        Raises:
            RuntimeError: torch has no such product, or it is wrong or refused on this device.
        """
        product = getattr(torch, "_scaled_mm", None)
        if product is None:
            raise RuntimeError(f"torch {torch.__version__} has no torch._scaled_mm")
        kernel = cls(product)
        # Devices differ in what they can do, by version of torch and CUDA: a tiny product tells.
        weight = torch.ones(32, 32, device=facts.device) * torch.arange(1, 33, device=facts.device).view(
            -1, 1
        )
        rows = torch.ones(3, 32, dtype=facts.dtype, device=facts.device)
        wanted = (32 * torch.arange(1, 33, device=facts.device)).to(facts.dtype).expand(3, -1)
        if not torch.allclose(kernel.prepare(quantize(weight, 1, 0), None)(rows), wanted, rtol=1e-2):
            raise RuntimeError("the scaled product of ones is wrong")
        return kernel

    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""
        numbers, by_column = weight.data.T, weight.scale.reshape(1, -1)

        def linear(x: Tensor) -> Tensor:
            if len(x) == 0:
                return x.new_empty(0, numbers.shape[1])
            rounded = quantize(x, 1, 0)
            out = self.product(
                rounded.data, numbers, rounded.scale, by_column, out_dtype=x.dtype, use_fast_accum=False
            )
            return out if bias is None else out.add_(bias)

        return linear


def _requires(facts: Facts) -> Reason | None:
    if facts.device != "cuda":
        return Reason("device", f"{facts.device} has no arithmetic for FP8")
    if facts.capability.isdisjoint(_CAPABILITIES):
        return Reason("capability", f"FP8 needs sm_89 or later, this is {', '.join(facts.capability)}")
    if facts.dtype != torch.bfloat16:
        return Reason("dtype", f"the dtype is {facts.dtype}, wanted bfloat16")
    block = facts.size("block_rows"), facts.size("block_columns")
    if block != (1, 0):
        return Reason("blocks", f"scales are for blocks of {block[0]} by {block[1]}, wanted one per output")
    sizes = facts.size("in_features"), facts.size("out_features")
    if any(size % _MULTIPLE for size in sizes):
        return Reason("shape", f"the weight is {sizes[1]} by {sizes[0]}, wanted multiples of {_MULTIPLE}")
    return None


CANDIDATES = (Candidate(LINEAR_FP8.name, "torch_scaled_mm", 30, _requires, ScaledLinear.build),)
