"""What every layer needs while it is built: the weights, the plan, the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from frizzen.kernels.fp8_ops import LINEAR_FP8, Fp8LinearKernel
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
from frizzen.parallel.config import ParallelConfig
from frizzen.parallel.streams import NO_STREAMS, Streams
from frizzen.quantize.fp8 import Fp8Weight
from frizzen.quantize.mxfp4 import Mxfp4Weight

if TYPE_CHECKING:
    # The loader builds models out of layers: at run time, layers know nothing of it.
    from frizzen.loading.checkpoint import Weights

__all__ = ["AddedMap", "BuildContext", "Gains", "Map", "Norm", "NormPlace", "Normed", "NormedMap", "Sight"]

Map = Callable[[Tensor], Tensor]
Norm = Callable[[Tensor, Tensor | None], Tensor]
NormedMap = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""``(x [T, H], residual [T, H] | None)`` to what follows of the norm of their sum, and to that sum: the
residual itself, a fresh tensor, or ``x`` if there was no residual."""

AddedMap = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""``(x [T, K], residual [T, H])`` to what follows and the residual, yet to be added up, or to their sum and
None. The residual may be changed."""


@dataclass(frozen=True, slots=True)
class NormPlace:
    """A norm that is yet to be built: by itself, or by the kernel that follows it on the way."""

    name: str
    """Of its place in the plan and of its weight."""
    eps: float
    centred: bool = False
    """A layer norm, which has a bias."""


@dataclass(frozen=True, slots=True)
class Normed:
    """A norm, then a product: two launches."""

    norm: Norm
    linear: Map

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :data:`NormedMap`."""
        return self.linear(self.norm(x, residual)), x if residual is None else residual


@dataclass(frozen=True, slots=True)
class _SiluMulOf:
    """The first half of a gated network with weights in FP8: the product, then the activation."""

    product: Fp8LinearKernel

    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Map:
        """``weight [2 * I, in]``, the gate's rows first."""
        product = self.product.prepare(weight, bias)
        return lambda x: silu_mul(product(x))


@dataclass(frozen=True, slots=True)
class Gains:
    """What the constants of a product are multiplied by: powers of two, so that nothing is rounded."""

    factors: Tensor
    """``[out]`` float32 for its outputs, ``[1]`` for its inputs."""
    outputs: bool = True
    """Whether outputs are multiplied, their biases included; otherwise inputs."""

    def apply(self, weight: Tensor | Fp8Weight, bias: Tensor | None) -> None:
        """Changes ``weight [out, in]`` and ``bias [out]``; rows that share a scale have one factor."""
        if isinstance(weight, Fp8Weight):
            factors = self.factors[:: weight.rows] if self.outputs else self.factors
            weight.scale.mul_(factors.unsqueeze(1))
        else:
            weight.mul_(self.factors.unsqueeze(1).to(weight.dtype))
        if bias is not None and self.outputs:
            bias.mul_(self.factors.to(bias.dtype))


