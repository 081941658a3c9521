//! The chance that a draft is right, given the match that it follows, its place, and how its request fared so far.
//!
//! Counts decay, so that the estimates follow the traffic. Labels come from every proposal, verified or not, wherever what
//! the text became tells for free: a proposal does not depend on whether it is verified. What a drafter says of its drafts
//! itself is read as [`Trust`] has learnt to read it.
//!
//! Estimates go from the general to the special: of a kind of evidence, then among requests that are sampled as randomly
//! ([`Warmth`]), then by the draft's place, then as the request fared. Each starts from the one before it, so a new request
//! begins with what others have shown.

use frizzen_core::SamplingParams;

use super::trust::Trust;
use crate::draft::Evidence;

/// Kinds of evidence that are told apart: matches of 1, 2, 3, 4 to 5, 6 to 8, 9 to 15, 16 and more, and a model.
const KINDS: usize = 8;
/// Draft positions that are told apart; later ones count as the last.
const POSITIONS: usize = 16;
/// Trials after which counts are halved.
const WINDOW: f64 = 256.0;
/// The same for one request.
const OWN_WINDOW: f64 = 64.0;
/// Trials that the more general estimate weighs.
const PRIOR: f64 = 4.0;
/// Acceptance that nothing is known about, shortest matches first, a model last.
const UNKNOWN: [f64; KINDS] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.7];
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

    /// Keeps a share of what was seen, so that what comes counts for more.
    fn fade(&mut self, most: f64) {
        if self.trials > most {
            self.accepted *= most / self.trials;
            self.trials = most;
        }
    }

    fn rate(self, prior: f64) -> f64 {
        (self.accepted + PRIOR * prior) / (self.trials + PRIOR)
    }
}

const fn kind(evidence: Evidence) -> usize {
    match evidence {
        Evidence::Match(0 | 1) => 0,
        Evidence::Match(2) => 1,
        Evidence::Match(3) => 2,
        Evidence::Match(4 | 5) => 3,
        Evidence::Match(6..=8) => 4,
        Evidence::Match(9..=15) => 5,
        Evidence::Match(_) => 6,
        Evidence::Model => 7,
    }
}

/// How randomly a request is sampled: drafts that are the likeliest tokens are right less often the more random it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Warmth {
    /// Greedily.
    #[default]
    Greedy,
    /// At a temperature up to 0.7.
    Low,
    /// Above.
    High,
}

const WARMTHS: usize = 3;

impl Warmth {
    /// Of a request with these parameters.
    pub fn of(params: &SamplingParams) -> Self {
        if params.is_greedy() {
            Self::Greedy
        } else if params.temperature <= 0.7 {
            Self::Low
        } else {
            Self::High
        }
    }
}

/// Acceptance of requests that are sampled alike.
#[derive(Clone, Debug, Default)]
struct Alike {
    kinds: [Counts; KINDS],
    places: [[Counts; POSITIONS]; KINDS],
}

/// Acceptance of all requests together.
#[derive(Clone, Debug, Default)]
pub struct Acceptance {
    kinds: [Counts; KINDS],
    alike: [Alike; WARMTHS],
    /// How what drafters say of their drafts is to be read.
    trust: Trust,
}

/// How one request compares with all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnAcceptance {
    counts: Counts,
    /// What the common estimate expected of the same trials.
    expected: f64,
}

/// A proposal whose drafts are to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// What speaks for it.
    pub evidence: Evidence,
    /// The drafter's own estimate of each draft; empty if it makes none.
    pub confidences: &'a [f32],
    /// How its request is sampled.
    pub warmth: Warmth,
}

impl OwnAcceptance {
    /// What was seen counts for little from now on.
    pub fn forget(&mut self) {
        let before = self.counts.trials;
        self.counts.fade(PRIOR);
        if before > 0.0 {
            self.expected *= self.counts.trials / before;
        }
    }

    fn add(&mut self, accepted: bool, expected: f64) {
        if self.counts.trials >= OWN_WINDOW {
            self.expected /= 2.0;
        }
        self.counts.add(accepted, OWN_WINDOW);
        self.expected += expected;
    }

    fn ratio(&self) -> f64 {
        (self.counts.accepted + PRIOR) / (self.expected + PRIOR)
    }
}

impl Acceptance {
    /// What was seen counts for little from now on: it is long ago.
    pub fn forget(&mut self) {
        let alike = self
            .alike
            .iter_mut()
            .flat_map(|alike| alike.kinds.iter_mut().chain(alike.places.iter_mut().flatten()));
        self.kinds.iter_mut().chain(alike).for_each(|counts| counts.fade(4.0 * PRIOR));
    }

