"""Candidates made of torch's own fused operators: what serves where no better kernel is built.

Norms are left to the reference: at the sizes of a decode step ``torch.rms_norm`` costs the same, and it is
slower in bfloat16 prefill (1,024 tokens: 0.57 ms against 0.16 ms on two cores).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.kernels.facts import Facts
from frizzen.kernels.kv_layout import allocate, cache_dtype, rounded, token_layout
from frizzen.kernels.ops import ATTENTION_PAGED, LINEAR, LINEAR_SILU_MUL, LM_HEAD, LM_HEAD_TIED, ROPE, KVCache
from frizzen.kernels.plan import Candidate, Reason
from frizzen.kernels.torch_paging import LongRow, PaddedRow, Paging, Rows, SingleRows
from frizzen.step import StepContext

__all__ = ["CANDIDATES", "embedding", "silu_mul"]


class _Linear:
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        return lambda x: functional.linear(x, weight, bias)


class _LmHead:
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        return lambda hidden: functional.linear(hidden, weight, bias).float()


class _LinearSiluMul:
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        return lambda x: silu_mul(functional.linear(x, weight, bias))


class _TiedHead:
    def prepare(self, weight: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        return embedding(weight), _LmHead().prepare(weight, None)


def silu_mul(x: Tensor) -> Tensor:
    """``[T, 2 * I]``, the gate first -> ``silu(gate) * up``, ``[T, I]``."""
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def embedding(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Rows of ``weight [V, H]`` by ids ``[T]``."""
    return lambda ids: weight.index_select(0, ids)


@dataclass(frozen=True, slots=True)
class _Rope:
    """Turns the heads of q and k together (they stand side by side) and stores k and v with one scatter."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int

    def prepare(
        self, cache: KVCache, q_norm: Tensor | None, k_norm: Tensor | None, eps: float
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
        turning, half = self.heads + self.kv_heads, self.rotary_dim // 2
        by_slot = cache.data.view(-1, 2 * self.kv_heads, self.head_dim)
        # One row per head, so that both norms are one multiplication.
        norms = None
        if q_norm is not None and k_norm is not None:
            norms = torch.cat([q_norm.expand(self.heads, -1), k_norm.expand(self.kv_heads, -1)]).float()

        def rope(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
            parts = qkv.view(qkv.shape[0], -1, self.head_dim)
            qk = parts[:, :turning]
            y = qk.float()
            if norms is not None:
                y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * norms
                qk[..., self.rotary_dim :] = y[..., self.rotary_dim :]
            first, second = y[..., :half], y[..., half : self.rotary_dim]
            c, s = cos.unsqueeze(1), sin.unsqueeze(1)
            # In float32 these are views of qkv itself: both halves are computed before either is written.
            turned = (first * c).addcmul_(second, s, value=-1), (second * c).addcmul_(first, s)
            qk[..., :half], qk[..., half : self.rotary_dim] = turned
            if by_slot.dtype == qkv.dtype:
                by_slot.index_copy_(0, slots, parts[:, self.heads :])
            else:
                by_slot[slots] = rounded(parts[:, self.heads :], by_slot.dtype)

        return rope


@dataclass(frozen=True, slots=True)
class _SdpaAttention:
    """Gathers the context by the block table and leaves the rest to ``scaled_dot_product_attention``."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    block_size: int
    sinks: bool
    dtype: torch.dtype
    kv_dtype: torch.dtype

    @property
    def layout(self) -> str:
        return token_layout(self.kv_dtype)

    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * self.kv_dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        return allocate(
            self.layout, num_blocks, self.block_size, self.kv_heads, self.head_dim, self.kv_dtype, device
        )

    def begin(self, step: StepContext) -> Rows:
        return Paging(self.block_size, self.window, self.dtype, masked=self.sinks).rows(step)

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Callable[[Tensor, Rows], Tensor]:
        def attend(qkv: Tensor, rows: Rows) -> Tensor:
            return rows.attend(
                qkv[:, : self.heads * self.head_dim],
                lambda queries, single: self._attend_single(queries, cache.data, single, sinks),
                lambda queries, row: self._attend_long(queries, cache.data, row, sinks),
            )

        return attend

    def _attend_single(self, queries: Tensor, data: Tensor, rows: SingleRows, sinks: Tensor | None) -> Tensor:
        kv = rows.gather(data, self.dtype).permute(2, 0, 3, 1, 4)
        # Query heads that share a key-value head stand where tokens would: no key is copied for each of them.
        q = queries.view(rows.count, self.kv_heads, -1, self.head_dim)
        if sinks is not None:
            out = self._with_sinks(q, kv, rows.mask, sinks.view(self.kv_heads, -1))
        else:
            out = functional.scaled_dot_product_attention(
                q, kv[0], kv[1], attn_mask=rows.mask, scale=self.scale
            )
        return out.reshape(queries.shape)

    def _attend_long(
        self, queries: Tensor, data: Tensor, row: LongRow | PaddedRow, sinks: Tensor | None
    ) -> Tensor:
        kv, mask = row.gather(data, self.dtype).permute(1, 2, 0, 3).unsqueeze(1), row.mask
        q = torch.unflatten(queries, 1, (self.heads, self.head_dim)).transpose(0, 1).unsqueeze(0)
        if sinks is not None:
            out = self._with_sinks(q, kv, mask, sinks.unsqueeze(1))
        else:
            out = functional.scaled_dot_product_attention(
                q,
                kv[0],
                kv[1],
                attn_mask=mask,
                is_causal=mask is None,
                scale=self.scale,
                enable_gqa=True,
            )
        return out.squeeze(0).transpose(0, 1).flatten(1)

    def _with_sinks(self, q: Tensor, kv: Tensor, mask: Tensor | None, sinks: Tensor) -> Tensor:
        """One more key, to which each query has its sink as product: by one more element of the head.

        ``sinks`` is ``q``'s second and third dimension, or 1 where all are alike.
        """
        k, v = functional.pad(kv, (0, 1, 0, 1))
        k[..., -1, -1] = 1
        logits = (sinks / self.scale).expand(q.shape[:-1]).unsqueeze(-1).to(q.dtype)
        out = functional.scaled_dot_product_attention(
            torch.cat([q, logits], dim=-1),
            k,
            v,
            attn_mask=None if mask is None else functional.pad(mask, (0, 1)),
            scale=self.scale,
            enable_gqa=True,
        )
        return out[..., :-1]


