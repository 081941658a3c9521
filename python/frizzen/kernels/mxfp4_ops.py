"""The op of experts whose weights are in MXFP4, in the style of ``moe_ops``."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts
from frizzen.kernels.plan import Op
from frizzen.quantize.mxfp4 import Mxfp4Weight

__all__ = ["MOE_EXPERTS_MXFP4", "Mxfp4ExpertsKernel"]


class Mxfp4ExpertsKernel(Protocol):
    """See :data:`MOE_EXPERTS_MXFP4`."""

    def prepare(self, w13: Mxfp4Weight, w2: Mxfp4Weight, b13: Tensor | None, b2: Tensor | None) -> Experts:
        """As ``moe.experts``. All may be kept, and what the weights hold may be rearranged in place."""


MOE_EXPERTS_MXFP4: Op[Mxfp4ExpertsKernel] = Op(
    "moe.experts.mxfp4",
    MOE_EXPERTS.shape,
    """As moe.experts, with weights in MXFP4; hidden and intermediate are multiples of 32. Nothing but the
    result of the activation and that of an expert is rounded.""",
)
