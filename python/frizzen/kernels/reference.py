"""The reference of every op in plain torch: slow, right, and able to serve on any device.

Each kernel computes in float32 whatever its dtype and rounds once at the end. It is the oracle of the
conformance test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.kv_layout import allocate, cache_dtype, rounded, token_layout
from frizzen.kernels.ops import (
    ATTENTION_PAGED,
    LINEAR,
    LINEAR_SILU_MUL,
    LM_HEAD,
    LM_HEAD_TIED,
    NORM_LAYER,
    NORM_RMS,
    ROPE,
    KVCache,
)
from frizzen.kernels.plan import Candidate
from frizzen.step import StepContext

__all__ = ["CANDIDATES"]


class _Linear:
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        return lambda x: _linear(x, weight, bias).to(x.dtype)


class _LmHead:
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        return lambda hidden: _linear(hidden, weight, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x.float() @ weight.float().T
    return out if bias is None else out + bias.float()


class _RmsNorm:
    def prepare(self, weight: Tensor, eps: float) -> Callable[[Tensor, Tensor | None], Tensor]:
        def norm(x: Tensor, residual: Tensor | None) -> Tensor:
            if residual is not None:
                x = residual.add_(x)
            return _rms(x, weight, eps)

        return norm


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class _LayerNorm:
    def prepare(self, weight: Tensor, bias: Tensor, eps: float) -> Callable[[Tensor, Tensor | None], Tensor]:
        def norm(x: Tensor, residual: Tensor | None) -> Tensor:
            if residual is not None:
                x = residual.add_(x)
            y = x.float()
            y = y - y.mean(-1, keepdim=True)
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
            return (y * weight.float() + bias.float()).to(x.dtype)

        return norm


class _LinearSiluMul:
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        def linear_silu_mul(x: Tensor) -> Tensor:
            gate, up = _linear(x, weight, bias).chunk(2, dim=-1)
            return (gate * torch.sigmoid(gate) * up).to(x.dtype)

        return linear_silu_mul


class _TiedHead:
    def prepare(self, weight: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        return lambda ids: weight[ids], lambda hidden: _linear(hidden, weight, None)


@dataclass(frozen=True, slots=True)
class _Rope:
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int

    def prepare(
        self, cache: KVCache, q_norm: Tensor | None, k_norm: Tensor | None, eps: float
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
        block_size = cache.k.shape[1]

        def rope(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
            parts = qkv.view(qkv.shape[0], -1, self.head_dim)
            q, k, v = torch.split(parts, [self.heads, self.kv_heads, self.kv_heads], dim=1)
            q.copy_(self._rotate(q, q_norm, eps, cos, sin))
            block, offset = slots // block_size, slots % block_size
            cache.k[block, offset] = rounded(self._rotate(k, k_norm, eps, cos, sin), cache.k.dtype)
            cache.v[block, offset] = rounded(v, cache.v.dtype)

        return rope

    def _rotate(self, x: Tensor, norm: Tensor | None, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        y = x.float() if norm is None else _rms(x.float(), norm, eps)
        turned, kept = y[..., : self.rotary_dim], y[..., self.rotary_dim :]
        first, second = turned.chunk(2, dim=-1)
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.cat([first * c - second * s, second * c + first * s, kept], dim=-1).to(x.dtype)


@dataclass(frozen=True, slots=True)
class _PagedAttention:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    block_size: int
    dtype: torch.dtype
    """Of the cache."""

    @property
    def layout(self) -> str:
        return token_layout(self.dtype)

    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        return allocate(
            self.layout, num_blocks, self.block_size, self.kv_heads, self.head_dim, self.dtype, device
        )

    def begin(self, step: StepContext) -> StepContext:
        return step

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Callable[[Tensor, StepContext], Tensor]:
        def attend(qkv: Tensor, step: StepContext) -> Tensor:
            width = self.heads * self.head_dim
            out = qkv.new_empty(qkv.shape[0], width)
            starts, contexts = step.query_start.tolist(), step.seq_lens.tolist()
            for row in range(step.num_rows):
                first, last, context = starts[row], starts[row + 1], contexts[row]
                blocks = step.block_table[row, : -(-context // self.block_size)].long()
                k = cache.k[blocks].flatten(0, 1)[:context].float()
                v = cache.v[blocks].flatten(0, 1)[:context].float()
                q = (
                    qkv[first:last, :width]
                    .float()
                    .view(-1, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
                )
                scores = torch.einsum("tmgd,jmd->mgtj", q, k) * self.scale
                scores = scores.masked_fill(
                    self._hidden(first - last + context, context, scores.device), -torch.inf
                )
                if sinks is not None:
                    sink = sinks.float().view(self.kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
                    scores = torch.cat([scores, sink], dim=-1)
                weights = torch.softmax(scores, dim=-1)[..., :context]
                out[first:last] = torch.einsum("mgtj,jmd->tmgd", weights, v).flatten(1).to(qkv.dtype)
            return out

        return attend

    def _hidden(self, start: int, context: int, device: torch.device) -> Tensor:
        """``[T, context]``, true where the token at ``start + t`` may not look."""
        query = torch.arange(start, context, device=device).unsqueeze(1)
        key = torch.arange(context, device=device)
        hidden = key > query
        return hidden | (key <= query - self.window) if self.window else hidden


def _build_rope(facts: Facts) -> _Rope:
    return _Rope(
        facts.size("heads"), facts.size("kv_heads"), facts.size("head_dim"), facts.size("rotary_dim")
    )


def _build_attention(facts: Facts) -> _PagedAttention:
    return _PagedAttention(
        facts.size("heads"),
        facts.size("kv_heads"),
        facts.size("head_dim"),
        facts.number("scale"),
        facts.size("window"),
        facts.size("block_size"),
        cache_dtype(facts),
    )


def _anywhere(_: Facts) -> None:
    """The reference serves everything."""


CANDIDATES = (
    Candidate(LINEAR.name, "reference", 0, _anywhere, lambda _: _Linear()),
    Candidate(LM_HEAD.name, "reference", 0, _anywhere, lambda _: _LmHead()),
    Candidate(LINEAR_SILU_MUL.name, "reference", 0, _anywhere, lambda _: _LinearSiluMul()),
    Candidate(LM_HEAD_TIED.name, "reference", 0, _anywhere, lambda _: _TiedHead()),
    Candidate(NORM_RMS.name, "reference", 0, _anywhere, lambda _: _RmsNorm()),
    Candidate(NORM_LAYER.name, "reference", 0, _anywhere, lambda _: _LayerNorm()),
    Candidate(ROPE.name, "reference", 0, _anywhere, _build_rope),
    Candidate(ATTENTION_PAGED.name, "reference", 0, _anywhere, _build_attention),
)
