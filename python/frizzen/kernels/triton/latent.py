"""The kernels of latent attention; ``latent_attention`` chooses their tiles and launches them.

A key has two parts: a main one, and a rotated one that all heads share. *Absorbed*, queries were moved into
the latent space: the main part of every head's key is the latent vector in the cache, which is its value too,
so the heads of a token are one tile and a vector is read once for all of them, as key and as value.
*Expanded*, keys and values of every head were made of the latent vectors before, and stand in a workspace by
position.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.attention import mean, place_of
from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next

__all__ = ["by_head", "expand", "latent_attention", "merge_latents"]


@triton.jit
def _attend_latents(
    q, turned, total, peak, norm, query_position, cache, expanded, blocks, start, end, context, block_stride,
    token_stride, expanded_stride, scale,
    MAIN: tl.constexpr, VALUE: tl.constexpr, LATENT: tl.constexpr, ROTARY: tl.constexpr,
    EXPANDED: tl.constexpr, MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys ``start`` to ``end``; unmasked where every query sees every key."""
    column = tl.arange(0, q.shape[1])[None, :]
    rotary = tl.arange(0, turned.shape[1])[None, :]
    for first in range(start, end, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        there = position < context
        block = tl.load(blocks + position // BLOCK_SIZE, mask=there, other=0)
        at = cache + (block.to(tl.int64) * block_stride + position % BLOCK_SIZE * token_stride)[:, None]
        main_at = at
        if EXPANDED:
            main_at = expanded + (position.to(tl.int64) * expanded_stride)[:, None]
        if MASKED:
            k = tl.load(main_at + column, mask=there[:, None] & (column < MAIN), other=0.0)
            shared = tl.load(at + LATENT + rotary, mask=there[:, None] & (rotary < ROTARY), other=0.0)
        else:
            k = tl.load(main_at + column, mask=column < MAIN, other=0.0)
            shared = tl.load(at + LATENT + rotary, mask=rotary < ROTARY, other=0.0)
        score = tl.zeros([q.shape[0], BLOCK_N], tl.float32)
        score = multiply_add(turned, tl.trans(shared), score, PRECISION)
        score = multiply_add(q, tl.trans(k), score, PRECISION)
        if MASKED:
            seen = (position[None, :] <= query_position[:, None]) & there[None, :]
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1) * scale)
        # A query that has seen no key yet keeps a peak of -inf: subtract 0 instead, so that no NaN arises.
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weight = tl.exp2(score * scale - base[:, None])
        shrink = tl.exp2(peak - base)
        v = k
        if EXPANDED:
            value = tl.arange(0, total.shape[1])[None, :]
            if MASKED:
                v = tl.load(main_at + MAIN + value, mask=there[:, None] & (value < VALUE), other=0.0)
            else:
                v = tl.load(main_at + MAIN + value, mask=value < VALUE, other=0.0)
        total = multiply_add(weight.to(v.dtype), v, total * shrink[:, None], PRECISION)
        norm = norm * shrink + tl.sum(weight, axis=1)
        peak = higher
    return total, peak, norm


