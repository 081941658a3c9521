//! Follows requests from admission to end: proposals, outcomes, and the account of each.

use std::time::Duration;

use frizzen_core::{RequestId, Speculation, SpeculationReason as Reason, SpeculationUsage, TokenId};
use rustc_hash::FxHashMap;

use super::acceptance::{Acceptance, Judged, Warmth};
use super::choose::{Offer, longest};
use super::cost::Costs;
use super::followed::Followed;
use super::guard::{Decoding, Fixed, Guard, MeasuredStep, ModeChange, Situation};
use super::law::Experts;
use super::{SpeculationConfig, SpeculationStatus, SpeculationTotals};
use crate::commit::RowEvent;
use crate::draft::{Drafter, Evidence};
use crate::draw::mix;
use crate::plan::{StepOutput, StepPlan};
use crate::scheduler::Scheduler;

/// Tokens that stand for drafts where verification is forced: any vocabulary has them, and at the usual ends of a text
/// there are none.
const FIRST_FILLER: TokenId = 128;
const FILLERS: u64 = 128;

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
    /// Drafts per row that the worker is to propose after the next step.
    wanted: u32,
    /// What the guard chose last, while drafts were worth it.
    usual: u32,
    /// Why there are no drafts any more.
    failure: Option<String>,
    /// Steps since the last label.
    unlabelled: u32,
    /// Scratch: who gets drafts by the guard's choice, what is offered of each, and what was chosen.
    governed: Vec<RequestId>,
    offers: Vec<Offer>,
    /// Scratch: what is expected of drafts that the worker would propose.
    outlook: Vec<Offer>,
    lengths: Vec<u32>,
    drafts: Vec<TokenId>,
}

impl Speculator {
    /// A speculator that follows nobody yet; a row gets at most `max_drafts` drafts of a model with these experts.
    ///
    /// # Errors
    /// A sentence that names the value and its limit.
    pub fn new(config: SpeculationConfig, max_drafts: u32, experts: Option<Experts>) -> Result<Self, String> {
        if let Speculation::MaxTokens(k) = config.default
            && !(1..=max_drafts).contains(&k)
        {
            return Err(format!("speculation must be from 1 to {max_drafts} drafts, got {k}"));
        }
        Ok(Self::with_drafter(config, config.drafter.build()?, max_drafts, experts))
    }

