//! The guard on steps as an H200 took them, in the order of `benches.gpu.speculation`: a sweep over constant lengths, then one
//! acceptance after the other, which verification is forced to give.

use frizzen_sched::draft::Evidence;
use frizzen_sched::speculation::acceptance::{Acceptance, Judged, OwnAcceptance, Warmth};
use frizzen_sched::speculation::choose::Offer;
use frizzen_sched::speculation::guard::{Fixed, Guard, MeasuredStep, Situation};
use frizzen_sched::speculation::law::Experts;

/// Drafts that are offered per row.
const K: usize = 5;
const LENGTHS: [usize; 4] = [1, 2, 3, 5];
const QWEN: Experts = Experts { num: 128, per_token: 8, layers: 48 };

/// Milliseconds of a step of so many rows by its drafts per row, proposed by nobody. The first draft takes the step its
/// overlap with the host.
const VERIFY: [(usize, [f64; K + 1]); 3] = [
    (1, [2.49, 3.24, 3.67, 3.67, 3.68, 3.69]),
    (8, [7.62, 7.99, 8.25, 8.54, 8.85, 9.15]),
    (32, [13.65, 14.75, 15.88, 17.03, 17.07, 17.10]),
];

/// What proposing takes besides.
#[derive(Clone, Copy, Debug)]
enum Drafter {
    /// A match in the text, always as long as it may be.
    Match,
    /// A layer in the worker.
    Layer,
}

impl Drafter {
    const fn judged(self) -> Judged<'static> {
        let evidence = match self {
            Self::Match => Evidence::Match(8),
            Self::Layer => Evidence::Model,
        };
        Judged { evidence, confidences: &[], warmth: Warmth::Greedy }
    }

    const fn in_worker(self) -> bool {
        matches!(self, Self::Layer)
    }

    fn ms(self, proposed: usize) -> f64 {
        if self.in_worker() && proposed > 0 { 0.1 + 0.12 * proposed as f64 } else { 0.0 }
    }
}

