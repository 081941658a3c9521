//! RMS norm, with the residual stream it is taken of.

use crate::element::{Element, load_part, store_part};
use crate::parallel::Team;
use crate::rows::{Rows, RowsMut};
use crate::simd::{Kernel, Level, Simd};

/// Elements that a task should at least have: below that, handing it out costs more than computing it.
const TASK_ELEMENTS: usize = 2048;

/// `out = y / sqrt(mean(y^2) + eps) * weight`, where `y` is `x`, or the residual after `x` was added to it.
#[derive(Clone, Copy)]
pub struct RmsNorm<'a, E> {
    /// `[T, H]`, or nothing if the residual is to be normed as it is.
    pub x: Option<Rows<'a, E>>,
    /// `[T, H]`; updated in place, and rounded before it is normed. Without it `x` is only read.
    pub residual: Option<RowsMut<'a, E>>,
    /// `[H]`.
    pub weight: &'a [E],
    /// Added to the mean square.
    pub eps: f32,
    /// `[T, H]`.
    pub out: RowsMut<'a, E>,
}

/// Computes the norm on a team.
///
/// # Panics
/// If the shapes differ, or there is neither `x` nor a residual.
pub fn rms_norm<E: Element>(level: Level, team: Team<'_>, job: &RmsNorm<'_, E>) {
    let shape = (job.out.rows(), job.weight.len());
    assert_eq!(job.out.cols(), shape.1);
    assert!(job.x.is_some() || job.residual.is_some(), "nothing to norm");
    assert!(job.x.is_none_or(|x| (x.rows(), x.cols()) == shape));
    assert!(job.residual.is_none_or(|r| (r.rows(), r.cols()) == shape));
    level.dispatch(NormKernel { team, job: *job });
}

struct NormKernel<'a, E> {
    team: Team<'a>,
    job: RmsNorm<'a, E>,
}

impl<E: Element> Kernel for NormKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let job = &self.job;
        let rows = job.out.rows();
        let per_task = (TASK_ELEMENTS / job.weight.len().max(1)).max(1);
        for task in self.team.tasks(rows.div_ceil(per_task)) {
            for t in task * per_task..rows.min((task + 1) * per_task) {
                // SAFETY: one task per row; the view of the residual is exclusive.
                let out = unsafe { job.out.row(t) };
                let y = match (job.x, &job.residual) {
                    (x, Some(residual)) => {
                        // SAFETY: as above.
                        let residual = unsafe { residual.row(t) };
                        if let Some(x) = x {
                            accumulate(s, residual, x.row(t));
                        }
                        &*residual
                    }
                    (Some(x), None) => x.row(t),
                    (None, None) => unreachable!("checked by `rms_norm`"),
                };
                norm_row(s, y, job.weight, job.eps, out);
            }
        }
        self.team.barrier();
    }
}

#[inline(always)]
fn accumulate<S: Simd, E: Element>(s: S, to: &mut [E], from: &[E]) {
    for (to, from) in to.chunks_mut(S::LANES).zip(from.chunks(S::LANES)) {
        store_part(s, s.add(load_part(s, to), load_part(s, from)), to);
    }
}

/// `1 / sqrt(mean(y^2) + eps)`, summed in an order that depends on the length only.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd, E: Element>(s: S, y: &[E], eps: f32) -> f32 {
    let mut squares = [s.splat(0.0); 4];
    for chunk in y.chunks(4 * S::LANES) {
        for (square, part) in squares.iter_mut().zip(chunk.chunks(S::LANES)) {
            let v = load_part(s, part);
            *square = s.mul_add(v, v, *square);
        }
    }
    let [a, b, c, d] = squares;
    let sum = s.sum(s.add(s.add(a, b), s.add(c, d)));
    1.0 / (sum / y.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn norm_row<S: Simd, E: Element>(s: S, y: &[E], weight: &[E], eps: f32, out: &mut [E]) {
    let scale = s.splat(inverse_rms(s, y, eps));
    for ((out, y), weight) in out.chunks_mut(S::LANES).zip(y.chunks(S::LANES)).zip(weight.chunks(S::LANES)) {
        store_part(s, s.mul(s.mul(load_part(s, y), scale), load_part(s, weight)), out);
    }
}
