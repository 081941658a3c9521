"""One slot of DSpark's recursion in one launch: the bias of low rank after a token, and a slot's chance.

See ``speculate.dspark.Heads``, which has the same in torch's operators. The bias of all tokens reads the
whole of ``W2``, which is most of a slot's bytes; programs hold their rows of it before the token is known.
Slots read it in turns from its first row on and from its last: what the slot before read last is still in
the L2 cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from frizzen.kernels.triton.launch import (
    await_inputs,
    multiply_add,
    options_on,
    precision,
    release_next,
    round_up_power,
)

if TYPE_CHECKING:
    from torch import Tensor

    from frizzen.speculate.dspark import Heads

__all__ = ["follow"]

HELD = 16384
"""Bytes of ``W2`` that a program holds for one row of drafts."""
TILE = 64
"""Rows of ``W2`` that a program holds for several."""
WARPS = 4
TOKENS = 16
"""Rows of drafts that are multiplied at once."""


@triton.jit(
    do_not_specialize=["rows", "blocks", "logits_stride", "chances_stride", "turned"],
    do_not_specialize_on_alignment=["logits", "hidden", "tokens", "chances"],
)
def _follow(
    logits, hidden, tokens, inward, outward, weight, bias, chances, rows, size, blocks, rank, width,
    logits_stride, hidden_stride, chances_stride, turned, scale,
    KNOWN: tl.constexpr, MARKOV: tl.constexpr, ROWS: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr,
    TOKENS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    factor = tl.arange(0, RANK)
    if program < blocks:
        block = tl.where(turned > 0, blocks - 1 - program, program)
        word = block * ROWS + tl.arange(0, ROWS)
        at = outward + word.to(tl.int64)[:, None] * rank + factor[None, :]
        w = tl.load(at, mask=(word < size)[:, None] & (factor < rank)[None, :], other=0.0)
        release_next(PDL)
        await_inputs(PDL)
        if TOKENS == 1:
            f = tl.load(inward + tl.load(tokens) * rank + factor, mask=factor < rank, other=0.0)
            added = tl.sum(w.to(tl.float32) * f.to(tl.float32)[None, :], axis=1)
            # Rounded as the product of torch is, so that the drafts are the same.
            added = added.to(w.dtype).to(tl.float32) * scale
            known = tl.load(logits + word, mask=word < size, other=0.0)
            tl.store(logits + word, known + added, mask=word < size)
        else:
            for start in range(0, rows, TOKENS):
                row = start + tl.arange(0, TOKENS)
                token = tl.load(tokens + row, mask=row < rows, other=0)
                f_at = inward + token[None, :] * rank + factor[:, None]
                f = tl.load(f_at, mask=(row < rows)[None, :] & (factor < rank)[:, None], other=0.0)
                added = multiply_add(w, f, tl.zeros([ROWS, TOKENS], dtype=tl.float32), PRECISION)
                added = added.to(w.dtype).to(tl.float32) * scale
                inside = (row < rows)[None, :] & (word < size)[:, None]
                logits_at = logits + row.to(tl.int64)[None, :] * logits_stride + word[:, None]
                known = tl.load(logits_at, mask=inside, other=0.0)
                tl.store(logits_at, known + added, mask=inside)
    elif KNOWN:
        row = program - blocks
        column = tl.arange(0, WIDTH)
        of_state = tl.load(weight + column, mask=column < width, other=0.0)
        release_next(PDL)
        await_inputs(PDL)
        state = tl.load(hidden + row * hidden_stride + column, mask=column < width, other=0.0)
        total = tl.sum(state.to(tl.float32) * of_state, axis=0) + tl.load(bias)
        if MARKOV:
            of_token = inward + tl.load(tokens + row) * rank + factor
            embedded = tl.load(of_token, mask=factor < rank, other=0.0).to(tl.float32)
            gain = tl.load(weight + width + factor, mask=factor < rank, other=0.0)
            total += tl.sum(embedded * gain, axis=0)
        tl.store(chances + row * chances_stride, 1 / (1 + tl.exp(-total)))


def follow(
    heads: Heads, logits: Tensor, hidden: Tensor, tokens: Tensor, chances: Tensor | None, *, turned: bool
) -> None:
    """Adds the bias after ``tokens`` ``[R]`` to ``logits`` ``[R, Vd]``, where they are.

    Writes ``chances`` ``[R]``, if there are any, of ``hidden`` ``[R, H]``; ``turned`` begins at the last row.
    """
    inward, outward, known = heads.markov_in, heads.markov_out, heads.confidence
    (rows, size), rank, width = logits.shape, outward.shape[1], hidden.shape[1]
    if not rows:
        return
    inner = round_up_power(rank, 16)
    tile = TILE if rows > 1 else max(HELD // (inner * outward.element_size()), 1)
    blocks = triton.cdiv(size, tile)
    weight, bias = known or (outward, outward)
    asked = chances is not None and known is not None
    _follow[(blocks + rows * asked,)](
        logits, hidden, tokens, inward, outward, weight, bias, logits if chances is None else chances, rows,
        size, blocks, rank, width, logits.stride(0), hidden.stride(0),
        0 if chances is None else chances.stride(0), int(turned), heads.scale,
        KNOWN=asked, MARKOV=asked and weight.shape[1] > width, ROWS=tile, RANK=inner,
        WIDTH=round_up_power(width), TOKENS=TOKENS if rows > 1 else 1, PRECISION=precision(outward.dtype),
        num_warps=WARPS, **options_on(logits.device),
    )  # fmt: skip
