//! One tile of queries over the whole context of its row.

use std::ops::Range;

use super::{Attention, CHUNK, QueryTile};
use crate::buffer::Buffer;
use crate::cache::{Cache, CacheShape};
use crate::dot::{LINE, Left, Next, Places, Plain, dot, with_rows};
use crate::element::Element;
use crate::math::{exp, exp_one};
use crate::simd::Simd;

/// The maximum before the first key. Finite, so that its difference to a masked score is one too.
const NO_MAXIMUM: f32 = -1e30;

/// Tiles of more rows compute long enough on what is in the cache to hide the way to it.
const PREFETCH_ROWS: usize = 16;

/// Working memory of a thread, for tiles of up to some number of rows (tokens times query heads per key-value head).
pub(super) struct State<E: Element> {
    /// `[rows, D]`.
    q: Buffer<E>,
    /// `[rows, CHUNK]`.
    scores: Buffer<f32>,
    /// `[rows, CHUNK]`, exponentials of the scores.
    weights: Buffer<E>,
    /// `[rows, D]`, sum of weighted values.
    acc: Buffer<f32>,
    rows: Vec<Running>,
}

/// Online softmax of one query.
#[derive(Clone, Copy)]
struct Running {
    maximum: f32,
    sum: f32,
    /// What the sums so far are to be multiplied with, because the maximum changed.
    correction: f32,
}

impl<E: Element> State<E> {
    pub(super) fn new(rows: usize, head_dim: usize) -> Self {
        Self {
            q: Buffer::new(rows * head_dim),
            scores: Buffer::new(rows * CHUNK),
            weights: Buffer::new(rows * CHUNK),
            acc: Buffer::new(rows * head_dim),
            rows: vec![Running { maximum: 0.0, sum: 0.0, correction: 1.0 }; rows],
        }
    }
}

/// What the steps below share.
struct Context<'a, E> {
    cache: Cache<'a, E>,
    blocks: &'a [i32],
    head: usize,
    tile: QueryTile,
    /// Query heads per key-value head.
    group: usize,
    scale: f32,
    window: usize,
}

/// Computes the tile for one key-value head. `R` rows and `V` vectors are computed at once.
#[inline(always)]
pub(super) fn attend<S: Simd, E: Element, const R: usize, const V: usize>(
    s: S,
    job: &Attention<'_, E>,
    tile: QueryTile,
    head: usize,
    state: &mut State<E>,
) {
    let shape = job.cache.shape();
    let group = job.q.cols() / shape.head_dim / shape.heads;
    let context = Context {
        cache: job.cache,
        blocks: job.block_table.row(tile.row),
        head,
        tile,
        group,
        scale: job.scale,
        window: job.window,
    };
    context.start(job, state);
    let keys = context.keys();
    for start in (keys.start / CHUNK * CHUNK..keys.end).step_by(CHUNK) {
        let chunk = start..keys.end.min(start + CHUNK);
        context.score::<S, R, V>(s, &chunk, state);
        context.soften(s, start, state);
        context.accumulate::<S, R, V>(s, &chunk, state);
    }
    context.finish(s, job, state);
}

