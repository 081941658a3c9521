"""Reference of latent attention in plain torch, in float32 whatever the dtype: keys and values expanded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.mla_ops import ATTENTION_MLA, ROPE_MLA, LatentAttend, LatentRope
from frizzen.kernels.plan import Candidate
from frizzen.step import StepContext

__all__ = ["CANDIDATES", "LatentShape"]


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of one layer."""

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_dim: int
    scale: float
    block_size: int
    dtype: torch.dtype

    @classmethod
    def of(cls, facts: Facts) -> LatentShape:
        """Reads the facts of ``attention.mla``."""
        return cls(
            facts.size("heads"),
            facts.size("nope_dim"),
            facts.size("rope_dim"),
            facts.size("value_dim"),
            facts.size("latent_dim"),
            facts.number("scale"),
            facts.size("block_size"),
            facts.dtype,
        )

    def bytes_per_token(self) -> int:
        """Of one layer's cache."""
        return (self.latent_dim + self.rope_dim) * self.dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        """Zeros."""
        width = self.latent_dim + self.rope_dim
        return torch.zeros(num_blocks, self.block_size, width, dtype=self.dtype, device=device)

    def heads_of(self, queries: Tensor) -> Tensor:
        """``[T, N * (P + R)]`` -> ``[T, N, P + R]``."""
        return torch.unflatten(queries, 1, (self.heads, self.nope_dim + self.rope_dim))


@dataclass(frozen=True, slots=True)
class _Rope:
    heads: int
    nope_dim: int
    rope_dim: int
    latent_dim: int

    @classmethod
    def build(cls, facts: Facts) -> _Rope:
        return cls(*(facts.size(name) for name in ("heads", "nope_dim", "rope_dim", "latent_dim")))

    def prepare(self, cache: Tensor, norm: Tensor, eps: float) -> LatentRope:
        by_slot = cache.view(-1, self.latent_dim + self.rope_dim)

        def rope(q: Tensor, kv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
            heads = torch.unflatten(q, 1, (self.heads, -1))
            turning = heads[..., self.nope_dim :]
            turning.copy_(_rotate(turning.float(), cos.unsqueeze(1), sin.unsqueeze(1)))
            latent, key = torch.split(kv.float(), [self.latent_dim, self.rope_dim], dim=1)
            latent = latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + eps) * norm.float()
            by_slot[slots] = torch.cat([latent, _rotate(key, cos, sin)], dim=1).to(cache.dtype)

        return rope


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass(frozen=True, slots=True)
class _Attention:
    shape: LatentShape

    def bytes_per_token(self) -> int:
        return self.shape.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        return self.shape.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> StepContext:
        return step

    def prepare(self, cache: Tensor, expansion: Tensor) -> LatentAttend:
        shape = self.shape

        def attend(q: Tensor, step: StepContext) -> Tensor:
            parts = []
            starts, contexts = step.query_start.tolist(), step.seq_lens.tolist()
            for row in range(step.num_rows):
                first, last, context = starts[row], starts[row + 1], contexts[row]
                blocks = step.block_table[row, : -(-context // shape.block_size)].long()
                held = cache[blocks].flatten(0, 1)[:context].float()
                latent, shared = torch.split(held, [shape.latent_dim, shape.rope_dim], dim=1)
                expanded = torch.unflatten(latent @ expansion.float().T, 1, (shape.heads, -1))
                k, v = torch.split(expanded, [shape.nope_dim, shape.value_dim], dim=2)
                k = torch.cat([k, shared.unsqueeze(1).expand(-1, shape.heads, -1)], dim=2)
                scores = torch.einsum("tnd,jnd->ntj", shape.heads_of(q[first:last]).float(), k) * shape.scale
                position = torch.arange(context, device=q.device)
                scores = scores.masked_fill(position > position[first - last + context :, None], -torch.inf)
                out = torch.einsum("ntj,jnv->tnv", torch.softmax(scores, dim=-1), v)
                parts.append(out.flatten(1).to(q.dtype))
            return torch.cat(parts)

        return attend


def _anywhere(_: Facts) -> None:
    """The reference serves everything."""


CANDIDATES = (
    Candidate(ROPE_MLA.name, "reference", 0, _anywhere, _Rope.build),
    Candidate(ATTENTION_MLA.name, "reference", 0, _anywhere, lambda facts: _Attention(LatentShape.of(facts))),
)
