"""The model whose kernels are measured, and what one H200 could do at best."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MATRIX_RATE", "QWEN3_30B_A3B", "READ_RATE", "MoeShape"]

READ_RATE = 4.16e12
"""Bytes per second that a sum over a large tensor reads on an H200."""
MATRIX_RATE = 790e12
"""bfloat16 operations per second of a large matrix product on an H200, random data."""


@dataclass(frozen=True, slots=True)
class MoeShape:
    """A decoder whose layers all have experts; weights in bfloat16."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    intermediate: int
    layers: int
    vocabulary: int

    @property
    def qkv_features(self) -> int:
        """Outputs of the joint query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def dense_weights(self) -> int:
        """Weights of one layer that every token uses, experts apart."""
        attention = self.hidden * (self.qkv_features + self.heads * self.head_dim)
        return attention + self.experts * self.hidden

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden * self.intermediate

    def experts_hit(self, tokens: int) -> float:
        """Distinct experts that ``tokens`` hit, on average, if routing is uniform."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** tokens)

    def decode_seconds(self, rows: int, context: int) -> float:
        """Least time of a decode step: every weight and key that it needs is read once."""
        expert_bytes = 2 * self.experts_hit(rows) * self.expert_weights
        key_bytes = 2 * 2 * self.kv_heads * self.head_dim * rows * context
        layer = 2 * self.dense_weights + expert_bytes + key_bytes
        return (self.layers * layer + 2 * self.vocabulary * self.hidden) / READ_RATE

    def prefill_seconds(self, tokens: int) -> float:
        """Least time of the prefill of one prompt: its multiplications and additions."""
        weights = self.dense_weights + self.top_k * self.expert_weights
        attention = tokens * self.heads * self.head_dim  # two products, half of the keys masked
        return self.layers * tokens * 2 * (weights + attention) / MATRIX_RATE


QWEN3_30B_A3B = MoeShape("qwen3-30b-a3b", 2048, 32, 4, 128, 128, 8, 768, 48, 151_936)
