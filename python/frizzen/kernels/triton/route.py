"""Router: the gate's product, the scores and the choice in one launch.

A program multiplies a tile of tokens by a slice of the hidden size; the last program of a tile (it knows by a
counter, which it sets back to zero) adds the slices in order, so the sum does not depend on who was last, and
chooses.

The RMS norm before the router can be part of it (``prepare_normed``): every program updates its slice of the
residual and adds up its squares; the last one divides, and stores the normed tokens. One token then has a
kernel of its own, ``route_one``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Route
from frizzen.kernels.moe_reference import Routing
from frizzen.kernels.triton.choice import choose, score_logits
from frizzen.kernels.triton.launch import (
    Target,
    await_inputs,
    multiply_add,
    precision,
    release_next,
    round_up_power,
)
from frizzen.kernels.triton.norm import RmsNorm
from frizzen.kernels.triton.route_one import MOST_EXPERTS, route_one

__all__ = ["NormedRoute", "Router"]


@triton.jit
def _store_normed(
    source, source_stride, norm, normed, token, present, inverse, H, WIDE: tl.constexpr
):  # fmt: skip
    for start in range(0, H, WIDE):
        column = start + tl.arange(0, WIDE)
        mask = present[:, None] & (column < H)[None, :]
        gain = tl.load(norm + column, mask=column < H, other=0.0).to(tl.float32)
        at = source + token[:, None] * source_stride + column[None, :]
        y = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
        y = y * inverse[:, None] * gain[None, :]
        tl.store(normed + token[:, None] * H + column[None, :], y.to(normed.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["valid"])
def _route(
    x, residual, norm, normed, squares, weight, bias, correction, valid, partial, counters, weights, ids,
    tokens, share, x_stride, H, eps, scaling,
    E: tl.constexpr, K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr, BIAS: tl.constexpr, CORRECTION: tl.constexpr, VALID: tl.constexpr,
    NORM: tl.constexpr, ADD: tl.constexpr, SPLITS: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr, TOP: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    split = tl.program_id(1)
    token = tile.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    present = token < tokens
    expert = tl.arange(0, EXPERTS)
    exists = expert < E
    await_inputs(PDL)
    logits = tl.zeros([TOKENS, EXPERTS], dtype=tl.float32)
    square = tl.zeros([TOKENS, COLUMNS], dtype=tl.float32)
    first = split * share
    for start in range(first, tl.minimum(first + share, H), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < H
        mask = present[:, None] & inside[None, :]
        gate_mask = exists[None, :] & inside[:, None]
        rows = tl.load(x + token[:, None] * x_stride + column[None, :], mask=mask, other=0.0)
        gate = tl.load(weight + expert[None, :] * H + column[:, None], mask=gate_mask, other=0.0)
        if NORM:
            y = rows.to(tl.float32)
            if ADD:
                stream = residual + token[:, None] * H + column[None, :]
                y += tl.load(stream, mask=mask, other=0.0).to(tl.float32)
                rows = y.to(rows.dtype)
                tl.store(stream, rows, mask=mask)
                y = rows.to(tl.float32)
            square += y * y
            gain = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
            rows = (y * gain[None, :]).to(rows.dtype)
        logits = multiply_add(rows.to(gate.dtype), gate, logits, PRECISION)
    squared = tl.sum(square, axis=1)

    if SPLITS > 1:
        part = token * SPLITS
        mine = partial + part[:, None] * EXPERTS + expert[None, :]
        tl.store(mine + split * EXPERTS, logits, mask=present[:, None])
        if NORM:
            tl.store(squares + part + split, squared, mask=present)
        # All threads have stored before the one that counts does.
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") != SPLITS - 1:
            return
        tl.store(counters + tile, 0)
        logits = tl.zeros([TOKENS, EXPERTS], dtype=tl.float32)
        squared = tl.zeros([TOKENS], dtype=tl.float32)
        for other in tl.static_range(SPLITS):
            # Other programs wrote these: past the first-level cache, which does not see them.
            logits += tl.load(mine + other * EXPERTS, mask=present[:, None], other=0.0, cache_modifier=".cg")
            if NORM:
                squared += tl.load(squares + part + other, mask=present, other=0.0, cache_modifier=".cg")
    if NORM:
        inverse = tl.rsqrt(squared / H + eps)
        logits *= inverse[:, None]
        if ADD:
            _store_normed(residual, H, norm, normed, token, present, inverse, H, WIDE)
        else:
            _store_normed(x, x_stride, norm, normed, token, present, inverse, H, WIDE)
    release_next(PDL)
    if BIAS:
        logits += tl.load(bias + expert, mask=exists, other=0.0).to(tl.float32)[None, :]

    scores = score_logits(logits, exists[None, :], SCORING)
    chosen, gains = choose(
        scores, correction, expert[None, :], exists[None, :],
        E, EXPERTS, K, TOP, GROUPS, TOP_GROUPS, CORRECTION,
    )  # fmt: skip
    if RENORMALIZE:
        gains = gains / (tl.sum(gains, axis=1)[:, None] + 1e-20)
    gains *= scaling
    if VALID:
        real = (token < tl.load(valid))[:, None]
        gains = tl.where(real, gains, 0.0)
        chosen = tl.where(real, chosen, -1)
    place = tl.arange(0, TOP)[None, :]
    at = token[:, None] * K + place
    mask = present[:, None] & (place < K)
    tl.store(weights + at, gains, mask=mask)
    tl.store(ids + at, chosen, mask=mask)


NormedRoute = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""``(x [T, H], residual [T, H] | None, valid)`` to the norm ``[T, H]``, weights and ids.

``residual += x`` in place.
"""


