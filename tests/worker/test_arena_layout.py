"""The layout that these tests write is the engine's own."""

from __future__ import annotations

from frizzen._core import ArenaLayout
from tests.worker.arena_layout import layout

LIMITS = {
    "max_rows": 5,
    "max_tokens": 33,
    "max_drafts": 2,
    "max_logprobs": 3,
    "max_block_deltas": 17,
    "max_history": 70,
    "max_rules": 9,
    "vocab_size": 97,
}


def test_sections_of_the_engine_and_of_the_tests_are_the_same() -> None:
    ours, theirs = layout(**LIMITS), ArenaLayout(**LIMITS)
    assert [(name, dtype, tuple(shape), at) for name, dtype, shape, at in theirs.sections] == ours.sections
    assert theirs.nbytes == ours.nbytes