impl<E: Element> Context<'_, E> {
    fn rows(&self) -> usize {
        self.tile.count * self.group
    }

    /// Positions that any token of the tile sees.
    fn keys(&self) -> Range<usize> {
        self.seen(self.tile.position).start..self.seen(self.tile.position + self.tile.count - 1).end
    }

    /// Positions that the token at `position` sees.
    fn seen(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        if self.window == 0 { 0..end } else { end.saturating_sub(self.window)..end }
    }

    /// Token and first column of a row's head, in `q` and in `out`.
    fn place(&self, row: usize) -> (usize, usize) {
        let head = self.head * self.group + row % self.group;
        (self.tile.token + row / self.group, head * self.cache.shape().head_dim)
    }

    fn start(&self, job: &Attention<'_, E>, state: &mut State<E>) {
        let dim = self.cache.shape().head_dim;
        for (row, q) in state.q.chunks_exact_mut(dim).take(self.rows()).enumerate() {
            let (token, column) = self.place(row);
            q.copy_from_slice(&job.q.row(token)[column..column + dim]);
        }
        state.acc[..self.rows() * dim].fill(0.0);
        state.rows.fill(Running { maximum: NO_MAXIMUM, sum: 0.0, correction: 1.0 });
    }

    /// A decode row reads each key and value once, from blocks all over memory, in pieces too short for the hardware
    /// to see a pattern.
    fn places(&self) -> Places {
        if self.rows() <= PREFETCH_ROWS { Places::All } else { Places::None }
    }

    /// The key at a position: that element of the block's first dimension.
    fn key(&self, position: usize, head: usize) -> *const E {
        let size = self.cache.shape().block_size;
        self.cache.keys(self.blocks[position / size] as usize, head).wrapping_add(position % size)
    }

    /// The value at a position.
    fn value(&self, position: usize, head: usize) -> *const E {
        let CacheShape { block_size: size, head_dim, .. } = self.cache.shape();
        self.cache
            .values(self.blocks[position / size] as usize, head)
            .wrapping_add(position % size * head_dim)
    }

    /// What is read one chunk after a position: of the same head, or of the next one, which is the next task.
    fn after(&self, position: usize) -> (usize, usize) {
        let (keys, next) = (self.keys(), position + CHUNK);
        if next < keys.end {
            (next, self.head)
        } else if self.head + 1 < self.cache.shape().heads {
            (keys.start / CHUNK * CHUNK + position % CHUNK, self.head + 1)
        } else {
            (position, self.head)
        }
    }

    /// `scores = scale * q . k` for the positions of a chunk.
    #[inline(always)]
    fn score<S: Simd, const R: usize, const V: usize>(
        &self,
        s: S,
        chunk: &Range<usize>,
        state: &mut State<E>,
    ) {
        let shape = self.cache.shape();
        let (dim, rows) = (shape.head_dim, self.rows());
        let last = (chunk.end - 1) / S::LANES * S::LANES;
        for start in (chunk.start..chunk.end).step_by(V * S::LANES) {
            let mut right = Plain { at: [std::ptr::null(); V], stride: shape.block_size, rows: dim };
            let mut next = Next { places: self.places(), ..Next::NONE };
            for v in 0..V {
                // Vectors past the end repeat the last one; the mask hides them.
                let position = last.min(start + v * S::LANES);
                right.at[v] = self.key(position, self.head);
                let (position, head) = self.after(position);
                next.at[v] = self.key(position, head).cast();
            }
            let pieces = rows.div_ceil(R);
            for piece in 0..pieces {
                let (first, end) = (rows * piece / pieces, rows * (piece + 1) / pieces);
                let left = Left { at: state.q[first * dim..end * dim].as_ptr(), stride: dim };
                with_rows!(end - first, N <= R => {
                    let mut acc = [[s.splat(0.0); V]; N];
                    // SAFETY: `N` rows of `q`, and vectors of whole blocks, have `dim` elements each.
                    unsafe { dot(s, dim / E::STEP, left, right, next, &mut acc) };
                    for (n, acc) in acc.into_iter().enumerate() {
                        let at = (first + n) * CHUNK + start - chunk.start;
                        let scores = &mut state.scores[at..at + V * S::LANES];
                        for (score, to) in acc.into_iter().zip(scores.chunks_exact_mut(S::LANES)) {
                            f32::store(s, s.mul(score, s.splat(self.scale)), to);
                        }
                    }
                });
            }
        }
    }

    /// Turns the scores of the chunk at `start` into weights, and updates the running softmax.
    #[inline(always)]
    fn soften<S: Simd>(&self, s: S, start: usize, state: &mut State<E>) {
        let rows = state.rows.iter_mut().take(self.rows());
        let chunks = state.scores.chunks_exact_mut(CHUNK).zip(state.weights.chunks_exact_mut(CHUNK));
        for ((row, running), (scores, weights)) in rows.enumerate().zip(chunks) {
            let seen = self.seen(self.tile.position + row / self.group);
            let within = |position: usize| position.clamp(start, start + CHUNK) - start;
            scores[..within(seen.start)].fill(f32::NEG_INFINITY);
            scores[within(seen.end)..].fill(f32::NEG_INFINITY);
            let mut largest = s.splat(running.maximum);
            for part in scores.chunks_exact(S::LANES) {
                largest = s.max(f32::load(s, part), largest);
            }
            let maximum = s.largest(largest);
            let mut sums = s.splat(0.0);
            for (part, weights) in scores.chunks_exact(S::LANES).zip(weights.chunks_exact_mut(S::LANES)) {
                let weight = exp(s, s.sub(f32::load(s, part), s.splat(maximum)));
                sums = s.add(sums, weight);
                E::store(s, weight, weights);
            }
            running.correction = exp_one(s, running.maximum - maximum);
            running.sum = running.sum * running.correction + s.sum(sums);
            running.maximum = maximum;
        }
    }

    /// `acc = acc * correction + weights . v` for the positions of a chunk.
    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        &self,
        s: S,
        chunk: &Range<usize>,
        state: &mut State<E>,
    ) {
        let dim = self.cache.shape().head_dim;
        let rows = self.rows();
        let pieces = rows.div_ceil(R);
        for piece in 0..pieces {
            let (first, end) = (rows * piece / pieces, rows * (piece + 1) / pieces);
            with_rows!(end - first, N <= R => {
                let mut column = 0;
                while column + V * S::LANES <= dim {
                    self.weigh::<S, N, V>(s, chunk, first, column, state);
                    column += V * S::LANES;
                }
                while column < dim {
                    self.weigh::<S, N, 1>(s, chunk, first, column, state);
                    column += S::LANES;
                }
            });
        }
    }

    /// `N` rows and `V` vectors of [`Self::accumulate`].
    #[inline(always)]
    fn weigh<S: Simd, const N: usize, const V: usize>(
        &self,
        s: S,
        chunk: &Range<usize>,
        first: usize,
        column: usize,
        state: &mut State<E>,
    ) {
        let shape = self.cache.shape();
        let dim = shape.head_dim;
        let mut acc = [[s.splat(0.0); V]; N];
        for (n, acc) in acc.iter_mut().enumerate() {
            let correction = s.splat(state.rows[first + n].correction);
            let sums = &state.acc[(first + n) * dim + column..][..V * S::LANES];
            for (acc, sums) in acc.iter_mut().zip(sums.chunks_exact(S::LANES)) {
                *acc = s.mul(f32::load(s, sums), correction);
            }
        }
        let weights = &state.weights[first * CHUNK..(first + N) * CHUNK];
        let mut position = chunk.start;
        while position < chunk.end {
            let count = (shape.block_size - position % shape.block_size).min(chunk.end - position);
            let words = count.div_ceil(E::STEP);
            let values = self.value(position, self.head).wrapping_add(column);
            let (after, head) = self.after(position);
            let after = self.value(after, head).cast::<u8>().wrapping_add(column / S::LANES * words * LINE);
            let mut right = Plain { at: [values; V], stride: dim, rows: count };
            let mut next = Next { places: self.places(), ..Next::NONE };
            for v in 0..V {
                right.at[v] = values.wrapping_add(v * S::LANES);
                next.at[v] = after.wrapping_add(v * words * LINE);
            }
            let left = Left { at: weights[position - chunk.start..].as_ptr(), stride: CHUNK };
            // SAFETY: `N` rows of weights reach `CHUNK`; `count` rows of values are in the block.
            unsafe { dot(s, words, left, right, next, &mut acc) };
            position += count;
        }
        for (n, acc) in acc.into_iter().enumerate() {
            let sums = &mut state.acc[(first + n) * dim + column..][..V * S::LANES];
            for (acc, sums) in acc.into_iter().zip(sums.chunks_exact_mut(S::LANES)) {
                f32::store(s, acc, sums);
            }
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, job: &Attention<'_, E>, state: &State<E>) {
        let dim = self.cache.shape().head_dim;
        for (row, acc) in state.acc.chunks_exact(dim).take(self.rows()).enumerate() {
            let (token, column) = self.place(row);
            // SAFETY: one task per token and head.
            let out = unsafe { job.out.part(token, column..column + dim) };
            let Running { maximum, mut sum, .. } = state.rows[row];
            let mut weight = 1.0;
            if let Some(sinks) = job.sinks {
                let sink = sinks[column / dim].to_f32();
                weight = exp_one(s, maximum - maximum.max(sink));
                sum = sum * weight + exp_one(s, sink - maximum.max(sink));
            }
            let scale = s.splat(weight / sum);
            for (out, acc) in out.chunks_exact_mut(S::LANES).zip(acc.chunks_exact(S::LANES)) {
                E::store(s, s.mul(f32::load(s, acc), scale), out);
            }
        }
    }
}
