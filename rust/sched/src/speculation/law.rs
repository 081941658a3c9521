//! What the time of a step is made of: a constant, and what its rows, its tokens and its distinct experts add.
//!
//! The measured cells of [`super::cost`] say what is known; the law fitted to all of them says how the time grows between
//! and beyond them. Every coefficient is at least 0, so that the law never falls with rows or drafts.

use serde::{Deserialize, Serialize};

/// The routed experts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts of a layer.
    pub num: u32,
    /// How many of them a token goes through.
    pub per_token: u32,
    /// Layers that have them.
    pub layers: u32,
}

impl Experts {
    /// Distinct experts of a layer that `tokens` tokens are expected to touch, if each takes its own at random.
    pub fn distinct(&self, tokens: f64) -> f64 {
        let num = f64::from(self.num.max(1));
        let missed = (1.0 - f64::from(self.per_token) / num).max(0.0);
        num * (1.0 - missed.powf(tokens))
    }
}

const FEATURES: usize = 4;
/// Added to the diagonal, as a share of it: features that cannot be told apart share what they explain.
const RIDGE: f64 = 1e-6;

/// The law: seconds of a decode step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    experts: Option<Experts>,
    /// Of the constant, the rows, the tokens and the distinct experts.
    coefficients: [f64; FEATURES],
    fitted: bool,
}

/// A time that the law shall explain.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Rows of the step.
    pub rows: f64,
    /// Its drafts.
    pub drafts: f64,
    /// Its time.
    pub seconds: f64,
    /// How much it counts.
    pub weight: f64,
}

impl Law {
    /// The law before anything was measured: only its shape over the drafts means something.
    pub const fn new(experts: Option<Experts>) -> Self {
        let coefficients = if experts.is_some() { [0.0, 0.0, 0.05, 1.0] } else { [0.0, 0.0, 1.0, 0.0] };
        Self { experts, coefficients, fitted: false }
    }

    /// Whether its values are seconds.
    pub const fn is_fitted(&self) -> bool {
        self.fitted
    }

    fn features(&self, rows: f64, drafts: f64) -> [f64; FEATURES] {
        let tokens = rows + drafts;
        [1.0, rows, tokens, self.experts.map_or(0.0, |experts| experts.distinct(tokens))]
    }

    /// The law's value; seconds once it is fitted.
    pub fn at(&self, rows: f64, drafts: f64) -> f64 {
        let [base, by_row, by_token, by_expert] = self.coefficients;
        let tokens = rows + drafts;
        // The power is most of the work, and many machines have no use for it.
        let experts = self.experts.filter(|_| by_expert > 0.0);
        base + by_row * rows
            + by_token * tokens
            + experts.map_or(0.0, |experts| by_expert * experts.distinct(tokens))
    }

    /// Fits the coefficients to times with relative errors, by least squares under the condition that none is negative.
    /// Needs steps of at least three different numbers of tokens.
    pub fn fit(&mut self, samples: impl Iterator<Item = Sample>) {
        let mut normal = [[0.0; FEATURES]; FEATURES];
        let mut right = [0.0; FEATURES];
        let mut tokens: Vec<u64> = Vec::new();
        for sample in samples.filter(|sample| sample.seconds > 0.0) {
            let features = self.features(sample.rows, sample.drafts).map(|feature| feature / sample.seconds);
            for (row, feature) in features.iter().enumerate() {
                for (column, other) in features.iter().enumerate() {
                    normal[row][column] += sample.weight * feature * other;
                }
                right[row] += sample.weight * feature;
            }
            let count = (sample.rows + sample.drafts).round() as u64;
            if !tokens.contains(&count) {
                tokens.push(count);
            }
        }
        if tokens.len() >= 3 {
            self.coefficients = non_negative(&normal, &right);
            self.fitted = true;
        }
    }
}

/// Minimises `x N x / 2 - r x` over `x >= 0`, by trying every set of positive coordinates.
fn non_negative(normal: &[[f64; FEATURES]; FEATURES], right: &[f64; FEATURES]) -> [f64; FEATURES] {
    let mut best = ([0.0; FEATURES], 0.0);
    for set in 1..1u32 << FEATURES {
        let free: Vec<usize> =
            (0..FEATURES).filter(|at| set >> at & 1 == 1 && normal[*at][*at] > 0.0).collect();
        let Some(solution) = solve(normal, right, &free).filter(|all| all.iter().all(|x| *x >= 0.0)) else {
            continue;
        };
        let value: f64 = (0..FEATURES)
            .map(|row| {
                let pull: f64 = (0..FEATURES).map(|column| normal[row][column] * solution[column]).sum();
                solution[row] * (pull / 2.0 - right[row])
            })
            .sum();
        if value < best.1 {
            best = (solution, value);
        }
    }
    best.0
}