    /// The same with a drafter that the caller made, of the kind that `config` names.
    pub fn with_drafter(
        config: SpeculationConfig,
        drafter: Box<dyn Drafter>,
        max_drafts: u32,
        experts: Option<Experts>,
    ) -> Self {
        Self {
            config,
            max_drafts,
            drafter,
            followed: FxHashMap::default(),
            acceptance: Acceptance::default(),
            guard: Guard::new(experts),
            totals: SpeculationTotals {
                accepted_at: vec![0; max_drafts as usize],
                ..SpeculationTotals::default()
            },
            rows: 0,
            fixed: false,
            wanted: 0,
            usual: 0,
            failure: None,
            unlabelled: 0,
            governed: Vec::new(),
            offers: Vec::new(),
            outlook: Vec::new(),
            lengths: Vec::new(),
            drafts: Vec::new(),
        }
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
                let reason = if self.failure.is_some() { Reason::DrafterFailed } else { Reason::WarmUp };
                let mut followed = Followed::new(asked, Warmth::of(params), self.max_drafts, reason);
                followed.reports = params.speculation.is_some();
                self.followed.insert(row.request, followed);
            }
        }
    }

    /// Takes over what a step brought and how long it took; `events` are those of its commit, `ahead` says that it was
    /// planned while the step before it ran.
    pub fn learn(
        &mut self,
        plan: &StepPlan,
        output: &StepOutput,
        events: &[RowEvent],
        elapsed: Duration,
        ahead: bool,
    ) {
        let decoding = self.measure(plan, output, elapsed.as_secs_f64(), ahead);
        if self.followed.is_empty() {
            return;
        }
        let speculates = plan.num_drafts() > 0 || plan.propose > 0;
        let saved = |tokens: f64| {
            let decoding = decoding.filter(|_| speculates);
            decoding.map_or(0.0, |decoding| tokens * decoding.plain - decoding.seconds)
        };
        for (row, sampled) in plan.rows.iter().zip(&output.num_sampled) {
            let Some(followed) = self.followed.get_mut(&row.request).filter(|_| *sampled > 0) else {
                continue;
            };
            followed.verified = row.num_drafts as usize;
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
        let (rows, tokens) = decoded(plan, output);
        self.totals.saved += saved(tokens as f64 / rows.max(1) as f64);
        let mut labels = 0;
        for event in events {
            if let Some(followed) = self.followed.get_mut(&event.request) {
                let tokens = &output.tokens[event.tokens.clone()];
                labels += followed.compare(tokens, &mut self.acceptance, self.config.only_verified());
                self.drafter.observe(event.request, tokens);
                self.drafter.observe(event.request, &event.forced);
            }
        }
        self.unlabelled = if labels > 0 { 0 } else { self.unlabelled.saturating_add(1) };
    }

    /// Gives a step's time to the guard, if something decoded in it, no row failed, and it was like other steps.
    fn measure(
        &mut self,
        plan: &StepPlan,
        output: &StepOutput,
        seconds: f64,
        ahead: bool,
    ) -> Option<Decoding> {
        let (rows, tokens) = decoded(plan, output);
        if rows == 0 || !output.failed.is_empty() || output.irregular {
            return None;
        }
        let is_fixed = |request| {
            let followed = self.followed.get(&request);
            followed.is_some_and(|followed| matches!(followed.asked, Speculation::MaxTokens(_)))
        };
        let mut all = plan.rows.iter();
        let governed = !all.any(|row| (row.num_drafts > 0 || plan.propose > 0) && is_fixed(row.request));
        self.guard.measure(&MeasuredStep {
            rows,
            drafts: plan.num_drafts(),
            proposed: plan.propose as usize,
            prefill: plan.prefill_tokens(),
            tokens,
            seconds,
            governed,
            ahead,
        })
    }

    /// Takes over what the worker's drafter proposed after a step. To be called before [`Self::propose`].
    pub fn receive(&mut self, plan: &StepPlan, output: &StepOutput) {
        self.drafter.receive(plan, &output.proposals);
        if let Some(why) = &output.proposals.failed {
            self.fail_drafter(why.clone());
        }
    }

    /// Proposes for the rows that a commit has told about, and hands the drafts to the scheduler.
    pub fn propose(&mut self, scheduler: &mut Scheduler, events: &[RowEvent]) {
        self.wanted = 0;
        if self.followed.is_empty() || self.failure.is_some() {
            return;
        }
        let live = || events.iter().filter(|event| event.finish.is_none() && !event.tokens.is_empty());
        self.rows = live().count();
        self.governed.clear();
        let mut fixed = Fixed::default();
        self.fixed = false;
        let (mut offers, mut outlook) = (0, 0);
        for event in live() {
            let room = scheduler.draft_room(event.request);
            if self.config.is_worker() {
                outlook += usize::from(self.look_ahead(event.request, room, outlook, &mut fixed));
            }
            let Some(asked) = self.offer(event.request, room) else { continue };
            let followed = self.followed.get_mut(&event.request).expect("an offer is of a followed request");
            let survival = survival_at(&mut self.offers, offers);
            self.acceptance.survival(&followed.own, followed.judged(), self.drafts.len(), survival);
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
        let reason = self.decide(fixed, offers, outlook);
        for (request, length) in self.governed.iter().zip(&self.lengths) {
            let Some(followed) = self.followed.get_mut(request) else { continue };
            let left_out = *length == 0 && matches!(reason, Reason::Gain | Reason::ProbeOn);
            followed.reason = if left_out { Reason::BelowBreakEven } else { reason };
            // The rest of the proposal is compared with the text all the same.
            scheduler.set_drafts(*request, &followed.proposal[..*length as usize]);
        }
    }

    /// Lets the guard choose among the first offers and the first of the outlook.
    fn decide(&mut self, fixed: Fixed, offers: usize, outlook: usize) -> Reason {
        let labels_cost = self.config.is_worker() || self.config.only_verified();
        let situation = Situation {
            rows: self.rows,
            fixed,
            offers: &self.offers[..offers],
            outlook: self.config.is_worker().then_some(&self.outlook[..outlook]),
            unlabelled: if labels_cost { self.unlabelled } else { 0 },
        };
        let decision = self.guard.decide(&situation, &mut self.lengths);
        if decision.forget {
            self.acceptance.forget();
            self.followed.values_mut().for_each(|followed| followed.own.forget());
        }
        self.wanted = fixed.proposed.max(decision.propose) as u32;
        // As many as there was room for says nothing of rows with more room.
        let room = longest(&self.outlook[..outlook]);
        if decision.reason == Reason::Gain && (decision.propose < room || room as u32 == self.max_drafts) {
            self.usual = decision.propose as u32;
        }
        decision.reason
    }

    /// Notes how many drafts the worker is to propose for a request after the next step, or what is expected of them. True
    /// if the guard decides.
    fn look_ahead(&mut self, request: RequestId, room: u32, at: usize, fixed: &mut Fixed) -> bool {
        let Some(followed) = self.followed.get(&request) else { return false };
        // After the next step there is room for at least one token less.
        let most = followed.limit(self.max_drafts).min(room.saturating_sub(1)) as usize;
        if followed.asked != Speculation::Auto {
            fixed.proposed = fixed.proposed.max(most);
            return false;
        }
        let judged = Judged { evidence: Evidence::Model, confidences: &[], warmth: followed.warmth };
        self.acceptance.survival(&followed.own, judged, most, survival_at(&mut self.outlook, at));
        true
    }

    /// Drafts per row that the worker is to propose after this step.
    pub fn wanted(&self, plan: &StepPlan) -> u32 {
        if !self.config.is_worker() || self.failure.is_some() {
            return 0;
        }
        // Whoever samples for the first time was not there when the others were asked.
        let newcomers = plan.rows.iter().filter(|row| row.prefills && row.samples).map(|row| {
            let admission = plan.admissions.iter().find(|admission| admission.row == row.row);
            let asked = match admission {
                Some(admission) => admission.request.params.speculation.unwrap_or(self.config.default),
                None => self.followed.get(&row.request).map_or(Speculation::Off, |followed| followed.asked),
            };
            match asked {
                Speculation::MaxTokens(k) => k.min(self.max_drafts),
                Speculation::Auto if self.guard.is_on() => self.usual,
                Speculation::Auto | Speculation::Off => 0,
            }
        });
        let samples = plan.rows.iter().any(|row| row.samples);
        if samples { newcomers.fold(self.wanted, u32::max) } else { 0 }
    }

    /// Whether some row may get drafts.
    pub fn may_draft(&self) -> bool {
        self.failure.is_none() && (self.config.default != Speculation::Off || !self.followed.is_empty())
    }

    /// The worker's drafter is out of order: no drafts from now on.
    fn fail_drafter(&mut self, why: String) {
        if self.failure.is_none() {
            self.failure = Some(why);
            self.guard.disable(self.rows);
            self.followed.values_mut().for_each(|followed| {
                followed.reason = Reason::DrafterFailed;
                followed.begin(&[]);
            });
        }
    }

    /// Lets the drafter propose into `self.drafts`; `None`, with the reason noted, if the request gets nothing.
    fn offer(&mut self, request: RequestId, room: u32) -> Option<Speculation> {
        let followed = self.followed.get_mut(&request)?;
        let most = followed.limit(self.max_drafts);
        let most = most.min(room) as usize;
        if most == 0 {
            followed.reason = Reason::NoRoom;
            return None;
        }
        followed.evidence = self.drafter.propose(request, most, &mut self.drafts);
        followed.confidences.clear();
        followed.confidences.extend_from_slice(self.drafter.confidences(request));
        // What a worker proposed it can verify; anything else it did not propose.
        if self.config.fill && !self.config.is_worker() {
            let (request, seen) = (request.0, u64::from(followed.usage.drafts));
            let places = self.drafts.len()..most;
            self.drafts.extend(places.map(|place| filler(request, seen + place as u64)));
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
        // A worker's drafts come with the results of the step that was told to propose: [`StepPlan::propose`].
        !self.config.is_worker() && (self.fixed || self.guard.is_engaged())
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

    /// What is known about times, for the next start.
    pub fn costs(&self) -> Costs {
        self.guard.cost().costs()
    }

    /// Steps that were measured.
    pub const fn num_measured(&self) -> u64 {
        self.guard.cost().num_measured()
    }

    /// Takes over what an earlier run knew of the same machine.
    pub fn restore(&mut self, costs: &Costs) {
        self.guard.restore(costs);
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
            first_draft_chance: [1, 2, 4, 8, 16]
                .map(|n| (n, self.acceptance.chance(Evidence::Match(n), Warmth::Greedy, 0)))
                .to_vec(),
            totals: self.totals.clone(),
            max_drafts: self.max_drafts,
            synthetic: self.config.fill,
            failure: self.failure.clone(),
        }
    }
}

/// A draft where the drafter has none and verification is forced: tokens differ as those of a text do, since a model of
/// experts reads as many weights as the tokens of a step have different ones.
const fn filler(request: u64, place: u64) -> TokenId {
    FIRST_FILLER + (mix(mix(request) ^ place) % FILLERS) as TokenId
}

/// Rows of a step that decoded, and the tokens that came out of them.
fn decoded(plan: &StepPlan, output: &StepOutput) -> (usize, usize) {
    let rows = plan.rows.iter().zip(&output.num_sampled).filter(|(row, _)| !row.prefills);
    rows.fold((0, 0), |(rows, tokens), (_, sampled)| (rows + 1, tokens + *sampled as usize))
}

/// The survivals of an offer among reused ones.
fn survival_at(offers: &mut Vec<Offer>, at: usize) -> &mut Vec<f64> {
    if at == offers.len() {
        offers.push(Offer::default());
    }
    &mut offers[at].survival
}
