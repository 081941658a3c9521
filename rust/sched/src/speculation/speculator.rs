//! Follows requests from admission to end: proposals, outcomes, and the account of each.

use std::time::Duration;

use frizzen_core::{RequestId, Speculation, SpeculationReason as Reason, SpeculationUsage, TokenId};
use rustc_hash::FxHashMap;

use super::acceptance::{Acceptance, OwnAcceptance};
use super::choose::Offer;
use super::guard::{Fixed, Guard, MeasuredStep, ModeChange};
use super::{DrafterConfig, SpeculationConfig};
use crate::commit::RowEvent;
use crate::draft::Drafter;
use crate::plan::{StepOutput, StepPlan};
use crate::scheduler::Scheduler;

/// A request that may get drafts.
#[derive(Debug)]
struct Followed {
    asked: Speculation,
    /// It said something about speculation, so it is told what came of it.
    reports: bool,
    usage: SpeculationUsage,
    own: OwnAcceptance,
    /// The proposal that is being compared with what the text becomes, and how far it was right.
    proposal: Vec<TokenId>,
    right: usize,
    /// Length of the match that the proposal follows.
    matched: u32,
    reason: Reason,
}

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeculationTotals {
    /// Rows that were verified with at least one draft.
    pub drafted_rows: u64,
    /// Drafts that were verified.
    pub drafts: u64,
    /// How many of them were right.
    pub accepted: u64,
    /// The same by the draft's place in its row.
    pub accepted_at: Vec<u64>,
    /// Seconds saved (lost, if negative) against the estimate without drafts, over steps without prefill.
    pub saved: f64,
}

/// A snapshot for people and monitors.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculationStatus {
    /// Name of the drafter.
    pub drafter: &'static str,
    /// What requests get that say nothing.
    pub default: Speculation,
    /// Whether requests that leave it to the server get drafts.
    pub on: bool,
    /// Why.
    pub reason: Reason,
    /// Expected gain of drafts: 0.1 is a tenth more tokens per second.
    pub expected_gain: f64,
    /// What the guard may still lose, in steps without drafts.
    pub account: f64,
    /// Rows of the last step.
    pub rows: usize,
    /// Seconds of a step of as many rows with 0, 1, 2, 4, 8 and 16 drafts per row, as fitted; empty before the first
    /// measurement.
    pub step_seconds: Vec<(usize, f64)>,
    /// Chance of a first draft after a match of 1, 2, 4, 8 and 16 tokens.
    pub first_draft_chance: Vec<(u32, f64)>,
    /// Counts since the start.
    pub totals: SpeculationTotals,
}

/// Proposes after every commit and keeps the ledger.
#[derive(Debug)]
pub struct Speculator {
    config: SpeculationConfig,
    max_drafts: u32,
    drafter: Box<dyn Drafter>,
    followed: FxHashMap<RequestId, Followed>,
    acceptance: Acceptance,
    guard: Guard,
    totals: SpeculationTotals,
    rows: usize,
    /// A request with drafts of a fixed length was in the last proposal.
    fixed: bool,
    /// Scratch: who gets drafts by the guard's choice, what is offered of each, and what was chosen.
    governed: Vec<RequestId>,
    offers: Vec<Offer>,
    lengths: Vec<u32>,
    drafts: Vec<TokenId>,
}

impl Speculator {
    /// A speculator that follows nobody yet; a row gets at most `max_drafts` drafts.
    ///
    /// # Errors
    /// A sentence that names the value and its limit.
    pub fn new(config: SpeculationConfig, max_drafts: u32) -> Result<Self, String> {
        if let Speculation::MaxTokens(k) = config.default
            && !(1..=max_drafts).contains(&k)
        {
            return Err(format!("speculation must be from 1 to {max_drafts} drafts, got {k}"));
        }
        Ok(Self {
            config,
            max_drafts,
            drafter: config.drafter.build()?,
            followed: FxHashMap::default(),
            acceptance: Acceptance::default(),
            guard: Guard::default(),
            totals: SpeculationTotals {
                accepted_at: vec![0; max_drafts as usize],
                ..SpeculationTotals::default()
            },
            rows: 0,
            fixed: false,
            governed: Vec::new(),
            offers: Vec::new(),
            lengths: Vec::new(),
            drafts: Vec::new(),
        })
    }

