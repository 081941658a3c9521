//! Machines whose steps take a time that a formula says.

#![allow(dead_code, reason = "each test binary uses its own part")]

/// How the time of a step grows with its tokens, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub enum Machine {
    /// Weights dominate until the arithmetic does.
    Dense { knee: f64 },
    /// 128 experts of which each token reads 8: the weights read grow with the distinct experts.
    Moe,
    /// The same, and arithmetic that begins to count at 400 tokens.
    Mixture,
    /// Every token costs the same: a small model on a processor.
    Linear,
}

impl Machine {
    pub fn ms(self, tokens: f64) -> f64 {
        match self {
            Self::Dense { knee } => 10.0 + 0.01 * tokens + 0.1 * (tokens - knee).max(0.0),
            Self::Moe => {
                let distinct = 128.0 * (1.0 - (1.0_f64 - 8.0 / 128.0).powf(tokens));
                2.0 + 0.1 * distinct + 0.004 * tokens
            }
            Self::Mixture => Self::Moe.ms(tokens) + 0.05 * (tokens - 400.0).max(0.0),
            Self::Linear => 3.0 + 4.0 * tokens,
        }
    }
}

/// A drafter in the worker: what proposing takes, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct InWorker {
    pub base: f64,
    pub per_draft: f64,
}

impl InWorker {
    pub fn ms(self, length: usize) -> f64 {
        if length == 0 { 0.0 } else { self.base + self.per_draft * length as f64 }
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}
