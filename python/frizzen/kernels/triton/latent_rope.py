"""Rotation of latent attention's queries, and norm, rotation and cache write of its keys, in one launch.

A program turns the queries of some heads of a token; the last one of a token makes its cache entry. As in
``rope``, the two elements of a rotated pair are held by one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.mla_ops import LatentRope as Rope
from frizzen.kernels.triton.launch import Target, await_inputs, release_next, round_up_power

__all__ = ["LatentRope"]


@triton.jit
def _turn_queries(at, mask, cosine, sine, HALF: tl.constexpr, PDL: tl.constexpr):
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    release_next(PDL)
    tl.store(at, (first * cosine - second * sine).to(at.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (second * cosine + first * sine).to(at.dtype.element_ty), mask=mask)


@triton.jit
def _keep_key(
    kv, entry, gain, column, inside, half, in_half, cosine, sine, eps,
    HALF: tl.constexpr, LATENT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    latent = tl.load(kv + column, mask=inside, other=0.0).to(tl.float32)
    turning = kv + LATENT + half
    first = tl.load(turning, mask=in_half, other=0.0).to(tl.float32)
    second = tl.load(turning + HALF, mask=in_half, other=0.0).to(tl.float32)
    release_next(PDL)
    latent *= tl.rsqrt(tl.sum(latent * latent, axis=0) / LATENT + eps) * gain
    tl.store(entry + column, latent.to(entry.dtype.element_ty), mask=inside)
    entry += LATENT
    tl.store(entry + half, (first * cosine - second * sine).to(entry.dtype.element_ty), mask=in_half)
    tl.store(entry + HALF + half, (second * cosine + first * sine).to(entry.dtype.element_ty), mask=in_half)


@triton.jit(do_not_specialize_on_alignment=["slots", "cos", "sin"])
def _latent_rope(
    q, kv, cos, sin, slots, cache, norm, q_stride, kv_stride, angle_stride, block_stride, token_stride, eps,
    HEADS: tl.constexpr, NOPE: tl.constexpr, HALF: tl.constexpr, LATENT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HALF_BLOCK: tl.constexpr, LATENT_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, HALF_BLOCK)
    in_half = half < HALF
    column = tl.arange(0, LATENT_BLOCK)
    inside = column < LATENT
    gain = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
    await_inputs(PDL)
    cosine = tl.load(cos + token * angle_stride + half, mask=in_half, other=1.0)
    sine = tl.load(sin + token * angle_stride + half, mask=in_half, other=0.0)
    if tl.program_id(1) < tl.num_programs(1) - 1:
        head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
        at = q + token * q_stride + (head * (NOPE + 2 * HALF) + NOPE)[:, None] + half[None, :]
        mask = (head < HEADS)[:, None] & in_half[None, :]
        _turn_queries(at, mask, cosine[None, :], sine[None, :], HALF, PDL)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        entry = cache + slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * token_stride
        held = kv + token * kv_stride
        _keep_key(held, entry, gain, column, inside, half, in_half, cosine, sine, eps, HALF, LATENT, PDL)


@dataclass(frozen=True, slots=True)
class LatentRope:
    """See ``rope.mla``."""

    heads: int
    nope_dim: int
    rope_dim: int
    latent_dim: int
    target: Target

    @classmethod
    def build(cls, facts: Facts) -> LatentRope:
        """The kernel for one geometry."""
        heads, nope, rotary, latent = (
            facts.size(name) for name in ("heads", "nope_dim", "rope_dim", "latent_dim")
        )
        return cls(heads, nope, rotary, latent, Target.of(facts))

    def prepare(self, cache: Tensor, norm: Tensor, eps: float) -> Rope:
        """``cache [blocks, block_size, L + R]``, ``norm [L]``."""
        group = min(round_up_power(self.heads), 32)
        constants = {
            "HEADS": self.heads,
            "NOPE": self.nope_dim,
            "HALF": self.rope_dim // 2,
            "LATENT": self.latent_dim,
            "BLOCK_SIZE": cache.shape[1],
            "GROUP": group,
            "HALF_BLOCK": round_up_power(self.rope_dim // 2),
            "LATENT_BLOCK": round_up_power(self.latent_dim),
        }

        def rope(q: Tensor, kv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
            if len(q):
                _latent_rope[(len(q), triton.cdiv(self.heads, group) + 1)](
                    q, kv, cos, sin, slots, cache, norm, q.stride(0), kv.stride(0), cos.stride(0),
                    *cache.stride()[:2], eps, num_warps=4, **constants, **self.target.options(),
                )  # fmt: skip

        return rope
