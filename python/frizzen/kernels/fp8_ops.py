"""The ops of layers whose weights are in FP8, in the style of ``ops`` and ``moe_ops``.

A kernel may round what goes into a product to FP8 as well: the numbers of a token in groups of up to 128
inputs, or all of them if the weights have one scale per output; the largest of a group becomes 448. So inputs
that this leaves as they are give one result only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts
from frizzen.kernels.plan import Op
from frizzen.quantize.fp8 import Fp8Weight

__all__ = ["LINEAR_FP8", "MOE_EXPERTS_FP8", "Fp8ExpertsKernel", "Fp8LinearKernel"]


class Fp8LinearKernel(Protocol):
    """See :data:`LINEAR_FP8`."""

    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """``weight [out, in]``, ``bias [out]``. May keep them, or a packed copy instead."""


class Fp8ExpertsKernel(Protocol):
    """See :data:`MOE_EXPERTS_FP8`."""

    def prepare(self, w13: Fp8Weight, w2: Fp8Weight, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """As ``moe.experts``; both weights have blocks of the facts' size. All may be kept."""


LINEAR_FP8: Op[Fp8LinearKernel] = Op(
    "linear.fp8",
    ("in_features", "out_features", "bias", "block_rows", "block_columns"),
    """x [T, in] -> x @ (data * scale).T + bias, [T, out], both in the facts' dtype; sums in float32. A
    scale is for block_rows outputs and block_columns inputs, 0 for all inputs. x may be rounded first, as
    the module says.""",
)

MOE_EXPERTS_FP8: Op[Fp8ExpertsKernel] = Op(
    "moe.experts.fp8",
    (*MOE_EXPERTS.shape, "block_rows", "block_columns"),
    """As moe.experts, with weights in FP8. x and what the activation gives may be rounded, as the module
    says.""",
)
