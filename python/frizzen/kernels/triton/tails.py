"""How products with experts' weights as the left operand end: sums ``[ROWS, M]`` of weight rows by pairs."""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.experts import activate

__all__ = ["store_down", "store_gate_up"]


@triton.jit
def store_gate_up(
    gate, up, b13, act, expert, place, present, row, I, clamp, alpha, beta,
    BIAS: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """The activation of the first product, in rows ``place`` of ``act [.., I]``."""
    exists = row < I
    gate = tl.trans(gate)
    up = tl.trans(up)
    if BIAS:
        bias_at = b13 + expert * 2 * I + row
        gate += tl.load(bias_at, mask=exists, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias_at + I, mask=exists, other=0.0).to(tl.float32)[None, :]
    y = activate(gate, up, clamp, alpha, beta, CLAMP)
    act_at = act + place.to(tl.int64)[:, None] * I + row[None, :]
    tl.store(act_at, y.to(act.dtype.element_ty), mask=present[:, None] & exists[None, :])


@triton.jit
def store_down(total, b2, gain, partial, expert, place, present, row, H, BIAS: tl.constexpr):
    """The second product, times the weights of the pairs, in rows ``place`` of ``partial [T * k, H]``."""
    exists = row < H
    y = tl.trans(total)
    if BIAS:
        y += tl.load(b2 + expert * H + row, mask=exists, other=0.0).to(tl.float32)[None, :]
    y *= gain[:, None]
    partial_at = partial + place.to(tl.int64)[:, None] * H + row[None, :]
    tl.store(partial_at, y.to(partial.dtype.element_ty), mask=present[:, None] & exists[None, :])