    /// The chance of draft `position` (from 0) of such a proposal, given that all drafts before it are right.
    pub fn chance(&self, evidence: Evidence, warmth: Warmth, position: usize) -> f64 {
        let (kind, alike) = (kind(evidence), &self.alike[warmth as usize]);
        let general = alike.kinds[kind].rate(self.kinds[kind].rate(UNKNOWN[kind]));
        alike.places[kind][position.min(POSITIONS - 1)].rate(general)
    }

    fn expected(&self, judged: Judged<'_>, position: usize) -> f64 {
        match judged.confidences.get(position) {
            Some(confidence) => self.trust.chance(f64::from(*confidence), position),
            None => self.chance(judged.evidence, judged.warmth, position),
        }
    }

    /// Survival of each of `count` drafts of one request.
    pub fn survival(&self, own: &OwnAcceptance, judged: Judged<'_>, count: usize, survival: &mut Vec<f64>) {
        let ratio = own.ratio();
        let mut alive = 1.0;
        survival.clear();
        survival.extend((0..count).map(|position| {
            alive *= (self.expected(judged, position) * ratio).min(MOST);
            alive
        }));
    }

    /// Draft `position` was right or wrong, all before it being right.
    pub fn label(&mut self, own: &mut OwnAcceptance, judged: Judged<'_>, position: usize, accepted: bool) {
        let expected = self.expected(judged, position);
        let (kind, alike) = (kind(judged.evidence), &mut self.alike[judged.warmth as usize]);
        self.kinds[kind].add(accepted, WINDOW);
        alike.kinds[kind].add(accepted, WINDOW);
        alike.places[kind][position.min(POSITIONS - 1)].add(accepted, WINDOW);
        if let Some(confidence) = judged.confidences.get(position) {
            self.trust.label(f64::from(*confidence), position, accepted);
        }
        own.add(accepted, expected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn after(matched: u32) -> Judged<'static> {
        Judged { evidence: Evidence::Match(matched), confidences: &[], warmth: Warmth::Greedy }
    }

    #[test]
    fn estimates_follow_the_outcomes_and_forget() {
        let (mut all, mut own) = (Acceptance::default(), OwnAcceptance::default());
        for (right, expected) in [(9, 0.9), (2, 0.2), (7, 0.7)] {
            for trial in 0..2000 {
                all.label(&mut own, after(4), 1, trial * 7 % 10 < right);
            }
            let chance = all.chance(Evidence::Match(4), Warmth::Greedy, 1);
            assert!((chance - expected).abs() < 0.03, "{chance} for {expected}");
        }
    }

    #[test]
    fn a_request_that_fares_worse_than_others_is_expected_to() {
        let mut all = Acceptance::default();
        let (mut good, mut bad) = (OwnAcceptance::default(), OwnAcceptance::default());
        for _ in 0..100 {
            all.label(&mut good, after(3), 0, true);
            all.label(&mut bad, after(3), 0, false);
        }
        let first = |own: &OwnAcceptance| {
            let mut survival = Vec::new();
            all.survival(own, after(3), 3, &mut survival);
            assert!(survival.is_sorted_by(|a, b| a >= b));
            survival[0]
        };
        assert!(first(&good) > 0.8 && first(&bad) < 0.1, "{} and {}", first(&good), first(&bad));
    }

    #[test]
    fn a_request_begins_with_what_others_that_are_sampled_alike_have_shown() {
        let mut all = Acceptance::default();
        let as_sampled = |warmth| Judged { warmth, ..after(4) };
        for trial in 0..200 {
            all.label(&mut OwnAcceptance::default(), as_sampled(Warmth::Greedy), 0, trial % 10 != 0);
            all.label(&mut OwnAcceptance::default(), as_sampled(Warmth::High), 0, trial % 10 < 3);
        }
        let first = |warmth| {
            let mut survival = Vec::new();
            all.survival(&OwnAcceptance::default(), as_sampled(warmth), 1, &mut survival);
            survival[0]
        };
        assert!((first(Warmth::Greedy) - 0.9).abs() < 0.03, "{}", first(Warmth::Greedy));
        assert!((first(Warmth::High) - 0.3).abs() < 0.03, "{}", first(Warmth::High));
        let between = first(Warmth::Low);
        assert!((0.5..0.7).contains(&between), "nobody was sampled like that: {between}");
    }
}