    /// Begins to follow the requests that a step admits. May be called while the step runs.
    pub fn follow(&mut self, plan: &StepPlan) {
        for admission in &plan.admissions {
            let params = &admission.request.params;
            let asked = params.speculation.unwrap_or(self.config.default);
            let row = plan.rows.iter().find(|row| row.row == admission.row);
            let Some(row) = row.filter(|row| !self.followed.contains_key(&row.request)) else { continue };
            if asked != Speculation::Off {
                let shared = admission.request.cache_salt.is_none();
                self.drafter.start(row.request, &admission.request.prompt, shared);
                let usage = SpeculationUsage::default();
                let followed = Followed {
                    asked,
                    reports: params.speculation.is_some(),
                    usage: SpeculationUsage { lengths: vec![0; self.max_drafts as usize + 1], ..usage },
                    own: OwnAcceptance::default(),
                    proposal: Vec::new(),
                    right: 0,
                    matched: 0,
                    reason: Reason::WarmUp,
                };
                self.followed.insert(row.request, followed);
            }
        }
    }

    /// Takes over what a step brought and how long it took; `events` are those of its commit.
    pub fn learn(&mut self, plan: &StepPlan, output: &StepOutput, events: &[RowEvent], elapsed: Duration) {
        if self.followed.is_empty() {
            return;
        }
        let drafts = plan.num_drafts();
        let plain = self.measure(plan, output, elapsed.as_secs_f64());
        let saved = |tokens: f64| {
            plain.filter(|_| drafts > 0).map_or(0.0, |plain| tokens * plain - elapsed.as_secs_f64())
        };
        for (row, sampled) in plan.rows.iter().zip(&output.num_sampled) {
            let Some(followed) = self.followed.get_mut(&row.request).filter(|_| *sampled > 0) else {
                continue;
            };
            let accepted = sampled - 1;
            let usage = &mut followed.usage;
            usage.drafts += row.num_drafts;
            usage.accepted += accepted;
            usage.saved += saved(f64::from(*sampled));
            usage.lengths[row.num_drafts as usize] += 1;
            let chosen = matches!(followed.reason, Reason::Fixed | Reason::Gain | Reason::ProbeOn);
            let reason = if chosen && row.num_drafts == 0 { Reason::NoRoom } else { followed.reason };
            usage.reasons[reason as usize] += 1;
            self.totals.drafted_rows += u64::from(row.num_drafts > 0);
            self.totals.drafts += u64::from(row.num_drafts);
            self.totals.accepted += u64::from(accepted);
            for count in &mut self.totals.accepted_at[..accepted as usize] {
                *count += 1;
            }
        }
        let tokens = f64::from(output.num_sampled.iter().sum::<u32>());
        self.totals.saved += saved(tokens / plan.rows.len().max(1) as f64);
        for event in events {
            if let Some(followed) = self.followed.get_mut(&event.request) {
                let tokens = &output.tokens[event.tokens.clone()];
                followed.compare(tokens, &mut self.acceptance);
                self.drafter.observe(event.request, tokens);
                self.drafter.observe(event.request, &event.forced);
            }
        }
    }

    /// Gives a step's time to the guard, if the step is of a kind that is compared: no prefill, no failed row.
    fn measure(&mut self, plan: &StepPlan, output: &StepOutput, seconds: f64) -> Option<f64> {
        let decode = plan.rows.iter().all(|row| row.samples && row.num_tokens == row.num_drafts + 1);
        if !decode || plan.rows.is_empty() || !output.failed.is_empty() {
            return None;
        }
        let ungoverned =
            |request| self.followed.get(&request).is_none_or(|followed| followed.asked != Speculation::Auto);
        let governed = !plan.rows.iter().any(|row| row.num_drafts > 0 && ungoverned(row.request));
        self.guard.measure(&MeasuredStep {
            rows: plan.rows.len(),
            drafts: plan.num_drafts(),
            tokens: output.num_sampled.iter().sum::<u32>() as usize,
            seconds,
            governed,
        })
    }

