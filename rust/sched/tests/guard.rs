//! The guard on simulated machines, on a virtual clock: never noticeably slower than without drafts, close to the best
//! constant length, and back when things change.

mod machines;

use frizzen_core::SpeculationReason as Reason;
use frizzen_sched::draft::Evidence;
use frizzen_sched::speculation::acceptance::{Acceptance, Judged, OwnAcceptance, Warmth};
use frizzen_sched::speculation::choose::Offer;
use frizzen_sched::speculation::guard::{Fixed, Guard, MeasuredStep, Situation};
use frizzen_sched::speculation::law::Experts;
use machines::{InWorker, Machine, Random};

/// Drafts that are offered per row.
const K: usize = 8;

const MODEL: Judged<'static> = Judged { evidence: Evidence::Model, confidences: &[], warmth: Warmth::Greedy };
const MATCH: Judged<'static> =
    Judged { evidence: Evidence::Match(8), confidences: &[], warmth: Warmth::Greedy };

/// The chance of a draft that gives this many tokens per verification of `K` drafts.
fn chance_for(mean: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if expected(middle, K) > mean { high = middle } else { low = middle }
    }
    low
}

/// Tokens per row and step with `k` drafts of this chance.
fn expected(chance: f64, k: usize) -> f64 {
    (0..=k as i32).map(|at| chance.powi(at)).sum()
}

/// A server whose rows all behave alike.
struct Simulation {
    guard: Guard,
    worker: Option<InWorker>,
    /// Drafts per row that the worker proposed in the last step.
    proposed: usize,
    unlabelled: u32,
    acceptance: Acceptance,
    own: Vec<OwnAcceptance>,
    random: Random,
    ms: f64,
    tokens: f64,
    drafts: u64,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            guard: Guard::default(),
            worker: None,
            proposed: 0,
            unlabelled: 0,
            acceptance: Acceptance::default(),
            own: vec![OwnAcceptance::default(); 256],
            random: Random(seed),
            ms: 0.0,
            tokens: 0.0,
            drafts: 0,
        }
    }

    fn with_worker(seed: u64, worker: InWorker) -> Self {
        let experts = Some(Experts { num: 128, per_token: 8, layers: 48 });
        Self { guard: Guard::new(experts), worker: Some(worker), ..Self::new(seed) }
    }

    /// Runs steps. `extra` is what a step with drafts costs besides its tokens, as a share of its time.
    fn run(&mut self, steps: usize, rows: usize, chance: f64, machine: Machine, extra: f64) {
        let mut lengths = Vec::new();
        let (mut offers, mut outlook) = (vec![Offer::default(); rows], vec![Offer::default(); rows]);
        for _ in 0..steps {
            let at_hand = if self.worker.is_some() { self.proposed } else { K };
            let judged = if self.worker.is_some() { MODEL } else { MATCH };
            for ((own, offer), ahead) in self.own.iter().zip(&mut offers).zip(&mut outlook) {
                self.acceptance.survival(own, judged, at_hand, &mut offer.survival);
                self.acceptance.survival(own, judged, K, &mut ahead.survival);
            }
            let situation = Situation {
                rows,
                fixed: Fixed::default(),
                offers: &offers,
                outlook: self.worker.map(|_| &outlook[..]),
                unlabelled: if self.worker.is_some() { self.unlabelled } else { 0 },
            };
            let decision = self.guard.decide(&situation, &mut lengths);
            self.proposed = decision.propose;
            if decision.forget {
                self.acceptance.forget();
                self.own.iter_mut().for_each(OwnAcceptance::forget);
            }
            let drafts: u32 = lengths.iter().sum();
            let mut tokens = rows;
            for (own, length) in self.own.iter_mut().zip(&lengths) {
                for at in 0..at_hand {
                    let right = self.random.next() < chance;
                    self.acceptance.label(own, judged, at, right);
                    if !right {
                        break;
                    }
                    tokens += usize::from(at < *length as usize);
                }
            }
            self.unlabelled = if at_hand > 0 { 0 } else { self.unlabelled + 1 };
            let noise = 0.95 + 0.1 * self.random.next();
            let slower = if drafts > 0 { 1.0 + extra } else { 1.0 };
            let drafting = self.worker.map_or(0.0, |worker| worker.ms(decision.propose));
            let ms = (machine.ms(rows as f64 + f64::from(drafts)) * slower + drafting) * noise;
            self.guard.measure(&MeasuredStep {
                rows,
                drafts: drafts as usize,
                proposed: decision.propose,
                prefill: 0,
                tokens,
                seconds: ms / 1e3,
                governed: true,
                ahead: false,
            });
            self.ms += ms;
            self.tokens += tokens as f64;
            self.drafts += u64::from(drafts);
        }
    }

    /// Tokens per millisecond since the last call.
    fn rate(&mut self) -> f64 {
        let rate = self.tokens / self.ms;
        (self.ms, self.tokens, self.drafts) = (0.0, 0.0, 0);
        rate
    }
}

