//! Sixteen lanes: AVX-512, with or without the bfloat16 extension.

#[allow(clippy::wildcard_imports, reason = "a file of intrinsics")]
use std::arch::x86_64::*;

use super::{Kernel, Simd};
use crate::element::Bf16;

/// AVX-512 F, BW, DQ and VL; `BF16` adds the bfloat16 instructions. Made only by the functions below, which carry
/// the features, so that a value proves that they are there.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const BF16: bool>(());

/// # Safety
/// The machine has the features named.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false>(()))
}

/// # Safety
/// The machine has the features named.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn enter_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true>(()))
}

/// Order of 16-bit elements that joins two halves of a vector to pairs: 0, 16, 1, 17, ...
#[repr(align(64))]
struct Order([u16; 32]);

static JOIN: Order = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        order[i as usize] = i / 2 + i % 2 * 16;
        i += 1;
    }
    Order(order)
};

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

impl<const BF16: bool> Avx512<BF16> {
    ops! {
        self;
        even(v: __m512i) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v));
        odd(v: __m512i) -> __m512 =
            _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())));
        // Round to nearest even on the bits; a quiet NaN where the carry would turn a NaN into infinity.
        round(v: __m512) -> __m256i = {
            let bits = _mm512_castps_si512(v);
            let lsb = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, nan, quiet)))
        };
    }
}

impl<const BF16: bool> Simd for Avx512<BF16> {
    type F32 = __m512;
    type Pairs = __m512i;
    const LANES: usize = 16;

    ops! {
        self;
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        zero_below(v: __m512, x: __m512, limit: __m512) -> __m512 =
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, limit), v);
        add_exponent(v: __m512, n: __m512) -> __m512 = _mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(v),
            _mm512_slli_epi32::<23>(_mm512_castps_si512(n)),
        ));
        sum(v: __m512) -> f32 = _mm512_reduce_add_ps(v);
        largest(v: __m512) -> f32 = _mm512_reduce_max_ps(v);
        dot_pairs(a: __m512i, b: __m512i, acc: __m512) -> __m512 = if BF16 {
            _mm512_dpbf16_ps(acc, std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b))
        } else {
            let acc = _mm512_fmadd_ps(self.even(a), self.even(b), acc);
            _mm512_fmadd_ps(self.odd(a), self.odd(b), acc)
        };
        prefetch(at: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }

    memory_ops! {
        self;
        load(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        store(v: __m512, to: *mut f32) = _mm512_storeu_ps(to, v);
        load_bf16(from: *const Bf16) -> __m512 =
            self.even(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())));
        store_bf16(v: __m512, to: *mut Bf16) = if BF16 {
            _mm256_storeu_si256(to.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v)));
        } else {
            _mm256_storeu_si256(to.cast(), self.round(v));
        };
        load_pairs(from: *const Bf16) -> __m512i = _mm512_loadu_si512(from.cast());
        join_pairs(even: *const Bf16, odd: *const Bf16) -> __m512i = {
            let even = _mm512_castsi256_si512(_mm256_loadu_si256(even.cast()));
            let halves = _mm512_inserti64x4::<1>(even, _mm256_loadu_si256(odd.cast()));
            _mm512_permutexvar_epi16(_mm512_loadu_si512(JOIN.0.as_ptr().cast()), halves)
        };
        even_pairs(even: *const Bf16) -> __m512i = _mm512_cvtepu16_epi32(_mm256_loadu_si256(even.cast()));
        splat_pair(from: *const Bf16) -> __m512i = _mm512_set1_epi32(from.cast::<i32>().read_unaligned());
    }
}
