"""Latent attention: absorbed for decodes, verification widths and short chunks, expanded for long prompts.

Absorbed, a query costs ``2 L + R`` products per key and head, but a key costs nothing to make and is read
once for all heads; expanded, ``P + R + V`` products and a key that costs as much as some 170 queries. So rows
are expanded from ``_EXPAND_FROM`` tokens on average, if the workspace holds the longest context for each.

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
from frizzen.kernels.triton.attention import LOG2E, merge
from frizzen.kernels.triton.latent import by_head, expand, latent_attention
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
_MOST_PAIRS = 64
"""Most (token, head) pairs of an absorbed tile: their sums take ``L`` registers each."""
_EXPAND_FROM = 256
"""Fewest tokens of a row, on average, for which keys and values are made."""
_EXPANDED_BYTES = 1 << 29
"""Most bytes of them at a time."""


def _absorbed_tile(pairs: int, dtype: torch.dtype) -> Tile:
    """The tile of an absorbed launch for rows of at most so many (token, head) pairs."""
    m = min(round_up_power(pairs, 16), _MOST_PAIRS)
    if dtype == torch.float32:
        return Tile(m, 16, 4, 1)
    return Tile(m, 32, 4, 2) if m <= 32 else Tile(m, 32, 8, 2)


def _expanded_tile(dtype: torch.dtype) -> Tile:
    return Tile(32, 32, 4, 1) if dtype == torch.float32 else Tile(128, 64, 8, 2)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A range of rows served by one launch in every layer."""

    first_row: int
    last_row: int
    first_token: int
    tiles: int
    splits: int
    group: int
    """Heads of a tile."""
    search: bool
    """Whether a row may have several tiles."""
    tile: Tile
    partials: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    """Sums, peaks and norms of the splits."""
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
    launches: tuple[_Launch, ...]
    absorbed: int
    """Tokens, the first of the step, whose queries are absorbed."""


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
        return cls(LatentShape.of(facts), Target.of(facts, shared_memory=200_000), first)

    def bytes_per_token(self) -> int:
        """The latent vector and the rotated key."""
        return self.shape.bytes_per_token()

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        """An empty cache of one layer."""
        return self.shape.allocate(num_blocks, device)

    def begin(self, step: StepContext) -> _State:
        """Chooses tiles and splits, and makes the workspace: from sizes alone, nothing is read back."""
        single, rows = step.num_single, step.num_rows
        launches = [self._absorbed(step, 0, single, 0, single, 1)] if single else []
        tokens = step.num_tokens - single
        if single == rows:
            return _State(step, tuple(launches), single)
        if self._expands(step, rows - single, tokens):
            return _State(step, (*launches, self._expanded(step, tokens)), single)
        launches.append(self._absorbed(step, single, rows, single, tokens, step.max_query))
        return _State(step, tuple(launches), step.num_tokens)

    def prepare(self, cache: Tensor, expansion: Tensor) -> LatentAttend:
        """Binds a layer's cache and ``expansion [N * (P + V), L]``."""
        by_rows = torch.unflatten(expansion, 0, (self.shape.heads, -1))
        to_key, to_value = torch.split(by_rows, [self.shape.nope_dim, self.shape.value_dim], dim=1)
        return functools.partial(self._attend, _Layer(cache, expansion, to_key, to_value.transpose(1, 2)))

    @property
    def _group(self) -> int:
        """Heads of an absorbed tile: as many as fit, and a divisor of all."""
        heads = self.shape.heads
        return next(size for size in range(min(heads, _MOST_PAIRS), 0, -1) if heads % size == 0)

    @property
    def _wide(self) -> int:
        """Elements of an expanded position."""
        return self.shape.heads * (self.shape.nope_dim + self.shape.value_dim)

    def _expands(self, step: StepContext, rows: int, tokens: int) -> bool:
        size = rows * step.max_context * self._wide * self.shape.dtype.itemsize
        return tokens >= _EXPAND_FROM * rows and size <= _EXPANDED_BYTES

    def _absorbed(
        self, step: StepContext, first: int, last: int, first_token: int, tokens: int, max_query: int
    ) -> _Launch:
        group = self._group
        tile = _absorbed_tile(max_query * group, self.shape.dtype)
        per_tile = tile.m // group
        search = max_query > per_tile
        tiles = tokens // per_tile + last - first if search else last - first
        parts = self.shape.heads // group
        splits = self._splits(tiles * parts, step.max_context, tile, search=search)
        launch = _Launch(first, last, first_token, tiles, splits, group, search, tile)
        if splits == 1:
            return launch
        device, slots = step.seq_lens.device, tiles * parts * splits * tile.m
        width = round_up_power(self.shape.latent_dim, 16)
        sums = torch.empty(slots * width, dtype=torch.float32, device=device)
        peaks, norms = torch.empty(2, slots, dtype=torch.float32, device=device)
        return _Launch(
            first, last, first_token, tiles, splits, group, search, tile, partials=(sums, peaks, norms)
        )

    def _expanded(self, step: StepContext, tokens: int) -> _Launch:
        tile, first, last = _expanded_tile(self.shape.dtype), step.num_single, step.num_rows
        tiles = tokens // tile.m + last - first
        return _Launch(first, last, first, tiles, 1, 1, True, tile, capacity=step.max_context)

    def _splits(self, programs: int, max_context: int, tile: Tile, *, search: bool) -> int:
        if max_context <= _SPLIT_FROM:
            return 1
        wanted = (2 if tile.m <= 32 else 1) * self.target.processors // programs
        if not search:
            wanted = max(wanted, max_context // _SPLIT_MOST)
        return max(min(wanted, -(-max_context // _SPLIT_LEAST), _MAX_SPLITS), 1)

    def _attend(self, layer: _Layer, q: Tensor, state: _State) -> Tensor:
        shape, count = self.shape, state.absorbed
        out = torch.empty(len(q), shape.heads * shape.value_dim, dtype=q.dtype, device=q.device)
        if count:
            heads = shape.heads_of(q[:count])[..., : shape.nope_dim]
            absorbed = self._by_head(heads, layer.to_key, None)
            mixed = torch.empty_like(absorbed)
        for launch in state.launches:
            if launch.capacity:
                held = self._expand(launch, layer, state.step)
                self._run(launch, q, None, layer.cache, held, out, state.step)
            else:
                self._run(launch, q, absorbed, layer.cache, None, mixed, state.step)
        if count:
            self._by_head(mixed, layer.to_value, out)
        return out

    def _by_head(self, x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
        """``x [T, N, A]`` times ``weight [N, A, B]``, to the first rows of ``out [., N * B]``."""
        tokens, heads, size = x.shape
        width = weight.shape[2]
        if out is None:
            out = torch.empty(tokens, heads, width, dtype=x.dtype, device=x.device)
        constants, launch = _product_tile(tokens, size, width, x.dtype)
        m, n = constants["BLOCK_M"], constants["BLOCK_N"]
        by_head[(heads, triton.cdiv(width, n), triton.cdiv(tokens, m))](
            x, weight, out, tokens, x.stride(0), x.stride(1), *weight.stride(),
            IN=size, OUT=width, HEADS=heads, PRECISION=precision(x.dtype),
            **constants, **launch, **self.target.options(),
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
        absorbed: Tensor | None,
        cache: Tensor,
        expanded: Tensor | None,
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
            step.block_table.stride(0), *cache.stride()[:2], shape.scale * LOG2E.value,
            HEADS=shape.heads, NOPE=shape.nope_dim, ROTARY=shape.rope_dim, LATENT=shape.latent_dim,
            VALUE=value, EXPANDED=launch.capacity > 0, BLOCK_SIZE=shape.block_size, SPLIT=launch.splits > 1,
            SPLIT_LEAST=_SPLIT_LEAST, BLOCK_N=tile.n, BLOCK_MAIN=round_up_power(main, 16),
            BLOCK_ROTARY=round_up_power(shape.rope_dim, 16), BLOCK_VALUE=round_up_power(value, 16),
            PRECISION=precision(shape.dtype), FIRST=self.first,
            num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
        if launch.splits > 1:
            merge[(parts, launch.tiles, per_tile * group)](
                None, out, step.query_start, step.seq_lens, *launch.partials, *rows, launch.splits,
                D=value, SINKS=False, SPLITS=round_up_power(launch.splits, 8),
                BLOCK_D=round_up_power(value, 16), num_warps=4, **shared,
            )  # fmt: skip


def _product_tile(
    tokens: int, size: int, width: int, dtype: torch.dtype
) -> tuple[dict[str, int], dict[str, int]]:
    """Blocks and launch options of ``by_head``: a wave of programs that load at once, or large tiles."""
    whole = round_up_power(size, 16)
    if dtype == torch.float32:
        return {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": min(whole, 64)}, {"num_warps": 4, "num_stages": 1}
    if tokens > 64:
        m = 128 if tokens > 256 else 64
        return {"BLOCK_M": m, "BLOCK_N": 128, "BLOCK_K": 64}, {"num_warps": 8, "num_stages": 3}
    m = round_up_power(tokens, 16)
    n = 64 if width > 256 else 16
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": whole}, {"num_warps": 4, "num_stages": 1}
