//! What a drafter says of its drafts, read as a chance: `sigmoid(slope * logit(said) + shift of the draft's place)`.
//!
//! The online logistic estimator of `specs/serving.md` 1.7: accepted drafts are labelled 1, the first rejected one 0, later
//! ones not at all; after enough labels one damped Newton step, whose matrix is an arrow (one slope for all, a shift for each
//! place). It starts by taking the drafter at its word. What a drafter says must depend on its distribution and not on the
//! token that it drew; otherwise trimming by it would bias the text.
//!
//! Against the estimate by place alone, in nats per draft on simulated drafters with chances spread evenly from 0 to 1: 0.50
//! against 0.69 for one that knows its chances, and the same for one that boasts (twice the logit and 1.5 more); for one that
//! knows nothing 0.654 against 0.647, which is what unlearning its word costs. Drafters that say nothing are judged by place.

/// Places that are told apart; later ones count as the last.
const PLACES: usize = 16;
/// Labels after which a step is made.
const EVERY: u32 = 100;
/// A step is damped by `labels / (labels + DAMPING)`.
const DAMPING: f64 = 50.0;
const RIDGE: f64 = 1.0;
/// The most that a step may change the slope and a shift: where the reading is all but certain there is next to no
/// curvature, and a step could be any distance.
const MOST_SLOPED: f64 = 0.5;
const MOST_SHIFTED: f64 = 2.0;
/// Bound of what is said, as a logit.
const MOST: f64 = 40.0;

/// The reading, and the labels since it was last corrected.
#[derive(Clone, Debug)]
pub struct Trust {
    slope: f64,
    shifts: [f64; PLACES],
    labels: u32,
    /// Gradient and curvature by the slope.
    by_slope: (f64, f64),
    /// By the shift of each place: gradient, curvature, and curvature with the slope.
    by_shift: [(f64, f64, f64); PLACES],
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            slope: 1.0,
            shifts: [0.0; PLACES],
            labels: 0,
            by_slope: (0.0, 0.0),
            by_shift: [(0.0, 0.0, 0.0); PLACES],
        }
    }
}

fn logit(said: f64) -> f64 {
    if said.is_nan() {
        return 0.0;
    }
    let said = said.clamp(0.0, 1.0);
    (said / (1.0 - said)).ln().clamp(-MOST, MOST)
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

impl Trust {
    /// The chance of the draft at `place` (from 0) of which the drafter says that it is `said`, from 0 to 1.
    pub fn chance(&self, said: f64, place: usize) -> f64 {
        sigmoid(self.slope * logit(said) + self.shifts[place.min(PLACES - 1)])
    }

    /// It was right or wrong, all before it being right.
    pub fn label(&mut self, said: f64, place: usize, accepted: bool) {
        let (place, feature) = (place.min(PLACES - 1), logit(said));
        let chance = self.chance(said, place);
        let (error, weight) = (f64::from(u8::from(accepted)) - chance, chance * (1.0 - chance));
        self.by_slope.0 += error * feature;
        self.by_slope.1 += weight * feature * feature;
        let (gradient, curvature, mixed) = &mut self.by_shift[place];
        *gradient += error;
        *curvature += weight;
        *mixed += weight * feature;
        self.labels += 1;
        if self.labels >= EVERY {
            self.correct();
        }
    }

    fn correct(&mut self) {
        let damping = f64::from(self.labels) / (f64::from(self.labels) + DAMPING);
        let (mut right, mut left) = (self.by_slope.0, self.by_slope.1 + RIDGE);
        for (gradient, curvature, mixed) in self.by_shift {
            right -= mixed * gradient / (curvature + RIDGE);
            left -= mixed * mixed / (curvature + RIDGE);
        }
        let slope = (damping * right / left).clamp(-MOST_SLOPED, MOST_SLOPED);
        let shifts = self.by_shift.map(|(gradient, curvature, mixed)| {
            let shift = damping * gradient / (curvature + RIDGE) - slope * mixed / (curvature + RIDGE);
            shift.clamp(-MOST_SHIFTED, MOST_SHIFTED)
        });
        let is_sound = left > 0.0 && slope.is_finite() && shifts.iter().all(|shift| shift.is_finite());
        if is_sound {
            self.slope = (self.slope + slope).max(0.0);
            for (own, shift) in self.shifts.iter_mut().zip(shifts) {
                *own += shift;
            }
        }
        let Self { slope, shifts, .. } = *self;
        *self = Self { slope, shifts, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Evidence;
    use crate::speculation::acceptance::{Acceptance, Judged, OwnAcceptance, Warmth};

    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean loss in nats of the last half of 6000 proposals of four drafts, whose chances are drawn from `least` to 1 and of
    /// which the drafter says `says(chance, another draw)`: as it is read, and of the estimate by place that knows no saying.
    fn losses(least: f64, says: impl Fn(f64, f64) -> f64) -> (f64, f64) {
        let (mut trust, mut by_place) = (Trust::default(), Acceptance::default());
        let plain = Judged { evidence: Evidence::Model, confidences: &[], warmth: Warmth::Greedy };
        let (mut read, mut blind, mut count) = (0.0, 0.0, 0.0);
        let mut state = 7;
        for proposal in 0..6000 {
            for place in 0..4 {
                let chance = least + (1.0 - least) * random(&mut state);
                let said = says(chance, random(&mut state));
                let accepted = random(&mut state) < chance;
                let loss = |p: f64| -(if accepted { p } else { 1.0 - p }).max(1e-9).ln();
                if proposal >= 3000 {
                    read += loss(trust.chance(said, place));
                    blind += loss(by_place.chance(Evidence::Model, Warmth::Greedy, place));
                    count += 1.0;
                }
                trust.label(said, place, accepted);
                by_place.label(&mut OwnAcceptance::default(), plain, place, accepted);
                if !accepted {
                    break;
                }
            }
        }
        (read / count, blind / count)
    }

    #[test]
    fn a_drafter_that_knows_its_chances_is_read_better_than_places_tell() {
        let (read, blind) = losses(0.0, |chance, _| chance);

        assert!(read < 0.52 && blind > 0.65, "{read:.3} {blind:.3}");
        // One that boasts is corrected.
        let (read, blind) = losses(0.0, |chance, _| sigmoid(2.0 * logit(chance) + 1.5));

        assert!(read < 0.53 && blind > 0.65, "{read:.3} {blind:.3}");
    }

    #[test]
    fn a_drafter_that_knows_nothing_is_read_no_worse_than_places_tell() {
        let (read, blind) = losses(0.3, |_, another| another);

        assert!(read < blind + 0.01, "{read:.3} {blind:.3}");
    }

    #[test]
    fn what_cannot_be_a_chance_changes_nothing_that_could_not_be_said() {
        let mut trust = Trust::default();
        for trial in 0..500 {
            trust.label([f64::NAN, -1.0, 2.0, f64::INFINITY][trial % 4], trial % 20, trial % 3 == 0);
        }
        assert!(trust.slope >= 0.0);
        assert!([f64::NAN, 0.0, 0.5, 1.0].iter().all(|said| (0.0..=1.0).contains(&trust.chance(*said, 3))));
    }

    #[test]
    fn a_reading_that_is_all_but_certain_does_not_run_away() {
        let mut trust = Trust::default();
        for trial in 0..4000 {
            trust.label(1e-6, trial % 4, trial % 2 == 0);
        }
        let furthest = trust.shifts.iter().fold(0.0, |most: f64, shift| most.max(shift.abs()));
        assert!(trust.slope < 10.0 && furthest < 100.0, "{trust:?}");
    }
}
