//! Element-wise functions on vectors.

use crate::simd::Simd;

/// Adding this to a small number leaves its nearest integer in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0; // 1.5 * 2^23
/// Below this, `exp` is 0: the next results down are subnormal.
const EXP_MIN: f32 = -87.3;
const EXP_MAX: f32 = 88.0;
/// ln 2 in two parts; the first has so few bits that its products with exponents are exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// exp(r) = 1 + r + r^2 * (these, highest power first), for |r| <= ln 2 / 2: the minimax polynomial of Cephes' `expf`.
const EXP_POLY: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// `exp(x)` within two units in the last place; exactly 1 at 0, exactly 0 below -87.3 and at minus infinity, and
/// `exp(88)` above 88. Not a number gives 0.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let low = s.splat(EXP_MIN);
    let clamped = s.min(s.max(x, low), s.splat(EXP_MAX));
    let shifted = s.mul_add(clamped, s.splat(std::f32::consts::LOG2_E), s.splat(ROUNDER));
    let n = s.sub(shifted, s.splat(ROUNDER));
    let r = s.mul_add(n, s.splat(-LN2_HIGH), clamped);
    let r = s.mul_add(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(EXP_POLY[0]);
    for c in &EXP_POLY[1..] {
        p = s.mul_add(p, r, s.splat(*c));
    }
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    s.zero_below(s.add_exponent(p, shifted), x, low)
}

/// [`exp`] of one number.
#[inline(always)]
pub(crate) fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
    s.largest(exp(s, s.splat(x)))
}

/// `x / (1 + exp(-x))`. Not a number stays one.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let negated = s.sub(s.splat(0.0), x);
    s.div(x, s.add(s.splat(1.0), exp(s, negated)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{GRANULE, Kernel, Level};

    struct Map<'a>(&'a mut [f32], bool);

    impl Kernel for Map<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for chunk in self.0.chunks_exact_mut(S::LANES) {
                use crate::element::Element;
                let x = f32::load(s, chunk);
                f32::store(s, if self.1 { silu(s, x) } else { exp(s, x) }, chunk);
            }
        }
    }

    fn map(level: Level, x: &[f32], silu: bool) -> Vec<f32> {
        let mut padded = x.to_vec();
        padded.resize(x.len().next_multiple_of(GRANULE), 0.0);
        level.dispatch(Map(&mut padded, silu));
        padded.truncate(x.len());
        padded
    }

    #[test]
    fn exp_is_close_and_exact_where_attention_relies_on_it() {
        let x: Vec<f32> = (-8800..=8800).map(|i| i as f32 * 0.01).collect();
        for level in Level::available() {
            for (x, y) in x.iter().zip(map(*level, &x, false)) {
                let exact = f64::from(*x).exp();
                let error = (f64::from(y) - exact).abs() / exact;
                assert!(error < 2.5e-7 || (*x < EXP_MIN && y == 0.0), "{level:?}: exp({x}) = {y}");
            }
            let special = map(*level, &[0.0, -0.0, f32::NEG_INFINITY, -1e30, -88.0], false);
            assert_eq!(special, [1.0, 1.0, 0.0, 0.0, 0.0], "{level:?}");
        }
    }

    #[test]
    fn silu_is_close_at_both_ends_and_keeps_nan() {
        let x = [-1e30, -100.0, -20.0, -1.0, 0.0, 1e-6, 1.0, 20.0, 100.0, 1e30];
        for level in Level::available() {
            for (x, y) in x.iter().zip(map(*level, &x, true)) {
                let exact = f64::from(*x) / (1.0 + f64::from(-x).exp());
                assert!(
                    (f64::from(y) - exact).abs() <= 1e-6 * exact.abs() + 1e-6,
                    "{level:?}: silu({x}) = {y}"
                );
            }
            assert!(map(*level, &[f32::NAN], true)[0].is_nan(), "{level:?}");
        }
    }
}
