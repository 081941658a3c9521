"""Per-head norms, rotation and cache write in one launch; one program per token and group of heads.

The two elements of a rotated pair are always held by one thread (they are loaded as two tiles of the same
shape), so that turning ``qkv`` in place needs no barrier between reading and writing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.ops import KVCache
from frizzen.kernels.triton.fp8 import saturate_fp8
from frizzen.kernels.triton.launch import Target, await_inputs, release_next, round_up_power

__all__ = ["Rope"]


@triton.jit
def _gain(q_norm, k_norm, is_query, column, inside):
    """Norm weights of every head of a tile: ``[heads, columns]``."""
    of_query = tl.load(q_norm + column, mask=inside, other=0.0).to(tl.float32)
    of_key = tl.load(k_norm + column, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_query[:, None], of_query[None, :], of_key[None, :])


@triton.jit
def to_cache(values, dtype: tl.constexpr):
    """``values`` in the type of a cache; what is too large for FP8 becomes its largest number."""
    return saturate_fp8(values) if dtype == tl.float8e4nv else values.to(dtype)


@triton.jit
def _store(tile, qkv_at, cache_at, column, is_query, exists, inside):
    """Queries go back to where they came from, keys and values to the cache."""
    tl.store(qkv_at[:, None] + column, tile.to(qkv_at.dtype.element_ty), mask=is_query[:, None] & inside)
    cached = (exists & (is_query == 0))[:, None] & inside
    tl.store(cache_at[:, None] + column, to_cache(tile, cache_at.dtype.element_ty), mask=cached)


@triton.jit(do_not_specialize_on_alignment=["slots", "cos", "sin"])
def _rope(
    qkv, cos, sin, slots, keys, q_norm, k_norm, qkv_stride, angle_stride, block_stride, token_stride,
    head_stride, values_offset, eps,
    N: tl.constexpr, M: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr, HEADS: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    exists = head < N + 2 * M
    is_query = head < N
    is_value = head >= N + M
    half = tl.arange(0, HALF_BLOCK)
    in_half = half < HALF
    rest = 2 * HALF + tl.arange(0, REST_BLOCK)
    in_rest = rest < D
    if NORM:
        first_gain = _gain(q_norm, k_norm, is_query, half, in_half)
        second_gain = _gain(q_norm, k_norm, is_query, HALF + half, in_half)
        rest_gain = _gain(q_norm, k_norm, is_query, rest, in_rest)
    await_inputs(PDL)

    slot = tl.load(slots + token).to(tl.int64)
    cosine = tl.load(cos + token * angle_stride + half, mask=in_half, other=1.0)[None, :]
    sine = tl.load(sin + token * angle_stride + half, mask=in_half, other=0.0)[None, :]
    qkv_at = qkv + token * qkv_stride + head * D
    mask = exists[:, None] & in_half[None, :]
    rest_mask = exists[:, None] & in_rest[None, :]
    first = tl.load(qkv_at[:, None] + half[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(qkv_at[:, None] + HALF + half[None, :], mask=mask, other=0.0).to(tl.float32)
    others = tl.load(qkv_at[:, None] + rest[None, :], mask=rest_mask, other=0.0).to(tl.float32)
    release_next(PDL)

    scaled_first, scaled_second, kept = first, second, others
    if NORM:
        square = (
            tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1) + tl.sum(others * others, axis=1)
        )
        inverse = tl.rsqrt(square / D + eps)[:, None]
        scaled_first = first * inverse * first_gain
        scaled_second = second * inverse * second_gain
        kept = tl.where(is_value[:, None], others, others * inverse * rest_gain)
    turned_first = tl.where(is_value[:, None], first, scaled_first * cosine - scaled_second * sine)
    turned_second = tl.where(is_value[:, None], second, scaled_second * cosine + scaled_first * sine)

    of_value = values_offset + (head - N - M) * head_stride
    cache_head = tl.where(is_value, of_value, (head - N) * head_stride)
    cache_at = keys + slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * token_stride + cache_head
    _store(turned_first, qkv_at, cache_at, half[None, :], is_query, exists, in_half[None, :])
    _store(turned_second, qkv_at, cache_at, HALF + half[None, :], is_query, exists, in_half[None, :])
    if 2 * HALF < D:
        _store(kept, qkv_at, cache_at, rest[None, :], is_query, exists, in_rest[None, :])


@dataclass(frozen=True, slots=True)
class Rope:
    """See ``rope``; keys and values of the cache have equal strides and contiguous heads."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> Rope:
        """The kernel for one head geometry."""
        return cls(
            facts.size("heads"),
            facts.size("kv_heads"),
            facts.size("head_dim"),
            facts.size("rotary_dim"),
            Target.of(facts),
        )

    def prepare(
        self, cache: KVCache, q_norm: Tensor | None, k_norm: Tensor | None, eps: float
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
        """Binds a layer's cache and norms."""
        total = self.heads + 2 * self.kv_heads
        group = min(round_up_power(total), 8)
        values_offset = cache.v.storage_offset() - cache.k.storage_offset()
        block_stride, token_stride, head_stride, _ = cache.k.stride()
        constants = {
            "N": self.heads,
            "M": self.kv_heads,
            "D": self.head_dim,
            "HALF": self.rotary_dim // 2,
            "BLOCK_SIZE": cache.k.shape[1],
            "NORM": q_norm is not None,
            "HEADS": group,
            "HALF_BLOCK": round_up_power(self.rotary_dim // 2),
            "REST_BLOCK": round_up_power(self.head_dim - self.rotary_dim),
        }

        def rope(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
            if len(qkv):
                _rope[(len(qkv), triton.cdiv(total, group))](
                    qkv, cos, sin, slots, cache.k, q_norm, k_norm, qkv.stride(0), cos.stride(0), block_stride,
                    token_stride, head_stride, values_offset, eps,
                    num_warps=4, **constants, **self.target.options(),
                )  # fmt: skip

        return rope
