//! Decides about drafts by measured time, so that they never make the server slower than a stated bound.
//!
//! Two things decide. The *model* (cost curve and survivals) says which lengths gain most. The *account* says whether
//! drafts may be tried at all: it earns half a percent of a plain step per step, pays what a step with drafts really
//! lost against the estimate of the same tokens without them, and is paid what it gained, up to a cap. When it is empty
//! there are no drafts until it has earned enough. So whatever the model gets wrong, the time lost is at most half a
//! percent plus the cap, as far as the estimate of plain steps is right; probes keep that one fresh.

use frizzen_core::SpeculationReason as Reason;

use super::choose::{Offer, choose_lengths};
use super::cost::{CostModel, Curve};

/// What the account earns per step, in plain steps.
const EARNED: f64 = 0.005;
/// The most that it holds: past gains do not pay for later losses.
const CAP: f64 = 8.0;
/// What it begins with, for the first look at what drafts cost.
const INITIAL: f64 = 6.0;
/// An empty account must earn this much before drafts are tried again.
const RESUME: f64 = 2.0;
/// Steps with drafts after which two are run without.
const PROBE_EVERY: u64 = 100;
/// Steps after which the cost of a length counts as unknown, if the account can pay for a look.
const STALE: u64 = 1000;
/// Expected gain above which drafts are switched on, and below which they are switched off again.
const ON_ABOVE: f64 = 0.03;
const OFF_BELOW: f64 = 0.005;
/// Least expected gain of a single step while drafts are on.
const STEP_GAIN: f64 = 0.01;
/// Weight of the latest step in the expected gain.
const FRESH: f64 = 0.1;
/// A step this far from its predicted time, several times in a row, says that the machine has changed.
const SURPRISE: f64 = 0.25;
const SURPRISES: i32 = 3;
/// Steps that must lie between a surprise and the last step without drafts.
const SURPRISE_AFTER: u64 = 20;
/// Lengths whose cost is looked at first.
const LOOKS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Drafts were switched on or off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModeChange {
    /// On or off.
    pub on: bool,
    /// Why.
    pub reason: Reason,
    /// Rows of the step that decided it.
    pub rows: usize,
    /// Expected gain, 0.1 is a tenth more tokens per second.
    pub gain: f64,
}

/// Drafts that somebody fixed, which a step carries in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fixed {
    /// Their number.
    pub drafts: usize,
    /// How many of them are expected to be right.
    pub tokens: f64,
}

/// A step without prefill, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredStep {
    /// Rows, each of which sampled.
    pub rows: usize,
    /// Drafts over all rows.
    pub drafts: usize,
    /// Tokens that came out.
    pub tokens: usize,
    /// From the end of the step before it to its own.
    pub seconds: f64,
    /// All drafts were the guard's choice.
    pub governed: bool,
}

/// The policy and what it knows.
#[derive(Clone, Debug)]
pub struct Guard {
    cost: CostModel,
    on: bool,
    reason: Reason,
    suspended: bool,
    gain: f64,
    account: f64,
    /// Steps without drafts that are still to be run for the sake of knowing their time.
    probes: u32,
    surprises: i32,
    looking: bool,
    changes: Vec<ModeChange>,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            cost: CostModel::default(),
            on: false,
            reason: Reason::WarmUp,
            suspended: false,
            gain: 0.0,
            account: INITIAL,
            probes: 0,
            surprises: 0,
            looking: false,
            changes: Vec::new(),
        }
    }
}

impl Guard {
    /// Chooses how many of each offer's drafts the next step of `rows` rows verifies.
    ///
    /// The reason is that of the rows with drafts, or of there being none.
    pub fn choose(&mut self, rows: usize, fixed: Fixed, offers: &[Offer], lengths: &mut Vec<u32>) -> Reason {
        lengths.clear();
        lengths.resize(offers.len(), 0);
        self.looking = false;
        if offers.iter().all(|offer| offer.survival.is_empty()) {
            return Reason::NoMatch;
        }
        let curve = self.cost.curve(rows).filter(|_| self.cost.weight(rows, 0) >= 2.0);
        let Some(curve) = curve else { return Reason::WarmUp };
        if self.suspended {
            return Reason::MeasuredLoss;
        }
        if self.must_probe(rows) {
            return Reason::ProbeOff;
        }
        if let Some(length) = self.next_look(rows, fixed, offers, &curve) {
            self.looking = true;
            for (chosen, offer) in lengths.iter_mut().zip(offers) {
                *chosen = offer.survival.len().min(length) as u32;
            }
            return Reason::ProbeOn;
        }
        let base = rows as f64 + fixed.tokens;
        let choice = choose_lengths(offers, base, |drafts| curve.at(fixed.drafts + drafts), lengths);
        let gain = choice.rate * curve.at(fixed.drafts) / base - 1.0;
        self.expect(gain, rows);
        if self.on && gain >= STEP_GAIN {
            return Reason::Gain;
        }
        lengths.fill(0);
        Reason::BelowBreakEven
    }

