"""Latent attention: absorbed for decodes, verification widths and short chunks, expanded for long prompts.

Absorbed, a query costs ``2 L + R`` products per key and head, but a key costs nothing to make and is read
once for all heads; expanded, ``P + R + V`` products and a key that costs as much as some 170 queries. So rows
are expanded from ``_EXPAND_FROM`` tokens on average, as many at a time as the workspace holds.

What a captured graph depends on is what ``paged_attention`` says; expanded steps are not captured.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.mla_ops import LatentAttend
from frizzen.kernels.mla_reference import LatentShape
from frizzen.kernels.triton.attention import LOG2E
from frizzen.kernels.triton.latent import by_head, expand, latent_attention, merge_latents
from frizzen.kernels.triton.launch import Target, precision, round_up_power
from frizzen.kernels.triton.paged_attention import Tile
from frizzen.step import StepContext

__all__ = ["LatentAttention"]

_SPLIT_FROM = 256
"""Longest context that is not worth a second launch."""
_SPLIT_LEAST = 128
"""Fewest keys of a split."""
_SPLIT_MOST = 4096
"""Most keys of a split of a row with few tokens, which must not keep one program busy when all others end."""
_MAX_SPLITS = 64
_MOST_TOKENS = 64
"""Most tokens whose products of single heads are launches of our own; more are a batched product."""
_MERGED = 64
"""Elements of a result that a program merges."""
_MOST_PAIRS = 64
"""Most (token, head) pairs of an absorbed tile: their sums take ``L`` registers each."""
_EXACT_PAIRS = 16
"""The same in float32, whose products take more registers and are written out one by one."""
_EXPAND_FROM = 128
"""Fewest tokens of a row, on average, for which keys and values are made."""
_EXPANDED_BYTES = 1 << 29
"""Most bytes of them at a time. They are activations, for which a GPU keeps a reserve."""


def _absorbed_tile(pairs: int, dtype: torch.dtype) -> Tile:
    """The tile of an absorbed launch for rows of at most so many (token, head) pairs."""
    if dtype == torch.float32:
        return Tile(_EXACT_PAIRS, 16, 4, 1)
    m = min(round_up_power(pairs, 16), _MOST_PAIRS)
    return Tile(16, 64, 4, 3) if m == 16 else Tile(64, 64, 8, 2)


def _expanded_tile(dtype: torch.dtype) -> Tile:
    return Tile(16, 16, 4, 1) if dtype == torch.float32 else Tile(64, 64, 4, 2)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A range of rows served by one launch in every layer."""

    first_row: int
    last_row: int
    tiles: int
    splits: int
    group: int
    """Heads of a tile."""
    search: bool
    """Whether a row may have several tiles."""
    tile: Tile
    partials: tuple[Tensor, Tensor, Tensor]
    """Sums, peaks and norms of the splits; of no use where there is one."""
    capacity: int = 0
    """Expanded positions per row; 0 is absorbed."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's constants."""

    cache: Tensor
    expansion: Tensor
    to_key: Tensor
    """``[N, P, L]``"""
    to_value: Tensor
    """``[N, L, V]``, a view as the others are."""


