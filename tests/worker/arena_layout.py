"""The engine's arena layout written out in Python, so that the worker can be tested without the engine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

SIZES = {"int32": 4, "int64": 8, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Layout:
    """What ``frizzen._core.ArenaLayout`` has; a test compares the two."""

    nbytes: int
    sections: list[tuple[str, str, tuple[int, ...], int]]


def layout(
    *,
    max_rows: int,
    max_tokens: int,
    max_drafts: int = 0,
    max_logprobs: int = 20,
    max_block_deltas: int = 256,
    max_history: int = 4096,
    max_rules: int = 256,
    vocab_size: int = 97,
    pooled_size: int = 0,
) -> Layout:
    """The layout for these limits."""
    b, t, k, h, r, n = max_rows, max_tokens, max_block_deltas, max_history, max_rules, max_logprobs
    width = max_drafts + 1
    s = min(t, b * width)
    shapes: list[tuple[str, str, tuple[int, ...]]] = [
        ("header", "int64", (16,)),
        ("input_ids", "int32", (t,)),
        ("positions", "int32", (t,)),
        ("slots", "int64", (t,)),
        ("rows", "int32", (b,)),
        ("query_start", "int32", (b + 1,)),
        ("seq_lens", "int32", (b,)),
        ("num_drafts", "int32", (b,)),
        ("next_tokens", "int32", (b,)),
        ("sample_tokens", "int32", (s,)),
        ("sample_rows", "int32", (s,)),
        ("uniforms", "float64", (s,)),
        ("prompt_tokens", "int32", (t,)),
        ("prompt_rows", "int32", (t,)),
        ("prompt_targets", "int32", (t,)),
        ("block_rows", "int32", (k,)),
        ("block_columns", "int32", (k,)),
        ("block_ids", "int32", (k,)),
        ("admit_rows", "int32", (b,)),
        ("admit_ints", "int32", (b, 8)),
        ("admit_floats", "float32", (b, 8)),
        ("admit_seeds", "int64", (b,)),
        ("rule_kinds", "int32", (r,)),
        ("rule_tokens", "int32", (r,)),
        ("rule_values", "float32", (r,)),
        ("history", "int32", (h,)),
        ("num_sampled", "int32", (b,)),
        ("sampled", "int32", (b, width)),
        ("row_status", "int32", (b,)),
        ("pooled", "float32", (b, pooled_size)),
        ("num_proposed", "int32", (b,)),
        ("proposed", "int32", (b, max_drafts)),
        ("proposed_confidence", "float32", (b, max_drafts)),
        ("logprobs", "float32", (b, width)),
        ("ranks", "int32", (b, width)),
        ("top_tokens", "int32", (b, width, n)),
        ("top_logprobs", "float32", (b, width, n)),
        ("prompt_logprobs", "float32", (t,)),
        ("prompt_ranks", "int32", (t,)),
        ("prompt_top_tokens", "int32", (t, n)),
        ("prompt_top_logprobs", "float32", (t, n)),
        ("mask_rows", "int32", (s,)),
        ("masks", "int32", (s, -(-vocab_size // 32))),
        ("token_vectors", "float32", (t, pooled_size)),
    ]
    sections = []
    offset = 0
    for name, dtype, shape in shapes:
        sections.append((name, dtype, shape, offset))
        offset += (prod(shape) * SIZES[dtype] + 63) // 64 * 64
    return Layout(offset, sections)
