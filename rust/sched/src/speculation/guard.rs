//! Decides about drafts by measured time, so that they never make the server slower than a stated bound.
//!
//! Two things decide. The *model* (cost curve and survivals) says which lengths gain most. The *account* says whether
//! drafts may be tried at all: it earns half a percent of a plain step per step, pays what a step with drafts really
//! lost against the estimate of the same tokens without them, and is paid what it gained, up to a cap. When it is empty
//! there are no drafts until it has earned enough. So whatever the model gets wrong, the time lost is at most half a
//! percent plus the cap, as far as the estimate of plain steps is right; probes keep that one fresh.
//!
//! Machines have hiccups: a step now and then takes ten times as long as others like it, whatever it does. Paid in full they
//! would keep drafts off for thousands of steps. So a lone one is paid for as half as long again, and none empties the account.
//!
//! Drafts follow what a step returns, so with them the next step cannot be planned while one runs, and what the host does
//! between two steps is time lost. Therefore steps without drafts count as plain only where they were planned ahead, if the
//! engine does that at all; probes last until one was. A text in which there is seldom something to propose pays for the
//! waiting too, and that is part of the expected gain.
//!
//! A drafter inside the worker proposes in the step before the one that verifies, and takes time for it. So the guard also
//! decides how many drafts are to be proposed: by what is expected of them, before they are known.

use frizzen_core::SpeculationReason as Reason;

use super::choose::{Choice, Offer, choose_lengths, choose_proposal, longest};
use super::cost::{CostModel, Costs, Curve};
use super::law::Experts;

pub use super::decision::{Decision, Decoding, Fixed, MeasuredStep, ModeChange, Situation};

/// What the account earns per step, in plain steps.
const EARNED: f64 = 0.005;
/// The most that it holds: past gains do not pay for later losses.
const CAP: f64 = 8.0;
/// What it begins with, for the first look at what drafts cost.
const INITIAL: f64 = 6.0;
/// An empty account must earn this much before drafts are tried again.
const RESUME: f64 = 2.0;
/// Steps with drafts after which two are run without.
const PROBE_EVERY: u64 = 200;
/// The same where it takes several steps until one without drafts was planned ahead.
const PROBE_AHEAD_EVERY: u64 = 400;
/// Probes that may bring no step without drafts before there are none for as long.
const PROBE_TRIES: u32 = 4;
/// Steps after which the cost of a length counts as unknown, if the account can pay for a look.
const STALE: u64 = 1000;
/// Expected gain above which drafts are switched on, and below which they are switched off again.
const ON_ABOVE: f64 = 0.02;
const OFF_BELOW: f64 = STEP_GAIN;
/// Least expected gain of a single step while drafts are on.
const STEP_GAIN: f64 = 0.01;
/// Weight of the latest step in the expected gain.
const FRESH: f64 = 0.1;
/// A step this far from its predicted time, several times in a row, says that the machine has changed.
const SURPRISE: f64 = 0.25;
const SURPRISES: i32 = 3;
/// A step beyond this factor of its expected time is paid for as one of this factor, unless the one before was a surprise too.
const HICCUP: f64 = 1.5;
/// The most that one step can lose: it takes several to empty a full account.
const MOST_LOST: f64 = CAP / 4.0;
/// Steps that must lie between a surprise and the last step without drafts.
const SURPRISE_AFTER: u64 = 20;
/// Lengths whose cost is looked at first.
const LOOKS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Lengths that a worker may be told to propose.
const PROPOSALS: [usize; 12] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32];
/// Steps of a trial.
const TRIAL: u32 = 12;
/// Steps without a label after which drafts are tried while the account holds three quarters of what it may.
const UNSURE: u32 = 40;
/// The same for half of it.
const STALE_CHANCES: u32 = 400;

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
    /// How many in a row brought none, and steps without probes that are left because of it.
    tries: u32,
    rest: u64,
    surprises: i32,
    looking: bool,
    /// The next step is to have none of the guard's drafts, so that it need not wait for the one before it.
    passing: bool,
    /// Steps without drafts are planned ahead.
    plans_ahead: bool,
    /// Seconds that a step takes longer that is not.
    waiting: f64,
    /// What is left of a trial.
    trial: u32,
    changes: Vec<ModeChange>,
}

