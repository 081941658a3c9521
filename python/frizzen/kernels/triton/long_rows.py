"""Paged attention on Hopper: rows of many tokens by ``long_attention``, all others by ``paged_attention``.

Which kernel serves the rows of several tokens is decided for all of them together, by sizes that the host
knows: see :func:`worth_long_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from frizzen.kernels.facts import Facts
from frizzen.kernels.ops import KVCache
from frizzen.kernels.triton.attention import LOG2E
from frizzen.kernels.triton.long_attention import BLOCK_M, PIECE, WIDTH, long_attention
from frizzen.kernels.triton.paged_attention import HeadNorms, PagedAttention
from frizzen.kernels.triton.rope import Rope
from frizzen.step import StepContext

__all__ = ["LongRows", "long_tiles", "worth_long_tiles"]

_TOKENS = int(BLOCK_M.value)
_STAGES = 2
_REGISTERS = 168
"""Per thread before the groups of warps divide them: 504 for three threads, of which two multiply."""
_UNCUT = 1024
"""Longest context that few programs may go through without cutting it."""


def long_tiles(step: StepContext) -> int:
    """Upper bound of the tiles of the step's rows of several tokens."""
    return (step.num_tokens - step.num_single) // _TOKENS + step.num_rows - step.num_single


def worth_long_tiles(step: StepContext, heads: int, processors: int) -> bool:
    """Whether long tiles serve a step's rows of several tokens.

    They do if these are as long as a tile on average, so that at most half of the work is for tokens that do
    not exist, and if there are programs for all ``processors``, or contexts short enough not to be cut.
    """
    rows, tokens = step.num_rows - step.num_single, step.num_tokens - step.num_single
    if rows == 0 or tokens < rows * _TOKENS:
        return False
    return step.max_context <= _UNCUT or heads * (tokens // _TOKENS) >= processors


@dataclass(frozen=True, slots=True)
class LongRows:
    """See ``attention.paged``."""

    paged: PagedAttention
    """The kernel of all other rows, and of steps that long tiles do not suit."""
    counter: Tensor
    """``[1]`` int32, 0 between launches: all layers share it, for they run one after the other."""
    capturable: ClassVar[bool] = True
    turns: ClassVar[type] = PagedAttention.turns
    """Whose rotation ``prepare_turned`` is equal to."""

    @classmethod
    def build(cls, facts: Facts) -> LongRows:
        """The kernels for one head geometry."""
        return cls(PagedAttention.build(facts), torch.zeros(1, dtype=torch.int32, device=facts.device))

    @property
    def layout(self) -> str:
        """By token."""
        return self.paged.layout

    def bytes_per_token(self) -> int:
        """Keys and values of all heads."""
        return self.paged.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        """An empty cache of one layer."""
        return self.paged.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> tuple[Any, StepContext | None]:
        """The state of the other kernel, and the step if its long rows are served here."""
        if not worth_long_tiles(step, self.paged.heads, self.paged.target.processors):
            return self.paged.begin(step), None
        return self.paged.begin_single(step), step

    def prepare(
        self, cache: KVCache, sinks: Tensor | None = None
    ) -> Callable[[Tensor, tuple[Any, StepContext | None]], Tensor]:
        """Binds a layer's cache and, for models that have them, its ``sinks [N]``."""
        paged = self.paged
        size, slots = paged.heads * paged.head_dim, cache.data.shape[0] * paged.block_size
        layout = gl.NVMMASharedLayout(128, 8 * cache.data.itemsize, 2)
        keys_and_values = _descriptor(cache.data.view(slots, -1), PIECE.value, layout)

        def attend(qkv: Tensor, state: tuple[Any, StepContext | None]) -> Tensor:
            rest, step = state
            out = torch.empty(len(qkv), size, dtype=qkv.dtype, device=qkv.device)
            paged.run(rest, qkv, cache, sinks, out)
            if step is not None:
                units = long_tiles(step) * paged.heads
                queries = _descriptor(qkv[:, :size], _TOKENS // 2, layout)
                long_attention[(min(units, paged.target.processors),)](
                    queries, keys_and_values, sinks, out, step.query_start, step.seq_lens, step.block_table,
                    self.counter, step.num_single, step.num_rows, units, out.stride(0),
                    step.block_table.stride(0), slots, paged.scale * LOG2E.value,
                    GROUP=paged.heads // paged.kv_heads, HEADS=paged.heads, D=paged.head_dim,
                    SINKS=sinks is not None, BLOCK_SIZE=paged.block_size, STAGES=_STAGES,
                    num_warps=4, maxnreg=_REGISTERS,
                )  # fmt: skip
            return out

        return attend

    def prepare_turned(
        self, rope: Rope, cache: KVCache, norms: HeadNorms, sinks: Tensor | None = None
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor, tuple[Any, StepContext | None]], Tensor]:
        """``rope`` and this together; ``PagedAttention.prepare_turned`` serves steps of single tokens."""
        one = self.paged.prepare_turned(rope, cache, norms, sinks)
        turn, attend = rope.prepare(cache, *norms), self.prepare(cache, sinks)

        def turn_and_attend(
            qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: tuple[Any, StepContext | None]
        ) -> Tensor:
            if state[0].step.num_single == len(qkv):
                return one(qkv, cos, sin, slots, state[0])
            turn(qkv, cos, sin, slots)
            return attend(qkv, state)

        return turn_and_attend


def _descriptor(rows: Tensor, height: int, layout: gl.NVMMASharedLayout) -> TensorDescriptor:
    """Of ``rows [R, C]``, copied ``height`` rows by 128 bytes at a time."""
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [height, WIDTH.value], layout)