def _needs_token_layout(facts: Facts) -> Reason | None:
    if facts["layout"] in {"token", "token_fp8"}:
        return None
    return Reason(
        "layout", f"the attention kernel's cache has layout {facts['layout']}, this writes layout token"
    )


def _build_rope(facts: Facts) -> _Rope:
    return _Rope(
        facts.size("heads"), facts.size("kv_heads"), facts.size("head_dim"), facts.size("rotary_dim")
    )


def _build_attention(facts: Facts) -> _SdpaAttention:
    return _SdpaAttention(
        facts.size("heads"),
        facts.size("kv_heads"),
        facts.size("head_dim"),
        facts.number("scale"),
        facts.size("window"),
        facts.size("block_size"),
        bool(facts["sinks"]),
        facts.dtype,
        cache_dtype(facts),
    )


def _anywhere(_: Facts) -> None:
    """Torch's operators serve every device and dtype here."""


CANDIDATES = (
    Candidate(LINEAR.name, "torch", 10, _anywhere, lambda _: _Linear()),
    Candidate(LM_HEAD.name, "torch", 10, _anywhere, lambda _: _LmHead()),
    Candidate(LINEAR_SILU_MUL.name, "torch", 10, _anywhere, lambda _: _LinearSiluMul()),
    Candidate(LM_HEAD_TIED.name, "torch", 10, _anywhere, lambda _: _TiedHead()),
    Candidate(ROPE.name, "torch", 10, _needs_token_layout, _build_rope),
    Candidate(ATTENTION_PAGED.name, "torch_sdpa", 10, _anywhere, _build_attention),
)