fn constant_rate(rows: usize, chance: f64, machine: Machine, k: usize) -> f64 {
    rows as f64 * expected(chance, k) / machine.ms((rows * (k + 1)) as f64)
}

#[test]
fn never_slower_than_off_and_close_to_the_best_constant_length_in_every_cell() {
    let machines =
        [Machine::Dense { knee: 64.0 }, Machine::Dense { knee: 1000.0 }, Machine::Moe, Machine::Linear];
    for machine in machines {
        for rows in [1, 8, 32, 128] {
            for mean in [1.2, 2.0, 3.0, 4.0] {
                let chance = chance_for(mean);
                let mut simulation = Simulation::new(rows as u64 + mean as u64);
                simulation.run(
                    [4000, 1500, 800][usize::from(rows > 1) + usize::from(rows > 32)],
                    rows,
                    chance,
                    machine,
                    0.0,
                );
                let rate = simulation.rate();
                let off = constant_rate(rows, chance, machine, 0);
                let best = (0..=K).map(|k| constant_rate(rows, chance, machine, k)).fold(0.0, f64::max);
                assert!(
                    rate >= 0.98 * off && rate >= 0.95 * best,
                    "{machine:?}, {rows} rows, {mean}: {:.3} of off, {:.3} of the best constant length",
                    rate / off,
                    rate / best
                );
            }
        }
    }
}

#[test]
fn drafts_stop_when_verifying_becomes_dear_and_come_back_when_it_is_cheap_again() {
    let machine = Machine::Dense { knee: 64.0 };
    let chance = chance_for(3.0);
    let mut simulation = Simulation::new(1);
    simulation.run(1000, 4, chance, machine, 0.0);
    assert!(simulation.guard.is_on());
    simulation.rate();
    // Another tenant, say: a step with drafts takes four times as long, a plain one as long as before.
    simulation.run(2000, 4, chance, machine, 3.0);
    assert!(!simulation.guard.is_on());
    assert!(matches!(simulation.guard.reason(), Reason::BelowBreakEven | Reason::MeasuredLoss));
    let off = constant_rate(4, chance, machine, 0);
    let rate = simulation.rate();
    assert!(rate >= 0.98 * off, "{:.3} of off", rate / off);
    simulation.run(4000, 4, chance, machine, 0.0);
    assert!(simulation.guard.is_on(), "drafts did not come back: {:?}", simulation.guard);
    let changes: Vec<_> = simulation.guard.take_changes().iter().map(|change| change.on).collect();
    assert!(changes.windows(2).all(|pair| pair[0] != pair[1]), "{changes:?}");
    assert!(changes.len() <= 7, "{changes:?} flaps");
}

#[test]
fn drafts_follow_the_text_without_being_verified() {
    // Prose with nothing to copy, then a passage that repeats: the labels of unverified proposals tell.
    let machine = Machine::Linear;
    let mut simulation = Simulation::new(3);
    simulation.run(1000, 1, 0.05, machine, 0.0);
    assert!(!simulation.guard.is_on());
    simulation.rate();
    simulation.run(1000, 1, 0.05, machine, 0.0);
    assert!(simulation.rate() >= 0.98 * constant_rate(1, 0.05, machine, 0));
    let flat = Machine::Dense { knee: 64.0 };
    let mut simulation = Simulation::new(3);
    simulation.run(1000, 1, 0.0, flat, 0.0);
    assert!(!simulation.guard.is_on());
    simulation.run(300, 1, 0.9, flat, 0.0);
    assert!(simulation.guard.is_on());
}

