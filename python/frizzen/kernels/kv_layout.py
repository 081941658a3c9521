"""How a layer's keys and values lie in memory: shared by the kernels that write and those that read them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.ops import KVCache
from frizzen.kernels.plan import Reason
from frizzen.quantize.fp8 import FP8, LARGEST

__all__ = ["KV_DTYPES", "LAYOUTS", "allocate", "cache_dtype", "needs_plain_cache", "rounded", "token_layout"]

KV_DTYPES = ("auto", "fp8_e4m3")
"""What a cache may hold: the model's own type, or FP8 with a scale of 1."""


def cache_dtype(facts: Facts) -> torch.dtype:
    """Type of the cache that the facts of an attention ask for; drafts have no choice."""
    in_fp8 = "kv_dtype" in facts and facts["kv_dtype"] == "fp8_e4m3"
    return FP8 if in_fp8 else facts.dtype


def token_layout(dtype: torch.dtype) -> str:
    """Name of the layout by token for a cache of this type."""
    return "token_fp8" if dtype == FP8 else "token"


def needs_plain_cache(facts: Facts) -> Reason | None:
    """For kernels that read the model's own type only."""
    if facts["kv_dtype"] == "auto":
        return None
    return Reason("kv_dtype", f"the cache holds {facts['kv_dtype']}, this reads {facts.dtype}")


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """``values`` in the type of a cache; what is too large for FP8 becomes its largest number."""
    if dtype == FP8:
        return values.float().clamp(-LARGEST, LARGEST).to(FP8)
    return values.to(dtype)


def allocate(
    layout: str,
    num_blocks: int,
    block_size: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """An empty cache in a named layout.

    On a CPU a large cache costs memory only as it fills.
    """
    shape, views = LAYOUTS[layout]
    data = _zeros(shape(num_blocks, block_size, kv_heads, head_dim), dtype, device)
    return KVCache(data, *views(data))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    count = math.prod(shape)
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch would write the zeros; an anonymous mapping gets its pages, zeroed, when they are first touched.
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype=dtype).view(shape)


def _token_shape(blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    return blocks, block_size, 2, kv_heads, head_dim


def _token_views(data: Tensor) -> tuple[Tensor, Tensor]:
    return data[:, :, 0], data[:, :, 1]


def _head_shape(blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    return blocks, kv_heads, 2, head_dim, block_size


def _head_views(data: Tensor) -> tuple[Tensor, Tensor]:
    blocks, kv_heads, _, head_dim, block_size = data.shape
    values = data[:, :, 1].view(blocks, kv_heads, block_size, head_dim)
    return data[:, :, 0].permute(0, 3, 1, 2), values.transpose(1, 2)


LAYOUTS: dict[
    str, tuple[Callable[[int, int, int, int], tuple[int, ...]], Callable[[Tensor], tuple[Tensor, Tensor]]]
] = {
    # data [blocks, block_size, 2, M, D]: a token's keys and values of all heads stand together, one write per
    # token.
    "token": (_token_shape, _token_views),
    # data [blocks, M, 2, D * block_size]: per head the block's keys as [D, block_size], so that a vector is
    # one dimension of many positions, and its values as [block_size, D].
    "head": (_head_shape, _head_views),
    # The same as "token", of FP8 numbers: a name of its own, so that only kernels that round write to it.
    "token_fp8": (_token_shape, _token_views),
}
"""Shape of ``data``, and its two views, by name."""
