//! The time of a decode step over its rows and drafts, learnt from the steps themselves.
//!
//! One cell per (rows, drafts), both on a geometric scale, holds a decaying mean of what a step takes that proposes
//! nothing; another per (rows, drafts per row) what proposing adds. A read joins the cells of a number of rows into a
//! curve that never falls with the drafts: violations are noise, and pooled. Between and beyond the measured points
//! the curve follows the [`Law`] that is fitted to all cells, which knows that tokens share experts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::law::{Experts, Law, Sample};

/// Steps that a cell remembers.
const MEMORY: f64 = 20.0;
/// A measurement beyond this factor of what is expected counts as this factor: a hiccup must not pass for a change, and
/// a change comes back.
const OUTLIER: f64 = 3.0;
/// Buckets of rows that stand for each other where the law carries times over: half as many again.
const NEAR: u32 = 2;
/// Measurements after which the law is fitted anew.
const FIT_EVERY: u64 = 16;
/// What a time from an earlier run counts: it is used at once and soon outweighed.
const REMEMBERED: f64 = 2.0;

/// Time of steps with about the same rows and drafts.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    seconds: f64,
    rows: f64,
    drafts: f64,
    weight: f64,
    /// Number of the step that was measured last.
    last: u64,
}

/// Exact up to 4, then four buckets per doubling.
fn bucket(count: usize) -> u32 {
    if count <= 4 { count as u32 } else { 4 + (4.0 * (count as f64 / 4.0).log2()) as u32 }
}

impl Cell {
    fn add(&mut self, rows: usize, drafts: usize, seconds: f64, step: u64) {
        // What was not seen for long counts for little.
        let age = (step - self.last) as f64 / 10.0;
        self.weight = (self.weight.min((MEMORY - age).max(2.0)) + 1.0).min(MEMORY);
        self.seconds += (seconds - self.seconds) / self.weight;
        self.rows += (rows as f64 - self.rows) / self.weight;
        self.drafts += (drafts as f64 - self.drafts) / self.weight;
        self.last = step;
    }
}

type Cells = BTreeMap<(u32, u32), Cell>;

/// The fitted times.
#[derive(Clone, Debug)]
pub struct CostModel {
    cells: Cells,
    /// What proposing so many drafts per row adds.
    drafting: Cells,
    law: Law,
    step: u64,
}

/// Time over the drafts of a step, at one number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Drafts and seconds, both rising; the first entry is without drafts.
    points: Vec<(f64, f64)>,
    law: Law,
    rows: f64,
}

impl Curve {
    /// A curve that is 0 everywhere.
    const fn zero() -> Self {
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

/// The times of a machine, for the next start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Rows, drafts and seconds of steps that propose nothing.
    pub steps: Vec<(f64, f64, f64)>,
    /// Rows, drafts per row and the seconds that proposing them adds.
    pub drafting: Vec<(f64, f64, f64)>,
}

impl Default for CostModel {
    fn default() -> Self {
        Self::new(None)
    }
}

impl CostModel {
    /// A model that knows nothing but the target's experts.
    pub const fn new(experts: Option<Experts>) -> Self {
        Self { cells: Cells::new(), drafting: Cells::new(), law: Law::new(experts), step: 0 }
    }

    /// Takes the time of a step without prefill over; its worker proposed `proposed` drafts per row.
    pub fn measure(&mut self, rows: usize, drafts: usize, proposed: usize, seconds: f64) {
        self.step += 1;
        let adds = self.drafting(rows).at(proposed);
        let at = (bucket(rows), bucket(drafts));
        let known = self.cells.get(&at).filter(|cell| cell.weight >= 3.0).map(|cell| cell.seconds + adds);
        let seconds = known.map_or(seconds, |known| seconds.clamp(known / OUTLIER, known * OUTLIER));
        // Without drafts the time of the step is known, so that the rest is what proposing adds; with drafts, and with
        // proposing known, it is the other way round.
        let plain = self.cells.get(&at).filter(|_| drafts == 0 && proposed > 0).map(|cell| cell.seconds);
        if drafts == 0 && proposed > 0 && plain.is_none() {
            return;
        }
        if let Some(plain) = plain {
            let cell = self.drafting.entry((at.0, bucket(proposed))).or_default();
            cell.add(rows, proposed, seconds - plain, self.step);
        } else {
            let cell = self.cells.entry(at).or_default();
            cell.add(rows, drafts, (seconds - adds).max(seconds / OUTLIER), self.step);
        }
        if self.step.is_multiple_of(FIT_EVERY) {
            self.fit();
        }
    }

