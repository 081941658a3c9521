"""What every layer needs while it is built: the weights, the plan, the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from frizzen.kernels.fp8_ops import LINEAR_FP8
from frizzen.kernels.ops import (
    LINEAR,
    LINEAR_SILU_MUL,
    LM_HEAD,
    LM_HEAD_TIED,
    NORM_LAYER,
    NORM_RMS,
    LinearKernel,
)
from frizzen.kernels.plan import Op, PlanBuilder
from frizzen.kernels.torch_ops import embedding, silu_mul
from frizzen.quantize.fp8 import Fp8Weight

if TYPE_CHECKING:
    # The loader builds models out of layers: at run time, layers know nothing of it.
    from frizzen.loading.checkpoint import Weights

__all__ = ["BuildContext", "Map", "Norm"]

Map = Callable[[Tensor], Tensor]
Norm = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Handed down from the model to its layers; parameter names are relative to ``prefix``."""

    weights: Weights
    plan: PlanBuilder
    dtype: torch.dtype
    device: torch.device
    block_size: int
    kv_dtype: str = "auto"
    """Of keys and values in the cache, a fact of ``attention.paged``."""
    layer: int | None = None
    prefix: str = ""

    def at_layer(self, layer: int) -> BuildContext:
        """The context of one decoder layer."""
        return replace(self, layer=layer, prefix=f"layers.{layer}.")

    def take(self, *names: str, dtype: torch.dtype | None = None) -> Tensor:
        """Parameters stacked along the first dimension, in the model's dtype if none is given."""
        return self.weights.take(*(self.prefix + name for name in names), dtype=dtype)

    def take_fp8(self, *names: str) -> Fp8Weight | None:
        """The same in FP8, where all are stored and kept so."""
        return self.weights.take_fp8(*(self.prefix + name for name in names))

    def linear(self, site: str, *names: str, bias: bool) -> Map:
        """One product for all of ``names``: of their ``.weight`` and, with ``bias``, their ``.bias``."""
        return self._linear(LINEAR, site, names, bias, 1)

    def linear_silu_mul(self, site: str, gate: str, up: str, *, bias: bool) -> Map:
        """``silu(gate(x)) * up(x)``."""
        return self._linear(LINEAR_SILU_MUL, site, (gate, up), bias, 2)

    def embedding_and_head(self, table: str, head: str | None, *, bias: bool = False) -> tuple[Map, Map]:
        """Ids to rows of ``table``, and hidden states to float32 logits by ``head``, if None by ``table``.

        With ``bias``, the head has one: ``{head}.bias``.
        """
        weight = self.take(table)
        if head is None:
            tied = self.plan.resolve(
                LM_HEAD_TIED,
                self.dtype,
                site="lm_head",
                in_features=weight.shape[1],
                out_features=weight.shape[0],
            )
            return tied.prepare(weight)
        kernel = self.plan.resolve(
            LM_HEAD,
            self.dtype,
            site="lm_head",
            in_features=weight.shape[1],
            out_features=weight.shape[0],
            bias=bias,
        )
        return embedding(weight), kernel.prepare(self.take(head), self.take(f"{head}.bias") if bias else None)

    def norm(self, site: str, name: str, eps: float, *, centred: bool = False) -> Norm:
        """An RMS norm; if ``centred``, a layer norm, whose bias is ``{name}.bias``."""
        weight = self.take(name)
        if centred:
            layer_norm = self.plan.resolve(
                NORM_LAYER, self.dtype, site=site, layer=self.layer, size=weight.shape[0]
            )
            return layer_norm.prepare(weight, self.take(f"{name}.bias"), eps)
        kernel = self.plan.resolve(NORM_RMS, self.dtype, site=site, layer=self.layer, size=weight.shape[0])
        return kernel.prepare(weight, eps)

    def _linear(
        self, op: Op[LinearKernel], site: str, names: tuple[str, ...], bias: bool, halves: int
    ) -> Map:
        kept = self.take_fp8(*(f"{name}.weight" for name in names))
        if kept is not None:
            product = self._linear_fp8(kept, site, names, bias)
            return product if op is LINEAR else lambda x: silu_mul(product(x))
        weight = self.take(*(f"{name}.weight" for name in names))
        kernel = self.plan.resolve(
            op,
            self.dtype,
            site=site,
            layer=self.layer,
            in_features=weight.shape[1],
            out_features=weight.shape[0] // halves,
            bias=bias,
        )
        return kernel.prepare(weight, self.take(*(f"{name}.bias" for name in names)) if bias else None)

    def _linear_fp8(self, weight: Fp8Weight, site: str, names: tuple[str, ...], bias: bool) -> Map:
        size_out, size_in = weight.data.shape
        kernel = self.plan.resolve(
            LINEAR_FP8,
            self.dtype,
            site=site,
            layer=self.layer,
            in_features=size_in,
            out_features=size_out,
            bias=bias,
            block_rows=weight.rows,
            block_columns=weight.columns,
        )
        return kernel.prepare(weight, self.take(*(f"{name}.bias" for name in names)) if bias else None)
