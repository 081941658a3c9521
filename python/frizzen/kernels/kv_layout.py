"""How a layer's keys and values lie in memory: shared by the kernels that write and those that read them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from frizzen.kernels.ops import KVCache

__all__ = ["LAYOUTS", "allocate"]


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

    Zeros come from pages that the system hands out on first touch, so a large cache costs memory only as it
    fills.
    """
    shape, views = LAYOUTS[layout]
    data = torch.zeros(shape(num_blocks, block_size, kv_heads, head_dim), dtype=dtype, device=device)
    return KVCache(data, *views(data))


def _token_shape(blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    return blocks, block_size, 2, kv_heads, head_dim


def _token_views(data: Tensor) -> tuple[Tensor, Tensor]:
    return data[:, :, 0], data[:, :, 1]


LAYOUTS: dict[
    str, tuple[Callable[[int, int, int, int], tuple[int, ...]], Callable[[Tensor], tuple[Tensor, Tensor]]]
] = {
    # data [blocks, block_size, 2, M, D]: a token's keys and values of all heads stand together, one write per
    # token.
    "token": (_token_shape, _token_views),
}
"""Shape of ``data``, and its two views, by name."""
