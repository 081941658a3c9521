//! The chance that a draft is right, given the match that it follows, its place, and how its request fared so far.
//!
//! Counts decay, so that the estimates follow the traffic. Labels come from every proposal, verified or not: what the
//! text became tells for free, as a match drafter's proposal does not depend on whether it is verified.

/// Match lengths that are told apart: 1, 2, 3, 4 to 5, 6 to 8, 9 to 15, 16 and more.
const MATCHES: usize = 7;
/// Draft positions that are told apart; later ones count as the last.
const POSITIONS: usize = 16;
/// Trials after which counts are halved.
const WINDOW: f64 = 256.0;
/// The same for one request.
const OWN_WINDOW: f64 = 64.0;
/// Trials that the more general estimate weighs.
const PRIOR: f64 = 4.0;
/// Acceptance that nothing is known about, shortest matches first.
const UNKNOWN: [f64; MATCHES] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
/// No draft is ever certain.
const MOST: f64 = 0.995;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    accepted: f64,
    trials: f64,
}

impl Counts {
    fn add(&mut self, accepted: bool, window: f64) {
        if self.trials >= window {
            self.accepted /= 2.0;
            self.trials /= 2.0;
        }
        self.trials += 1.0;
        self.accepted += f64::from(u8::from(accepted));
    }

    fn rate(self, prior: f64) -> f64 {
        (self.accepted + PRIOR * prior) / (self.trials + PRIOR)
    }
}

fn bucket(matched: u32) -> usize {
    match matched {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4 | 5 => 3,
        6..=8 => 4,
        9..=15 => 5,
        _ => 6,
    }
}

/// Acceptance of all requests together.
#[derive(Clone, Debug, Default)]
pub struct Acceptance {
    matches: [Counts; MATCHES],
    places: [[Counts; POSITIONS]; MATCHES],
}

/// How one request compares with all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnAcceptance {
    counts: Counts,
    /// What the common estimate expected of the same trials.
    expected: f64,
}

impl OwnAcceptance {
    fn ratio(&self) -> f64 {
        (self.counts.accepted + PRIOR) / (self.expected + PRIOR)
    }
}

impl Acceptance {
    /// The chance of draft `position` (from 0) after a match of this length, given that all drafts before it are right.
    pub fn chance(&self, matched: u32, position: usize) -> f64 {
        let bucket = bucket(matched);
        let general = self.matches[bucket].rate(UNKNOWN[bucket]);
        self.places[bucket][position.min(POSITIONS - 1)].rate(general)
    }

    /// Survival of each of `count` drafts of one request.
    pub fn survival(&self, own: &OwnAcceptance, matched: u32, count: usize, survival: &mut Vec<f64>) {
        let ratio = own.ratio();
        let mut alive = 1.0;
        survival.clear();
        survival.extend((0..count).map(|position| {
            alive *= (self.chance(matched, position) * ratio).min(MOST);
            alive
        }));
    }

    /// Draft `position` was right or wrong, all before it being right.
    pub fn label(&mut self, own: &mut OwnAcceptance, matched: u32, position: usize, accepted: bool) {
        let expected = self.chance(matched, position);
        let bucket = bucket(matched);
        self.matches[bucket].add(accepted, WINDOW);
        self.places[bucket][position.min(POSITIONS - 1)].add(accepted, WINDOW);
        if own.counts.trials >= OWN_WINDOW {
            own.expected /= 2.0;
        }
        own.counts.add(accepted, OWN_WINDOW);
        own.expected += expected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_the_outcomes_and_forget() {
        let (mut all, mut own) = (Acceptance::default(), OwnAcceptance::default());
        for (right, expected) in [(9, 0.9), (2, 0.2), (7, 0.7)] {
            for trial in 0..2000 {
                all.label(&mut own, 4, 1, trial * 7 % 10 < right);
            }
            let chance = all.chance(4, 1);
            assert!((chance - expected).abs() < 0.03, "{chance} for {expected}");
        }
    }

    #[test]
    fn a_request_that_fares_worse_than_others_is_expected_to() {
        let mut all = Acceptance::default();
        let (mut good, mut bad) = (OwnAcceptance::default(), OwnAcceptance::default());
        for _ in 0..100 {
            all.label(&mut good, 3, 0, true);
            all.label(&mut bad, 3, 0, false);
        }
        let first = |own: &OwnAcceptance| {
            let mut survival = Vec::new();
            all.survival(own, 3, 3, &mut survival);
            assert!(survival.is_sorted_by(|a, b| a >= b));
            survival[0]
        };
        assert!(first(&good) > 0.8 && first(&bad) < 0.1, "{} and {}", first(&good), first(&bad));
    }
}