    /// Proposes for the rows that a commit has told about, and hands the drafts to the scheduler.
    pub fn propose(&mut self, scheduler: &mut Scheduler, events: &[RowEvent]) {
        if self.followed.is_empty() {
            return;
        }
        let live = || events.iter().filter(|event| event.finish.is_none() && !event.tokens.is_empty());
        self.rows = live().count();
        self.governed.clear();
        let mut fixed = Fixed::default();
        self.fixed = false;
        let mut offers = 0;
        for event in live() {
            let room = scheduler.draft_room(event.request);
            let Some(asked) = self.offer(event.request, room) else { continue };
            let followed = self.followed.get_mut(&event.request).expect("an offer is of a followed request");
            if offers == self.offers.len() {
                self.offers.push(Offer::default());
            }
            let survival = &mut self.offers[offers].survival;
            self.acceptance.survival(&followed.own, followed.matched, self.drafts.len(), survival);
            if asked == Speculation::Auto {
                offers += 1;
                self.governed.push(event.request);
            } else {
                self.fixed = true;
                fixed.drafts += survival.len();
                fixed.tokens += survival.iter().sum::<f64>();
                followed.reason = Reason::Fixed;
                scheduler.set_drafts(event.request, &self.drafts);
            }
            followed.begin(&self.drafts);
        }
        let offers = &self.offers[..offers];
        let reason = self.guard.choose(self.rows, fixed, offers, &mut self.lengths);
        for (request, length) in self.governed.iter().zip(&self.lengths) {
            let Some(followed) = self.followed.get_mut(request) else { continue };
            let left_out = *length == 0 && matches!(reason, Reason::Gain | Reason::ProbeOn);
            followed.reason = if left_out { Reason::BelowBreakEven } else { reason };
            // The rest of the proposal is compared with the text all the same.
            scheduler.set_drafts(*request, &followed.proposal[..*length as usize]);
        }
    }

    /// Lets the drafter propose into `self.drafts`; `None`, with the reason noted, if the request gets nothing.
    fn offer(&mut self, request: RequestId, room: u32) -> Option<Speculation> {
        let followed = self.followed.get_mut(&request)?;
        let most = match followed.asked {
            Speculation::MaxTokens(most) => most.min(self.max_drafts),
            Speculation::Auto | Speculation::Off => self.max_drafts,
        };
        let most = most.min(room) as usize;
        if most == 0 {
            followed.reason = Reason::NoRoom;
            return None;
        }
        followed.matched = self.drafter.propose(request, most, &mut self.drafts);
        if self.config.fill {
            self.drafts.resize(most, 0);
        }
        if self.drafts.is_empty() {
            followed.reason = Reason::NoMatch;
            followed.begin(&[]);
            return None;
        }
        Some(followed.asked)
    }

    /// Whether the next step may carry drafts, so that it has to wait for the outcome of this one.
    pub const fn is_engaged(&self) -> bool {
        self.fixed || self.guard.is_engaged()
    }

    /// What speculation did for a request that said something about it.
    pub fn usage(&self, request: RequestId) -> Option<&SpeculationUsage> {
        self.followed.get(&request).filter(|followed| followed.reports).map(|followed| &followed.usage)
    }

    /// The request has ended.
    pub fn forget(&mut self, request: RequestId) {
        if self.followed.remove(&request).is_some() {
            self.drafter.finish(request);
        }
    }

    /// Switches of the guard since the last call.
    pub fn take_changes(&mut self) -> Vec<ModeChange> {
        self.guard.take_changes()
    }

    /// Counts since the start.
    pub const fn totals(&self) -> &SpeculationTotals {
        &self.totals
    }

    /// A snapshot.
    pub fn status(&self) -> SpeculationStatus {
        let curve = self.guard.cost().curve(self.rows);
        let lengths = [0, 1, 2, 4, 8, 16].into_iter().filter(|length| *length <= self.max_drafts as usize);
        let seconds = |curve: super::cost::Curve| lengths.map(|n| (n, curve.at(n * self.rows))).collect();
        SpeculationStatus {
            drafter: self.drafter.name(),
            default: self.config.default,
            on: self.guard.is_on(),
            reason: self.guard.reason(),
            expected_gain: self.guard.expected_gain(),
            account: self.guard.account(),
            rows: self.rows,
            step_seconds: curve.map_or_else(Vec::new, seconds),
            first_draft_chance: [1, 2, 4, 8, 16].map(|n| (n, self.acceptance.chance(n, 0))).to_vec(),
            totals: self.totals.clone(),
        }
    }
}

impl Followed {
    /// Begins to compare a proposal with the text.
    fn begin(&mut self, proposal: &[TokenId]) {
        self.proposal.clear();
        self.proposal.extend_from_slice(proposal);
        self.right = 0;
    }

    /// Labels the proposal's drafts up to the first that was wrong.
    fn compare(&mut self, tokens: &[TokenId], acceptance: &mut Acceptance) {
        for token in tokens {
            let Some(draft) = self.proposal.get(self.right) else { return };
            let accepted = draft == token;
            acceptance.label(&mut self.own, self.matched, self.right, accepted);
            self.right += 1;
            if !accepted {
                self.proposal.clear();
            }
        }
    }
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        Self {
            drafter: DrafterConfig::Suffix(crate::draft::SuffixConfig::default()),
            default: Speculation::Off,
            fill: false,
        }
    }
}