    /// Updates the expected gain and switches.
    fn expect(&mut self, gain: f64, rows: usize) {
        self.gain += FRESH * (gain - self.gain);
        if !self.on && self.gain > ON_ABOVE {
            self.switch(true, Reason::Gain, rows);
        } else if self.on && self.gain < OFF_BELOW {
            self.switch(false, Reason::BelowBreakEven, rows);
        } else if !self.on {
            self.reason = Reason::BelowBreakEven;
        }
    }

    fn switch(&mut self, on: bool, reason: Reason, rows: usize) {
        self.reason = reason;
        if std::mem::replace(&mut self.on, on) != on {
            self.changes.push(ModeChange { on, reason, rows, gain: self.gain });
        }
    }

    /// Whether this step is run without drafts to keep the estimate of plain steps fresh.
    fn must_probe(&mut self, rows: usize) -> bool {
        let age = self.cost.age(rows, 0).unwrap_or(u64::MAX);
        if self.probes == 0
            && (age > PROBE_EVERY || (self.surprises.abs() >= SURPRISES && age > SURPRISE_AFTER))
        {
            self.surprises = 0;
            self.probes = 2;
        }
        let probe = self.probes > 0;
        self.probes = self.probes.saturating_sub(1);
        probe
    }

    /// A length whose cost is not known and could pay off, if the account can pay for a look.
    fn next_look(&self, rows: usize, fixed: Fixed, offers: &[Offer], curve: &Curve) -> Option<usize> {
        let plain = curve.at(fixed.drafts);
        let base = rows as f64 + fixed.tokens;
        let mut known = plain;
        let mut before = 0;
        for length in LOOKS {
            let cut = |offer: &Offer| offer.survival.len().min(length);
            let drafts: usize = offers.iter().map(cut).sum();
            if drafts == before {
                break;
            }
            before = drafts;
            let total = fixed.drafts + drafts;
            let looked_at = self.cost.weight(rows, total) >= 2.0;
            let fresh = self.cost.age(rows, total).is_some_and(|age| age < STALE);
            let expected: f64 = offers.iter().flat_map(|offer| &offer.survival[..cut(offer)]).sum();
            // More drafts cost no less than fewer did.
            let may_gain = (base + expected) / known > base / plain * (1.0 + ON_ABOVE);
            let loss = curve.at(total) / plain - (base + expected) / base;
            let payable = if looked_at { loss.max(CAP / 2.0) } else { loss.max(0.0) };
            if (!looked_at || (!fresh && loss > 0.0)) && may_gain && payable < self.account {
                return Some(length);
            }
            if looked_at && fresh {
                known = curve.at(total);
            }
        }
        None
    }

    /// Takes a step's time over. Returns the estimate of the same step without drafts, in seconds, if there is one.
    pub fn measure(&mut self, step: &MeasuredStep) -> Option<f64> {
        let MeasuredStep { rows, drafts, tokens, seconds, governed } = *step;
        let curve = self.cost.curve(rows);
        self.cost.measure(rows, drafts, seconds);
        self.account = (self.account + EARNED).min(CAP);
        if self.suspended && self.account >= RESUME {
            self.suspended = false;
        }
        let curve = curve?;
        let plain = curve.at(0);
        if drafts > 0 {
            self.note_surprise(seconds / curve.at(drafts) - 1.0, rows);
            if governed && plain > 0.0 {
                let gained = tokens as f64 / rows as f64 - seconds / plain;
                self.account = (self.account + gained).min(CAP);
                if self.account < 0.0 {
                    self.suspended = true;
                    self.gain = 0.0;
                    self.cost.distrust_drafts(rows);
                    self.switch(false, Reason::MeasuredLoss, rows);
                }
            }
        }
        Some(plain)
    }

    fn note_surprise(&mut self, off: f64, rows: usize) {
        self.surprises = match off {
            off if off > SURPRISE => self.surprises.max(0) + 1,
            off if off < -SURPRISE => self.surprises.min(0) - 1,
            _ => 0,
        };
        if self.surprises.abs() == SURPRISES {
            self.cost.distrust_drafts(rows);
        }
    }

    /// Whether drafts are out of the question until the account has earned enough.
    pub const fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// No drafts from now on: their drafter failed.
    pub fn disable(&mut self, rows: usize) {
        self.suspended = true;
        self.switch(false, Reason::DrafterFailed, rows);
    }

    /// Whether drafts are on.
    pub const fn is_on(&self) -> bool {
        self.on
    }

    /// Whether the next step may carry drafts of the guard's choice.
    pub const fn is_engaged(&self) -> bool {
        self.on || self.looking
    }

    /// Why drafts are on or off.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Expected gain, smoothed over steps: 0.1 is a tenth more tokens per second.
    pub const fn expected_gain(&self) -> f64 {
        self.gain
    }

    /// What may be lost, in steps without drafts.
    pub const fn account(&self) -> f64 {
        self.account
    }

    /// The fitted times.
    pub const fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// Switches since the last call.
    pub fn take_changes(&mut self) -> Vec<ModeChange> {
        std::mem::take(&mut self.changes)
    }
}
