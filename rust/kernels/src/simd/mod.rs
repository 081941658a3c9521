//! Vectors of `f32`, chosen at run time by what the machine has.
//!
//! A kernel is written once, generic over [`Simd`], and runs through [`Level::dispatch`], which enters it inside a
//! function compiled for that instruction set. Everything between that function and the intrinsics must be
//! `#[inline(always)]`: code that is not inlined is compiled for the generic target, where each intrinsic is a call.
//!
//! Invariants: every operation is element-wise or reduces in one fixed order, so a result depends on its operands and
//! on the level, never on which rows were computed together.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::element::Bf16;

/// Every length that kernels walk in vectors is a multiple of this, whatever the level.
pub const GRANULE: usize = 16;

/// The operations that kernels are made of, on `LANES` single-precision numbers.
///
/// A value of an implementing type is the proof that the machine has its instructions.
pub trait Simd: Copy {
    /// `LANES` single-precision numbers.
    type F32: Copy;
    /// `LANES` pairs of bfloat16, the even element of each pair in the low half of its lane.
    type Pairs: Copy;
    /// Numbers per vector; divides [`GRANULE`].
    const LANES: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F32;
    /// `a + b`.
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`.
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`.
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`.
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger of each lane; one of them if the other is not a number.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The smaller of each lane; one of them if the other is not a number.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once where the machine can.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `v` where `x >= limit`, else 0.
    fn zero_below(self, v: Self::F32, x: Self::F32, limit: Self::F32) -> Self::F32;
    /// Adds the integer in the low bits of `n` to the binary exponent of `v`.
    fn add_exponent(self, v: Self::F32, n: Self::F32) -> Self::F32;
    /// The sum of the lanes, in a fixed order.
    fn sum(self, v: Self::F32) -> f32;
    /// The largest lane.
    fn largest(self, v: Self::F32) -> f32;
    /// `acc + a.even * b.even + a.odd * b.odd` in each lane.
    fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs, acc: Self::F32) -> Self::F32;

    /// Reads `LANES` numbers.
    ///
    /// # Safety
    /// `LANES` numbers are readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F32;
    /// Writes `LANES` numbers.
    ///
    /// # Safety
    /// `LANES` numbers are writable at `to`.
    unsafe fn store(self, v: Self::F32, to: *mut f32);
    /// Reads `LANES` bfloat16 numbers and widens them.
    ///
    /// # Safety
    /// `LANES` numbers are readable at `from`.
    unsafe fn load_bf16(self, from: *const Bf16) -> Self::F32;
    /// Rounds to nearest even and writes `LANES` bfloat16 numbers.
    ///
    /// # Safety
    /// `LANES` numbers are writable at `to`.
    unsafe fn store_bf16(self, v: Self::F32, to: *mut Bf16);
    /// Reads `LANES` pairs.
    ///
    /// # Safety
    /// `2 * LANES` numbers are readable at `from`.
    unsafe fn load_pairs(self, from: *const Bf16) -> Self::Pairs;
    /// Reads `LANES` even elements and `LANES` odd ones, and joins them to pairs.
    ///
    /// # Safety
    /// `LANES` numbers are readable at `even` and at `odd`.
    unsafe fn join_pairs(self, even: *const Bf16, odd: *const Bf16) -> Self::Pairs;
    /// Reads `LANES` even elements; the odd ones are zero.
    ///
    /// # Safety
    /// `LANES` numbers are readable at `even`.
    unsafe fn even_pairs(self, even: *const Bf16) -> Self::Pairs;
    /// Reads one pair into every lane.
    ///
    /// # Safety
    /// Two numbers are readable at `from`.
    unsafe fn splat_pair(self, from: *const Bf16) -> Self::Pairs;
    /// Asks for the cache line at `at`; never faults.
    fn prefetch(self, at: *const u8);
}

/// A computation that [`Level::dispatch`] can enter at any level. `run` must be `#[inline(always)]`.
pub trait Kernel {
    /// What it returns.
    type Output;
    /// Computes with the vectors of `S`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Plain Rust; the compiler vectorises it for the target's baseline (NEON on aarch64).
    Portable,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with the bfloat16 dot product.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Level {
    /// The best level of this machine. Cheap: the standard library caches the feature bits.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }

    /// Every level that this machine can run, slowest first.
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            const ALL: [Level; 4] = [Level::Portable, Level::Avx2, Level::Avx512, Level::Avx512Bf16];
            let avx2 = has!("avx2") && has!("fma");
            let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            let bf16 = avx512 && has!("avx512bf16");
            &ALL[..1 + usize::from(avx2) + usize::from(avx512) + usize::from(bf16)]
        }
        #[cfg(not(target_arch = "x86_64"))]
        &[Self::Portable]
    }

    /// The name shown to users.
    pub const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::Portable => "neon",
            #[cfg(not(target_arch = "aarch64"))]
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "avx512_bf16",
        }
    }

    /// Columns of one panel of a packed matrix at this level.
    pub const fn panel(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => 48,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 16,
            Self::Portable => 16,
        }
    }

    /// Runs `kernel` with this level's vectors.
    pub fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        debug_assert!(Self::available().contains(&self), "the machine lacks {}", self.name());
        match self {
            Self::Portable => kernel.run(portable::Portable),
            // SAFETY: levels other than `Portable` come from `available`, which asked the processor.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => unsafe { avx512::enter_bf16(kernel) },
        }
    }
}