/// What the steps take that a decision is between.
struct Times {
    verify: Curve,
    /// Of a drafter in the worker.
    draft: Option<Curve>,
    fixed: Fixed,
    /// Tokens that come without the guard's drafts.
    base: f64,
}

impl Times {
    fn step(&self, drafts: usize, proposed: usize) -> f64 {
        let proposed = proposed.max(self.fixed.proposed);
        self.verify.at(drafts) + self.draft.as_ref().map_or(0.0, |draft| draft.at(proposed))
    }

    /// Seconds of the step without the guard's drafts.
    fn plain(&self) -> f64 {
        self.step(self.fixed.drafts, 0)
    }

    fn plain_rate(&self) -> f64 {
        self.base / self.plain()
    }

    /// The best lengths of the drafts at hand, how many to propose, and what is expected of going on like that.
    fn best(&self, offers: &[Offer], outlook: Option<&[Offer]>, lengths: &mut Vec<u32>) -> (usize, Choice) {
        let cost = |proposed, drafts| self.step(self.fixed.drafts + drafts, proposed);
        let Some(outlook) = outlook else {
            return (0, choose_lengths(offers, self.base, |drafts| cost(0, drafts), lengths));
        };
        let (propose, choice) = choose_proposal(outlook, self.base, PROPOSALS.into_iter(), cost);
        choose_lengths(offers, self.base, |drafts| cost(propose, drafts), lengths);
        (propose, choice)
    }
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
            tries: 0,
            rest: 0,
            surprises: 0,
            looking: false,
            passing: false,
            plans_ahead: false,
            waiting: 0.0,
            trial: 0,
            changes: Vec::new(),
        }
    }
}

impl Guard {
    /// A guard of a model with these experts.
    pub fn new(experts: Option<Experts>) -> Self {
        Self { cost: CostModel::new(experts), ..Self::default() }
    }

    /// Chooses how many of each offer's drafts the next step verifies, and how many drafts per row it proposes.
    pub fn decide(&mut self, situation: &Situation<'_>, lengths: &mut Vec<u32>) -> Decision {
        let Situation { rows, fixed, offers, outlook, .. } = *situation;
        lengths.clear();
        lengths.resize(offers.len(), 0);
        self.looking = false;
        self.passing = false;
        let is_empty = |offers: &[Offer]| offers.iter().all(|offer| offer.survival.is_empty());
        // No row has room for drafts after those at hand.
        let is_last = outlook.is_some_and(is_empty);
        if is_empty(offers) && (is_last || outlook.is_none()) {
            if self.plans_ahead && outlook.is_none() && rows > 0 && !self.suspended {
                let plain = self.cost.curve(rows).map_or(0.0, |curve| curve.at(0));
                self.expect(-self.waiting / (plain + self.waiting).max(f64::MIN_POSITIVE), rows);
            }
            return Reason::NoMatch.into();
        }
        let curve = self.cost.curve(rows).filter(|_| self.cost.knows(rows, 0, 0));
        let Some(curve) = curve else { return Reason::WarmUp.into() };
        if self.suspended {
            return Reason::MeasuredLoss.into();
        }
        if self.must_probe(rows, outlook.is_some()) {
            self.passing = true;
            return Reason::ProbeOff.into();
        }
        let times = Times {
            verify: curve,
            draft: outlook.map(|_| self.cost.drafting(rows)),
            fixed,
            base: rows as f64 + fixed.tokens,
        };
        if is_last {
            // What proposing these took is spent, and they say nothing of drafts to come.
            let cost = |drafts| times.step(fixed.drafts + drafts, 0);
            let choice = choose_lengths(offers, times.base, cost, lengths);
            return self.settle(0, choice.rate / times.plain_rate() - 1.0, lengths);
        }
        let look = self.next_look(situation, &times);
        let trial = look.is_none().then(|| self.trial(situation, &times)).flatten();
        if let Some(length) = look.or(trial) {
            let forget = trial.is_some() && self.trial == TRIAL;
            self.looking = true;
            let propose = outlook.map_or(0, |outlook| length.min(longest(outlook)));
            // What proposing takes is seen in a step that does nothing else.
            if propose == 0 || self.cost.knows_drafting(rows, propose) {
                for (chosen, offer) in lengths.iter_mut().zip(offers) {
                    *chosen = offer.survival.len().min(length) as u32;
                }
            }
            return Decision { reason: Reason::ProbeOn, propose, forget };
        }
        let (propose, choice) = times.best(offers, outlook, lengths);
        let gain = choice.rate / times.plain_rate() - 1.0;
        self.expect(gain, rows);
        self.settle(propose, gain, lengths)
    }

