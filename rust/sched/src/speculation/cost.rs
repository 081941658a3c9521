//! The time of a decode step over its rows and drafts, learnt from the steps themselves.
//!
//! One cell per (rows, drafts), both on a geometric scale, holds a decaying mean. A read joins the cells of the nearest
//! known number of rows into a curve that never falls with the drafts: violations are noise, and pooled.

use std::collections::BTreeMap;

/// Steps that a cell remembers.
const MEMORY: f64 = 20.0;
/// A measurement beyond this factor of the mean counts as this factor: a hiccup must not pass for a change, and a
/// change comes back.
const OUTLIER: f64 = 3.0;

/// Time of steps with about the same rows and drafts.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    seconds: f64,
    drafts: f64,
    weight: f64,
    /// Number of the step that was measured last.
    last: u64,
}

/// Exact up to 4, then four buckets per doubling.
fn bucket(count: usize) -> u32 {
    if count <= 4 { count as u32 } else { 4 + (4.0 * (count as f64 / 4.0).log2()) as u32 }
}

/// The fitted times.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    cells: BTreeMap<(u32, u32), Cell>,
    step: u64,
}

/// Time over the drafts of a step, at one number of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Drafts and seconds, both rising; the first entry is without drafts.
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Seconds of a step with this many drafts: between points a straight line, beyond the last one the mean slope.
    pub fn at(&self, drafts: usize) -> f64 {
        let drafts = drafts as f64;
        let Some((last_drafts, last)) = self.points.last().copied() else { return 0.0 };
        let (first_drafts, first) = self.points[0];
        if drafts > last_drafts {
            let span = last_drafts - first_drafts;
            return if span > 0.0 { last + (last - first) / span * (drafts - last_drafts) } else { last };
        }
        let after = self.points.partition_point(|(at, _)| *at < drafts);
        let (x1, y1) = self.points[after];
        let Some((x0, y0)) = after.checked_sub(1).map(|before| self.points[before]) else { return y1 };
        y0 + (y1 - y0) * (drafts - x0) / (x1 - x0)
    }
}

impl CostModel {
    /// Takes the time of a step without prefill over.
    pub fn measure(&mut self, rows: usize, drafts: usize, seconds: f64) {
        self.step += 1;
        let cell = self.cells.entry((bucket(rows), bucket(drafts))).or_default();
        let seconds = if cell.weight >= 3.0 {
            seconds.clamp(cell.seconds / OUTLIER, cell.seconds * OUTLIER)
        } else {
            seconds
        };
        // What was not seen for long counts for little.
        let age = (self.step - cell.last) as f64 / 10.0;
        cell.weight = (cell.weight.min((MEMORY - age).max(2.0)) + 1.0).min(MEMORY);
        cell.seconds += (seconds - cell.seconds) / cell.weight;
        cell.drafts += (drafts as f64 - cell.drafts) / cell.weight;
        cell.last = self.step;
    }

    /// Lets the next measurements of steps with drafts, at this number of rows, outweigh what was measured so far.
    pub fn distrust_drafts(&mut self, rows: usize) {
        let rows = bucket(rows);
        for (_, cell) in self.cells.range_mut((rows, 1)..=(rows, u32::MAX)) {
            cell.weight = cell.weight.min(1.0);
        }
    }

    /// Steps since one with these rows and drafts was measured; `None` if there was none.
    pub fn age(&self, rows: usize, drafts: usize) -> Option<u64> {
        self.cells.get(&(bucket(rows), bucket(drafts))).map(|cell| self.step - cell.last)
    }

    /// How often a step with these rows and drafts was measured, up to 20 times.
    pub fn weight(&self, rows: usize, drafts: usize) -> f64 {
        self.cells.get(&(bucket(rows), bucket(drafts))).map_or(0.0, |cell| cell.weight)
    }

    /// The curve at this number of rows; `None` before any step without drafts was measured.
    ///
    /// Numbers of rows that were not seen take the curve of the nearest one, moved to the time without drafts that lies
    /// between the known ones.
    pub fn curve(&self, rows: usize) -> Option<Curve> {
        let wanted = bucket(rows);
        let plain = || self.cells.iter().filter(|((_, drafts), _)| *drafts == 0);
        let ((nearest, _), base) = plain().min_by_key(|((rows, _), _)| rows.abs_diff(wanted))?;
        let shift = if *nearest == wanted { 0.0 } else { self.plain_time(wanted) - base.seconds };
        let cells = self.cells.range((*nearest, 0)..=(*nearest, u32::MAX));
        let points = cells.map(|(_, cell)| (cell.drafts, cell.seconds + shift, cell.weight));
        Some(Curve { points: pooled(points) })
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
            model.measure(1 + random(33, 40), random(40, 20), 0.001 * (1 + random(50, 1000)) as f64);
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
                model.measure(rows, drafts, law(rows, drafts));
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
            model.measure(rows, drafts, seconds);
        }
        let curve = model.curve(8).expect("two were measured");
        assert!((0.010..0.020).contains(&curve.at(0)), "{}", curve.at(0));
    }

    #[test]
    fn one_hiccup_does_not_pass_for_a_change() {
        let mut model = CostModel::default();
        for _ in 0..30 {
            model.measure(1, 0, 0.010);
        }
        model.measure(1, 0, 5.0);
        assert!(model.curve(1).expect("measured").at(0) < 0.012);
    }
}