    fn fit(&mut self) {
        let step = self.step;
        self.law.fit(self.cells.values().map(|cell| Sample {
            rows: cell.rows,
            drafts: cell.drafts,
            seconds: cell.seconds,
            weight: cell.weight / (1.0 + (step - cell.last) as f64 / 1000.0),
        }));
    }

    /// Lets the next measurements of steps with drafts, at this number of rows, outweigh what was measured so far.
    pub fn distrust_drafts(&mut self, rows: usize) {
        let rows = bucket(rows);
        for cells in [&mut self.cells, &mut self.drafting] {
            for (_, cell) in cells.range_mut((rows, 1)..=(rows, u32::MAX)) {
                cell.weight = cell.weight.min(1.0);
            }
        }
    }

    /// Steps since one with these rows and drafts was measured; `None` if there was none, or if it is not known what
    /// proposing so many drafts per row adds.
    pub fn age(&self, rows: usize, drafts: usize, proposed: usize) -> Option<u64> {
        self.known(rows, drafts, proposed).map(|cell| self.step - cell.last)
    }

    /// How often a step with these rows and drafts was measured, up to 20 times; 0 if it is not known what proposing so
    /// many drafts per row adds.
    pub fn weight(&self, rows: usize, drafts: usize, proposed: usize) -> f64 {
        self.known(rows, drafts, proposed).map_or(0.0, |cell| cell.weight)
    }

    /// The cell of such a step; once the law can carry its time over, that of a step with nearly as many rows and drafts
    /// per row will do.
    fn known(&self, rows: usize, drafts: usize, proposed: usize) -> Option<&Cell> {
        if proposed > 0 && !self.knows_drafting(rows, proposed) {
            return None;
        }
        let wanted = bucket(rows);
        let own = self.cells.get(&(wanted, bucket(drafts)));
        if own.is_some() || !self.law.is_fitted() {
            return own;
        }
        let per_row = drafts as f64 / rows.max(1) as f64;
        let is_alike = |cell: &Cell| {
            let other = cell.drafts / cell.rows.max(1.0);
            (per_row - other).abs() <= 0.3 * per_row.max(other)
        };
        let near = self.cells.range((wanted.saturating_sub(NEAR), 0)..=(wanted + NEAR, u32::MAX));
        near.map(|(_, cell)| cell).filter(|cell| is_alike(cell)).max_by_key(|cell| cell.last)
    }

    /// Whether it was measured what proposing so many drafts per row adds, at about as many rows.
    pub fn knows_drafting(&self, rows: usize, proposed: usize) -> bool {
        let (wanted, proposed) = (bucket(rows), bucket(proposed));
        let near = self.drafting.range((wanted.saturating_sub(NEAR), 0)..=(wanted + NEAR, u32::MAX));
        near.into_iter().any(|((_, other), _)| *other == proposed)
    }

    /// The curve at this number of rows, of steps that propose nothing; `None` before any step without drafts was
    /// measured.
    ///
    /// Numbers of rows that were not seen take the curve of the nearest one, moved to the time without drafts that lies
    /// between the known ones.
    pub fn curve(&self, rows: usize) -> Option<Curve> {
        let wanted = bucket(rows);
        let plain = || self.cells.iter().filter(|((_, drafts), _)| *drafts == 0);
        let ((nearest, _), base) = plain().min_by_key(|((rows, _), _)| rows.abs_diff(wanted))?;
        let law = self.law;
        if *nearest == wanted {
            let cells = self.cells.range((*nearest, 0)..=(*nearest, u32::MAX));
            let points = cells.map(|(_, cell)| (cell.drafts, cell.seconds, cell.weight));
            return Some(Curve { points: pooled(points), law, rows: rows as f64 });
        }
        let moved = self.plain_time(wanted);
        if law.is_fitted() {
            return Some(Curve { points: vec![(0.0, moved)], law, rows: rows as f64 });
        }
        let cells = self.cells.range((*nearest, 0)..=(*nearest, u32::MAX));
        let points = cells.map(|(_, cell)| (cell.drafts, cell.seconds + moved - base.seconds, cell.weight));
        Some(Curve { points: pooled(points), law, rows: rows as f64 })
    }

