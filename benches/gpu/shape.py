"""The model whose kernels are measured, and what one H200 could do at best."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FP8_MATRIX_RATE", "MATRIX_RATE", "QWEN3_30B_A3B", "READ_RATE", "MoeShape"]

READ_RATE = 4.16e12
"""Bytes per second that a sum over a large tensor reads on an H200."""
MATRIX_RATE = 790e12
"""bfloat16 operations per second of a large matrix product on an H200, random data."""
FP8_MATRIX_RATE = 1270e12
"""FP8 operations per second of DeepGEMM's product with block scales, 4096 by 4096 by 7168, on an H200."""


@dataclass(frozen=True, slots=True)
class MoeShape:
    """A decoder whose layers all have experts.

    ``width`` in its methods is the bytes of a weight of the layers' products; router and head have 2.
    """

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
    def attention_weights(self) -> int:
        """Weights of one layer's attention."""
        return self.hidden * (self.qkv_features + self.heads * self.head_dim)

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden * self.intermediate

    def experts_hit(self, tokens: int) -> float:
        """Distinct experts that ``tokens`` hit, on average, if routing is uniform."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** tokens)

    def decode_seconds(self, rows: int, context: int, width: int = 2, key_width: int = 2) -> float:
        """Least time of a decode step: every weight and key that it needs is read once."""
        weights = width * (self.attention_weights + self.experts_hit(rows) * self.expert_weights)
        key_bytes = 2 * key_width * self.kv_heads * self.head_dim * rows * context
        layer = weights + 2 * self.experts * self.hidden + key_bytes
        return (self.layers * layer + 2 * self.vocabulary * self.hidden) / READ_RATE

    def prefill_seconds(self, tokens: int, width: int = 2, context: int | None = None) -> float:
        """Least time of the last ``tokens`` of a prompt of ``context`` tokens, by default of all of it.

        Its multiplications and additions count.
        """
        weights = self.attention_weights + self.top_k * self.expert_weights
        keys = (context or tokens) - tokens / 2  # the later half of a part sees more than the first
        attention = 2 * keys * self.heads * self.head_dim
        rest = (self.experts * self.hidden + attention) / MATRIX_RATE
        products = weights / (MATRIX_RATE if width == 2 else FP8_MATRIX_RATE)
        return self.layers * tokens * 2 * (rest + products)


QWEN3_30B_A3B = MoeShape("qwen3-30b-a3b", 2048, 32, 4, 128, 128, 8, 768, 48, 151_936)
