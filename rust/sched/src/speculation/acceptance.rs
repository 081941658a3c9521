//! The chance that a draft is right, given the match that it follows, its place, and how its request fared so far.
//!
//! Counts decay, so that the estimates follow the traffic; where the latest outcomes can hardly be of the same rate as those
//! before, these count for no more than the latest. Labels come from every proposal, verified or not, wherever what
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
/// Trials that are the latest ones.
const LATEST: f64 = 24.0;
/// Standard deviations by which the latest trials must differ from those before to show that something has changed.
const CHANGED: f64 = 4.5;
/// The same for one request.
const OWN_WINDOW: f64 = 64.0;
/// Trials that the more general estimate weighs.
const PRIOR: f64 = 4.0;
/// Acceptance that nothing is known about, shortest matches first, a model last.
const UNKNOWN: [f64; KINDS] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.7];
/// No draft is ever certain.
const MOST: f64 = 0.995;
/// Nats by which what drafters say must have foretold outcomes better than places did.
const PROVEN: f64 = 2.0;
/// The most that one outcome proves.
const PROOF: f64 = 2.0;
/// What is left of a proof after another outcome.
const PROOF_LASTS: f64 = 0.995;
/// Weight of the latest draft in what is said of the drafts of a place.
const SAID_NEWEST: f64 = 0.02;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    accepted: f64,
    trials: f64,
    /// Of these, the latest: accepted and all.
    latest: (f64, f64),
}

impl Counts {
    fn add(&mut self, accepted: bool, window: f64) {
        if self.trials >= window {
            self.accepted /= 2.0;
            self.trials /= 2.0;
            self.latest = (0.0, 0.0);
        }
        let accepted = f64::from(u8::from(accepted));
        self.trials += 1.0;
        self.accepted += accepted;
        self.latest = (self.latest.0 + accepted, self.latest.1 + 1.0);
        self.notice_change();
    }

    fn notice_change(&mut self) {
        let (accepted, trials) = self.latest;
        let before = (self.trials - trials).max(0.0);
        let rate = (self.accepted - accepted).clamp(0.0, before) / before.max(1.0);
        // Half a trial, since a rate of nearly 0 or 1 is not known that well.
        let spread = (trials * rate * (1.0 - rate) + 0.5).sqrt();
        if before > trials && (accepted - trials * rate).abs() > CHANGED * spread {
            (self.accepted, self.trials) = (accepted + rate * trials, 2.0 * trials);
            self.latest = (0.0, 0.0);
        } else if trials >= LATEST {
            self.latest = (0.0, 0.0);
        }
    }

    /// Keeps a share of what was seen, so that what comes counts for more.
    fn fade(&mut self, most: f64) {
        if self.trials > most {
            self.latest = (0.0, 0.0);
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
    /// Nats by which that foretold the latest outcomes better than their places.
    proof: f64,
    /// What was said of the latest drafts of each place, as it is read: mean chance, and weight up to 1.
    said: [(f64, f64); POSITIONS],
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
        let (said, weight) = self.said[position.min(POSITIONS - 1)];
        match judged.confidences.get(position) {
            Some(confidence) if self.proof > PROVEN => self.trust.chance(f64::from(*confidence), position),
            None if self.proof > PROVEN && judged.evidence == Evidence::Model && weight > 0.0 => {
                said / weight
            }
            _ => self.chance(judged.evidence, judged.warmth, position),
        }
    }

    /// Notes what a drafter says of a proposal, whether or not it will be verified.
    pub fn hear(&mut self, confidences: &[f32]) {
        for (at, confidence) in confidences.iter().enumerate() {
            let chance = self.trust.chance(f64::from(*confidence), at);
            let (said, weight) = &mut self.said[at.min(POSITIONS - 1)];
            *said += SAID_NEWEST * (chance - *said);
            *weight += SAID_NEWEST * (1.0 - *weight);
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
        if let Some(confidence) = judged.confidences.get(position).copied().map(f64::from) {
            let by_place = self.chance(judged.evidence, judged.warmth, position);
            let nats = |chance: f64| (if accepted { chance } else { 1.0 - chance }).clamp(1e-3, 1.0).ln();
            let better = nats(self.trust.chance(confidence, position)) - nats(by_place);
            // What was proven once must not take forever to be disproved, nor the other way round.
            self.proof = PROOF_LASTS * self.proof + better.clamp(-PROOF, PROOF);
            self.proof = self.proof.clamp(-4.0 * PROVEN, 4.0 * PROVEN);
            self.trust.label(confidence, position, accepted);
        }
        let (kind, alike) = (kind(judged.evidence), &mut self.alike[judged.warmth as usize]);
        self.kinds[kind].add(accepted, WINDOW);
        alike.kinds[kind].add(accepted, WINDOW);
        alike.places[kind][position.min(POSITIONS - 1)].add(accepted, WINDOW);
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

    #[test]
    fn a_sudden_change_is_followed_within_few_outcomes_and_chance_is_none() {
        let mut all = Acceptance::default();
        let judged = Judged { evidence: Evidence::Model, confidences: &[], warmth: Warmth::Greedy };
        let label = |all: &mut Acceptance, right: bool| {
            all.label(&mut OwnAcceptance::default(), judged, 1, right);
            all.chance(Evidence::Model, Warmth::Greedy, 1)
        };
        for _ in 0..200 {
            label(&mut all, true);
        }
        let fallen: Vec<f64> = (0..16).map(|_| label(&mut all, false)).collect();
        assert!(fallen[15] < 0.35, "{fallen:.2?}");
        let risen: Vec<f64> = (0..24).map(|_| label(&mut all, true)).collect();
        assert!(risen[23] > 0.65, "{risen:.2?}");

        // Outcomes of one rate: the estimate stays what many of them say.
        let mut draw = 1u64;
        let mut seen = Vec::new();
        for trial in 0..20_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = label(&mut all, (draw >> 11) as f64 / (1u64 << 53) as f64 <= 0.6);
            if trial > 500 {
                seen.push((chance - 0.6).abs());
            }
        }
        let far = seen.iter().filter(|off| **off > 0.15).count();
        assert!(far < seen.len() / 100, "{far} of {}", seen.len());
    }

    #[test]
    fn a_drafter_that_says_nonsense_is_judged_as_one_that_says_nothing_and_one_that_knows_is_believed() {
        let survival = |says: fn(bool) -> f32| {
            let mut all = Acceptance::default();
            for trial in 0..600 {
                let right = trial % 5 < 3;
                let confidences = [says(right)];
                all.hear(&confidences);
                let judged =
                    Judged { evidence: Evidence::Model, confidences: &confidences, warmth: Warmth::Greedy };
                all.label(&mut OwnAcceptance::default(), judged, 0, right);
            }
            [0.1, 0.9].map(|said: f32| {
                let confidences = [said];
                let judged =
                    Judged { evidence: Evidence::Model, confidences: &confidences, warmth: Warmth::Greedy };
                let mut survival = Vec::new();
                all.survival(&OwnAcceptance::default(), judged, 1, &mut survival);
                survival[0]
            })
        };
        for nonsense in [survival(|_| 0.01), survival(|right| if right { 0.3 } else { 0.4 })] {
            assert!(nonsense.iter().all(|chance| (chance - 0.6).abs() < 0.05), "{nonsense:?}");
        }
        let [low, high] = survival(|right| if right { 0.9 } else { 0.1 });
        assert!(low < 0.15 && high > 0.85, "{low:.2} {high:.2}");
    }
}
