//! Eight lanes: AVX2 with FMA.

#[allow(clippy::wildcard_imports, reason = "a file of intrinsics")]
use std::arch::x86_64::*;

use super::{Kernel, Simd};
use crate::element::Bf16;

/// AVX2 and FMA. Made only by [`enter`], which carries the features, so that a value proves that they are there.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// # Safety
/// The machine has the features named.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

macro_rules! ops {
    ($this:ident; $($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($this $(, $arg: $ty)*) -> $out {
            // SAFETY: `$this` proves the features.
            unsafe { $body }
        }
    )*};
}

macro_rules! memory_ops {
    ($this:ident; $($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($this $(, $arg: $ty)*) $(-> $out)? {
            // SAFETY: `$this` proves the features, the caller the memory.
            unsafe { $body }
        }
    )*};
}

impl Avx2 {
    ops! {
        self;
        even(v: __m256i) -> __m256 = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
        odd(v: __m256i) -> __m256 =
            _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(0xffff_0000_u32.cast_signed())));
        // Round to nearest even on the bits; a quiet NaN where the carry would turn a NaN into infinity.
        round(v: __m256) -> __m128i = {
            let bits = _mm256_castps_si256(v);
            let lsb = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let words = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
        };
    }
}

impl Simd for Avx2 {
    type F32 = __m256;
    type Pairs = __m256i;
    const LANES: usize = 8;

    ops! {
        self;
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        zero_below(v: __m256, x: __m256, limit: __m256) -> __m256 =
            _mm256_and_ps(v, _mm256_cmp_ps::<_CMP_GE_OQ>(x, limit));
        add_exponent(v: __m256, n: __m256) -> __m256 = _mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_castps_si256(v),
            _mm256_slli_epi32::<23>(_mm256_castps_si256(n)),
        ));
        sum(v: __m256) -> f32 = {
            let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)))
        };
        largest(v: __m256) -> f32 = {
            let half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)))
        };
        dot_pairs(a: __m256i, b: __m256i, acc: __m256) -> __m256 = {
            let acc = _mm256_fmadd_ps(self.even(a), self.even(b), acc);
            _mm256_fmadd_ps(self.odd(a), self.odd(b), acc)
        };
        prefetch(at: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }

    memory_ops! {
        self;
        load(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
        store(v: __m256, to: *mut f32) = _mm256_storeu_ps(to, v);
        load_bf16(from: *const Bf16) -> __m256 = self.even(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())));
        store_bf16(v: __m256, to: *mut Bf16) = _mm_storeu_si128(to.cast(), self.round(v));
        load_pairs(from: *const Bf16) -> __m256i = _mm256_loadu_si256(from.cast());
        join_pairs(even: *const Bf16, odd: *const Bf16) -> __m256i = {
            let (even, odd) = (_mm_loadu_si128(even.cast()), _mm_loadu_si128(odd.cast()));
            _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd))
        };
        even_pairs(even: *const Bf16) -> __m256i = _mm256_cvtepu16_epi32(_mm_loadu_si128(even.cast()));
        splat_pair(from: *const Bf16) -> __m256i = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
    }
}
