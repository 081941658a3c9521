"""References of the draft layers' attention: a loop over rows, in float32 whatever the dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.kernels.draft_ops import ATTENTION_DRAFT, ATTENTION_DRAFT_MLA
from frizzen.kernels.facts import Facts
from frizzen.kernels.kv_layout import allocate
from frizzen.kernels.mla_ops import LatentAttend
from frizzen.kernels.mla_reference import LatentShape
from frizzen.kernels.ops import KVCache
from frizzen.kernels.plan import Candidate
from frizzen.step import StepContext

__all__ = ["CANDIDATES", "DraftShape"]


@dataclass(frozen=True, slots=True)
class DraftShape:
    """The facts of ``attention.draft``."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    block_size: int
    causal: bool
    first: int
    dtype: torch.dtype

    @classmethod
    def of(cls, facts: Facts) -> DraftShape:
        """Reads them."""
        return cls(
            facts.size("heads"),
            facts.size("kv_heads"),
            facts.size("head_dim"),
            facts.number("scale"),
            facts.size("window"),
            facts.size("block_size"),
            bool(facts["causal"]),
            facts.size("first"),
            facts.dtype,
        )

    def bytes_per_token(self) -> int:
        """Of one layer's cache."""
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        """Zeros, in the layout ``token``."""
        return allocate(
            "token", num_blocks, self.block_size, self.kv_heads, self.head_dim, self.dtype, device
        )


@dataclass(frozen=True, slots=True)
class _Attention:
    shape: DraftShape
    layout: str = "token"

    def bytes_per_token(self) -> int:
        return self.shape.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        return self.shape.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> StepContext:
        return step

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Callable[[Tensor, StepContext], Tensor]:
        shape = self.shape
        width = shape.heads * shape.head_dim

        def attend(qkv: Tensor, step: StepContext) -> Tensor:
            parts = []
            starts, contexts = step.query_start.tolist(), step.seq_lens.tolist()
            for row in range(step.num_rows):
                begin, end, context = starts[row], starts[row + 1], contexts[row]
                for token in range(begin, end):
                    last = context - end + token if shape.causal else context - 1
                    lowest = max(shape.first, last - shape.window + 1 if shape.window else 0)
                    seen = torch.arange(lowest, last + 1, device=qkv.device)
                    block = step.block_table[row].long()[seen // shape.block_size]
                    k, v = (held[block, seen % shape.block_size].float() for held in (cache.k, cache.v))
                    q = qkv[token, :width].float().view(shape.kv_heads, -1, shape.head_dim)
                    weights = torch.softmax(torch.einsum("mgd,jmd->mgj", q, k) * shape.scale, dim=-1)
                    parts.append(torch.einsum("mgj,jmd->mgd", weights, v).flatten())
            return torch.stack(parts).to(qkv.dtype)

        return attend


@dataclass(frozen=True, slots=True)
class _LatentAttention:
    shape: LatentShape
    first: int

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
            for row, context in enumerate(step.seq_lens.tolist()):
                seen = torch.arange(self.first, context, device=q.device)
                block = step.block_table[row].long()[seen // shape.block_size]
                held = cache[block, seen % shape.block_size].float()
                latent, shared = torch.split(held, [shape.latent_dim, shape.rope_dim], dim=1)
                expanded = torch.unflatten(latent @ expansion.float().T, 1, (shape.heads, -1))
                k, v = torch.split(expanded, [shape.nope_dim, shape.value_dim], dim=2)
                k = torch.cat([k, shared.unsqueeze(1).expand(-1, shape.heads, -1)], dim=2)
                scores = torch.einsum("tnd,jnd->ntj", shape.heads_of(q[row : row + 1]).float(), k)
                weights = torch.softmax(scores * shape.scale, dim=-1)
                parts.append(torch.einsum("ntj,jnv->tnv", weights, v).flatten(1))
            return torch.cat(parts).to(q.dtype)

        return attend


def _anywhere(_: Facts) -> None:
    """The reference serves everything."""


CANDIDATES = (
    Candidate(
        ATTENTION_DRAFT.name, "reference", 0, _anywhere, lambda facts: _Attention(DraftShape.of(facts))
    ),
    Candidate(
        ATTENTION_DRAFT_MLA.name,
        "reference",
        0,
        _anywhere,
        lambda facts: _LatentAttention(LatentShape.of(facts), facts.size("first")),
    ),
)
