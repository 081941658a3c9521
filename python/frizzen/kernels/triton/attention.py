"""Paged attention: one kernel for decodes, verification widths and prefill chunks, each with its own tile.

A tile holds ``BLOCK_M`` (token, query head) pairs of one row that share a key-value head: the tokens of a tile times the
group of heads. So a decode fills a tile with its group and a key is read once for all of it. Where the batch alone cannot
keep the device busy, a tile's context is cut into splits, run by different programs and merged by a second launch.

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
from frizzen.kernels.triton.launch import Target, await_inputs, multiply_add, precision, release_next, round_up_power
from frizzen.step import StepContext

__all__ = ["PagedAttention", "Tile"]

_LOG2E = 1.4426950408889634
_SPLIT_FROM = 512
"""Longest context that is not worth a second launch."""
_SPLIT_LEAST = 128
"""Fewest keys of a split."""
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
    AHEAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One pass of the online softmax over the keys ``start`` to ``end``; unmasked where every query sees every key."""
    column = tl.arange(0, BLOCK_D)
    wide = column < D
    position = start + tl.arange(0, BLOCK_N)
    block = tl.load(blocks + position // BLOCK_SIZE, mask=position < context, other=0)
    for first in range(start, end, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        there = position < context
        if AHEAD:
            # The blocks of the next step, so that its keys wait for memory once and not twice; it takes registers.
            following = tl.load(blocks + (position + BLOCK_N) // BLOCK_SIZE, mask=position + BLOCK_N < context, other=0)
        else:
            block = tl.load(blocks + position // BLOCK_SIZE, mask=there, other=0)
        at = block.to(tl.int64) * block_stride + position % BLOCK_SIZE * token_stride
        if MASKED:
            k = tl.load(keys + at[None, :] + column[:, None], mask=there[None, :] & wide[:, None], other=0.0)
        elif D == BLOCK_D:
            k = tl.load(keys + at[None, :] + column[:, None])
        else:
            k = tl.load(keys + at[None, :] + column[:, None], mask=wide[:, None], other=0.0)
        score = multiply_add(q, k, tl.zeros([q.shape[0], BLOCK_N], tl.float32), PRECISION)
        if SOFTCAP:
            # tanh by the exponential: exact enough, and safe for any score.
            score = softcap * (1 - 2 / (tl.exp2(2 * scale * score / softcap) + 1))
        if MASKED:
            seen = (position[None, :] <= query_position[:, None]) & there[None, :]
            if WINDOW > 0:
                seen &= position[None, :] > query_position[:, None] - WINDOW
            score = tl.where(seen, score, float("-inf"))
        # Softmax to the base 2, with its factor in the same operation as the subtraction.
        factor = 1.4426950408889634 if SOFTCAP else scale
        higher = tl.maximum(peak, tl.max(score, axis=1) * factor)
        # A query that has seen no key yet keeps a peak of -inf: subtract 0 instead, so that no NaN arises.
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weight = tl.exp2(score * factor - base[:, None])
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
        if AHEAD:
            block = following
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
def _tile_place(query_start, seq_lens, tile, first_row, last_row, SEARCH: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Row of a tile, its number in the row, and the row's first token, tokens and context."""
    row = first_row + tile
    tile_in_row = 0
    if SEARCH:
        row, tile_in_row = _find_row(query_start, tile, first_row, last_row, BLOCK_Q)
    first_token = tl.load(query_start + row)
    width = tl.load(query_start + row + 1) - first_token
    return row, tile_in_row, first_token, width, tl.load(seq_lens + row)


@triton.jit
def _finish(total, peak, norm, sink, SINKS: tl.constexpr):
    """The weighted mean of the values; a sink takes its part of the weight and has no value."""
    if SINKS:
        sink *= 1.4426950408889634
        higher = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - higher)
        total *= shrink[:, None]
        norm = norm * shrink + tl.exp2(sink - higher)
    return total / tl.where(norm > 0, norm, 1.0)[:, None]


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
    row, tile_in_row, first_token, width, context = _tile_place(
        query_start, seq_lens, tile, first_row, last_row, SEARCH, BLOCK_Q
    )
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
    if SPLIT:
        span = end - start
        share = tl.maximum(tl.cdiv(tl.cdiv(span, splits), BLOCK_N) * BLOCK_N, SPLIT_LEAST)
        start += split * share
        end = tl.minimum(start + share, end)

    keys += kv_head * head_stride
    values += kv_head * head_stride
    blocks = block_table + row.to(tl.int64) * blocks_stride
    peak = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    border = start
    if WINDOW == 0 and BLOCK_M >= 128:
        # Bound by arithmetic: every query of the tile sees the keys up to its first position, so these need no mask. Smaller
        # tiles are bound by memory, and a second loop would wait for it once more.
        clear = tl.minimum(first_position + 1, end)
        border = tl.maximum(start + (clear - start) // BLOCK_N * BLOCK_N, start)
        total, peak, norm = _attend_keys(
            q, total, peak, norm, query_position, keys, values, blocks, start, border, context,
            block_stride, token_stride, scale, softcap,
            D, WINDOW, SOFTCAP, False, True, BLOCK_SIZE, BLOCK_N, BLOCK_D, PRECISION,
        )  # fmt: skip
    total, peak, norm = _attend_keys(
        q, total, peak, norm, query_position, keys, values, blocks, border, end, context,
        block_stride, token_stride, scale, softcap,
        D, WINDOW, SOFTCAP, True, BLOCK_M >= 128, BLOCK_SIZE, BLOCK_N, BLOCK_D, PRECISION,
    )  # fmt: skip

    release_next(PDL)
    if SPLIT:
        # A split without keys leaves a norm of 0, and no values.
        slot = ((tile * tl.num_programs(0) + kv_head) * splits + split).to(tl.int64) * BLOCK_M + pair
        tl.store(partial_peak + slot, peak)
        tl.store(partial_norm + slot, norm)
        mask = (real & (start < end))[:, None] & wide[None, :]
        tl.store(partial + slot[:, None] * BLOCK_D + column[None, :], total, mask=mask)
    else:
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) if SINKS else norm
        mean = _finish(total, peak, norm, sink, SINKS)
        heads = tl.num_programs(0) * GROUP
        out_at = out + ((token * heads + head) * D)[:, None] + column[None, :]
        tl.store(out_at, mean.to(out.dtype.element_ty), mask=real[:, None] & wide[None, :])


@triton.jit(
    do_not_specialize=["first_row", "last_row", "splits"],
    do_not_specialize_on_alignment=["query_start", "seq_lens"],
)
def _merge(
    sinks, out, query_start, seq_lens, partial, partial_peak, partial_norm, first_row, last_row, splits,
    GROUP: tl.constexpr, D: tl.constexpr, SINKS: tl.constexpr, SEARCH: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Adds up the splits of one (token, head) pair of a tile."""
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    pair = tl.program_id(2)
    await_inputs(PDL)
    row, tile_in_row, first_token, width, context = _tile_place(
        query_start, seq_lens, tile, first_row, last_row, SEARCH, BLOCK_Q
    )
    query = tile_in_row * BLOCK_Q + pair // GROUP
    if query >= width:
        return
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, BLOCK_D)
    slot = ((tile * tl.num_programs(0) + kv_head) * splits + split).to(tl.int64) * BLOCK_M + pair
    peaks = tl.load(partial_peak + slot, mask=split < splits, other=float("-inf"))
    norms = tl.load(partial_norm + slot, mask=split < splits, other=0.0)
    # Not by the peak: keys that are not numbers must show in the result.
    active = norms != 0
    mask = active[:, None] & (column < D)[None, :]
    totals = tl.load(partial + slot[:, None] * BLOCK_D + column[None, :], mask=mask, other=0.0)
    release_next(PDL)
    peak = tl.max(peaks, axis=0)
    shares = tl.where(active, tl.exp2(peaks - peak), 0.0)
    total = tl.sum(totals * shares[:, None], axis=0)[None, :]
    norm = tl.sum(norms * shares, axis=0)
    head = kv_head * GROUP + pair % GROUP
    peak_row = tl.full([1], 0.0, dtype=tl.float32) + peak
    norm_row = tl.full([1], 0.0, dtype=tl.float32) + norm
    sink = norm_row
    if SINKS:
        sink = tl.full([1], 0.0, dtype=tl.float32) + tl.load(sinks + head).to(tl.float32)
    mean = _finish(total, peak_row, norm_row, sink, SINKS)
    token = (first_token + query).to(tl.int64)
    heads = tl.num_programs(0) * GROUP
    out_at = out + (token * heads + head) * D + column[None, :]
    tl.store(out_at, mean.to(out.dtype.element_ty), mask=(column < D)[None, :])


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
    # Many rows: small programs, so that more of them are there to wait for memory.
    return Tile(wanted, 32, 2, 2) if programs >= 2 and wanted == 16 else Tile(wanted, 128 if wanted == 16 else 64, 4, 3)


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
    tile: Callable[[int, int], Tile]
    """The tile for rows of at most so many (token, head) pairs per key-value head, and programs per processor."""
    layout: str = "token"

    @classmethod
    def build(cls, facts: Facts, tile: Callable[[int, int], Tile] | None = None) -> PagedAttention:
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
        programs = (last - first) * self.kv_heads // self.target.processors
        tile = self.tile(max_query * self._group, programs)
        per_tile = max(tile.m // self._group, 1)
        search = max_query > per_tile
        tiles = tokens // per_tile + last - first if search else last - first
        splits = self._splits(tiles * self.kv_heads, step.max_context, search=search)
        partial = peaks = norms = None
        if splits > 1:
            device, slots = step.seq_lens.device, tiles * self.kv_heads * splits * tile.m
            wide = round_up_power(self.head_dim, 16)
            partial = torch.empty(slots * wide, dtype=torch.float32, device=device)
            peaks, norms = torch.empty(2, slots, dtype=torch.float32, device=device)
        return _Launch(first, last, tiles, splits, search, tile, partial, peaks, norms)

    @property
    def _group(self) -> int:
        return self.heads // self.kv_heads

    def _splits(self, programs: int, max_context: int, *, search: bool) -> int:
        reach = min(max_context, self.window + _SPLIT_LEAST) if self.window else max_context
        if reach <= _SPLIT_FROM:
            return 1
        wanted = 2 * self.target.processors // programs
        if not search:
            wanted = max(wanted, reach // _SPLIT_MOST)
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
        per_tile = max(tile.m // self._group, 1)
        rows = (launch.first_row, launch.last_row)
        partials = (launch.partial, launch.peaks, launch.norms)
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
        _paged_attention[(self.kv_heads, launch.tiles, launch.splits)](
            qkv, cache.k, cache.v, sinks, out, step.query_start, step.seq_lens, step.block_table, *partials,
            *rows, launch.tiles, launch.splits, qkv.stride(0), step.block_table.stride(0),
            block_stride, token_stride, head_stride,
            self.scale * _LOG2E, self.softcap,
            WINDOW=self.window, SOFTCAP=self.softcap > 0, BLOCK_SIZE=self.block_size, SPLIT=launch.splits > 1,
            SPLIT_LEAST=_SPLIT_LEAST, BLOCK_N=tile.n, PRECISION=precision(self.dtype),
            num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
        if launch.splits > 1:
            _merge[(self.kv_heads, launch.tiles, per_tile * self._group)](
                sinks, out, step.query_start, step.seq_lens, *partials, *rows, launch.splits,
                SPLITS=round_up_power(launch.splits, 8), num_warps=4, **shared,
            )  # fmt: skip