@triton.jit(
    do_not_specialize=["first_row", "last_row", "tiles", "splits", "blocks_stride", "capacity"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_table"],
)
def latent_attention(
    q, absorbed, cache, expanded, out, query_start, seq_lens, block_table, partial, partial_peak,
    partial_norm, first_row, last_row, tiles, splits, capacity, q_stride, absorbed_stride, absorbed_head,
    blocks_stride, block_stride, token_stride, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, NOPE: tl.constexpr, ROTARY: tl.constexpr, LATENT: tl.constexpr,
    VALUE: tl.constexpr, EXPANDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, SEARCH: tl.constexpr,
    SPLIT_LEAST: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_MAIN: tl.constexpr, BLOCK_ROTARY: tl.constexpr, BLOCK_VALUE: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """One tile of ``BLOCK_M`` (token, head) pairs, or one split of its context.

    ``scale`` has the factor of the base-2 softmax in it; ``VALUE`` is the size of a result, so absorbed
    ``LATENT``. Nobody sees the positions below ``FIRST``.
    """
    MAIN: tl.constexpr = NOPE if EXPANDED else LATENT
    # The last tile of a prompt has the longest context: it starts first.
    tile = tiles - 1 - tl.program_id(1)
    split = tl.program_id(2)
    row, tile_in_row, first_token, width, context = place_of(
        query_start, seq_lens, tile, first_row, last_row, SEARCH, BLOCK_Q
    )
    await_inputs(PDL)
    if tile_in_row * BLOCK_Q >= width:
        return

    pair = tl.arange(0, BLOCK_M)
    query = tile_in_row * BLOCK_Q + pair // GROUP
    head = tl.program_id(0) * GROUP + pair % GROUP
    real = (pair < BLOCK_Q * GROUP) & (query < width)
    query_position = context - width + query
    token = (first_token + query).to(tl.int64)
    column = tl.arange(0, BLOCK_MAIN)[None, :]
    rotary = tl.arange(0, BLOCK_ROTARY)[None, :]
    q_at = q + (token * q_stride + head * (NOPE + ROTARY))[:, None]
    main_at = q_at
    if not EXPANDED:
        main_at = absorbed + (token * absorbed_stride + head.to(tl.int64) * absorbed_head)[:, None]
    main = tl.load(main_at + column, mask=real[:, None] & (column < MAIN), other=0.0)
    turned = tl.load(q_at + NOPE + rotary, mask=real[:, None] & (rotary < ROTARY), other=0.0)

    first_position = context - width + tile_in_row * BLOCK_Q
    end = tl.minimum(first_position + BLOCK_Q, context)
    share = tl.maximum(tl.cdiv(tl.cdiv(end - FIRST, splits), BLOCK_N) * BLOCK_N, SPLIT_LEAST)
    start = FIRST + split * share
    end = tl.minimum(start + share, end)

    blocks = block_table + row.to(tl.int64) * blocks_stride
    expanded_stride = HEADS * (NOPE + VALUE)
    if EXPANDED:
        expanded += (row - first_row).to(tl.int64) * capacity * expanded_stride + tl.program_id(0) * (
            NOPE + VALUE
        )
    peak = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_VALUE], dtype=tl.float32)
    border = start
    if EXPANDED:
        # Every query of the tile sees the keys up to its first position, so these need no mask.
        clear = tl.minimum(first_position + 1, end)
        border = tl.maximum(start + (clear - start) // BLOCK_N * BLOCK_N, start)
        total, peak, norm = _attend_latents(
            main, turned, total, peak, norm, query_position, cache, expanded, blocks, start, border, context,
            block_stride, token_stride, expanded_stride, scale,
            MAIN, VALUE, LATENT, ROTARY, EXPANDED, False, BLOCK_SIZE, BLOCK_N, PRECISION,
        )  # fmt: skip
    total, peak, norm = _attend_latents(
        main, turned, total, peak, norm, query_position, cache, expanded, blocks, border, end, context,
        block_stride, token_stride, expanded_stride, scale,
        MAIN, VALUE, LATENT, ROTARY, EXPANDED, True, BLOCK_SIZE, BLOCK_N, PRECISION,
    )  # fmt: skip

    release_next(PDL)
    value = tl.arange(0, BLOCK_VALUE)[None, :]
    # Told at run time: how a context is cut follows from the step, and must not be a variant of its own.
    if splits > 1:
        # A split without keys leaves a norm of 0, and no values.
        slot = ((tile * tl.num_programs(0) + tl.program_id(0)) * splits + split).to(tl.int64) * BLOCK_M + pair
        tl.store(partial_peak + slot, peak)
        tl.store(partial_norm + slot, norm)
        mask = (real & (start < end))[:, None] & (value < VALUE)
        tl.store(partial + slot[:, None] * BLOCK_VALUE + value, total, mask=mask)
    else:
        found = mean(total, peak, norm, norm, False)
        out_at = out + ((token * HEADS + head) * VALUE)[:, None] + value
        tl.store(out_at, found.to(out.dtype.element_ty), mask=real[:, None] & (value < VALUE))


@triton.jit(
    do_not_specialize=["first_row", "last_row", "splits"],
    do_not_specialize_on_alignment=["query_start", "seq_lens"],
)
def merge_latents(
    out, query_start, seq_lens, partial, partial_peak, partial_norm, first_row, last_row, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE: tl.constexpr, SEARCH: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_VALUE: tl.constexpr, CUTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Adds up the splits of one (token, head) pair of a tile, in one of ``CUTS`` parts of its result.

    ``attention.merge`` for results so wide that a program alone would take longer than the attention.
    """
    part = tl.program_id(0)
    tile = tl.program_id(1)
    pair = tl.program_id(2) // CUTS
    _, tile_in_row, first_token, width, _ = place_of(
        query_start, seq_lens, tile, first_row, last_row, SEARCH, BLOCK_Q
    )
    await_inputs(PDL)
    query = tile_in_row * BLOCK_Q + pair // GROUP
    if query >= width:
        return
    split = tl.arange(0, SPLITS)
    column = tl.program_id(2) % CUTS * (BLOCK_VALUE // CUTS) + tl.arange(0, BLOCK_VALUE // CUTS)
    inside = column < VALUE
    slot = ((tile * tl.num_programs(0) + part) * splits + split).to(tl.int64) * BLOCK_M + pair
    peaks = tl.load(partial_peak + slot, mask=split < splits, other=float("-inf"))
    norms = tl.load(partial_norm + slot, mask=split < splits, other=0.0)
    # Not by the peak: keys that are not numbers must show in the result.
    active = norms != 0
    totals = partial + slot[:, None] * BLOCK_VALUE + column[None, :]
    totals = tl.load(totals, mask=active[:, None] & inside[None, :], other=0.0)
    release_next(PDL)
    shares = tl.where(active, tl.exp2(peaks - tl.max(peaks, axis=0)), 0.0)
    norm = tl.sum(norms * shares, axis=0)
    total = tl.sum(totals * shares[:, None], axis=0) / tl.where(norm > 0, norm, 1.0)
    token = (first_token + query).to(tl.int64)
    out += (token * HEADS + part * GROUP + pair % GROUP) * VALUE + column
    tl.store(out, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def by_head(
    x, weight, out, tokens, x_stride, x_head, weight_head, weight_in, weight_out,
    IN: tl.constexpr, OUT: tl.constexpr, HEADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each head's part of a token times its own matrix: ``[T, N, IN]`` to ``[T, N, OUT]``, T <= BLOCK_M."""
    head = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.arange(0, BLOCK_M)
    inner = tl.arange(0, BLOCK_K)
    weight += head.to(tl.int64) * weight_head + column[None, :] * weight_out
    x += token[:, None].to(tl.int64) * x_stride + head * x_head
    WHOLE: tl.constexpr = BLOCK_K >= IN
    if WHOLE:
        # A weight is no input of the step, so it may come before them.
        mask = (inner[:, None] < IN) & (column[None, :] < OUT)
        w = tl.load(weight + inner[:, None] * weight_in, mask=mask, other=0.0)
        await_inputs(PDL)
        mask = (token[:, None] < tokens) & (inner[None, :] < IN)
        part = tl.load(x + inner[None, :], mask=mask, other=0.0)
        total = multiply_add(part, w, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), PRECISION)
    else:
        await_inputs(PDL)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for first in range(0, IN, BLOCK_K):
            at = first + inner
            mask = (at[:, None] < IN) & (column[None, :] < OUT)
            w = tl.load(weight + at[:, None] * weight_in, mask=mask, other=0.0)
            mask = (token[:, None] < tokens) & (at[None, :] < IN)
            part = tl.load(x + at[None, :], mask=mask, other=0.0)
            total = multiply_add(part, w, total, PRECISION)
    release_next(PDL)
    out_at = out + (token[:, None].to(tl.int64) * HEADS + head) * OUT + column[None, :]
    mask = (token[:, None] < tokens) & (column[None, :] < OUT)
    tl.store(out_at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["first_row", "capacity", "blocks_stride"],
    do_not_specialize_on_alignment=["seq_lens", "block_table"],
)
def expand(
    cache, expansion, expanded, seq_lens, block_table, first_row, capacity, blocks_stride, block_stride,
    token_stride,
    LATENT: tl.constexpr, WIDE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Keys and values of all heads, of ``BLOCK_M`` positions of a row: ``[rows, capacity, WIDE]``."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    position = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = first_row + tl.program_id(2)
    context = tl.load(seq_lens + row)
    await_inputs(PDL)
    if tl.program_id(1) * BLOCK_M >= context:
        return
    there = position < context
    blocks = block_table + row.to(tl.int64) * blocks_stride
    block = tl.load(blocks + position // BLOCK_SIZE, mask=there, other=0)
    at = cache + (block.to(tl.int64) * block_stride + position % BLOCK_SIZE * token_stride)[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, LATENT, BLOCK_K):
        inner = first + tl.arange(0, BLOCK_K)
        held = tl.load(at + inner[None, :], mask=there[:, None] & (inner < LATENT)[None, :], other=0.0)
        mask = (inner < LATENT)[:, None] & (column < WIDE)[None, :]
        w = tl.load(expansion + column[None, :].to(tl.int64) * LATENT + inner[:, None], mask=mask, other=0.0)
        total = multiply_add(held, w, total, PRECISION)
    release_next(PDL)
    place = tl.program_id(2).to(tl.int64) * capacity + position
    mask = there[:, None] & (column < WIDE)[None, :]
    at_out = expanded + place[:, None] * WIDE + column[None, :]
    tl.store(at_out, total.to(expanded.dtype.element_ty), mask=mask)
