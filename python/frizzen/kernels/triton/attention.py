"""The kernels of paged attention; ``paged_attention`` chooses their tiles and launches them.

A tile holds ``BLOCK_M`` (token, query head) pairs of one row that share a key-value head: the tokens of a
tile times the group of heads. So a decode fills a tile with its group, and a key is read once for all of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from frizzen.kernels.triton.launch import await_inputs, multiply_add, release_next

__all__ = ["LOG2E", "mean", "merge", "paged_attention", "place_of"]

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _attend_keys(
    q, total, peak, norm, query_position, keys, values, blocks, start, end, context, block_stride,
    token_stride, scale, softcap,
    D: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, MASKED: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys ``start`` to ``end``; unmasked where every query sees every key."""
    column = tl.arange(0, BLOCK_D)
    wide = column < D
    position = start + tl.arange(0, BLOCK_N)
    block = tl.load(blocks + position // BLOCK_SIZE, mask=position < context, other=0)
    for first in range(start, end, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        there = position < context
        if AHEAD:
            # The blocks of the next step, so that its keys wait for memory once. It takes registers.
            after = position + BLOCK_N
            following = tl.load(blocks + after // BLOCK_SIZE, mask=after < context, other=0)
        else:
            block = tl.load(blocks + position // BLOCK_SIZE, mask=there, other=0)
        at = block.to(tl.int64) * block_stride + position % BLOCK_SIZE * token_stride
        if MASKED:
            k = tl.load(keys + at[None, :] + column[:, None], mask=there[None, :] & wide[:, None], other=0.0)
        else:
            k = tl.load(keys + at[None, :] + column[:, None], mask=wide[:, None], other=0.0)
        # Of FP8, every number is exact in the queries' type.
        k = k.to(q.dtype)
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
        factor = LOG2E if SOFTCAP else scale
        higher = tl.maximum(peak, tl.max(score, axis=1) * factor)
        # A query that has seen no key yet keeps a peak of -inf: subtract 0 instead, so that no NaN arises.
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weight = tl.exp2(score * factor - base[:, None])
        shrink = tl.exp2(peak - base)
        if MASKED:
            v = tl.load(
                values + at[:, None] + column[None, :], mask=there[:, None] & wide[None, :], other=0.0
            )
        else:
            v = tl.load(values + at[:, None] + column[None, :], mask=wide[None, :], other=0.0)
        v = v.to(q.dtype)
        total = multiply_add(weight.to(v.dtype), v, total * shrink[:, None], PRECISION)
        norm = norm * shrink + tl.sum(weight, axis=1)
        peak = higher
        if AHEAD:
            block = following
    return total, peak, norm


@triton.jit
def _find_row(query_start, tile, first_row, last_row, BLOCK_Q: tl.constexpr):
    """The row of a tile, and the tile's number in it.

    Row ``r`` owns the tiles from ``tokens before it // BLOCK_Q + r``: no prefix sum of tiles is needed.
    """
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
def place_of(
    query_start, seq_lens, tile, first_row, last_row, SEARCH: tl.constexpr, BLOCK_Q: tl.constexpr
):  # fmt: skip
    """Row of a tile, its number in the row, and the row's first token, tokens and context."""
    row = first_row + tile
    tile_in_row = 0
    if SEARCH:
        row, tile_in_row = _find_row(query_start, tile, first_row, last_row, BLOCK_Q)
    first_token = tl.load(query_start + row)
    width = tl.load(query_start + row + 1) - first_token
    return row, tile_in_row, first_token, width, tl.load(seq_lens + row)


@triton.jit
def mean(total, peak, norm, sink, SINKS: tl.constexpr):
    """The weighted mean of the values; a sink takes its part of the weight and has no value."""
    if SINKS:
        sink *= LOG2E
        higher = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - higher)
        total *= shrink[:, None]
        norm = norm * shrink + tl.exp2(sink - higher)
    return total / tl.where(norm > 0, norm, 1.0)[:, None]


@triton.jit(
    do_not_specialize=["first_row", "last_row", "tiles", "splits", "early", "blocks_stride"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_table"],
)
def paged_attention(
    qkv, keys, values, sinks, out, query_start, seq_lens, block_table, partial, partial_peak, partial_norm,
    first_row, last_row, tiles, splits, early, qkv_stride, blocks_stride, block_stride, token_stride,
    head_stride, scale, softcap,
    GROUP: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SEARCH: tl.constexpr, SPLIT: tl.constexpr, SPLIT_LEAST: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr, CAUSAL: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """One tile, or one split of its context; ``scale`` has the factor of the base-2 softmax in it.

    Nobody sees the positions below ``FIRST``; unless ``CAUSAL``, every query stands at its row's end. With
    ``early`` the next kernel may start at once; it is no variant, since it depends on the step's other rows.
    """
    kv_head = tl.program_id(0)
    # The last tile of a prompt has the longest context: it starts first.
    tile = tiles - 1 - tl.program_id(1)
    split = tl.program_id(2)
    # Borders and lengths are older than the kernel before this one, which had its own inputs when it let this
    # one start.
    row, tile_in_row, first_token, width, context = place_of(
        query_start, seq_lens, tile, first_row, last_row, SEARCH, BLOCK_Q
    )
    await_inputs(PDL)
    if early != 0:
        # A product that follows has weights to load meanwhile.
        release_next(PDL)
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
    if not CAUSAL:
        first_position = context - 1
        query_position = query * 0 + first_position
    end = tl.minimum(first_position + BLOCK_Q, context)
    start = FIRST
    if WINDOW > 0:
        start = tl.maximum(tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N, FIRST)
    if SPLIT:
        share = tl.maximum(tl.cdiv(tl.cdiv(end - start, splits), BLOCK_N) * BLOCK_N, SPLIT_LEAST)
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
        # Bound by arithmetic: every query of the tile sees the keys up to its first position, so these need
        # no mask. Smaller tiles are bound by memory, and a second loop would wait for it once more.
        clear = tl.minimum(first_position + 1, end)
        border = tl.maximum(start + (clear - start) // BLOCK_N * BLOCK_N, start)
        total, peak, norm = _attend_keys(
            q, total, peak, norm, query_position, keys, values, blocks, start, border, context, block_stride,
            token_stride, scale, softcap,
            D, WINDOW, SOFTCAP, False, True, BLOCK_SIZE, BLOCK_N, BLOCK_D, PRECISION,
        )  # fmt: skip
    total, peak, norm = _attend_keys(
        q, total, peak, norm, query_position, keys, values, blocks, border, end, context, block_stride,
        token_stride, scale, softcap,
        D, WINDOW, SOFTCAP, True, BLOCK_M >= 128, BLOCK_SIZE, BLOCK_N, BLOCK_D, PRECISION,
    )  # fmt: skip

    if early == 0:
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
        found = mean(total, peak, norm, sink, SINKS)
        heads = tl.num_programs(0) * GROUP
        out_at = out + ((token * heads + head) * D)[:, None] + column[None, :]
        tl.store(out_at, found.to(out.dtype.element_ty), mask=real[:, None] & wide[None, :])


@triton.jit(
    do_not_specialize=["first_row", "last_row", "splits"],
    do_not_specialize_on_alignment=["query_start", "seq_lens"],
)
def merge(
    sinks, out, query_start, seq_lens, partial, partial_peak, partial_norm, first_row, last_row, splits,
    GROUP: tl.constexpr, D: tl.constexpr, SINKS: tl.constexpr, SEARCH: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Adds up the splits of one (token, head) pair of a tile."""
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    pair = tl.program_id(2)
    _, tile_in_row, first_token, width, _ = place_of(
        query_start, seq_lens, tile, first_row, last_row, SEARCH, BLOCK_Q
    )
    await_inputs(PDL)
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
    one = tl.zeros([1], dtype=tl.float32)
    sink = one + tl.load(sinks + head).to(tl.float32) if SINKS else one
    found = mean(total, one + peak, one + norm, sink, SINKS)
    token = (first_token + query).to(tl.int64)
    out_at = out + (token * tl.num_programs(0) * GROUP + head) * D + column[None, :]
    tl.store(out_at, found.to(out.dtype.element_ty), mask=(column < D)[None, :])
