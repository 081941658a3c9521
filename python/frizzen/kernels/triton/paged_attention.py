"""Paged attention: decodes, verification widths and prefill chunks by one kernel, each with its own tile.

Where the batch alone cannot keep the device busy, a tile's context is cut into splits, run by different
programs and merged by a second launch.

What a captured graph depends on: ``num_rows``, ``num_single``, ``num_tokens`` and upper bounds of
``max_query`` and ``max_context``. Row borders, lengths and blocks are read on the device, so a replay is
right for any lengths within the bounds; programs without work end at once. A row of length 0 gets zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.kv_layout import allocate, cache_dtype, token_layout
from frizzen.kernels.ops import KVCache
from frizzen.kernels.triton.attention import LOG2E, merge, paged_attention
from frizzen.kernels.triton.attention_turned import attend_turned
from frizzen.kernels.triton.launch import Target, precision, round_up_power
from frizzen.kernels.triton.rope import Rope
from frizzen.step import StepContext

__all__ = ["HeadNorms", "PagedAttention", "Tile"]

_SPLIT_FROM = 544
"""Longest context that is not worth a second launch; a context of 512 with drafts after it is none."""
_SPLIT_LEAST = 128
"""Fewest keys of a split."""
_SPLIT_MOST = 4096
"""Most keys of a split of a row with few tokens, which must not keep one program busy when all others end."""
_MAX_SPLITS = 64
_MAX_TILED_SPLITS = 32
"""Most where a row has several tiles; only the shortest would get more, in a variant of their own."""
_EARLY_TOKENS = 16
"""Most tokens whose attention lets the next kernel start at once: the product behind it holds its weight."""
_TURNED_PROGRAMS = 4
"""Fewest programs per multiprocessor that a rotation of their own is as fast for."""


HeadNorms = tuple[Tensor | None, Tensor | None, float]
"""Norms of every query head and key head before its rotation, if there are any, and their epsilon."""


class Tile(NamedTuple):
    """``BLOCK_M``, ``BLOCK_N``, warps, pipeline stages."""

    m: int
    n: int
    warps: int
    stages: int


def _tile_for(pairs: int, programs: int, group: int, head_dim: int, dtype: torch.dtype) -> Tile:
    """The tile for rows of at most ``pairs`` (token, head) pairs, ``programs`` per multiprocessor."""
    least, wanted = round_up_power(group, 16), round_up_power(pairs, 16)
    if dtype == torch.float32 or head_dim > 128:
        return Tile(max(min(wanted, 32), least), 32, 4, 2)
    if wanted >= 128:
        return Tile(max(128, least), 64, 8, 3)
    if wanted > 16:
        return Tile(wanted, 64, 4, 3)
    # Many rows: small programs, so that more of them are there to wait for memory.
    return Tile(16, 32, 2, 2) if programs >= 2 else Tile(16, 128, 4, 3)


def _one_keys(head_dim: int, dtype: torch.dtype) -> int:
    """Keys of a tile of a step of one token: a program holds them, and their values, in registers."""
    return 128 if head_dim <= 128 and dtype != torch.float32 else 32


def _turned_tile(programs: int, head_dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Keys that a program holds, and warps, where rotation is part of attention."""
    # Fewer keys and warps, so that more programs are there to wait for memory.
    keys, warps = (128, 8) if programs < 1 else (64, 4)
    return min(keys, _one_keys(head_dim, dtype)), warps


@dataclass(frozen=True, slots=True)
class _Launch:
    """A range of rows served by one launch in every layer."""

    first_row: int
    last_row: int
    tiles: int
    splits: int
    search: bool
    """Whether a row may have several tiles."""
    tile: Tile
    partials: tuple[Tensor | None, Tensor | None, Tensor | None]
    """Sums, peaks and norms of the splits."""