#[test]
fn load_that_rises_and_falls_is_served_at_least_as_well_as_without_drafts() {
    let machine = Machine::Dense { knee: 48.0 };
    let chance = chance_for(2.5);
    let mut simulation = Simulation::new(7);
    let (mut off_ms, mut tokens) = (0.0, 0.0);
    for round in 0..40 {
        let rows = [1, 3, 9, 30, 100, 200, 60, 20, 5, 2][round % 10];
        simulation.run(100, rows, chance, machine, 0.0);
        off_ms += 100.0 * machine.ms(rows as f64);
        tokens += 100.0 * rows as f64;
    }
    // Both rates weigh phases by their tokens, so compare the time of the tokens that came out.
    let off = tokens / off_ms;
    let rate = simulation.rate();
    assert!(rate >= 0.98 * off, "{:.3} of off", rate / off);
}

#[test]
fn a_few_drafts_that_cannot_pay_are_looked_at_and_given_up() {
    let mut simulation = Simulation::new(11);
    simulation.run(3000, 8, 0.02, Machine::Linear, 0.0);
    assert!(simulation.drafts < 8 * 8 * 30, "{} drafts", simulation.drafts);
    assert!(!simulation.guard.is_on());
}

#[test]
fn a_drafter_in_the_worker_is_never_slower_than_off_either() {
    let machines = [Machine::Dense { knee: 64.0 }, Machine::Moe, Machine::Linear];
    let workers = [
        InWorker { base: 0.2, per_draft: 0.1 },
        InWorker { base: 1.0, per_draft: 0.0 },
        InWorker { base: 0.5, per_draft: 1.5 },
    ];
    for (machine, worker) in machines.into_iter().flat_map(|machine| workers.map(|worker| (machine, worker)))
    {
        for rows in [1, 8, 64] {
            for mean in [1.2, 2.0, 4.0] {
                let chance = chance_for(mean);
                let mut simulation = Simulation::with_worker(rows as u64 + mean as u64, worker);
                simulation.run(if rows > 1 { 800 } else { 4000 }, rows, chance, machine, 0.0);
                let rate = simulation.rate();
                let constant = |k: usize| {
                    let ms = machine.ms((rows * (k + 1)) as f64) + worker.ms(k);
                    rows as f64 * expected(chance, k) / ms
                };
                let best = (0..=K).map(constant).fold(0.0, f64::max);
                assert!(
                    rate >= 0.98 * constant(0) && rate >= 0.95 * best,
                    "{machine:?}, {worker:?}, {rows} rows, {mean}: {:.3} of off, {:.3} of the best",
                    rate / constant(0),
                    rate / best
                );
            }
        }
    }
}

/// Where all rows end with the next step there is nothing more to propose, which is no reason to throw away what was.
#[test]
fn the_last_drafts_of_all_rows_are_verified() {
    let worker = InWorker { base: 0.2, per_draft: 0.1 };
    let mut simulation = Simulation::with_worker(1, worker);
    simulation.run(800, 4, 0.9, Machine::Moe, 0.0);
    assert!(simulation.guard.is_on(), "the test needs drafts that pay");
    let (offers, outlook) = (vec![Offer { survival: vec![0.9] }; 4], vec![Offer::default(); 4]);
    let mut lengths = Vec::new();
    let last = |offers| Situation {
        rows: 4,
        fixed: Fixed::default(),
        offers,
        outlook: Some(&outlook[..]),
        unlabelled: 0,
    };
    // A probe may come in between; the step after it has drafts again.
    let reasons = [(); 3].map(|()| simulation.guard.decide(&last(&offers[..]), &mut lengths).reason);
    assert_eq!((reasons[2], &lengths[..]), (Reason::Gain, &[1; 4][..]), "{reasons:?}");
    let nothing = simulation.guard.decide(&last(&outlook[..]), &mut lengths);
    assert_eq!((nothing.reason, nothing.propose, &lengths[..]), (Reason::NoMatch, 0, &[0; 4][..]));
}