class _Gate(NamedTuple):
    """One layer's router."""

    weight: Tensor
    bias: Tensor | None
    correction: Tensor | None


class _Norm(NamedTuple):
    """The norm before a router, and where its result goes."""

    weight: Tensor
    eps: float
    residual: Tensor | None
    normed: Tensor


@dataclass(frozen=True, slots=True)
class Router:
    """See ``moe.route``."""

    folds: ClassVar[type] = RmsNorm
    """Whose norm ``prepare_normed`` is equal to."""

    hidden: int
    experts: int
    routing: Routing
    target: Target
    counters: Tensor
    """One per tile of tokens whose product is cut; all layers share them: they run one after the other."""

    @classmethod
    def build(cls, facts: Facts) -> Router:
        """The kernel for one shape of router."""
        counters = torch.zeros(_SPLIT_TOKENS // 4, dtype=torch.int32, device=facts.device)
        hidden, experts = facts.size("hidden"), facts.size("experts")
        return cls(hidden, experts, Routing.of(facts), Target.of(facts), counters)

    def prepare(self, weight: Tensor, bias: Tensor | None, correction: Tensor | None) -> Route:
        """Keeps the weight as it is."""
        gate = _Gate(weight, bias, correction)

        def route(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
            return self._run(gate, x, valid, None)

        return route

    def prepare_normed(
        self, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, correction: Tensor | None
    ) -> NormedRoute:
        """``norm.rms`` and the router together."""
        gate = _Gate(weight, bias, correction)
        separate = RmsNorm(self.hidden, self.target).prepare(norm, eps)

        def route(x: Tensor, residual: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            if not 0 < len(x) <= _NORMED_TOKENS:
                normed = separate(x, residual)
                return (normed, *self._run(gate, normed, valid, None))
            normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            place = _Norm(norm, eps, residual, normed)
            if len(x) == 1 and self._fits(weight):
                return (normed, *self._run_one(gate, x, valid, place))
            return (normed, *self._run(gate, x, valid, place))

        return route

    def _fits(self, weight: Tensor) -> bool:
        """Whether a program of one token holds a row of the gate in registers."""
        return round_up_power(self.hidden) * weight.itemsize <= 16384 and self.experts <= MOST_EXPERTS

    def _run_one(self, gate: _Gate, x: Tensor, valid: Tensor | None, norm: _Norm) -> tuple[Tensor, Tensor]:
        routing, columns, wide = self.routing, round_up_power(self.hidden), round_up_power(self.experts, 16)
        rows = min(16384 // (columns * gate.weight.itemsize), 4)
        programs = triton.cdiv(self.experts, rows)
        weights = torch.empty(1, routing.top_k, dtype=torch.float32, device=x.device)
        ids = torch.empty(1, routing.top_k, dtype=torch.int32, device=x.device)
        logits = torch.empty(programs * rows, dtype=torch.float32, device=x.device)
        route_one[(programs,)](
            x, norm.residual, norm.weight, norm.normed, *gate, valid, logits, self.counters, weights,
            ids, self.hidden, norm.eps, routing.scaling,
            E=self.experts, K=routing.top_k, SCORING=routing.scoring, RENORMALIZE=routing.renormalize,
            GROUPS=routing.groups, TOP_GROUPS=routing.top_groups, BIAS=gate.bias is not None,
            CORRECTION=gate.correction is not None, VALID=valid is not None,
            ADD=norm.residual is not None, ROWS=rows, EXPERTS=wide, COLUMNS=columns, num_warps=4,
            **self.target.options(),
        )  # fmt: skip
        return weights, ids

    def _run(self, gate: _Gate, x: Tensor, valid: Tensor | None, norm: _Norm | None) -> tuple[Tensor, Tensor]:
        tokens, routing = len(x), self.routing
        weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=x.device)
        ids = torch.empty(tokens, routing.top_k, dtype=torch.int32, device=x.device)
        if not tokens:
            return weights, ids
        wide = round_up_power(self.experts, 16)
        tile, columns, splits, share = self._cut(tokens, gate.weight.itemsize)
        partial = squares = None
        if splits > 1:
            partial = torch.empty(tokens * splits * wide, dtype=torch.float32, device=x.device)
            squares = torch.empty(tokens * splits, dtype=torch.float32, device=x.device)
        residual = norm.residual if norm else None
        _route[(triton.cdiv(tokens, tile), splits)](
            x, residual, norm and norm.weight, norm and norm.normed, squares, *gate, valid, partial,
            self.counters, weights, ids, tokens, share, x.stride(0), self.hidden, norm.eps if norm else 0.0,
            routing.scaling,
            E=self.experts, K=routing.top_k, SCORING=routing.scoring, RENORMALIZE=routing.renormalize,
            GROUPS=routing.groups, TOP_GROUPS=routing.top_groups, BIAS=gate.bias is not None,
            CORRECTION=gate.correction is not None, VALID=valid is not None, NORM=norm is not None,
            ADD=residual is not None, SPLITS=splits, TOKENS=tile, EXPERTS=wide, COLUMNS=columns,
            WIDE=min(8192 // tile, round_up_power(self.hidden)), TOP=round_up_power(routing.top_k),
            PRECISION=precision(gate.weight.dtype), num_warps=_warps(tile, wide), num_stages=3,
            **self.target.options(),
        )  # fmt: skip
        return weights, ids

    def _cut(self, tokens: int, itemsize: int) -> tuple[int, int, int, int]:
        """Tokens of a tile, columns of a step, slices of the hidden size, columns of a slice.

        More slices for fewer tokens.
        """
        wide = round_up_power(self.experts, 128)
        if tokens > _SPLIT_TOKENS:
            # Wider routers get lower tiles: scores and keys of a tile stay in registers.
            return max(16, 8192 // wide), _COLUMNS, 1, self.hidden
        tile = 1 if tokens == 1 else 4 if tokens <= _NORMED_TOKENS else 8 if tokens <= _LOW_TOKENS else 16
        # Longer steps wait for memory less often, where three of them fit into shared memory.
        columns = 2 * _COLUMNS if tile == 8 and wide * itemsize <= _LONG_STEPS else _COLUMNS
        share = triton.cdiv(triton.cdiv(self.hidden, 32 if tokens == 1 else 8), columns) * columns
        return tile, columns, triton.cdiv(self.hidden, share), share


def _warps(tile: int, experts: int) -> int:
    if tile == 1:
        # Scores of one token fit into one warp, which needs no barriers.
        return max(experts // 128, 1)
    return 8 if tile >= 16 else 4


_COLUMNS = 64
"""Of a step."""
_LONG_STEPS = 256
"""Most bytes of a column of the gate in steps of twice as many columns."""
_NORMED_TOKENS = 64
"""Most tokens whose norm is part of the router: the last program of a tile stores it alone."""
_LOW_TOKENS = 256
"""Most tokens in tiles of 8, whose last programs have half as many to choose for."""
_SPLIT_TOKENS = 512
"""Up to here there are too few tiles of tokens to keep the device busy, so the hidden size is cut as well."""
