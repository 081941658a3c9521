//! One number of rows of the cost model: the time over the drafts of a step, joined from measured cells.

use super::law::Law;

/// Steps that a cell remembers.
pub(super) const MEMORY: f64 = 20.0;

/// Time of steps with about the same rows and drafts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub seconds: f64,
    pub rows: f64,
    pub drafts: f64,
    pub weight: f64,
    /// Number of the step that was measured last.
    pub last: u64,
    /// The latest step took so much longer that it was left out.
    pub doubted: bool,
}

impl Cell {
    pub fn add(&mut self, rows: usize, drafts: usize, seconds: f64, step: u64) {
        self.add_up_to(MEMORY, rows, drafts, seconds, step);
    }

    /// The same with a weight that stays below `most`.
    pub fn add_up_to(&mut self, most: f64, rows: usize, drafts: usize, seconds: f64, step: u64) {
        // What was not seen for long counts for little.
        let age = (step - self.last) as f64 / 10.0;
        self.weight = (self.weight.min((MEMORY - age).max(2.0)) + 1.0).min(most);
        self.seconds += (seconds - self.seconds) / self.weight;
        self.rows += (rows as f64 - self.rows) / self.weight;
        self.drafts += (drafts as f64 - self.drafts) / self.weight;
        self.last = step;
    }
}

/// Time over the drafts of a step, at one number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Drafts and seconds, both rising; the first entry is without drafts.
    pub(super) points: Vec<(f64, f64)>,
    pub(super) law: Law,
    pub(super) rows: f64,
}

impl Curve {
    /// A curve that is 0 everywhere.
    pub(super) const fn zero() -> Self {
        Self { points: Vec::new(), law: Law::new(None), rows: 0.0 }
    }

    /// Seconds of a step with this many drafts: between points as the law grows, beyond the last one by the mean slope.
    pub fn at(&self, drafts: usize) -> f64 {
        let drafts = drafts as f64;
        let place = |drafts: f64| self.law.at(self.rows, drafts);
        let Some((last_drafts, last)) = self.points.last().copied() else { return 0.0 };
        let (first_drafts, first) = self.points[0];
        if drafts > last_drafts {
            let ahead = place(drafts) - place(last_drafts);
            let span = place(last_drafts) - place(first_drafts);
            return if span > 0.0 {
                last + (last - first) / span * ahead
            } else if self.law.is_fitted() {
                last + ahead
            } else {
                last
            };
        }
        let after = self.points.partition_point(|(at, _)| *at < drafts);
        let (x1, y1) = self.points[after];
        let Some((x0, y0)) = after.checked_sub(1).map(|before| self.points[before]) else { return y1 };
        let span = place(x1) - place(x0);
        let share = if span > 0.0 { (place(drafts) - place(x0)) / span } else { (drafts - x0) / (x1 - x0) };
        y0 + (y1 - y0) * share
    }
}

/// Drafts and seconds of cells of which the first is without drafts, all moved by `by` seconds, so that they never fall.
/// What steps without drafts take is known best; the others lost what proposing is estimated to add.
pub(super) fn rising<'a>(mut cells: impl Iterator<Item = &'a Cell>, by: f64) -> Vec<(f64, f64)> {
    let Some(plain) = cells.next() else { return Vec::new() };
    let plain = plain.seconds + by;
    let with_drafts = cells.map(|cell| (cell.drafts, (cell.seconds + by).max(plain), cell.weight));
    let mut points = vec![(0.0, plain)];
    points.extend(pooled(with_drafts));
    points
}

/// Points whose times never fall: neighbours in the wrong order are replaced by their weighted mean.
pub(super) fn pooled(points: impl Iterator<Item = (f64, f64, f64)>) -> Vec<(f64, f64)> {
    let mut pools: Vec<(f64, f64, Vec<f64>)> = Vec::new();
    for (drafts, mut seconds, mut weight) in points {
        let mut members = vec![drafts];
        while let Some((before, before_weight, _)) = pools.last() {
            if *before < seconds {
                break;
            }
            seconds = (seconds * weight + before * before_weight) / (weight + before_weight);
            weight += before_weight;
            let (_, _, mut earlier) = pools.pop().expect("seen just now");
            earlier.append(&mut members);
            members = earlier;
        }
        pools.push((seconds, weight, members));
    }
    pools
        .into_iter()
        .flat_map(|(seconds, _, members)| members.into_iter().map(move |at| (at, seconds)))
        .collect()
}
