//! Random draws without a generator: a pure function of (seed, position).
//!
//! The worker turns a draw into a token by inverting the cumulative distribution, so a request's text depends on its
//! seed and its logits alone: not on the batch, not on preemption, not on the device.

use frizzen_core::TokenId;

/// The finaliser of the `SplitMix64` generator (Steele, Lea and Flood, 2014): a bijection with good avalanche.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The draw in `[0, 1)` for the token at `position` of a request (prompt tokens count).
pub fn uniform(seed: u64, position: u32) -> f64 {
    let stream = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let bits = mix(stream ^ u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // 53 bits fill the mantissa, so every value below 1 is reachable and 1 is not.
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The seed of the `n`-th parallel sample of a request: another stream for every `n`.
pub fn sibling_seed(seed: u64, n: u32) -> u64 {
    seed.wrapping_add(u64::from(n))
}

/// A token id as the worker's arrays hold it.
pub(crate) const fn as_input(token: TokenId) -> i32 {
    token as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_over_positions_and_over_seeds() {
        // Chi-squared over 64 bins, 64,000 draws: the 99.99 % quantile at 63 degrees of freedom is about 114.
        for by_seed in [false, true] {
            let mut bins = [0u32; 64];
            for i in 0..64_000u32 {
                let draw = if by_seed { uniform(u64::from(i), 7) } else { uniform(7, i) };
                assert!((0.0..1.0).contains(&draw));
                bins[(draw * 64.0) as usize] += 1;
            }
            let chi: f64 = bins.iter().map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0).sum();
            assert!(chi < 114.0, "chi-squared {chi}");
        }
    }

    #[test]
    fn neighbouring_seeds_are_not_shifted_copies_of_each_other() {
        let a: Vec<f64> = (0..64).map(|p| uniform(1, p)).collect();
        let b: Vec<f64> = (0..64).map(|p| uniform(2, p)).collect();
        for shift in 0..32 {
            assert!(a[shift..].iter().zip(&b).all(|(x, y)| x != y));
        }
    }
}
