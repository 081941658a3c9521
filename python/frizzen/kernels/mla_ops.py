"""The ops of multi-head latent attention (arXiv 2405.04434), in the style of ``ops``.

Letters: ``T`` tokens, ``N`` heads, ``L`` size of the latent vector, ``P`` and ``R`` sizes of the two parts of
a query and a key, the one without position and the rotated one, ``V`` size of a value.

The cache holds per token the latent vector and the rotated key, which all heads share. A kernel may expand
them to keys and values of every head (cheaper per query), or move the queries into the latent space and back
(cheaper per key, so for decodes): the results are the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from frizzen.kernels.ops import StepKernel
from frizzen.kernels.plan import Op

__all__ = [
    "ATTENTION_MLA",
    "ROPE_MLA",
    "LatentAttend",
    "LatentAttentionKernel",
    "LatentRope",
    "LatentRopeKernel",
]

LatentRope = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
LatentAttend = Callable[[Tensor, Any], Tensor]


class LatentRopeKernel(Protocol):
    """See :data:`ROPE_MLA`."""

    def prepare(self, cache: Tensor, norm: Tensor, eps: float) -> LatentRope:
        """``cache [blocks, block_size, L + R]``, ``norm [L]``."""


class LatentAttentionKernel(StepKernel, Protocol):
    """See :data:`ATTENTION_MLA`."""

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        """An empty cache of one layer, ``[blocks, block_size, L + R]``, zero-filled; block 0 is nobody's."""

    def prepare(self, cache: Tensor, expansion: Tensor) -> LatentAttend:
        """Binds a layer's cache and ``expansion [N * (P + V), L]``, per head the key's rows first."""


ROPE_MLA: Op[LatentRopeKernel] = Op(
    "rope.mla",
    ("heads", "nope_dim", "rope_dim", "latent_dim"),
    """(q [T, N * (P + R)], kv [T, L + R], cos [T, R / 2] float32, sin [T, R / 2] float32, slots [T] int64)
    -> None; rows of q and kv may stand apart. The last R elements of each head of q, and of kv, are
    rotated as rope does; the first L of kv get the RMS norm. q is left rotated; kv goes to slot
    slots[t] of the cache. What becomes of kv itself is not specified.""",
)

ATTENTION_MLA: Op[LatentAttentionKernel] = Op(
    "attention.mla",
    ("heads", "nope_dim", "rope_dim", "value_dim", "latent_dim", "scale", "block_size"),
    """(q [T, N * (P + R)], state of this step) -> [T, N * V]. Head n of the token at position p attends to
    the positions j <= p of its row: c[j] and r[j], the latent vector and the rotated key in the cache,
    give the key (expansion_k[n] @ c[j], r[j]) and the value expansion_v[n] @ c[j]. Softmax in float32
    over scale * q.key. What stands in cache slots past a row's context must not matter, NaN included.""",
)
