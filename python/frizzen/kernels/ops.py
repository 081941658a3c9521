"""The ops of a dense decoder: what each kernel takes, returns and may change.

Letters: ``T`` tokens of the step, ``H`` hidden size, ``N`` query heads, ``M`` key-value heads, ``D`` head
size, ``I`` intermediate size. A kernel is made once per distinct facts; its ``prepare`` is called once per
layer with that layer's constants and returns the function that runs in every step. Everything that can be
done once is done there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from frizzen.kernels.plan import Op
from frizzen.step import StepContext

__all__ = [
    "ATTENTION_PAGED",
    "LINEAR",
    "LINEAR_SILU_MUL",
    "LM_HEAD",
    "LM_HEAD_TIED",
    "NORM_LAYER",
    "NORM_RMS",
    "ROPE",
    "KVCache",
    "LayerNormKernel",
    "LinearKernel",
    "NormKernel",
    "PagedAttentionKernel",
    "RopeKernel",
    "StepKernel",
    "TiedHeadKernel",
]


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer, allocated by the attention kernel that reads them.

    ``k`` and ``v`` are views of ``data`` with the logical shape ``[blocks, block_size, M, D]`` and whatever
    strides the layout has. Zero-filled when made; block 0 is the null block: nobody's tokens are in it.
    """

    data: Tensor
    k: Tensor
    v: Tensor


class LinearKernel(Protocol):
    """See :data:`LINEAR`, :data:`LINEAR_SILU_MUL` and :data:`LM_HEAD`."""

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """``weight [out, in]``, ``bias [out]``. May keep them, or a packed copy instead."""


class NormKernel(Protocol):
    """See :data:`NORM_RMS`."""

    def prepare(self, weight: Tensor, eps: float) -> Callable[[Tensor, Tensor | None], Tensor]:
        """``weight [H]``."""


class LayerNormKernel(Protocol):
    """See :data:`NORM_LAYER`."""

    def prepare(self, weight: Tensor, bias: Tensor, eps: float) -> Callable[[Tensor, Tensor | None], Tensor]:
        """``weight [H]``, ``bias [H]``."""


class TiedHeadKernel(Protocol):
    """See :data:`LM_HEAD_TIED`."""

    def prepare(self, weight: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """``weight [V, H]``; returns the embedding and the head."""


class RopeKernel(Protocol):
    """See :data:`ROPE`."""

    def prepare(
        self, cache: KVCache, q_norm: Tensor | None, k_norm: Tensor | None, eps: float
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
        """``q_norm`` and ``k_norm`` are ``[D]``, both given or both None."""


class StepKernel(Protocol):
    """What every attention kernel is to the model as a whole.

    One that has an attribute ``capturable``, which is true, takes no step's lengths to the host: it looks at
    the sizes of a step alone, and at bounds of its longest query and context.
    """

    def bytes_per_token(self) -> int:
        """Cache bytes per token of one layer."""

    def begin(self, step: StepContext) -> Any:
        """What all layers of a step share: index tensors, masks. Called once per step."""


class PagedAttentionKernel(StepKernel, Protocol):
    """See :data:`ATTENTION_PAGED`."""

    @property
    def layout(self) -> str:
        """Name of its cache layout, a fact of :data:`ROPE`."""

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        """An empty cache of one layer, in blocks of the facts' ``block_size``."""

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Callable[[Tensor, Any], Tensor]:
        """Binds a layer's cache; ``sinks [N]``, given if the facts say so."""


LINEAR: Op[LinearKernel] = Op(
    "linear",
    ("in_features", "out_features", "bias"),
    "x [T, in] -> x @ weight.T + bias, [T, out], both in the facts' dtype; sums in float32.",
)

LINEAR_SILU_MUL: Op[LinearKernel] = Op(
    "linear.silu_mul",
    ("in_features", "out_features", "bias"),
    """The first half of a gated network. weight [2 * I, in], the gate's rows first; out_features is I. x
    [T, in] -> silu(x @ gate.T + gate_bias) * (x @ up.T + up_bias), [T, I]. Whether the products are
    rounded first is left open.""",
)

LM_HEAD: Op[LinearKernel] = Op(
    "lm_head",
    ("in_features", "out_features", "bias"),
    "hidden [S, H] -> logits [S, V] float32, a fresh tensor that the caller may change.",
)

LM_HEAD_TIED: Op[TiedHeadKernel] = Op(
    "lm_head.tied",
    ("in_features", "out_features"),
    """For models whose output head is their embedding, so that one copy of the weight can serve both.
    Embedding: ids [T] int64 -> [T, H], a fresh tensor of the weight's rows. Head: hidden [S, H] ->
    logits [S, V] float32, a fresh tensor.""",
)

NORM_RMS: Op[NormKernel] = Op(
    "norm.rms",
    ("size",),
    """(x [T, H], residual [T, H] | None) -> [T, H], a fresh tensor. With a residual: residual += x in
    place, then the norm of the residual; without: the norm of x, whose rows may stand apart. norm(y)
    = y / sqrt(mean(y^2) + eps) * weight, in float32, rounded once at the end; the updated residual
    is rounded before its norm is taken.""",
)

NORM_LAYER: Op[LayerNormKernel] = Op(
    "norm.layer",
    ("size",),
    """As norm.rms, with norm(y) = (y - mean(y)) / sqrt(variance(y) + eps) * weight + bias; the variance
    is the mean of the squared distances from the mean.""",
)

ROPE: Op[RopeKernel] = Op(
    "rope",
    ("heads", "kv_heads", "head_dim", "rotary_dim", "qk_norm", "layout"),
    """(qkv [T, (N + 2M) * D], cos [T, R / 2] float32, sin [T, R / 2] float32, slots [T] int64) -> None.
    Per head of q and k: the RMS norm if qk_norm, then the rotation of the first R elements: pair i
    is (x[i], x[i + R/2]) and becomes (x[i] cos[i] - x[i + R/2] sin[i], x[i + R/2] cos[i] + x[i]
    sin[i]). q is left rotated in qkv; the rotated k and v go to slot slots[t] of the cache (block
    slots[t] // block_size, offset slots[t] % block_size). What becomes of k in qkv is not
    specified.""",
)

ATTENTION_PAGED: Op[PagedAttentionKernel] = Op(
    "attention.paged",
    ("heads", "kv_heads", "head_dim", "scale", "window", "block_size", "sinks", "kv_dtype"),
    """(qkv [T, (N + 2M) * D], state of this step) -> [T, N * D]. The token at position p of row b attends
    to the positions j <= p of its row, with window > 0 only to j > p - window, reading keys and
    values from the cache alone, through the block table. Query head n reads key-value head n // (N
    / M). Softmax in float32 over scale * q.k; with sinks, sinks[n] is one more logit, which has no value.
    kv_dtype auto is a cache of the facts' dtype, fp8_e4m3 one of FP8 numbers that stand for themselves.
    What stands in cache slots past a row's context must not matter, NaN included.""",
)