    /// What proposing adds to a step of this many rows, over the drafts per row; 0 as long as nothing is known.
    pub fn drafting(&self, rows: usize) -> Curve {
        let wanted = bucket(rows);
        let nearest = self.drafting.keys().map(|(rows, _)| *rows).min_by_key(|rows| rows.abs_diff(wanted));
        let Some(nearest) = nearest else { return Curve::zero() };
        let cells = self.drafting.range((nearest, 0)..=(nearest, u32::MAX));
        let points = cells.map(|(_, cell)| (cell.drafts, cell.seconds.max(0.0), cell.weight));
        let nothing = std::iter::once((0.0, 0.0, MEMORY));
        Curve { points: pooled(nothing.chain(points)), law: Law::new(None), rows: 0.0 }
    }

    /// Time without drafts at a bucket of rows between (or beyond) those that were measured.
    fn plain_time(&self, wanted: u32) -> f64 {
        let plain = || {
            let cells = self.cells.iter().filter(|((_, drafts), _)| *drafts == 0);
            cells.map(|((rows, _), cell)| (*rows, cell.seconds))
        };
        let below = plain().rfind(|(rows, _)| *rows <= wanted);
        let above = plain().find(|(rows, _)| *rows >= wanted);
        match (below, above) {
            (Some((x0, y0)), Some((x1, y1))) if x1 > x0 => {
                y0 + (y1 - y0) * f64::from(wanted - x0) / f64::from(x1 - x0)
            }
            (Some((_, seconds)), _) | (None, Some((_, seconds))) => seconds,
            (None, None) => 0.0,
        }
    }

    /// The law that is fitted to all cells.
    pub const fn law(&self) -> &Law {
        &self.law
    }

    /// Steps that were measured.
    pub const fn num_measured(&self) -> u64 {
        self.step
    }

    /// What is known, for the next start.
    pub fn costs(&self) -> Costs {
        let list =
            |cells: &Cells| cells.values().map(|cell| (cell.rows, cell.drafts, cell.seconds)).collect();
        Costs { steps: list(&self.cells), drafting: list(&self.drafting) }
    }