fn step_ms(rows: usize, drafts: f64) -> f64 {
    let (_, table) = VERIFY.iter().find(|(known, _)| *known == rows).expect("measured");
    let per_row = drafts / rows as f64;
    let below = (per_row as usize).min(K - 1);
    table[below] + (table[below + 1] - table[below]) * (per_row - below as f64)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Server {
    drafter: Drafter,
    guard: Guard,
    acceptance: Acceptance,
    random: Random,
    /// Tokens per row and step.
    forced: f64,
    proposed: usize,
    unlabelled: u32,
    /// Share of the steps that take ten times as long as others like them, whatever they do.
    hiccups: f64,
}

impl Server {
    fn new(drafter: Drafter, seed: u64) -> Self {
        Self {
            drafter,
            guard: Guard::new(Some(QWEN)),
            acceptance: Acceptance::default(),
            random: Random(seed),
            forced: 2.0,
            proposed: 0,
            unlabelled: 0,
            hiccups: 0.0,
        }
    }

    /// Steps of which each row drafts so many, or what the guard says; returns tokens per millisecond, without what hiccups
    /// took.
    fn run(&mut self, steps: usize, rows: usize, fixed: Option<usize>) -> f64 {
        let mut own = vec![OwnAcceptance::default(); rows];
        let (mut offers, mut outlook) = (vec![Offer::default(); rows], vec![Offer::default(); rows]);
        let (mut lengths, mut total, mut yielded) = (Vec::new(), 0.0, 0.0);
        self.proposed = 0;
        for _ in 0..steps {
            let at_hand = if self.drafter.in_worker() { self.proposed } else { K };
            for ((own, offer), ahead) in own.iter().zip(&mut offers).zip(&mut outlook) {
                self.acceptance.survival(own, self.drafter.judged(), at_hand, &mut offer.survival);
                self.acceptance.survival(own, self.drafter.judged(), K, &mut ahead.survival);
            }
            let proposed = if let Some(length) = fixed {
                lengths.clear();
                lengths.resize(rows, length.min(at_hand) as u32);
                length
            } else {
                let situation = Situation {
                    rows,
                    fixed: Fixed::default(),
                    offers: &offers,
                    outlook: self.drafter.in_worker().then_some(&outlook[..]),
                    unlabelled: self.unlabelled,
                };
                let decision = self.guard.decide(&situation, &mut lengths);
                if decision.forget {
                    self.acceptance.forget();
                    own.iter_mut().for_each(OwnAcceptance::forget);
                }
                decision.propose
            };
            self.proposed = if self.drafter.in_worker() { proposed } else { 0 };
            let tokens = rows + self.verify(&mut own, &lengths);
            let drafts: u32 = lengths.iter().sum();
            let noise = 0.99 + 0.02 * self.random.next();
            let ms = (step_ms(rows, f64::from(drafts)) + self.drafter.ms(self.proposed)) * noise;
            self.guard.measure(&MeasuredStep {
                rows,
                drafts: drafts as usize,
                proposed: self.proposed,
                prefill: 0,
                tokens,
                seconds: if self.random.next() < self.hiccups { 10.0 * ms } else { ms } / 1e3,
                governed: fixed.is_none(),
                ahead: drafts == 0 && self.proposed == 0,
            });
            total += ms;
            yielded += tokens as f64;
        }
        yielded / total
    }

    /// Accepts what is forced; only verified drafts teach anything.
    fn verify(&mut self, own: &mut [OwnAcceptance], lengths: &[u32]) -> usize {
        let mut accepted = 0;
        self.unlabelled = if lengths.iter().any(|length| *length > 0) { 0 } else { self.unlabelled + 1 };
        for (own, length) in own.iter_mut().zip(lengths) {
            for at in 0..*length as usize {
                let right = self.random.next() < self.forced - 1.0 - at as f64;
                self.acceptance.label(own, self.drafter.judged(), at, right);
                if !right {
                    break;
                }
                accepted += 1;
            }
        }
        accepted
    }

    fn constant(&self, rows: usize, length: usize) -> f64 {
        let tokens = 1.0 + (0..length).map(|at| (self.forced - 1.0 - at as f64).clamp(0.0, 1.0)).sum::<f64>();
        rows as f64 * tokens / (step_ms(rows, (rows * length) as f64) + self.drafter.ms(length))
    }
}

#[test]
fn forced_acceptance_on_the_steps_of_a_gpu_is_served_as_well_as_by_the_best_constant_length() {
    check(0.0, 100, 0.95);
}

#[test]
fn hiccups_that_are_nobodys_fault_do_not_keep_drafts_off() {
    check(0.01, 400, 0.88);
}

/// All cells, with runs of this many steps of one row, and at least this part of the best.
fn check(hiccups: f64, steps: usize, bound: f64) {
    let drafters = [Drafter::Match, Drafter::Layer];
    for (drafter, seed) in drafters.into_iter().flat_map(|drafter| (1..6).map(move |seed| (drafter, seed))) {
        let mut server = Server::new(drafter, seed);
        server.hiccups = hiccups;
        for (rows, _) in VERIFY {
            for length in LENGTHS {
                server.run(40, rows, Some(length));
            }
        }
        for forced in [4.0, 3.0, 2.0, 1.2] {
            server.forced = forced;
            server.run(12, 32, Some(K));
            for (rows, share) in [(1, 1.0), (8, 0.6), (32, 0.4)] {
                let steps = (share * steps as f64) as usize;
                server.run(steps, rows, None);
                let rate = server.run(3 * steps, rows, None);
                let off = server.constant(rows, 0);
                let best = LENGTHS.iter().map(|length| server.constant(rows, *length)).fold(off, f64::max);
                assert!(
                    rate >= 0.98 * off && rate >= bound * best,
                    "{drafter:?}, {rows} rows, {forced}, seed {seed}: {:.3} of off, {:.3} of the best",
                    rate / off,
                    rate / best
                );
            }
        }
    }
}
