//! Claims about the kernels, checked at every level that this machine has, in both types.

mod attention;
mod decoder;
mod elementwise;
mod linear;

use crate::{Bf16, Element, Executor, Level};

/// A small generator; the tests need variety, not quality.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    /// Between -1 and 1, as the type can hold it.
    pub(super) fn tensor<E: Element>(&mut self, len: usize) -> Vec<E> {
        (0..len).map(|_| E::from_f32(self.next() as f32 / 1_073_741_824.0 - 1.0)).collect()
    }
}

/// Exact.
pub(super) fn wide<E: Element>(x: &[E]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// The bits, for comparisons that are exact and hold for NaN too.
pub(super) fn bits<E: Element>(x: &[E]) -> Vec<u32> {
    x.iter().map(|x| x.to_f32().to_bits()).collect()
}

/// How far a result of order 1 may be off.
pub(super) trait Tolerance: Element {
    const TOLERANCE: f64;
}
impl Tolerance for f32 {
    const TOLERANCE: f64 = 1e-5;
}
impl Tolerance for Bf16 {
    const TOLERANCE: f64 = 1e-2;
}

#[track_caller]
pub(super) fn assert_close<E: Tolerance>(found: &[E], wanted: &[f64], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let found = f64::from(found.to_f32());
        let allowed = E::TOLERANCE * (1.0 + wanted.abs());
        assert!((found - wanted).abs() <= allowed, "{what}: element {i} is {found}, expected {wanted}");
    }
}

/// Runs a claim at every level, with one thread and with two.
pub(super) fn everywhere(claim: impl Fn(Level, &Executor)) {
    for threads in [1, 2] {
        let executor = Executor::threads(threads).unwrap();
        for level in Level::available() {
            claim(*level, &executor);
        }
    }
}
