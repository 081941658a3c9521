"""Router: the gate's product, the scores and the choice in one launch.

A program multiplies a tile of tokens by a slice of the hidden size; the last program of a tile (it knows by a counter,
which it sets back to zero) adds the slices in order, so the sum does not depend on who was last, and chooses.
"""
# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import Route
from frizzen.kernels.moe_reference import Routing
from frizzen.kernels.triton.launch import Target, await_inputs, multiply_add, precision, round_up_power

__all__ = ["Router"]


@triton.jit
def _keys(scores, column, COUNT: tl.constexpr):
    """Integers in the order of (score, lower column first); all differ, so one maximum names value and place."""
    bits = scores.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (COUNT - 1 - column).to(tl.int64)


@triton.jit
def _best(keys, COUNT: tl.constexpr):
    """Column of the highest key of each row, and the keys without it."""
    highest = tl.max(keys, axis=1)
    place = (COUNT - 1 - (highest & 0xFFFFFFFF)).to(tl.int32)
    return place, tl.where(keys == highest[:, None], -0x7FFFFFFFFFFFFFFF, keys)


@triton.jit
def _limit(choice, E: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, PAIR: tl.constexpr):
    """Puts the experts of all but the best groups out of reach: ``choice [tokens, E]``."""
    tokens: tl.constexpr = choice.shape[0]
    members = tl.reshape(choice, (tokens, GROUPS, E // GROUPS))
    best, place = tl.max(members, axis=2, return_indices=True, return_indices_tie_break_left=True)
    if PAIR:
        column = tl.arange(0, E // GROUPS)[None, None, :]
        best += tl.max(tl.where(column == place[:, :, None], float("-inf"), members), axis=2)
    group = tl.arange(0, GROUPS)[None, :]
    keys = _keys(best, group, GROUPS)
    kept = tl.zeros([tokens, GROUPS], dtype=tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        chosen, keys = _best(keys, GROUPS)
        kept = tl.where(group == chosen[:, None], 1, kept)
    return tl.reshape(tl.where(kept[:, :, None] > 0, members, float("-inf")), (tokens, E))


@triton.jit(
    do_not_specialize=["tokens"],
    do_not_specialize_on_alignment=["valid"],
)
def _route(
    x,
    weight,
    bias,
    correction,
    valid,
    partial,
    counters,
    weights,
    ids,
    tokens,
    share,
    x_stride,
    H,
    scaling,
    E: tl.constexpr,
    K: tl.constexpr,
    SCORING: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BIAS: tl.constexpr,
    CORRECTION: tl.constexpr,
    VALID: tl.constexpr,
    SPLITS: tl.constexpr,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TOP: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(0)
    split = tl.program_id(1)
    token = tile.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    present = token < tokens
    expert = tl.arange(0, EXPERTS)
    exists = expert < E
    await_inputs(PDL)
    logits = tl.zeros([TOKENS, EXPERTS], dtype=tl.float32)
    first = split * share
    for start in range(first, tl.minimum(first + share, H), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < H
        rows = tl.load(
            x + token[:, None] * x_stride + column[None, :], mask=present[:, None] & inside[None, :], other=0.0
        )
        gate = tl.load(weight + expert[None, :] * H + column[:, None], mask=exists[None, :] & inside[:, None], other=0.0)
        logits = multiply_add(rows.to(gate.dtype), gate, logits, PRECISION)
    if SPLITS > 1:
        mine = partial + (token * SPLITS)[:, None] * EXPERTS + expert[None, :]
        tl.store(mine + split * EXPERTS, logits, mask=present[:, None])
        # All threads have stored before the one that counts does.
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") != SPLITS - 1:
            return
        tl.store(counters + tile, 0)
        logits = tl.zeros([TOKENS, EXPERTS], dtype=tl.float32)
        for other in tl.static_range(SPLITS):
            # Other programs wrote these: past the first-level cache, which does not see them.
            logits += tl.load(mine + other * EXPERTS, mask=present[:, None], other=0.0, cache_modifier=".cg")
    if BIAS:
        logits += tl.load(bias + expert, mask=exists, other=0.0).to(tl.float32)[None, :]

    if SCORING == "softmax":
        logits = tl.where(exists[None, :], logits, float("-inf"))
        scores = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        scores = scores / tl.sum(scores, axis=1)[:, None]
    elif SCORING == "sigmoid":
        scores = tl.sigmoid(logits)
    else:
        scores = tl.sqrt(tl.where(logits > 20.0, logits, tl.log(1.0 + tl.exp(tl.minimum(logits, 20.0)))))
    choice = scores
    if CORRECTION:
        choice += tl.load(correction + expert, mask=exists, other=0.0)[None, :]
    choice = tl.where((choice == choice) & exists[None, :], choice, float("-inf"))
    if GROUPS > 1:
        choice = _limit(choice, E, GROUPS, TOP_GROUPS, CORRECTION)

    keys = _keys(choice, expert[None, :], EXPERTS)
    place = tl.arange(0, TOP)[None, :]
    chosen = tl.zeros([TOKENS, TOP], dtype=tl.int32)
    gains = tl.zeros([TOKENS, TOP], dtype=tl.float32)
    for position in tl.static_range(K):
        best, keys = _best(keys, EXPERTS)
        score = tl.sum(tl.where(expert[None, :] == best[:, None], scores, 0.0), axis=1)
        chosen = tl.where(place == position, best[:, None], chosen)
        gains = tl.where(place == position, score[:, None], gains)
    if RENORMALIZE:
        gains = gains / (tl.sum(gains, axis=1)[:, None] + 1e-20)
    gains *= scaling
    if VALID:
        real = (token < tl.load(valid))[:, None]
        gains = tl.where(real, gains, 0.0)
        chosen = tl.where(real, chosen, -1)
    at = token[:, None] * K + place
    mask = present[:, None] & (place < K)
    tl.store(weights + at, gains, mask=mask)
    tl.store(ids + at, chosen, mask=mask)


@dataclass(frozen=True, slots=True)
class Router:
    """See ``moe.route``."""

    hidden: int
    experts: int
    routing: Routing
    target: Target
    counters: Tensor

    @classmethod
    def build(cls, facts: Facts) -> Router:
        """The kernel for one router; makes the counters, one per tile of tokens that is split."""
        counters = torch.zeros(_SPLIT_TOKENS // _TILE, dtype=torch.int32, device=facts.device)
        return cls(facts.size("hidden"), facts.size("experts"), Routing.of(facts), Target.of(facts), counters)

    def prepare(self, weight: Tensor, bias: Tensor | None, correction: Tensor | None) -> Route:
        """Keeps the weight as it is."""
        wide = round_up_power(self.experts, 16)

        def route(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
            tokens, k = len(x), self.routing.top_k
            weights = torch.empty(tokens, k, dtype=torch.float32, device=x.device)
            ids = torch.empty(tokens, k, dtype=torch.int32, device=x.device)
            if not tokens:
                return weights, ids
            tile, splits, share = self._cut(tokens)
            partial = None
            if splits > 1:
                partial = torch.empty(tokens * splits * wide, dtype=torch.float32, device=x.device)
            _route[(triton.cdiv(tokens, tile), splits)](
                x,
                weight,
                bias,
                correction,
                valid,
                partial,
                self.counters,
                weights,
                ids,
                tokens,
                share,
                x.stride(0),
                self.hidden,
                self.routing.scaling,
                E=self.experts,
                K=k,
                SCORING=self.routing.scoring,
                RENORMALIZE=self.routing.renormalize,
                GROUPS=self.routing.groups,
                TOP_GROUPS=self.routing.top_groups,
                BIAS=bias is not None,
                CORRECTION=correction is not None,
                VALID=valid is not None,
                SPLITS=splits,
                TOKENS=tile,
                EXPERTS=wide,
                COLUMNS=_COLUMNS,
                TOP=round_up_power(k),
                PRECISION=precision(weight.dtype),
                num_warps=8 if tile > _TILE else 4 if tile > 1 else max(wide // 128, 1),
                num_stages=3,
                **self.target.options(),
            )
            return weights, ids

        return route

    def _cut(self, tokens: int) -> tuple[int, int, int]:
        """Tokens of a tile, slices of the hidden size, columns of a slice: more slices for fewer tokens."""
        if tokens > _SPLIT_TOKENS:
            # Wider routers get lower tiles: scores and keys of a tile stay in registers.
            return max(_TILE, 8192 // round_up_power(self.experts, 128)), 1, self.hidden
        share = triton.cdiv(triton.cdiv(self.hidden, 32 if tokens == 1 else 8), _COLUMNS) * _COLUMNS
        return 1 if tokens == 1 else _TILE, triton.cdiv(self.hidden, share), share


_TILE = 16
_COLUMNS = 64
_SPLIT_TOKENS = 512
"""Up to here there are too few tiles of tokens to keep the device busy, so the hidden size is cut as well."""
