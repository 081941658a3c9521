//! Rotary embedding of queries and keys, and the write of keys and values to the cache.

use crate::cache::{Cache, MAX_HEAD_DIM};
use crate::element::{Element, load_part, store_part};
use crate::norm::inverse_rms;
use crate::parallel::Team;
use crate::rows::{Rows, RowsMut};
use crate::simd::{Kernel, Level, Simd};

/// What happens to the fused projections of a step before attention.
///
/// Per head of q and k: the RMS norm, if any, then the rotation of the first `R` elements, in which `(x[i], x[i + R/2])`
/// is pair `i`. Rotated q stays in `qkv`; rotated k and v go to the cache.
#[derive(Clone, Copy)]
pub struct Rope<'a, E> {
    /// `[T, (N + 2M) * D]`.
    pub qkv: RowsMut<'a, E>,
    /// `[T, R / 2]`.
    pub cos: Rows<'a, f32>,
    /// `[T, R / 2]`.
    pub sin: Rows<'a, f32>,
    /// `[T]`, distinct: block times block size plus offset.
    pub slots: &'a [i64],
    /// Norm weights of a query head and of a key head, `[D]`.
    pub norms: Option<(&'a [E], &'a [E])>,
    /// Of the norms.
    pub eps: f32,
    /// Where keys and values go.
    pub cache: Cache<'a, E>,
}

/// Rotates and writes on a team.
///
/// # Panics
/// If the shapes differ or a slot is out of range.
pub fn rope<E: Element>(level: Level, team: Team<'_>, job: &Rope<'_, E>) {
    let shape = job.cache.shape();
    let tokens = job.qkv.rows();
    let (dim, kv) = (shape.head_dim, 2 * shape.heads * shape.head_dim);
    assert!(job.qkv.cols() > kv && job.qkv.cols().is_multiple_of(dim), "{} columns", job.qkv.cols());
    assert_eq!((job.cos.rows(), job.sin.rows(), job.slots.len()), (tokens, tokens, tokens));
    assert!(job.cos.cols() == job.sin.cols() && 2 * job.cos.cols() <= dim, "{} angles", job.cos.cols());
    assert!(job.norms.is_none_or(|(q, k)| q.len() == dim && k.len() == dim));
    level.dispatch(RopeKernel { team, job: *job });
}

struct RopeKernel<'a, E> {
    team: Team<'a>,
    job: Rope<'a, E>,
}

impl<E: Element> Kernel for RopeKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let job = &self.job;
        let shape = job.cache.shape();
        let dim = shape.head_dim;
        let queries = job.qkv.cols() - 2 * shape.heads * dim;
        let (q_norm, k_norm) = job.norms.unzip();
        let mut buffer = [0.0; MAX_HEAD_DIM];
        let buffer = &mut buffer[..dim];
        for t in self.team.tasks(job.slots.len()) {
            // SAFETY: one task per row.
            let row = unsafe { job.qkv.row(t) };
            let (q, kv) = row.split_at_mut(queries);
            let (k, v) = kv.split_at_mut(shape.heads * dim);
            let angles = (job.cos.row(t), job.sin.row(t));
            for head in q.chunks_exact_mut(dim) {
                turn(s, head, q_norm, job.eps, angles, buffer);
            }
            for (head, (k, v)) in k.chunks_exact_mut(dim).zip(v.chunks_exact(dim)).enumerate() {
                turn(s, k, k_norm, job.eps, angles, buffer);
                // SAFETY: one task per slot.
                unsafe { job.cache.write(job.slots[t] as usize, head, k, v) };
            }
        }
        self.team.barrier();
    }
}

/// Norms and rotates one head in place, rounding once; `x` is room for a head in single precision.
#[inline(always)]
fn turn<S: Simd, E: Element>(
    s: S,
    head: &mut [E],
    norm: Option<&[E]>,
    eps: f32,
    (cos, sin): (&[f32], &[f32]),
    x: &mut [f32],
) {
    let scale = s.splat(if norm.is_some() { inverse_rms(s, head, eps) } else { 1.0 });
    for (i, x) in x.chunks_mut(S::LANES).enumerate() {
        let part = i * S::LANES..i * S::LANES + x.len();
        let mut value = load_part(s, &head[part.clone()]);
        if let Some(weight) = norm {
            value = s.mul(s.mul(value, scale), load_part(s, &weight[part]));
        }
        store_part(s, value, x);
    }
    let half = cos.len();
    let (first, second) = x[..2 * half].split_at_mut(half);
    for (i, (first, second)) in first.chunks_mut(S::LANES).zip(second.chunks_mut(S::LANES)).enumerate() {
        let part = i * S::LANES..i * S::LANES + first.len();
        let (c, n) = (load_part(s, &cos[part.clone()]), load_part(s, &sin[part]));
        let (a, b) = (load_part(s, first), load_part(s, second));
        store_part(s, s.sub(s.mul(a, c), s.mul(b, n)), first);
        store_part(s, s.mul_add(a, n, s.mul(b, c)), second);
    }
    for (head, x) in head.chunks_mut(S::LANES).zip(x.chunks(S::LANES)) {
        store_part(s, load_part(s, x), head);
    }
}
