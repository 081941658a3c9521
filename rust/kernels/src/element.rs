//! What tensors are made of: single precision or bfloat16, always accumulated in single precision.

use crate::simd::{GRANULE, Simd};

/// A bfloat16 number: the upper half of a single-precision one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Rounds to nearest even; a NaN stays one.
    #[inline(always)]
    pub fn round(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        Self((if x.is_nan() { bits | 0x0040_0000 } else { rounded } >> 16) as u16)
    }

    /// The same number in single precision.
    #[inline(always)]
    pub fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// A storage type of weights, activations and caches.
///
/// Matrix kernels advance along the summed dimension in *words*: `STEP` consecutive elements, as many as one lane
/// multiplies at once (a pair of bfloat16, one single-precision number).
///
/// Sealed: every bit pattern of an element must be valid.
pub trait Element: Copy + Default + Send + Sync + sealed::Numeric + 'static {
    /// Elements per word.
    const STEP: usize;
    /// A word in each lane.
    type Words<S: Simd>: Copy;

    /// From single precision, rounded to nearest even.
    fn from_f32(x: f32) -> Self;
    /// To single precision, exact.
    fn to_f32(self) -> f32;
    /// Reads the first `LANES` elements.
    fn load<S: Simd>(s: S, from: &[Self]) -> S::F32;
    /// Writes the first `LANES` elements.
    fn store<S: Simd>(s: S, v: S::F32, to: &mut [Self]);
    /// `acc + a . b` in each lane.
    fn dot<S: Simd>(s: S, a: Self::Words<S>, b: Self::Words<S>, acc: S::F32) -> S::F32;
    /// Reads one word per lane.
    ///
    /// # Safety
    /// `LANES * STEP` elements are readable at `from`.
    unsafe fn words<S: Simd>(s: S, from: *const Self) -> Self::Words<S>;
    /// Makes words of the first `rows` of `STEP` consecutive rows, `stride` elements apart; zeros stand for the others.
    ///
    /// # Safety
    /// `LANES` elements are readable at each of the `rows` starts, of which there is at least one.
    unsafe fn words_of_rows<S: Simd>(s: S, from: *const Self, stride: usize, rows: usize) -> Self::Words<S>;
    /// Reads one word into every lane.
    ///
    /// # Safety
    /// `STEP` elements are readable at `from`.
    unsafe fn splat_word<S: Simd>(s: S, from: *const Self) -> Self::Words<S>;
}

mod sealed {
    pub trait Numeric {}
    impl Numeric for f32 {}
    impl Numeric for super::Bf16 {}
}

impl Element for f32 {
    const STEP: usize = 1;
    type Words<S: Simd> = S::F32;

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self]) -> S::F32 {
        assert!(from.len() >= S::LANES);
        // SAFETY: the length was checked.
        unsafe { s.load(from.as_ptr()) }
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::F32, to: &mut [Self]) {
        assert!(to.len() >= S::LANES);
        // SAFETY: the length was checked.
        unsafe { s.store(v, to.as_mut_ptr()) }
    }
    #[inline(always)]
    fn dot<S: Simd>(s: S, a: S::F32, b: S::F32, acc: S::F32) -> S::F32 {
        s.mul_add(a, b, acc)
    }
    #[inline(always)]
    unsafe fn words<S: Simd>(s: S, from: *const Self) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { s.load(from) }
    }
    #[inline(always)]
    unsafe fn words_of_rows<S: Simd>(s: S, from: *const Self, _stride: usize, _rows: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { s.load(from) }
    }
    #[inline(always)]
    unsafe fn splat_word<S: Simd>(s: S, from: *const Self) -> S::F32 {
        // SAFETY: the caller's promise.
        s.splat(unsafe { *from })
    }
}

impl Element for Bf16 {
    const STEP: usize = 2;
    type Words<S: Simd> = S::Pairs;

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Self::round(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.widen()
    }
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self]) -> S::F32 {
        assert!(from.len() >= S::LANES);
        // SAFETY: the length was checked.
        unsafe { s.load_bf16(from.as_ptr()) }
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::F32, to: &mut [Self]) {
        assert!(to.len() >= S::LANES);
        // SAFETY: the length was checked.
        unsafe { s.store_bf16(v, to.as_mut_ptr()) }
    }
    #[inline(always)]
    fn dot<S: Simd>(s: S, a: S::Pairs, b: S::Pairs, acc: S::F32) -> S::F32 {
        s.dot_pairs(a, b, acc)
    }
    #[inline(always)]
    unsafe fn words<S: Simd>(s: S, from: *const Self) -> S::Pairs {
        // SAFETY: the caller's promise.
        unsafe { s.load_pairs(from) }
    }
    #[inline(always)]
    unsafe fn words_of_rows<S: Simd>(s: S, from: *const Self, stride: usize, rows: usize) -> S::Pairs {
        // SAFETY: the caller's promise.
        unsafe { if rows >= 2 { s.join_pairs(from, from.add(stride)) } else { s.even_pairs(from) } }
    }
    #[inline(always)]
    unsafe fn splat_word<S: Simd>(s: S, from: *const Self) -> S::Pairs {
        // SAFETY: the caller's promise.
        unsafe { s.splat_pair(from) }
    }
}

/// Loads up to `LANES` elements; the rest is zero.
#[inline(always)]
pub(crate) fn load_part<S: Simd, E: Element>(s: S, from: &[E]) -> S::F32 {
    if from.len() >= S::LANES {
        return E::load(s, from);
    }
    let mut whole = [E::default(); GRANULE];
    whole[..from.len()].copy_from_slice(from);
    E::load(s, &whole)
}

/// Stores as many lanes as there is room for.
#[inline(always)]
pub(crate) fn store_part<S: Simd, E: Element>(s: S, v: S::F32, to: &mut [E]) {
    if to.len() >= S::LANES {
        return E::store(s, v, to);
    }
    let mut whole = [E::default(); GRANULE];
    E::store(s, v, &mut whole);
    to.copy_from_slice(&whole[..to.len()]);
}
