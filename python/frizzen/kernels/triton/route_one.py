"""Router of one token: a program has the gate's rows of a few experts in registers before the token is there.

Every program adds up the squares of the whole token itself, so its logits are final, and the last program
(it knows by a counter, which it sets back to zero) has one row of them to read. That one also stores the
residual and the normed token, which it still holds: all others have read theirs by then.

An expert's rank is the number of experts before it: all ranks are found at once, by comparing all pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.choice import limit_groups, score_logits, sort_keys
from frizzen.kernels.triton.launch import await_inputs, release_next

__all__ = ["MOST_EXPERTS", "route_one"]

MOST_EXPERTS = 256
"""Whose pairs a program can compare in registers."""


@triton.jit(do_not_specialize_on_alignment=["valid"])
def route_one(
    x, residual, norm, normed, weight, bias, correction, valid, logits, counter, weights, ids, H,
    eps, scaling,
    E: tl.constexpr, K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr, BIAS: tl.constexpr, CORRECTION: tl.constexpr, VALID: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, EXPERTS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Weights and ids ``[1, K]``, ``normed [1, H]`` and, with ``ADD``, the residual."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    expert = program * ROWS + tl.arange(0, ROWS)
    exists = expert < E
    column = tl.arange(0, COLUMNS)
    inside = column < H
    release_next(PDL)
    gate_at = weight + expert[:, None] * H + column[None, :]
    gate = tl.load(gate_at, mask=exists[:, None] & inside[None, :], other=0.0).to(tl.float32)
    own_bias = tl.zeros([ROWS], dtype=tl.float32)
    if BIAS:
        own_bias = tl.load(bias + expert, mask=exists, other=0.0).to(tl.float32)
    gain = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
    await_inputs(PDL)
    values = tl.load(x + column, mask=inside, other=0.0)
    y = values.to(tl.float32)
    if ADD:
        y += tl.load(residual + column, mask=inside, other=0.0).to(tl.float32)
        values = y.to(x.dtype.element_ty)
        y = values.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(y * y, axis=0) / H + eps)
    y *= gain
    # The product is of what the gate's type can hold, as with several tokens.
    factor = y.to(x.dtype.element_ty).to(weight.dtype.element_ty).to(tl.float32)
    own = tl.sum(gate * factor[None, :], axis=1) * inverse + own_bias
    tl.store(logits + expert, own)
    # All threads have stored before the one that counts does.
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel") != programs - 1:
        return
    tl.store(counter, 0)

    every = tl.arange(0, EXPERTS)
    there = every < E
    # Other programs wrote these: past the first-level cache, which does not see them.
    row = tl.load(logits + every, mask=there, other=0.0, cache_modifier=".cg")
    if ADD:
        tl.store(residual + column, values, mask=inside)
    tl.store(normed + column, (y * inverse).to(normed.dtype.element_ty), mask=inside)
    scores = score_logits(row[None, :], there[None, :], SCORING)
    choice = scores
    if CORRECTION:
        choice += tl.load(correction + every, mask=there, other=0.0)[None, :]
    # What is not a number must not win, and must still leave ids that exist.
    choice = tl.where((choice > float("-inf")) & there[None, :], choice, float("-inf"))
    if GROUPS > 1:
        choice = limit_groups(choice, E, GROUPS, TOP_GROUPS, CORRECTION)
    keys = tl.reshape(sort_keys(choice, every[None, :], EXPERTS), [EXPERTS])
    rank = tl.sum((keys[None, :] > keys[:, None]).to(tl.int32), axis=1)
    chosen = rank < K
    gains = tl.reshape(scores, [EXPERTS])
    if RENORMALIZE:
        gains = gains / (tl.sum(tl.where(chosen, gains, 0.0), axis=0) + 1e-20)
    gains *= scaling
    found = every
    if VALID:
        real = tl.load(valid) > 0
        gains = tl.where(real, gains, 0.0)
        found = tl.where(real, found, -1)
    tl.store(weights + rank, gains, mask=chosen)
    tl.store(ids + rank, found, mask=chosen)