@dataclass(frozen=True, slots=True)
class _State:
    step: StepContext
    launches: tuple[_Launch, ...]


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """See ``attention.paged``, and ``attention.draft``, whose rows may see other positions."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    block_size: int
    softcap: float
    dtype: torch.dtype
    kv_dtype: torch.dtype
    target: Target
    tile: Callable[[int, int], Tile]
    """The tile for rows of at most so many (token, head) pairs, and so many programs per multiprocessor."""
    causal: bool = True
    first: int = 0
    capturable: ClassVar[bool] = True
    turns: ClassVar[type] = Rope
    """Whose norms, rotation and cache write ``prepare_turned`` is equal to."""

    @property
    def layout(self) -> str:
        """By token."""
        return token_layout(self.kv_dtype)

    @classmethod
    def build(cls, facts: Facts, tile: Callable[[int, int], Tile] | None = None) -> PagedAttention:
        """The kernel for one head geometry. A fact ``softcap`` is optional; 0 is none. So are a draft's."""
        heads, kv_heads, head_dim = (facts.size(name) for name in ("heads", "kv_heads", "head_dim"))
        best = functools.partial(_tile_for, group=heads // kv_heads, head_dim=head_dim, dtype=facts.dtype)
        return cls(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=facts.number("scale"),
            window=facts.size("window"),
            block_size=facts.size("block_size"),
            softcap=facts.number("softcap") if "softcap" in facts else 0.0,
            dtype=facts.dtype,
            kv_dtype=cache_dtype(facts),
            target=Target.of(facts, shared_memory=140_000),
            tile=tile or best,
            causal=bool(facts["causal"]) if "causal" in facts else True,
            first=facts.size("first") if "first" in facts else 0,
        )

    def bytes_per_token(self) -> int:
        """Keys and values of all heads."""
        return 2 * self.kv_heads * self.head_dim * self.kv_dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        """An empty cache of one layer."""
        return allocate(
            self.layout, num_blocks, self.block_size, self.kv_heads, self.head_dim, self.kv_dtype, device
        )

    def begin(self, step: StepContext) -> _State:
        """Chooses tiles and splits, and makes the workspace: from sizes alone, nothing is read back."""
        state = self.begin_single(step)
        if step.num_single == step.num_rows:
            return state
        tokens = step.num_tokens - step.num_single
        launch = self._launch(step, step.num_single, step.num_rows, tokens, step.max_query)
        return _State(step, (*state.launches, launch))

    def begin_single(self, step: StepContext) -> _State:
        """As ``begin``, but for the rows of one token alone."""
        if not step.num_single:
            return _State(step, ())
        return _State(step, (self._launch(step, 0, step.num_single, step.num_single, 1),))

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Callable[[Tensor, _State], Tensor]:
        """Binds a layer's cache and, for models that have them, its ``sinks [N]``."""

        def attend(qkv: Tensor, state: _State) -> Tensor:
            out = torch.empty(len(qkv), self.heads * self.head_dim, dtype=qkv.dtype, device=qkv.device)
            self.run(state, qkv, cache, sinks, out)
            return out

        return attend

    def run(self, state: _State, qkv: Tensor, cache: KVCache, sinks: Tensor | None, out: Tensor) -> None:
        """Fills the rows of ``out [T, N * D]`` that ``state`` is about."""
        for launch in state.launches:
            self._run(launch, qkv, cache, sinks, out, state.step)

    def prepare_turned(
        self, rope: Rope, cache: KVCache, norms: HeadNorms, sinks: Tensor | None = None
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor, _State], Tensor]:
        """``rope`` and this together: ``(qkv, cos, sin, slots, state)`` to what attention returns.

        A step whose rows all have one token is one launch, unless contexts or rows are many; in others, every
        key is written before any is read.
        """
        turn, attend = rope.prepare(cache, *norms), self.prepare(cache, sinks)

        def turn_and_attend(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: _State) -> Tensor:
            if self._turns_at_once(len(qkv), state):
                return self._run_turned(rope, qkv, (cos, sin, slots), cache, norms, sinks, state)
            turn(qkv, cos, sin, slots)
            return attend(qkv, state)

        return turn_and_attend

    def _turns_at_once(self, tokens: int, state: _State) -> bool:
        """Whether each program may turn its row's own token.

        No row may then read a key that another one writes in this step: rows of one token alone do not, see
        ``unread`` in the scheduler's planner. A longer context is cut, or better read by small tiles.
        """
        step = state.step
        if self.first or step.num_single != tokens or step.num_rows != tokens or state.launches[0].splits > 1:
            return False
        return tokens == 1 or (step.max_context <= _SPLIT_FROM and self._programs(tokens) < _TURNED_PROGRAMS)

    def _programs(self, rows: int) -> int:
        """Per multiprocessor, of so many rows of one tile."""
        return rows * self.kv_heads // self.target.processors

    def _run_turned(
        self,
        rope: Rope,
        qkv: Tensor,
        angles: tuple[Tensor, Tensor, Tensor],
        cache: KVCache,
        norms: HeadNorms,
        sinks: Tensor | None,
        state: _State,
    ) -> Tensor:
        step = state.step
        rows = len(qkv)
        keys, warps = _turned_tile(self._programs(rows), self.head_dim, self.dtype)
        out = torch.empty(rows, self.heads * self.head_dim, dtype=qkv.dtype, device=qkv.device)
        block_stride, token_stride, head_stride, _ = cache.k.stride()
        attend_turned[(self.kv_heads, rows)](
            qkv, *angles, cache.k, cache.v, *norms[:2], sinks, out, step.seq_lens, step.block_table,
            step.block_table.shape[1], qkv.stride(0), angles[0].stride(0), step.block_table.stride(0),
            block_stride, token_stride, head_stride, self.scale * LOG2E.value,
            self.softcap, norms[2],
            GROUP=self._group, D=self.head_dim, HALF=rope.rotary_dim // 2, WINDOW=self.window,
            SINKS=sinks is not None, SOFTCAP=self.softcap > 0, BLOCK_SIZE=self.block_size,
            NORM=norms[0] is not None, BLOCK_M=state.launches[0].tile.m,
            BLOCK_N=keys, BLOCK_D=round_up_power(self.head_dim, 16),
            EARLY=rows <= _EARLY_TOKENS, PRECISION=precision(self.dtype), num_warps=warps,
            num_stages=2, **self.target.options(),
        )  # fmt: skip
        return out

    @property
    def _group(self) -> int:
        return self.heads // self.kv_heads

    def _launch(self, step: StepContext, first: int, last: int, tokens: int, max_query: int) -> _Launch:
        tile = self.tile(max_query * self._group, self._programs(last - first))
        per_tile = max(tile.m // self._group, 1)
        search = max_query > per_tile
        tiles = tokens // per_tile + last - first if search else last - first
        splits = self._splits(tiles * self.kv_heads, step.max_context, search=search)
        if splits == 1:
            return _Launch(first, last, tiles, splits, search, tile, (None, None, None))
        device, slots = step.seq_lens.device, tiles * self.kv_heads * splits * tile.m
        width = round_up_power(self.head_dim, 16)
        sums = torch.empty(slots * width, dtype=torch.float32, device=device)
        peaks, norms = torch.empty(2, slots, dtype=torch.float32, device=device)
        return _Launch(first, last, tiles, splits, search, tile, (sums, peaks, norms))

    def _splits(self, programs: int, max_context: int, *, search: bool) -> int:
        reach = min(max_context, self.window + _SPLIT_LEAST) if self.window else max_context
        if reach <= _SPLIT_FROM:
            return 1
        wanted = 2 * self.target.processors // programs
        most = _MAX_TILED_SPLITS if search else _MAX_SPLITS
        if not search:
            wanted = max(wanted, reach // _SPLIT_MOST)
        return max(min(wanted, -(-reach // _SPLIT_LEAST), most), 1)

    def _run(
        self,
        launch: _Launch,
        qkv: Tensor,
        cache: KVCache,
        sinks: Tensor | None,
        out: Tensor,
        step: StepContext,
    ) -> None:
        tile, rows = launch.tile, (launch.first_row, launch.last_row)
        per_tile = max(tile.m // self._group, 1)
        block_stride, token_stride, head_stride, _ = cache.k.stride()
        shared = {
            "GROUP": self._group,
            "D": self.head_dim,
            "SINKS": sinks is not None,
            "SEARCH": launch.search,
            "BLOCK_Q": per_tile,
            "BLOCK_M": tile.m,
            "BLOCK_D": round_up_power(self.head_dim, 16),
            **self.target.options(),
        }
        paged_attention[(self.kv_heads, launch.tiles, launch.splits)](
            qkv, cache.k, cache.v, sinks, out, step.query_start, step.seq_lens, step.block_table,
            *launch.partials, *rows, launch.tiles, launch.splits, int(len(qkv) <= _EARLY_TOKENS),
            qkv.stride(0), step.block_table.stride(0), block_stride, token_stride, head_stride,
            self.scale * LOG2E.value, self.softcap,
            WINDOW=self.window, SOFTCAP=self.softcap > 0, BLOCK_SIZE=self.block_size, SPLIT=launch.splits > 1,
            SPLIT_LEAST=_SPLIT_LEAST, BLOCK_N=tile.n, PRECISION=precision(self.dtype),
            CAUSAL=self.causal, FIRST=self.first,
            num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
        if launch.splits > 1:
            merge[(self.kv_heads, launch.tiles, per_tile * self._group)](
                sinks, out, step.query_start, step.seq_lens, *launch.partials, *rows, launch.splits,
                SPLITS=round_up_power(launch.splits, 8), num_warps=4, **shared,
            )  # fmt: skip
