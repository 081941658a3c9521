"""Paged attention: one kernel for decodes, verification widths and prefill chunks, each with its own tile.

A tile holds ``BLOCK_M`` (token, query head) pairs of one row that share a key-value head: the tokens of a tile times the
group of heads. So a decode fills a tile with its group and a key is read once for all of it. A tile's context may be cut
into splits, run by different programs; the program that finishes last merges them (it knows by a counter, which it sets
back to zero), so no second launch is needed.

What a captured graph depends on: ``num_rows``, ``num_single``, ``num_tokens`` and upper bounds of ``max_query`` and
``max_context``. Row borders, lengths and blocks are read on the device, so a replay is right for any lengths within the
bounds; programs without work end at once. A row of length 0 gets zeros.
"""
# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call"

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.kv_layout import allocate
from frizzen.kernels.ops import KVCache
from frizzen.kernels.triton.launch import Target, await_inputs, multiply_add, precision, round_up_power
from frizzen.step import StepContext

__all__ = ["PagedAttention", "Tile"]

_LOG2E = 1.4426950408889634
_SPLIT_LEAST = 64
"""Fewest keys of a split: below that, merging costs more than reading."""
_SPLIT_MOST = 4096
"""Most keys of a split of a row with few tokens: it must not keep one program busy when all others are done."""
_MAX_SPLITS = 64