@dataclass(frozen=True, slots=True)
class _State:
    step: StepContext
    count: int
    """Tokens, the first of the step, whose queries are absorbed."""
    absorbed: tuple[_Launch, ...]
    expanded: tuple[_Launch, ...] = ()


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """See ``attention.mla``, and ``attention.draft_mla``, whose rows do not see the first positions."""

    shape: LatentShape
    target: Target
    first: int = 0
    capturable: ClassVar[bool] = True

    @classmethod
    def build(cls, facts: Facts) -> LatentAttention:
        """The kernel for one geometry. A fact ``first`` is optional: a draft's."""
        first = facts.size("first") if "first" in facts else 0
        memory = 100_000 if facts.dtype == torch.float32 else 222_000
        return cls(LatentShape.of(facts), Target.of(facts, shared_memory=memory), first)

    def bytes_per_token(self) -> int:
        """The latent vector and the rotated key."""
        return self.shape.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        """An empty cache of one layer."""
        return self.shape.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> _State:
        """Chooses tiles and splits, and makes the workspace: from sizes alone, nothing is read back."""
        single, rows = step.num_single, step.num_rows
        launches = [self._absorbed(step, 0, single, single, 1)] if single else []
        tokens = step.num_tokens - single
        if single == rows:
            return _State(step, single, tuple(launches))
        if expanded := self._expanded(step, tokens):
            return _State(step, single, tuple(launches), expanded)
        launches.append(self._absorbed(step, single, rows, tokens, step.max_query))
        return _State(step, step.num_tokens, tuple(launches))

    def prepare(self, cache: Tensor, expansion: Tensor) -> LatentAttend:
        """Binds a layer's cache and ``expansion [N * (P + V), L]``."""
        by_rows = torch.unflatten(expansion, 0, (self.shape.heads, -1))
        to_key, to_value = torch.split(by_rows, [self.shape.nope_dim, self.shape.value_dim], dim=1)
        return functools.partial(self._attend, _Layer(cache, expansion, to_key, to_value.transpose(1, 2)))

    @property
    def _group(self) -> int:
        """Heads of an absorbed tile: as many as fit, and a divisor of all."""
        heads = self.shape.heads
        most = _EXACT_PAIRS if self.shape.dtype == torch.float32 else _MOST_PAIRS
        return next(size for size in range(min(heads, most), 0, -1) if heads % size == 0)

    @property
    def _wide(self) -> int:
        """Elements of an expanded position."""
        return self.shape.heads * (self.shape.nope_dim + self.shape.value_dim)

    def _absorbed(self, step: StepContext, first: int, last: int, tokens: int, max_query: int) -> _Launch:
        group = self._group
        tile = _absorbed_tile(max_query * group, self.shape.dtype)
        per_tile = tile.m // group
        search = max_query > per_tile
        tiles = tokens // per_tile + last - first if search else last - first
        parts = self.shape.heads // group
        splits = self._splits(tiles * parts, step.max_context, tile, search=search)
        partials = self._partials(tiles * parts * splits * tile.m if splits > 1 else tile.m, step)
        return _Launch(first, last, tiles, splits, group, search, tile, partials)

    def _expanded(self, step: StepContext, tokens: int) -> tuple[_Launch, ...]:
        """Launches of as many rows as the workspace holds; none if there is little to gain or no room."""
        first, last, tile = step.num_single, step.num_rows, _expanded_tile(self.shape.dtype)
        at_once = _EXPANDED_BYTES // (step.max_context * self._wide * self.shape.dtype.itemsize)
        if tokens < _EXPAND_FROM * (last - first) or at_once == 0:
            return ()
        unused = self._partials(tile.m, step)
        return tuple(
            # Nobody knows how many tokens are some rows': each launch has tiles for all of them.
            _Launch(row, end, tokens // tile.m + end - row, 1, 1, True, tile, unused, step.max_context)
            for row in range(first, last, at_once)
            for end in (min(row + at_once, last),)
        )

    def _partials(self, slots: int, step: StepContext) -> tuple[Tensor, Tensor, Tensor]:
        device, width = step.seq_lens.device, round_up_power(self.shape.latent_dim, 16)
        sums = torch.empty(slots * width, dtype=torch.float32, device=device)
        peaks, norms = torch.empty(2, slots, dtype=torch.float32, device=device)
        return sums, peaks, norms

    def _splits(self, programs: int, max_context: int, tile: Tile, *, search: bool) -> int:
        if max_context <= _SPLIT_FROM:
            return 1
        # So many programs a multiprocessor holds, by their shared memory.
        wanted = (2 if tile.m == 16 else 1) * self.target.processors // programs
        if not search:
            wanted = max(wanted, max_context // _SPLIT_MOST)
        return max(min(wanted, -(-max_context // _SPLIT_LEAST), _MAX_SPLITS), 1)

    def _attend(self, layer: _Layer, q: Tensor, state: _State) -> Tensor:
        if not state.expanded:
            return self._attend_absorbed(layer, q, state)
        shape = self.shape
        out = torch.empty(len(q), shape.heads * shape.value_dim, dtype=q.dtype, device=q.device)
        if state.count:
            out[: state.count] = self._attend_absorbed(layer, q[: state.count], state)
        for launch in state.expanded:
            held = self._expand(launch, layer, state.step)
            self._run(launch, q, q.unsqueeze(1), layer.cache, held, out, state.step)
        return out

    def _attend_absorbed(self, layer: _Layer, q: Tensor, state: _State) -> Tensor:
        absorbed = self._by_head(self.shape.heads_of(q)[..., : self.shape.nope_dim], layer.to_key)
        mixed = torch.empty(absorbed.shape, dtype=q.dtype, device=q.device)
        for launch in state.absorbed:
            self._run(launch, q, absorbed, layer.cache, q, mixed, state.step)
        return self._by_head(mixed, layer.to_value).flatten(1)

    def _by_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x [T, N, A]`` times ``weight [N, A, B]``: ``[T, N, B]``, which may be a view."""
        tokens, heads, size = x.shape
        if tokens > _MOST_TOKENS:
            return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)
        width = weight.shape[2]
        out = torch.empty(tokens, heads, width, dtype=x.dtype, device=x.device)
        tile = _product_tile(tokens, size, x.dtype)
        by_head[(heads, triton.cdiv(width, tile["BLOCK_N"]))](
            x, weight, out, tokens, x.stride(0), x.stride(1), *weight.stride(),
            IN=size, OUT=width, HEADS=heads, PRECISION=precision(x.dtype),
            num_warps=4, **tile, **self.target.options(),
        )  # fmt: skip
        return out

    def _expand(self, launch: _Launch, layer: _Layer, step: StepContext) -> Tensor:
        cache, shape, rows, wide = layer.cache, self.shape, launch.last_row - launch.first_row, self._wide
        held = torch.empty(rows * launch.capacity * wide, dtype=cache.dtype, device=cache.device)
        m, n, k, warps = (32, 32, 32, 4) if shape.dtype == torch.float32 else (128, 128, 64, 8)
        expand[(triton.cdiv(wide, n), triton.cdiv(launch.capacity, m), rows)](
            cache, layer.expansion, held, step.seq_lens, step.block_table, launch.first_row, launch.capacity,
            step.block_table.stride(0), *cache.stride()[:2],
            LATENT=shape.latent_dim, WIDE=wide, BLOCK_SIZE=shape.block_size, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k,
            PRECISION=precision(shape.dtype), num_warps=warps, num_stages=3, **self.target.options(),
        )  # fmt: skip
        return held

    def _run(
        self,
        launch: _Launch,
        q: Tensor,
        absorbed: Tensor,
        cache: Tensor,
        expanded: Tensor,
        out: Tensor,
        step: StepContext,
    ) -> None:
        shape, tile, group = self.shape, launch.tile, launch.group
        value = shape.value_dim if launch.capacity else shape.latent_dim
        main = shape.nope_dim if launch.capacity else shape.latent_dim
        per_tile, parts = tile.m // group, shape.heads // group
        rows, options = (launch.first_row, launch.last_row), self.target.options()
        shared: dict[str, Any] = {
            "GROUP": group, "SEARCH": launch.search, "BLOCK_Q": per_tile, "BLOCK_M": tile.m, **options,
        }  # fmt: skip
        latent_attention[(parts, launch.tiles, launch.splits)](
            q, absorbed, cache, expanded, out, step.query_start, step.seq_lens, step.block_table,
            *launch.partials, *rows, launch.tiles, launch.splits, launch.capacity, q.stride(0),
            *absorbed.stride()[:2], step.block_table.stride(0), *cache.stride()[:2],
            shape.scale * LOG2E.value,
            HEADS=shape.heads, NOPE=shape.nope_dim, ROTARY=shape.rope_dim, LATENT=shape.latent_dim,
            VALUE=value, EXPANDED=launch.capacity > 0, BLOCK_SIZE=shape.block_size, SPLIT_LEAST=_SPLIT_LEAST,
            BLOCK_N=tile.n, BLOCK_MAIN=round_up_power(main, 16),
            BLOCK_ROTARY=round_up_power(shape.rope_dim, 16), BLOCK_VALUE=round_up_power(value, 16),
            PRECISION=precision(shape.dtype), FIRST=self.first,
            num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
        if launch.splits > 1:
            wide = round_up_power(value, 16)
            cuts = max(wide // _MERGED, 1)
            merge_latents[(parts, launch.tiles, per_tile * group * cuts)](
                out, step.query_start, step.seq_lens, *launch.partials, *rows, launch.splits,
                HEADS=shape.heads, VALUE=value, SPLITS=_MAX_SPLITS, BLOCK_VALUE=wide,
                CUTS=cuts, num_warps=4, **shared,
            )  # fmt: skip


def _product_tile(tokens: int, size: int, dtype: torch.dtype) -> dict[str, int]:
    """Blocks and stages of ``by_head``: about a wave of programs, which load at once or in two steps."""
    whole, m = round_up_power(size, 16), round_up_power(tokens, 16)
    if dtype == torch.float32:
        return {"BLOCK_M": m, "BLOCK_N": 32, "BLOCK_K": min(whole, 32), "num_stages": 1}
    if whole <= 128:
        return {"BLOCK_M": m, "BLOCK_N": 64, "BLOCK_K": whole, "num_stages": 1}
    return {"BLOCK_M": m, "BLOCK_N": 32, "BLOCK_K": 256 if m == 16 else 128, "num_stages": 3}
