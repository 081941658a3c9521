"""Attention of draft layers by torch's own attention: all rows as one padded batch, never asking the device.

The shapes follow from ``num_rows``, ``num_tokens`` and ``max_context`` alone, so a captured graph is right
for any lengths within them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.kernels.draft_ops import ATTENTION_DRAFT, ATTENTION_DRAFT_MLA
from frizzen.kernels.draft_reference import DraftShape
from frizzen.kernels.facts import Facts
from frizzen.kernels.mla_ops import LatentAttend
from frizzen.kernels.mla_reference import LatentShape
from frizzen.kernels.ops import KVCache
from frizzen.kernels.plan import Candidate
from frizzen.step import StepContext

__all__ = ["CANDIDATES"]


@dataclass(frozen=True, slots=True)
class _Padded:
    """The contexts of a step, each padded to the longest."""

    rows: int
    blocks: Tensor
    """``[B * blocks]``, the block table in one line."""
    unseen: Tensor
    """``[B, C]`` bool, slots that hold nothing of the row's. They are zeroed: NaNs would survive the mask."""
    mask: Tensor
    """``[B, 1, Q or 1, C]``, 0 or -inf."""

    @classmethod
    def of(
        cls, step: StepContext, block_size: int, dtype: torch.dtype, first: int, causal: bool, window: int
    ) -> _Padded:
        blocks = step.block_table[:, : -(-step.max_context // block_size)].long()
        position = torch.arange(blocks.shape[1] * block_size, device=blocks.device)
        context = step.seq_lens.long()[:, None]
        unseen = (position >= context) | (position < first)
        last = context - 1
        if causal:
            width = step.num_tokens // step.num_rows
            last = last - torch.arange(width - 1, -1, -1, device=blocks.device)
        last = last[:, None, :, None]
        hidden = unseen[:, None, None] | (position > last)
        if window:
            hidden |= position <= last - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=blocks.device)
        return cls(len(blocks), blocks.flatten(), unseen, mask.masked_fill_(hidden, -torch.inf))

    def gather(self, data: Tensor) -> Tensor:
        """``data [blocks, block_size, ...]`` -> ``[B, C, ...]``."""
        gathered = data.index_select(0, self.blocks).view(self.rows, -1, *data.shape[2:])
        unseen = self.unseen.view(*self.unseen.shape, *[1] * (gathered.dim() - 2))
        return gathered.masked_fill_(unseen, 0)


@dataclass(frozen=True, slots=True)
class _Attention:
    shape: DraftShape
    layout: str = "token"

    def bytes_per_token(self) -> int:
        return self.shape.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        return self.shape.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> _Padded:
        shape = self.shape
        return _Padded.of(step, shape.block_size, shape.dtype, shape.first, shape.causal, shape.window)

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Callable[[Tensor, _Padded], Tensor]:
        shape = self.shape

        def attend(qkv: Tensor, rows: _Padded) -> Tensor:
            k, v = rows.gather(cache.data).permute(2, 0, 3, 1, 4)
            q = qkv[:, : shape.heads * shape.head_dim].view(rows.rows, -1, shape.heads, shape.head_dim)
            out = functional.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, attn_mask=rows.mask, scale=shape.scale, enable_gqa=True
            )
            return out.transpose(1, 2).reshape(len(qkv), -1)

        return attend


@dataclass(frozen=True, slots=True)
class _LatentAttention:
    shape: LatentShape
    first: int

    def bytes_per_token(self) -> int:
        return self.shape.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        return self.shape.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> _Padded:
        return _Padded.of(step, self.shape.block_size, self.shape.dtype, self.first, True, 0)

    def prepare(self, cache: Tensor, expansion: Tensor) -> LatentAttend:
        shape = self.shape
        by_head = torch.unflatten(expansion, 0, (shape.heads, -1))
        to_key, to_value = torch.split(by_head, [shape.nope_dim, shape.value_dim], dim=1)

        def attend(q: Tensor, rows: _Padded) -> Tensor:
            # Every head reads the same vectors: heads stand where tokens would, and a key is its own value.
            held = rows.gather(cache).unsqueeze(1)
            nope, turned = torch.split(shape.heads_of(q), [shape.nope_dim, shape.rope_dim], dim=2)
            latent = torch.bmm(nope.transpose(0, 1), to_key).transpose(0, 1)
            out = functional.scaled_dot_product_attention(
                torch.cat([latent, turned], dim=2).unsqueeze(1),
                held,
                held,
                attn_mask=rows.mask,
                scale=shape.scale,
            )
            values = torch.bmm(out[:, 0, :, : shape.latent_dim].transpose(0, 1), to_value.transpose(1, 2))
            return values.transpose(0, 1).flatten(1)

        return attend


def _anywhere(_: Facts) -> None:
    """Torch's operators serve every device and dtype here."""


CANDIDATES = (
    Candidate(
        ATTENTION_DRAFT.name, "torch_padded", 10, _anywhere, lambda facts: _Attention(DraftShape.of(facts))
    ),
    Candidate(
        ATTENTION_DRAFT_MLA.name,
        "torch_padded",
        10,
        _anywhere,
        lambda facts: _LatentAttention(LatentShape.of(facts), facts.size("first")),
    ),
)
