"""Latent attention by torch's own attention: absorbed for rows of one token, expanded for the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.kernels.facts import Facts
from frizzen.kernels.mla_ops import ATTENTION_MLA, LatentAttend
from frizzen.kernels.mla_reference import LatentShape
from frizzen.kernels.plan import Candidate
from frizzen.kernels.torch_paging import LongRow, PaddedRow, Paging, Rows, SingleRows
from frizzen.step import StepContext

__all__ = ["CANDIDATES"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's constants."""

    shape: LatentShape
    cache: Tensor
    expansion: Tensor

    def single(self, queries: Tensor, rows: SingleRows) -> Tensor:
        """Every head reads the same vectors: heads stand where tokens would, and a key is its own value."""
        shape = self.shape
        held = rows.gather(self.cache, shape.dtype).unsqueeze(1)
        expansion = torch.unflatten(self.expansion, 0, (shape.heads, -1))
        to_key, to_value = torch.split(expansion, [shape.nope_dim, shape.value_dim], dim=1)
        nope, turned = torch.split(shape.heads_of(queries), [shape.nope_dim, shape.rope_dim], dim=2)
        latent = torch.bmm(nope.transpose(0, 1), to_key).transpose(0, 1)
        out = functional.scaled_dot_product_attention(
            torch.cat([latent, turned], dim=2).unsqueeze(1),
            held,
            held,
            attn_mask=rows.mask,
            scale=shape.scale,
        )
        by_head = out[:, 0, :, : shape.latent_dim].transpose(0, 1)
        return torch.bmm(by_head, to_value.transpose(1, 2)).transpose(0, 1).flatten(1)

    def long(self, queries: Tensor, row: LongRow | PaddedRow) -> Tensor:
        """Makes the keys and values of the whole context."""
        shape, mask = self.shape, row.mask
        held = row.gather(self.cache, shape.dtype)
        latent, shared = torch.split(held, [shape.latent_dim, shape.rope_dim], dim=1)
        expanded = torch.unflatten(functional.linear(latent, self.expansion), 1, (shape.heads, -1))
        k, v = torch.split(expanded, [shape.nope_dim, shape.value_dim], dim=2)
        k = torch.cat([k, shared.unsqueeze(1).expand(-1, shape.heads, -1)], dim=2)
        # Torch's fused kernel wants values as wide as keys.
        v = functional.pad(v, (0, max(k.shape[2] - shape.value_dim, 0)))
        out = functional.scaled_dot_product_attention(
            shape.heads_of(queries).transpose(0, 1).unsqueeze(0),
            k.transpose(0, 1).unsqueeze(0),
            v.transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            is_causal=mask is None,
            scale=shape.scale,
        )
        return out[0, ..., : shape.value_dim].transpose(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class _Attention:
    shape: LatentShape

    def bytes_per_token(self) -> int:
        return self.shape.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        return self.shape.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> Rows:
        return Paging(self.shape.block_size, 0, self.shape.dtype).rows(step)

    def prepare(self, cache: Tensor, expansion: Tensor) -> LatentAttend:
        layer = _Layer(self.shape, cache, expansion)
        return lambda q, rows: rows.attend(q, layer.single, layer.long)


def _anywhere(_: Facts) -> None:
    """Torch's operators serve every device and dtype here."""


CANDIDATES = (
    Candidate(
        ATTENTION_MLA.name,
        "torch_sdpa",
        10,
        _anywhere,
        lambda facts: _Attention(LatentShape.of(facts)),
    ),
)