@triton.jit
def _attend_keys(
    q,
    total,
    peak,
    norm,
    query_position,
    keys,
    values,
    blocks,
    start,
    end,
    context,
    block_stride,
    token_stride,
    scale,
    softcap,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One pass of the online softmax over the keys ``start`` to ``end``; unmasked where every query sees every key."""
    column = tl.arange(0, BLOCK_D)
    wide = column < D
    for first in range(start, end, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        if MASKED:
            there = position < context
            block = tl.load(blocks + position // BLOCK_SIZE, mask=there, other=0)
        else:
            block = tl.load(blocks + position // BLOCK_SIZE)
        at = block.to(tl.int64) * block_stride + position % BLOCK_SIZE * token_stride
        if MASKED:
            k = tl.load(keys + at[None, :] + column[:, None], mask=there[None, :] & wide[:, None], other=0.0)
        elif D == BLOCK_D:
            k = tl.load(keys + at[None, :] + column[:, None])
        else:
            k = tl.load(keys + at[None, :] + column[:, None], mask=wide[:, None], other=0.0)
        score = multiply_add(q, k, tl.zeros([q.shape[0], BLOCK_N], tl.float32), PRECISION) * scale
        if SOFTCAP:
            # tanh by the exponential: exact enough, and safe for any score.
            score = softcap * (1 - 2 / (tl.exp2(2 * 1.4426950408889634 * score / softcap) + 1))
            score *= 1.4426950408889634
        if MASKED:
            seen = (position[None, :] <= query_position[:, None]) & there[None, :]
            if WINDOW > 0:
                seen &= position[None, :] > query_position[:, None] - WINDOW
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1))
        # A query that has seen no key yet keeps a peak of -inf: subtract 0 instead, so that no NaN arises.
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(peak - base)
        if MASKED:
            v = tl.load(values + at[:, None] + column[None, :], mask=there[:, None] & wide[None, :], other=0.0)
        elif D == BLOCK_D:
            v = tl.load(values + at[:, None] + column[None, :])
        else:
            v = tl.load(values + at[:, None] + column[None, :], mask=wide[None, :], other=0.0)
        total = multiply_add(weight.to(v.dtype), v, total * shrink[:, None], PRECISION)
        norm = norm * shrink + tl.sum(weight, axis=1)
        peak = higher
    return total, peak, norm


@triton.jit
def _find_row(query_start, tile, first_row, last_row, BLOCK_Q: tl.constexpr):
    """The row of a tile, and the tile's number in it: row ``r`` owns the tiles from ``tokens before it // BLOCK_Q + r``."""
    origin = tl.load(query_start + first_row)
    low = first_row
    high = last_row
    while high - low > 1:
        middle = (low + high) // 2
        if (tl.load(query_start + middle) - origin) // BLOCK_Q + middle - first_row <= tile:
            low = middle
        else:
            high = middle
    return low, tile - ((tl.load(query_start + low) - origin) // BLOCK_Q + low - first_row)


@triton.jit
def _merge(
    partial, partial_peak, partial_norm, first, active, pair, column, mask, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Adds up ``active`` splits. Other programs wrote them: they are read past the first-level cache, which does not see that."""
    split = tl.arange(0, 64)
    slots = (first + split).to(tl.int64)[:, None] * BLOCK_M + pair[None, :]
    active_slots = (split < active)[:, None]
    peaks = tl.load(partial_peak + slots, mask=active_slots, other=float("-inf"), cache_modifier=".cg")
    norms = tl.load(partial_norm + slots, mask=active_slots, other=0.0, cache_modifier=".cg")
    peak = tl.max(peaks, axis=0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    norm = tl.sum(norms * tl.exp2(peaks - base[None, :]), axis=0)
    total = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for start in range(0, active, 8):
        # Unrolled, so that eight loads are on their way at once.
        for ahead in tl.static_range(8):
            there = start + ahead < active
            slot = (first + start + ahead).to(tl.int64) * BLOCK_M + pair
            own = tl.load(partial_peak + slot, mask=there, other=float("-inf"), cache_modifier=".cg")
            at = partial + slot[:, None] * BLOCK_D + column[None, :]
            values = tl.load(at, mask=mask & there, other=0.0, cache_modifier=".cg")
            total += values * tl.exp2(own - base)[:, None]
    return total, peak, norm


@triton.jit(
    do_not_specialize=["first_row", "last_row", "tiles", "splits", "blocks_stride"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_table"],
)
def _paged_attention(
    qkv,
    keys,
    values,
    sinks,
    out,
    query_start,
    seq_lens,
    block_table,
    partial,
    partial_peak,
    partial_norm,
    counters,
    first_row,
    last_row,
    tiles,
    splits,
    qkv_stride,
    blocks_stride,
    block_stride,
    token_stride,
    head_stride,
    scale,
    softcap,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SEARCH: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLIT_LEAST: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    kv_head = tl.program_id(0)
    # The last tile of a prompt has the longest context: it starts first.
    tile = tiles - 1 - tl.program_id(1)
    split = tl.program_id(2)
    await_inputs(PDL)
    if SEARCH:
        row, tile_in_row = _find_row(query_start, tile, first_row, last_row, BLOCK_Q)
    else:
        row = first_row + tile
        tile_in_row = 0
    first_token = tl.load(query_start + row)
    width = tl.load(query_start + row + 1) - first_token
    context = tl.load(seq_lens + row)
    if tile_in_row * BLOCK_Q >= width:
        return

    pair = tl.arange(0, BLOCK_M)
    query = tile_in_row * BLOCK_Q + pair // GROUP
    head = kv_head * GROUP + pair % GROUP
    real = (pair < BLOCK_Q * GROUP) & (query < width)
    query_position = context - width + query
    column = tl.arange(0, BLOCK_D)
    wide = column < D
    token = (first_token + query).to(tl.int64)
    q_at = qkv + (token * qkv_stride + head * D)[:, None] + column[None, :]
    q = tl.load(q_at, mask=real[:, None] & wide[None, :], other=0.0)

    first_position = context - width + tile_in_row * BLOCK_Q
    end = tl.minimum(first_position + BLOCK_Q, context)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    active = 1
    if SPLIT:
        span = end - start
        share = tl.maximum(tl.cdiv(tl.cdiv(span, splits), BLOCK_N) * BLOCK_N, SPLIT_LEAST)
        active = tl.maximum(tl.cdiv(span, share), 1)
        if split >= active:
            return
        start += split * share
        end = tl.minimum(start + share, end)

    keys += kv_head * head_stride
    values += kv_head * head_stride
    blocks = block_table + row.to(tl.int64) * blocks_stride
    peak = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    border = start
    if WINDOW == 0:
        # Every query of the tile sees the keys up to its first position.
        clear = tl.minimum(first_position + 1, end)
        border = tl.maximum(start + (clear - start) // BLOCK_N * BLOCK_N, start)
        total, peak, norm = _attend_keys(
            q, total, peak, norm, query_position, keys, values, blocks, start, border, context,
            block_stride, token_stride, scale, softcap,
            D, WINDOW, SOFTCAP, False, BLOCK_SIZE, BLOCK_N, BLOCK_D, PRECISION,
        )  # fmt: skip
    total, peak, norm = _attend_keys(
        q, total, peak, norm, query_position, keys, values, blocks, border, end, context,
        block_stride, token_stride, scale, softcap,
        D, WINDOW, SOFTCAP, True, BLOCK_SIZE, BLOCK_N, BLOCK_D, PRECISION,
    )  # fmt: skip

    if SPLIT:
        if active > 1:
            place = tile * tl.num_programs(0) + kv_head
            slot = (place * splits + split).to(tl.int64) * BLOCK_M + pair
            mask = real[:, None] & wide[None, :]
            tl.store(partial + slot[:, None] * BLOCK_D + column[None, :], total, mask=mask)
            tl.store(partial_peak + slot, peak)
            tl.store(partial_norm + slot, norm)
            # All threads have stored before the one that counts does.
            tl.debug_barrier()
            if tl.atomic_add(counters + place, 1, sem="acq_rel") != active - 1:
                return
            tl.store(counters + place, 0)
            total, peak, norm = _merge(
                partial, partial_peak, partial_norm, place * splits, active, pair, column, mask, BLOCK_M, BLOCK_D
            )
    if SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - higher)
        total *= shrink[:, None]
        norm = norm * shrink + tl.exp2(sink - higher)
    total = total / tl.where(norm > 0, norm, 1.0)[:, None]
    heads = tl.num_programs(0) * GROUP
    out_at = out + ((token * heads + head) * D)[:, None] + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=real[:, None] & wide[None, :])


class Tile(NamedTuple):
    """``BLOCK_M``, ``BLOCK_N``, warps, pipeline stages."""

    m: int
    n: int
    warps: int
    stages: int


def _tile_for(pairs: int, group: int, head_dim: int, dtype: torch.dtype) -> Tile:
    """The tile for rows of at most ``pairs`` (token, head) pairs, from what was fastest on an H200."""
    least, wanted = round_up_power(group, 16), round_up_power(pairs, 16)
    if dtype == torch.float32 or head_dim > 128:
        return Tile(max(min(wanted, 32), least), 32, 4, 2)
    if wanted >= 128:
        return Tile(max(128, least), 64, 8, 3)
    return Tile(wanted, 64, 4, 3)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A range of rows served by one launch in every layer."""

    first_row: int
    last_row: int
    tiles: int
    splits: int
    search: bool
    tile: Tile
    partial: Tensor | None
    peaks: Tensor | None
    norms: Tensor | None
    counters: Tensor | None


@dataclass(frozen=True, slots=True)
class _State:
    step: StepContext
    launches: tuple[_Launch, ...]


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """See ``attention.paged``."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    block_size: int
    softcap: float
    dtype: torch.dtype
    target: Target
    tile: Callable[[int], Tile]
    """The tile for rows of at most so many (token, head) pairs per key-value head."""
    layout: str = "token"

    @classmethod
    def build(cls, facts: Facts, tile: Callable[[int], Tile] | None = None) -> PagedAttention:
        """The kernel for one head geometry. A fact ``softcap`` is optional; 0 is none."""
        group = facts.size("heads") // facts.size("kv_heads")
        return cls(
            facts.size("heads"),
            facts.size("kv_heads"),
            facts.size("head_dim"),
            facts.number("scale"),
            facts.size("window"),
            facts.size("block_size"),
            facts.number("softcap") if "softcap" in facts else 0.0,
            facts.dtype,
            Target.of(facts),
            tile or functools.partial(_tile_for, group=group, head_dim=facts.size("head_dim"), dtype=facts.dtype),
        )

    def bytes_per_token(self) -> int:
        """Keys and values of all heads."""
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        """An empty cache of one layer."""
        return allocate(self.layout, num_blocks, self.block_size, self.kv_heads, self.head_dim, self.dtype, device)

    def begin(self, step: StepContext) -> _State:
        """Chooses tiles and splits, and makes the splits' workspace: from sizes alone, nothing is read back."""
        launches = []
        if step.num_single:
            launches.append(self._launch(step, 0, step.num_single, step.num_single, 1))
        if step.num_single < step.num_rows:
            tokens = step.num_tokens - step.num_single
            launches.append(self._launch(step, step.num_single, step.num_rows, tokens, step.max_query))
        return _State(step, tuple(launches))

    def _launch(self, step: StepContext, first: int, last: int, tokens: int, max_query: int) -> _Launch:
        tile = self.tile(max_query * self._group)
        per_tile = max(tile.m // self._group, 1)
        search = max_query > per_tile
        tiles = tokens // per_tile + last - first if search else last - first
        splits = self._splits(tiles * self.kv_heads, step.max_context, search=search)
        partial = peaks = norms = counters = None
        if splits > 1:
            device, slots = step.seq_lens.device, tiles * self.kv_heads * splits * tile.m
            wide = round_up_power(self.head_dim, 16)
            partial = torch.empty(slots * wide, dtype=torch.float32, device=device)
            peaks, norms = torch.empty(2, slots, dtype=torch.float32, device=device)
            counters = torch.zeros(tiles * self.kv_heads, dtype=torch.int32, device=device)
        return _Launch(first, last, tiles, splits, search, tile, partial, peaks, norms, counters)

    @property
    def _group(self) -> int:
        return self.heads // self.kv_heads

    def _splits(self, programs: int, max_context: int, *, search: bool) -> int:
        wanted = -(-self.target.processors // programs)
        reach = max_context
        if self.window > 0:
            reach = min(max_context, self.window + _SPLIT_LEAST)
        elif not search:
            wanted = max(wanted, max_context // _SPLIT_MOST)
        return max(min(wanted, -(-reach // _SPLIT_LEAST), _MAX_SPLITS), 1)

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Callable[[Tensor, _State], Tensor]:
        """Binds a layer's cache and, for models that have them, ``sinks [N]``: one logit per head that takes weight."""

        def attend(qkv: Tensor, state: _State) -> Tensor:
            out = torch.empty(len(qkv), self.heads * self.head_dim, dtype=qkv.dtype, device=qkv.device)
            for launch in state.launches:
                self._run(launch, qkv, cache, sinks, out, state.step)
            return out

        return attend

    def _run(
        self, launch: _Launch, qkv: Tensor, cache: KVCache, sinks: Tensor | None, out: Tensor, step: StepContext
    ) -> None:
        block_stride, token_stride, head_stride, _ = cache.k.stride()
        tile = launch.tile
        _paged_attention[(self.kv_heads, launch.tiles, launch.splits)](
            qkv,
            cache.k,
            cache.v,
            sinks,
            out,
            step.query_start,
            step.seq_lens,
            step.block_table,
            launch.partial,
            launch.peaks,
            launch.norms,
            launch.counters,
            launch.first_row,
            launch.last_row,
            launch.tiles,
            launch.splits,
            qkv.stride(0),
            step.block_table.stride(0),
            block_stride,
            token_stride,
            head_stride,
            self.scale if self.softcap else self.scale * _LOG2E,
            self.softcap,
            GROUP=self._group,
            D=self.head_dim,
            WINDOW=self.window,
            SINKS=sinks is not None,
            SOFTCAP=self.softcap > 0,
            BLOCK_SIZE=self.block_size,
            SEARCH=launch.search,
            SPLIT=launch.splits > 1,
            SPLIT_LEAST=max(_SPLIT_LEAST, tile.n),
            BLOCK_Q=max(tile.m // self._group, 1),
            BLOCK_M=tile.m,
            BLOCK_N=tile.n,
            BLOCK_D=round_up_power(self.head_dim, 16),
            PRECISION=precision(self.dtype),
            num_warps=tile.warps,
            num_stages=tile.stages,
            **self.target.options(),
        )