/// Solves the system of the free coordinates, the others being 0, by elimination with pivots.
fn solve(
    normal: &[[f64; FEATURES]; FEATURES],
    right: &[f64; FEATURES],
    free: &[usize],
) -> Option<[f64; FEATURES]> {
    let mut rows: Vec<(Vec<f64>, f64)> = free
        .iter()
        .map(|row| {
            let mut values: Vec<f64> = free.iter().map(|column| normal[*row][*column]).collect();
            let at = free.iter().position(|other| other == row)?;
            values[at] *= 1.0 + RIDGE;
            Some((values, right[*row]))
        })
        .collect::<Option<_>>()?;
    for at in 0..free.len() {
        let pivot = (at..free.len()).max_by(|a, b| rows[*a].0[at].abs().total_cmp(&rows[*b].0[at].abs()))?;
        rows.swap(at, pivot);
        if rows[at].0[at].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for below in at + 1..free.len() {
            let factor = rows[below].0[at] / rows[at].0[at];
            for column in at..free.len() {
                rows[below].0[column] -= factor * rows[at].0[column];
            }
            rows[below].1 -= factor * rows[at].1;
        }
    }
    let mut solution = [0.0; FEATURES];
    for at in (0..free.len()).rev() {
        let known: f64 = (at + 1..free.len()).map(|column| rows[at].0[column] * solution[free[column]]).sum();
        solution[free[at]] = (rows[at].1 - known) / rows[at].0[at];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN: Experts = Experts { num: 128, per_token: 8, layers: 48 };

    fn samples(of: impl Fn(f64, f64) -> f64) -> Vec<Sample> {
        let rows = [1.0, 4.0, 16.0, 64.0];
        let cells = rows.iter().flat_map(|rows| [0.0, 1.0, 3.0].map(|length| (*rows, rows * length)));
        cells.map(|(rows, drafts)| Sample { rows, drafts, seconds: of(rows, drafts), weight: 1.0 }).collect()
    }

    #[test]
    fn distinct_experts_grow_from_those_of_one_token_to_all() {
        assert!((QWEN.distinct(1.0) - 8.0).abs() < 1e-9);
        assert!((QWEN.distinct(2.0) - 15.5).abs() < 1e-9);
        assert!(QWEN.distinct(1000.0) > 127.99 && QWEN.distinct(1000.0) <= 128.0);
        assert_eq!(QWEN.distinct(0.0), 0.0);
    }

    #[test]
    fn the_law_of_a_machine_is_found_and_holds_where_nothing_was_measured() {
        let machine = |rows: f64, drafts: f64| {
            1e-3 * (2.0 + 0.05 * rows + 0.004 * (rows + drafts) + 0.1 * QWEN.distinct(rows + drafts))
        };
        let mut law = Law::new(Some(QWEN));
        law.fit(samples(machine).into_iter());
        for (rows, drafts) in [(2.0, 8.0), (8.0, 56.0), (32.0, 32.0), (128.0, 128.0)] {
            let (found, wanted) = (law.at(rows, drafts), machine(rows, drafts));
            assert!((found / wanted - 1.0).abs() < 0.02, "{rows} {drafts}: {found} {wanted}");
        }
    }

    #[test]
    fn no_coefficient_is_negative_whatever_was_measured() {
        let mut law = Law::new(Some(QWEN));
        law.fit(samples(|rows, drafts| 1.0 / (1.0 + rows + drafts)).into_iter());
        assert!(law.coefficients.iter().all(|coefficient| *coefficient >= 0.0), "{law:?}");
        assert!(law.is_fitted());
    }

    #[test]
    fn two_numbers_of_tokens_make_no_law() {
        let mut law = Law::new(None);
        let two = samples(|_, _| 1.0).into_iter().filter(|sample| sample.rows + sample.drafts < 4.0);
        law.fit(two);
        assert!(!law.is_fitted());
    }
}