@dataclass(frozen=True, slots=True)
class Sight:
    """What the tokens of a draft layer see, where it is not simply what came before them."""

    causal: bool = True
    """Whether a token sees only what came before it; otherwise all tokens of its row."""
    first: int = 0
    """Slots at the beginning of a row that nobody sees."""


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
    streams: Streams = NO_STREAMS
    """Of the device; where none are given, layers run everything in the current one."""
    layer: int | None = None
    prefix: str = ""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def at_layer(self, layer: int) -> BuildContext:
        """The context of one decoder layer."""
        return replace(self, layer=layer, prefix=f"layers.{layer}.")

    def take(self, *names: str, dtype: torch.dtype | None = None) -> Tensor:
        """Parameters stacked along the first dimension, in the model's dtype if none is given."""
        return self.weights.take(*(self.prefix + name for name in names), dtype=dtype)

    def fp8_block(self, *names: str) -> tuple[int, int] | None:
        """Rows and columns that share a scale; None if one of these is not stored in FP8 and kept so."""
        return self.weights.fp8_block(*(self.prefix + name for name in names))

    def take_fp8(self, *names: str, block: tuple[int, int]) -> Fp8Weight:
        """:meth:`take` in FP8, with scales of ``block``: that of :meth:`fp8_block`, or one row of it."""
        return self.weights.take_fp8(*(self.prefix + name for name in names), block=block)

    def in_mxfp4(self, *names: str) -> bool:
        """Whether all of these are stored in MXFP4 and kept so."""
        return self.weights.in_mxfp4(*(self.prefix + name for name in names))

    def take_mxfp4(self, *names: str) -> Mxfp4Weight:
        """:meth:`take` in MXFP4, which :meth:`in_mxfp4` says they are stored in."""
        return self.weights.take_mxfp4(*(self.prefix + name for name in names))

    def has(self, name: str) -> bool:
        """Whether an optional parameter is there."""
        return self.weights.has(self.prefix + name)

    def linear(self, site: str, *names: str, bias: bool, gains: Gains | None = None) -> Map:
        """One product for all of ``names``: of their ``.weight`` and, with ``bias``, their ``.bias``."""
        kernel, constants = self._linear(LINEAR, site, names, bias, 1, gains)
        product: Map = kernel.prepare(*constants)
        return product

    def added_linear(
        self, site: str, *names: str, bias: bool, gains: Gains | None = None
    ) -> tuple[Map, AddedMap]:
        """:meth:`linear`, and the same with the addition to the residual stream, which the kernel may do."""
        kernel, constants = self._linear(LINEAR, site, names, bias, 1, gains)
        product: Map = kernel.prepare(*constants)
        if hasattr(kernel, "prepare_added"):
            return product, kernel.prepare_added(*constants)
        return product, lambda x, residual: (product(x), residual)

    def linear_silu_mul(self, site: str, gate: str, up: str, *, bias: bool) -> Map:
        """``silu(gate(x)) * up(x)``."""
        kernel, constants = self._linear(LINEAR_SILU_MUL, site, (gate, up), bias, 2)
        product: Map = kernel.prepare(*constants)
        return product

    def normed_linear(
        self, norm: NormPlace, site: str, *names: str, bias: bool, gains: Gains | None = None
    ) -> NormedMap:
        """A norm and :meth:`linear`."""
        return self._normed(norm, *self._linear(LINEAR, site, names, bias, 1, gains))

    def normed_linear_silu_mul(
        self, norm: NormPlace, site: str, gate: str, up: str, *, bias: bool
    ) -> NormedMap:
        """A norm and :meth:`linear_silu_mul`."""
        return self._normed(norm, *self._linear(LINEAR_SILU_MUL, site, (gate, up), bias, 2))

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
        return embedding(weight), self.head(head, bias=bias)

    def head(self, name: str, *, bias: bool = False) -> Map:
        """Hidden states to float32 logits."""
        weight = self.take(name)
        kernel = self.plan.resolve(
            LM_HEAD,
            self.dtype,
            site="lm_head",
            in_features=weight.shape[1],
            out_features=weight.shape[0],
            bias=bias,
        )
        return kernel.prepare(weight, self.take(f"{name}.bias") if bias else None)

    def norm(self, site: str, name: str, eps: float, *, centred: bool = False) -> Norm:
        """An RMS norm; if ``centred``, a layer norm, whose bias is ``{name}.bias``."""
        return self.norm_before(NormPlace(name, eps, centred), None, site)[0]

    def norm_before(
        self, place: NormPlace, follower: Any, site: str | None = None
    ) -> tuple[Norm, Callable[..., Any] | None]:
        """A norm, and how ``follower``, the kernel after it, does both: a function of its constants, or None.

        A kernel says by ``folds`` which kernel's norm its ``prepare_normed`` is equal to. So what the plan
        names is what is computed, in one launch or in two.
        """
        weight, site = self.take(place.name), site or place.name
        size = weight.shape[0]
        if place.centred:
            layer_norm = self.plan.resolve(NORM_LAYER, self.dtype, site=site, layer=self.layer, size=size)
            return layer_norm.prepare(weight, self.take(f"{place.name}.bias"), place.eps), None
        kernel = self.plan.resolve(NORM_RMS, self.dtype, site=site, layer=self.layer, size=size)
        fold = None
        if isinstance(kernel, getattr(follower, "folds", ())):
            fold = partial(follower.prepare_normed, weight, place.eps)
        return kernel.prepare(weight, place.eps), fold

    def _normed(self, place: NormPlace, kernel: Any, constants: tuple[Any, Tensor | None]) -> NormedMap:
        norm, fold = self.norm_before(place, kernel)
        return fold(*constants) if fold else Normed(norm, kernel.prepare(*constants))

    def _linear(
        self,
        op: Op[LinearKernel],
        site: str,
        names: tuple[str, ...],
        bias: bool,
        halves: int,
        gains: Gains | None = None,
    ) -> tuple[Any, tuple[Any, Tensor | None]]:
        """The kernel of a product, and its constants."""
        matrices = [f"{name}.weight" for name in names]
        block = self.fp8_block(*matrices)
        weight = self.take(*matrices) if block is None else self.take_fp8(*matrices, block=block)
        biases = self.take(*(f"{name}.bias" for name in names)) if bias else None
        if gains is not None:
            gains.apply(weight, biases)
        if isinstance(weight, Fp8Weight):
            quantised = self._linear_fp8(weight, site, bias)
            return (quantised if op is LINEAR else _SiluMulOf(quantised)), (weight, biases)
        kernel = self.plan.resolve(
            op,
            self.dtype,
            site=site,
            layer=self.layer,
            in_features=weight.shape[1],
            out_features=weight.shape[0] // halves,
            bias=bias,
        )
        return kernel, (weight, biases)

    def _linear_fp8(self, weight: Fp8Weight, site: str, bias: bool) -> Fp8LinearKernel:
        size_out, size_in = weight.data.shape
        return self.plan.resolve(
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
