//! Time to take a token over and to propose for one row, and of the choice of lengths for all: `cargo bench -p frizzen-sched --bench draft`.

use frizzen_core::{RequestId, TokenId};
use frizzen_sched::draft::{Drafter, Ngram, NgramConfig, Suffix, SuffixConfig};
use frizzen_sched::speculation::Experts;
use frizzen_sched::speculation::choose::Offer;
use frizzen_sched::speculation::guard::{Fixed, Guard, MeasuredStep, Situation};

fn main() {
    divan::main();
}

const ID: RequestId = RequestId(1);

/// Text of `len` tokens: random over a small vocabulary, so that many n-grams recur, with a repeated passage.
fn text(len: usize) -> Vec<TokenId> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as TokenId % 64
    };
    let passage: Vec<TokenId> = (0..40).map(|_| random()).collect();
    let mut text = passage.clone();
    while text.len() < len {
        text.extend((0..60).map(|_| random()));
        text.extend(&passage);
    }
    text.truncate(len);
    text
}

fn drafter(name: &str) -> Box<dyn Drafter> {
    match name {
        "ngram" => Box::new(Ngram::new(NgramConfig::default()).expect("the default is valid")),
        _ => Box::new(Suffix::new(SuffixConfig::default()).expect("the default is valid")),
    }
}

#[divan::bench(args = [("ngram", 512), ("ngram", 8192), ("ngram", 131_072), ("suffix", 512), ("suffix", 8192), ("suffix", 131_072)])]
fn observe_and_propose(bencher: divan::Bencher<'_, '_>, (name, len): (&str, usize)) {
    let text = text(len);
    let mut drafter = drafter(name);
    for id in 100..200 {
        drafter.start(RequestId(id), &text[..8], true);
        drafter.observe(RequestId(id), &text[..text.len().min(2000)]);
        drafter.finish(RequestId(id));
    }
    drafter.start(ID, &text, true);
    let mut drafts = Vec::with_capacity(16);
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 1) % text.len();
        drafter.observe(ID, &text[at..=at]);
        drafter.propose(ID, 16, &mut drafts)
    });
}

#[divan::bench(args = ["ngram", "suffix"])]
fn start_with_8192_tokens(bencher: divan::Bencher<'_, '_>, name: &str) {
    let text = text(8192);
    let mut drafter = drafter(name);
    bencher.bench_local(|| drafter.start(ID, &text, true));
}

/// The guard's choice for a drafter in the worker, when everything is known: once per step.
#[divan::bench(args = [1, 8, 32, 128])]
fn decide(bencher: divan::Bencher<'_, '_>, rows: usize) {
    let mut guard = Guard::new(Some(Experts { num: 128, per_token: 8, layers: 48 }));
    let offers = vec![Offer { survival: (1..=8).map(|at| 0.8f64.powi(at)).collect() }; rows];
    let mut lengths = Vec::new();
    let mut step = move || {
        let situation = Situation {
            rows,
            fixed: Fixed::default(),
            offers: &offers,
            outlook: Some(&offers),
            unlabelled: 0,
        };
        let decision = guard.decide(&situation, &mut lengths);
        let drafts = lengths.iter().sum::<u32>() as usize;
        guard.measure(&MeasuredStep {
            rows,
            drafts,
            proposed: decision.propose,
            prefill: 0,
            tokens: rows + drafts / 2,
            seconds: 0.01 + 1e-5 * (rows + drafts) as f64,
            governed: true,
            ahead: false,
        });
    };
    (0..300).for_each(|_| step());
    bencher.bench_local(step);
}