    /// Goes by a choice, if drafts are on and it gains enough.
    fn settle(&mut self, propose: usize, gain: f64, lengths: &mut [u32]) -> Decision {
        if self.on && gain >= STEP_GAIN {
            return Decision { reason: Reason::Gain, propose, forget: false };
        }
        lengths.fill(0);
        self.passing = true;
        Reason::BelowBreakEven.into()
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

    /// Whether this step is run without drafts to keep the estimate of plain steps fresh. Where drafts come from the worker,
    /// the step after it has none either, and says what proposing takes.
    fn must_probe(&mut self, rows: usize, in_worker: bool) -> bool {
        let age = self.cost.age(rows, 0, 0).unwrap_or(u64::MAX);
        let every = if self.plans_ahead { PROBE_AHEAD_EVERY } else { PROBE_EVERY };
        let is_stale = age > every || (self.surprises.abs() >= SURPRISES && age > SURPRISE_AFTER);
        self.tries = if is_stale { self.tries } else { 0 };
        self.rest = self.rest.saturating_sub(1);
        if self.probes == 0 && self.rest == 0 && is_stale {
            self.surprises = 0;
            self.probes = if in_worker || self.plans_ahead { 1 } else { 2 };
            self.tries += 1;
            if self.tries > PROBE_TRIES {
                // Others' drafts are in every step, say: there is no plain one to be had.
                (self.tries, self.probes, self.rest) = (0, 0, every);
            }
        }
        let probe = self.probes > 0;
        self.probes = self.probes.saturating_sub(1);
        probe
    }

    /// A length whose cost is not known and could pay off, if the account can pay for a look.
    fn next_look(&self, situation: &Situation<'_>, times: &Times) -> Option<usize> {
        let Situation { rows, fixed, offers, outlook, .. } = *situation;
        let expected = outlook.unwrap_or(offers);
        let plain = times.plain();
        // Drafts at hand are what will be measured; without any, those that are expected.
        let measured = if offers.iter().all(|offer| offer.survival.is_empty()) { expected } else { offers };
        let mut known = plain;
        let mut before = 0;
        let mut best: Option<(usize, f64)> = None;
        for length in LOOKS {
            let cut = |offer: &Offer| offer.survival.len().min(length);
            let drafts: usize = expected.iter().map(cut).sum();
            if drafts == before {
                break;
            }
            before = drafts;
            let proposed = outlook.map_or(0, |outlook| length.min(longest(outlook)));
            let total = fixed.drafts + measured.iter().map(cut).sum::<usize>();
            let looked_at = self.cost.knows(rows, total, proposed);
            let fresh = self.cost.age(rows, total, proposed).is_some_and(|age| age < STALE);
            let tokens =
                times.base + expected.iter().flat_map(|offer| &offer.survival[..cut(offer)]).sum::<f64>();
            let cost = times.step(fixed.drafts + drafts, proposed);
            // More drafts cost no less than fewer did.
            let may_gain = tokens / known > times.plain_rate() * (1.0 + ON_ABOVE);
            let loss = cost / plain - tokens / times.base;
            let payable = if looked_at { loss.max(CAP / 2.0) } else { loss.max(0.0) };
            if (!looked_at || (!fresh && loss > 0.0)) && may_gain && payable < self.account {
                if !self.cost.law().is_fitted() {
                    return Some(length);
                }
                // With some idea of what they take, the one that promises most.
                let rate = tokens / cost;
                if best.is_none_or(|(_, other)| rate > other) {
                    best = Some((length, rate));
                }
            }
            if looked_at && fresh {
                known = cost;
            }
        }
        best.map(|(length, _)| length)
    }

    /// The length of a trial, if little is known about the chances of drafts, better ones than those would pay off, and the
    /// account can pay.
    fn trial(&mut self, situation: &Situation<'_>, times: &Times) -> Option<usize> {
        self.trial = self.trial.saturating_sub(1);
        let needed = if self.trial > 0 {
            0.0
        } else if situation.unlabelled > STALE_CHANCES {
            0.5 * CAP
        } else if situation.unlabelled > UNSURE {
            0.75 * CAP
        } else {
            return None;
        };
        if self.account < needed {
            return None;
        }
        let hopeful =
            |offer: &Offer| Offer { survival: offer.survival.iter().map(|chance| chance.cbrt()).collect() };
        let expected: Vec<Offer> =
            situation.outlook.unwrap_or(situation.offers).iter().map(hopeful).collect();
        let proposals = |length| if situation.outlook.is_some() { length } else { 0 };
        let cost = |length, drafts| times.step(times.fixed.drafts + drafts, proposals(length));
        let (length, choice) = choose_proposal(&expected, times.base, PROPOSALS.into_iter(), cost);
        let is_worth_it = choice.rate > times.plain_rate() * (1.0 + ON_ABOVE);
        self.trial = match self.trial {
            _ if !is_worth_it => 0,
            0 => TRIAL,
            left => left,
        };
        is_worth_it.then_some(length)
    }

    /// Takes a step's time over. Returns what decoding took of it and would have taken without drafts, if that can be told.
    pub fn measure(&mut self, step: &MeasuredStep) -> Option<Decoding> {
        let MeasuredStep { rows, drafts, proposed, prefill, tokens, seconds, governed, ahead } = *step;
        if ahead && !std::mem::replace(&mut self.plans_ahead, true) {
            self.cost.forget_plain();
        }
        let waits = self.plans_ahead && !ahead && drafts == 0 && proposed == 0 && prefill == 0;
        let curve = self.cost.curve(rows);
        let drafting = self.cost.drafting(rows).at(proposed);
        let besides = if waits && self.cost.knows(rows, 0, 0) {
            Some(0.0)
        } else {
            let seconds = if waits { (seconds - self.waiting).max(seconds / 2.0) } else { seconds };
            self.cost.measure_beside(prefill, rows, drafts, proposed, seconds)
        };
        self.account = (self.account + EARNED).min(CAP);
        if self.suspended && self.account >= RESUME {
            self.suspended = false;
        }
        let (curve, seconds) = (curve?, seconds - besides?);
        let plain = curve.at(0);
        if waits {
            self.waiting = (self.waiting + FRESH * (seconds - plain - self.waiting)).clamp(0.0, plain);
        }
        if drafts > 0 || proposed > 0 || (waits && self.on) {
            let expected = if waits { plain + self.waiting } else { curve.at(drafts) + drafting };
            if !waits {
                self.note_surprise(seconds / expected - 1.0, rows);
            }
            if governed && plain > 0.0 {
                // A hiccup is nobody's loss, if it stays alone.
                let is_alone = self.surprises <= 1;
                let lost = if is_alone { seconds.min(HICCUP * expected) } else { seconds } / plain;
                let gained = (tokens as f64 / rows as f64 - lost).max(-MOST_LOST);
                self.account = (self.account + gained).min(CAP);
                if self.account < 0.0 {
                    self.suspended = true;
                    self.gain = 0.0;
                    self.cost.distrust_drafts(rows);
                    self.switch(false, Reason::MeasuredLoss, rows);
                }
            }
        }
        Some(Decoding { seconds, plain })
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

    /// Takes over the times that an earlier run knew.
    pub fn restore(&mut self, costs: &Costs) {
        self.cost.restore(costs);
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
        (self.on || self.looking) && !self.passing
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
