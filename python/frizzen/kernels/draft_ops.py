"""The attention of draft layers, in the style of ``ops``: a draft does not always see just what came before.

Drafters that fuse a token with the hidden state before it (MTP, EAGLE) have no entry for the first token of a
text, so their cache has one slot that nobody may see. Block drafters (DSpark) look at their whole block. In
both, the rows of a pass are alike, so that no kernel has to ask the device how long they are.
"""

from __future__ import annotations

from frizzen.kernels.mla_ops import LatentAttentionKernel
from frizzen.kernels.ops import PagedAttentionKernel
from frizzen.kernels.plan import Op

__all__ = ["ATTENTION_DRAFT", "ATTENTION_DRAFT_MLA"]

ATTENTION_DRAFT: Op[PagedAttentionKernel] = Op(
    "attention.draft",
    ("heads", "kv_heads", "head_dim", "scale", "window", "block_size", "causal", "first"),
    """As attention.paged without sinks, for steps whose rows all have T / B tokens, with another sight: the
    token at position p sees the positions first <= j <= last, where last is p, or with causal false the
    last position of its row; with window > 0 only j > last - window. Every token sees at least one. What
    stands in slots below first or past the context must not matter, NaN included.""",
)

ATTENTION_DRAFT_MLA: Op[LatentAttentionKernel] = Op(
    "attention.draft_mla",
    ("heads", "nope_dim", "rope_dim", "value_dim", "latent_dim", "scale", "block_size", "first"),
    """As attention.mla for steps of one token per row, which sees the positions j >= first. What stands in
    slots below first or past the context must not matter, NaN included.""",
)