#[test]
fn every_phase_of_a_day_is_served_at_least_as_well_as_without_drafts() {
    let worker = InWorker { base: 0.3, per_draft: 0.2 };
    let mut simulation = Simulation::with_worker(5, worker);
    // Rows, tokens per verification, and what another tenant adds to steps with drafts.
    let day = [
        (2, 3.0, 0.0),
        (16, 3.0, 0.0),
        (64, 2.0, 0.0),
        (128, 1.2, 0.0),
        (64, 3.0, 1.5),
        (16, 1.2, 0.0),
        (4, 4.0, 0.0),
        (1, 1.2, 3.0),
        (1, 3.5, 0.0),
    ];
    for (rows, mean, extra) in day {
        let chance = chance_for(mean);
        simulation.run(1000, rows, chance, Machine::Moe, extra);
        let rate = simulation.rate();
        let off = constant_rate(rows, chance, Machine::Moe, 0);
        assert!(rate >= 0.98 * off, "{rows} rows, {mean}, {extra}: {:.3} of off", rate / off);
    }
}

#[test]
fn a_drafter_that_was_off_for_long_is_tried_again() {
    let mut simulation = Simulation::with_worker(9, InWorker { base: 0.3, per_draft: 0.1 });
    let machine = Machine::Dense { knee: 64.0 };
    simulation.run(2000, 2, 0.02, machine, 0.0);
    assert!(!simulation.guard.is_on());
    // Nobody proposes any more, so nothing tells that the text has become easy, but trials.
    simulation.run(3000, 2, 0.9, machine, 0.0);
    assert!(simulation.guard.is_on(), "{:?}", simulation.guard.reason());
}

#[test]
fn the_best_length_on_a_mixture_of_experts_rises_with_the_batch_and_falls_again() {
    // Few rows: each draft reads experts that nobody else reads. Many rows: all experts are read anyhow. Too many rows:
    // arithmetic is what counts.
    let chance = 0.8;
    let length = |rows: usize| {
        let mut simulation = Simulation::with_worker(13, InWorker { base: 0.1, per_draft: 0.01 });
        simulation.run(600, rows, chance, Machine::Mixture, 0.0);
        simulation.rate();
        simulation.run(200, rows, chance, Machine::Mixture, 0.0);
        simulation.drafts as f64 / (200 * rows) as f64
    };
    let [few, many, too_many] = [2, 48, 256].map(length);
    assert!(many > few + 1.0 && many > too_many + 1.0, "{few:.1}, {many:.1}, {too_many:.1}");
}

#[test]
fn where_others_drafts_are_in_every_step_probing_does_not_go_on_forever() {
    let (mut guard, mut lengths) = (Guard::default(), Vec::new());
    let offers = [Offer { survival: vec![0.9, 0.8, 0.7] }];
    let mut probes = 0;
    for step in 0..3000 {
        let fixed = Fixed { drafts: if step < 20 { 0 } else { 4 }, tokens: 2.0, proposed: 0 };
        let situation = Situation { rows: 2, fixed, offers: &offers, outlook: None, unlabelled: 0 };
        let decision = guard.decide(&situation, &mut lengths);
        probes += u32::from(step > 20 && decision.reason == Reason::ProbeOff);
        let drafts = fixed.drafts + lengths[0] as usize;
        guard.measure(&MeasuredStep {
            rows: 2,
            drafts,
            proposed: 0,
            prefill: 0,
            tokens: 2 + drafts / 2,
            seconds: 0.01 + 0.0001 * drafts as f64,
            governed: false,
            ahead: false,
        });
    }
    assert!(probes < 150, "{probes} of 3000 steps without the guard's drafts");
    assert!(guard.is_on());
}