    /// Takes over what an earlier run knew of the same machine; numbers that cannot be times are left out.
    pub fn restore(&mut self, costs: &Costs) {
        for (cells, known) in [(&mut self.cells, &costs.steps), (&mut self.drafting, &costs.drafting)] {
            for (rows, drafts, seconds) in known.iter().copied() {
                let is_time = (0.0..3600.0).contains(&seconds) && (1.0..1e6).contains(&rows);
                if is_time && (0.0..1e7).contains(&drafts) {
                    let at = (bucket(rows.round() as usize), bucket(drafts.round() as usize));
                    cells.insert(at, Cell { seconds, rows, drafts, weight: REMEMBERED, last: self.step });
                }
            }
        }
        self.fit();
    }
}

/// Points whose times never fall: neighbours in the wrong order are replaced by their weighted mean.
fn pooled(points: impl Iterator<Item = (f64, f64, f64)>) -> Vec<(f64, f64)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_never_fall_with_the_drafts_whatever_was_measured() {
        let mut model = CostModel::default();
        let mut state = 1u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = |shift: u32, most: u64| ((state >> shift) % most) as usize;
            model.measure(
                1 + random(33, 40),
                random(40, 20),
                random(44, 3),
                0.001 * (1 + random(50, 1000)) as f64,
            );
            for rows in [1, 7, 33, 100] {
                let Some(curve) = model.curve(rows) else { continue };
                let times: Vec<f64> = (0..64).map(|drafts| curve.at(drafts)).collect();
                // Up to the rounding of the interpolation.
                assert!(times.is_sorted_by(|a, b| *a <= b + 1e-12), "{times:?}");
            }
        }
    }

    #[test]
    fn the_model_finds_a_law_and_follows_when_it_changes() {
        let mut model = CostModel::default();
        for scale in [1.0, 2.5, 0.4] {
            let law =
                |rows: usize, drafts: usize| scale * (0.01 + 0.001 * rows as f64 + 0.002 * drafts as f64);
            for step in 0..900 {
                let (rows, drafts) = ([1, 4, 16][step % 3], [0, 2, 8][step / 3 % 3]);
                model.measure(rows, drafts, 0, law(rows, drafts));
            }
            for (rows, drafts) in [(1, 0), (4, 2), (16, 8), (4, 5), (16, 16)] {
                let (found, expected) = (model.curve(rows).expect("measured").at(drafts), law(rows, drafts));
                assert!((found / expected - 1.0).abs() < 0.05, "{rows} {drafts}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn unseen_rows_lie_between_the_seen_ones() {
        let mut model = CostModel::default();
        assert_eq!(model.curve(4), None);
        for (rows, drafts, seconds) in [(4, 0, 0.010), (16, 0, 0.020), (4, 4, 0.012)] {
            model.measure(rows, drafts, 0, seconds);
        }
        let curve = model.curve(8).expect("two were measured");
        assert!((0.010..0.020).contains(&curve.at(0)), "{}", curve.at(0));
    }

    #[test]
    fn one_hiccup_does_not_pass_for_a_change() {
        let mut model = CostModel::default();
        for _ in 0..30 {
            model.measure(1, 0, 0, 0.010);
        }
        model.measure(1, 0, 0, 5.0);
        assert!(model.curve(1).expect("measured").at(0) < 0.012);
    }

    #[test]
    fn what_proposing_takes_is_told_apart_from_what_verifying_takes() {
        let mut model = CostModel::default();
        let law = |drafts: usize, proposed: usize| 0.010 + 0.001 * drafts as f64 + 0.0005 * proposed as f64;
        for step in 0..200 {
            let (drafts, proposed) = [(0, 0), (0, 4), (4, 4), (2, 2), (0, 2)][step % 5];
            model.measure(1, drafts, proposed, law(drafts, proposed));
        }
        let curve = model.curve(1).expect("measured");
        let adds = model.drafting(1);
        for (drafts, proposed) in [(0, 0), (2, 4), (4, 4), (4, 0), (3, 3)] {
            let (found, wanted) = (curve.at(drafts) + adds.at(proposed), law(drafts, proposed));
            assert!((found / wanted - 1.0).abs() < 0.02, "{drafts} {proposed}: {found}, {wanted}");
        }
    }

    #[test]
    fn between_measured_lengths_the_time_grows_with_the_distinct_experts() {
        let experts = Experts { num: 128, per_token: 8, layers: 48 };
        let mut model = CostModel::new(Some(experts));
        let law = |tokens: f64| 0.001 * (2.0 + 0.1 * experts.distinct(tokens));
        for _ in 0..4 {
            for drafts in [0, 32] {
                model.measure(1, drafts, 0, law(1.0 + drafts as f64));
            }
        }
        let curve = model.curve(1).expect("measured");
        for drafts in [1, 4, 8, 16] {
            let (found, wanted) = (curve.at(drafts), law(1.0 + drafts as f64));
            assert!((found / wanted - 1.0).abs() < 0.06, "{drafts}: {found}, {wanted}");
        }
    }

    #[test]
    fn times_survive_a_restart_and_nonsense_does_not() {
        let mut model = CostModel::default();
        for (drafts, proposed, seconds) in [(0, 0, 0.010), (0, 3, 0.012), (3, 3, 0.013), (6, 0, 0.014)] {
            model.measure(4, drafts, proposed, seconds);
        }
        let text = serde_json::to_string(&model.costs()).expect("numbers");
        let mut costs: Costs = serde_json::from_str(&text).expect("what was written");
        costs.steps.extend([(4.0, 1.0, -1.0), (f64::NAN, 1.0, 1.0), (4.0, 2.0, f64::INFINITY)]);
        let mut again = CostModel::default();
        again.restore(&costs);
        let (one, two) = (model.curve(4).expect("measured"), again.curve(4).expect("restored"));
        assert!((0..8).all(|drafts| (one.at(drafts) - two.at(drafts)).abs() < 1e-3));
        assert!((again.drafting(4).at(3) - 0.002).abs() < 1e-9);
        assert!(again.weight(4, 0, 0) >= 2.0, "it is used without being measured again");
    }
}
