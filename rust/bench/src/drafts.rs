//! What drafts of each length brought: the break-even curve, and which setting to recommend.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::report::number;

/// How requests speculated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    Off,
    /// As the server chose.
    Auto,
    /// With this many drafts per step.
    Length(u32),
}

impl Mode {
    /// The request's field.
    pub fn field(self) -> Value {
        match self {
            Self::Off => "off".into(),
            Self::Auto => "auto".into(),
            Self::Length(length) => json!({"max_tokens": length}),
        }
    }

    /// Its name in tables and flags.
    pub fn name(self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Auto => "auto".to_owned(),
            Self::Length(length) => length.to_string(),
        }
    }
}

/// What one mode brought, over all its rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Which.
    pub mode: Mode,
    /// Output tokens.
    pub tokens: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Drafts that were verified, and how many of them were right.
    pub drafts: u64,
    /// See `drafts`.
    pub accepted: u64,
}

impl Point {
    /// Output tokens per second.
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Tokens per step of one request: each step gives one more than it accepts.
    pub fn tokens_per_step(&self) -> f64 {
        self.tokens as f64 / self.tokens.saturating_sub(self.accepted).max(1) as f64
    }

    /// The share of the drafts that were right; `None` without drafts.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafts > 0).then(|| self.accepted as f64 / self.drafts as f64)
    }
}

/// The modes at one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Data and load, for people.
    pub name: String,
    /// `off` first.
    pub points: Vec<Point>,
}

/// How much faster `auto` or a length must be than `off` to be recommended, and how close `auto` to the best length.
const WORTH: f64 = 1.02;
const CLOSE: f64 = 0.95;

impl Curve {
    fn of(&self, mode: Mode) -> Option<&Point> {
        self.points.iter().find(|point| point.mode == mode)
    }

    /// How many times as many tokens per second as without drafts; `None` if one of them is not there.
    pub fn gain(&self, mode: Mode) -> Option<f64> {
        Some(self.of(mode)?.rate() / self.of(Mode::Off)?.rate())
    }

    /// The tokens per step that a mode would need to be as fast as none: what its steps take against plain ones.
    pub fn break_even(&self, mode: Mode) -> Option<f64> {
        Some(self.of(mode)?.tokens_per_step() / self.gain(mode)?)
    }

    fn lengths(&self) -> impl Iterator<Item = Mode> {
        self.points.iter().map(|point| point.mode).filter(|mode| matches!(mode, Mode::Length(_)))
    }

    /// The table of the curve.
    pub fn table(&self) -> String {
        let mut text = format!(
            "\n{}\n{:>8} {:>12} {:>8} {:>10} {:>13} {:>11}\n",
            self.name, "drafts", "tokens/s", "gain", "accepted", "tokens/step", "break-even"
        );
        for point in &self.points {
            let gain = self.gain(point.mode).map_or_else(String::new, |gain| format!("{gain:.3}"));
            let accepted =
                point.acceptance().map_or_else(String::new, |share| format!("{:.1} %", share * 1e2));
            let even = self.break_even(point.mode).filter(|_| point.mode != Mode::Off);
            let _ = writeln!(
                text,
                "{:>8} {:>12} {:>8} {:>10} {:>13.3} {:>11}",
                point.mode.name(),
                number(point.rate()),
                gain,
                accepted,
                point.tokens_per_step(),
                even.map_or_else(String::new, |even| format!("{even:.3}"))
            );
        }
        text
    }

    /// What one mode brought, for programs.
    pub fn json(&self, point: &Point) -> Value {
        json!({
            "output_tokens": point.tokens,
            "duration_s": point.seconds,
            "output_tokens_per_s": point.rate(),
            "gain": self.gain(point.mode),
            "tokens_per_step": point.tokens_per_step(),
            "break_even_tokens_per_step": self.break_even(point.mode),
            "drafts": point.drafts,
            "accepted": point.accepted,
        })
    }
}

/// The setting that serves all the loads best: `auto` if it loses nowhere and is close to the best length everywhere,
/// else the length whose gains multiply to the most, else `off`.
pub fn recommended(curves: &[Curve]) -> Mode {
    let fine = |curve: &Curve| {
        let best = curve.lengths().filter_map(|mode| curve.gain(mode)).fold(1.0, f64::max);
        curve.gain(Mode::Auto).is_some_and(|auto| auto >= 0.98 && auto >= CLOSE * best)
    };
    let product = |mode: Mode| {
        let gains: Option<Vec<f64>> = curves.iter().map(|curve| curve.gain(mode)).collect();
        gains.map_or(0.0, |gains| gains.iter().product())
    };
    let pays = |mode: &Mode| product(*mode) > WORTH.powi(curves.len() as i32);
    if !curves.is_empty() && curves.iter().all(fine) && pays(&Mode::Auto) {
        return Mode::Auto;
    }
    let lengths = curves.first().into_iter().flat_map(Curve::lengths).chain([Mode::Auto]).filter(pays);
    lengths.max_by(|a, b| product(*a).total_cmp(&product(*b))).unwrap_or(Mode::Off)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(Mode, f64)]) -> Curve {
        let point = |(mode, rate): &(Mode, f64)| Point {
            mode: *mode,
            tokens: 1000,
            seconds: 1000.0 / rate,
            drafts: 900,
            accepted: if *mode == Mode::Off { 0 } else { 500 },
        };
        Curve { name: "c".to_owned(), points: points.iter().map(point).collect() }
    }

    #[test]
    fn the_break_even_is_what_a_step_takes_against_a_plain_one() {
        let curve = curve(&[(Mode::Off, 100.0), (Mode::Length(2), 125.0)]);
        // Twice the tokens per step at a gain of a quarter: a step takes 1.6 plain ones.
        assert_eq!(curve.break_even(Mode::Length(2)), Some(1.6));
        assert!(curve.table().contains("1.600") && curve.table().contains("55.6 %"));
    }

    #[test]
    fn auto_is_recommended_unless_it_loses_somewhere_and_off_if_nothing_pays() {
        let (off, auto, two, four) = (Mode::Off, Mode::Auto, Mode::Length(2), Mode::Length(4));
        let small = curve(&[(off, 100.0), (auto, 190.0), (two, 150.0), (four, 195.0)]);
        let large = curve(&[(off, 100.0), (auto, 99.0), (two, 80.0), (four, 50.0)]);
        assert_eq!(recommended(&[small.clone(), large.clone()]), auto);
        let slow = curve(&[(off, 100.0), (auto, 90.0), (two, 98.0), (four, 60.0)]);
        assert_eq!(recommended(&[small, slow.clone()]), auto, "its gains multiply to the most");
        let bad = curve(&[(off, 100.0), (auto, 100.5), (two, 80.0), (four, 50.0)]);
        assert_eq!(recommended(&[bad]), off);
        let constant = curve(&[(off, 100.0), (auto, 110.0), (two, 140.0), (four, 120.0)]);
        assert_eq!(recommended(&[constant, slow]), two);
        assert_eq!(recommended(&[]), off);
    }
}
