//! Eight lanes in plain Rust, which the compiler turns into the vectors of the target's baseline.

use super::Simd;
use crate::element::Bf16;

const LANES: usize = 8;

/// No instruction beyond the target's baseline.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Eight numbers.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Octet([f32; LANES]);

/// Eight pairs of bfloat16.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Pairs([u32; LANES]);

#[inline(always)]
fn zip(a: Octet, b: Octet, f: impl Fn(f32, f32) -> f32) -> Octet {
    Octet(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

/// Fused where that is one instruction of the baseline; elsewhere it would be a call into the C library.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn even(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

#[inline(always)]
fn odd(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

impl Simd for Portable {
    type F32 = Octet;
    type Pairs = Pairs;
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Octet {
        Octet([x; LANES])
    }
    #[inline(always)]
    fn add(self, a: Octet, b: Octet) -> Octet {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Octet, b: Octet) -> Octet {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Octet, b: Octet) -> Octet {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Octet, b: Octet) -> Octet {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Octet, b: Octet) -> Octet {
        zip(a, b, f32::max)
    }
    #[inline(always)]
    fn min(self, a: Octet, b: Octet) -> Octet {
        zip(a, b, f32::min)
    }
    #[inline(always)]
    fn mul_add(self, a: Octet, b: Octet, c: Octet) -> Octet {
        Octet(std::array::from_fn(|i| fused(a.0[i], b.0[i], c.0[i])))
    }
    #[inline(always)]
    fn zero_below(self, v: Octet, x: Octet, limit: Octet) -> Octet {
        Octet(std::array::from_fn(|i| if x.0[i] >= limit.0[i] { v.0[i] } else { 0.0 }))
    }
    #[inline(always)]
    fn add_exponent(self, v: Octet, n: Octet) -> Octet {
        zip(v, n, |v, n| f32::from_bits(v.to_bits().wrapping_add(n.to_bits() << 23)))
    }
    #[inline(always)]
    fn sum(self, v: Octet) -> f32 {
        let [a, b, c, d, e, f, g, h] = v.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn largest(self, v: Octet) -> f32 {
        let [a, b, c, d, e, f, g, h] = v.0;
        a.max(e).max(c.max(g)).max(b.max(f).max(d.max(h)))
    }
    #[inline(always)]
    fn dot_pairs(self, a: Pairs, b: Pairs, acc: Octet) -> Octet {
        Octet(std::array::from_fn(|i| {
            fused(odd(a.0[i]), odd(b.0[i]), fused(even(a.0[i]), even(b.0[i]), acc.0[i]))
        }))
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Octet {
        // SAFETY: the caller's promise.
        Octet(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, v: Octet, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const Bf16) -> Octet {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[Bf16; LANES]>().read_unaligned() };
        Octet(halves.map(Bf16::widen))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, v: Octet, to: *mut Bf16) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[Bf16; LANES]>().write_unaligned(v.0.map(Bf16::round)) }
    }
    #[inline(always)]
    unsafe fn load_pairs(self, from: *const Bf16) -> Pairs {
        // SAFETY: the caller's promise.
        Pairs(unsafe { from.cast::<[[Bf16; 2]; LANES]>().read_unaligned() }.map(pair))
    }
    #[inline(always)]
    unsafe fn join_pairs(self, even: *const Bf16, odd: *const Bf16) -> Pairs {
        // SAFETY: the caller's promise.
        let (even, odd) = unsafe {
            (even.cast::<[Bf16; LANES]>().read_unaligned(), odd.cast::<[Bf16; LANES]>().read_unaligned())
        };
        Pairs(std::array::from_fn(|i| pair([even[i], odd[i]])))
    }
    #[inline(always)]
    unsafe fn even_pairs(self, even: *const Bf16) -> Pairs {
        // SAFETY: the caller's promise.
        Pairs(unsafe { even.cast::<[Bf16; LANES]>().read_unaligned() }.map(|even| u32::from(even.0)))
    }
    #[inline(always)]
    unsafe fn splat_pair(self, from: *const Bf16) -> Pairs {
        // SAFETY: the caller's promise.
        Pairs([pair(unsafe { from.cast::<[Bf16; 2]>().read_unaligned() }); LANES])
    }
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
}

#[inline(always)]
fn pair([even, odd]: [Bf16; 2]) -> u32 {
    u32::from(even.0) | (u32::from(odd.0) << 16)
}
