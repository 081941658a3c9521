//! Time to take a token over and to propose for one row: `cargo bench -p frizzen-sched --bench draft`.

use frizzen_core::{RequestId, TokenId};
use frizzen_sched::draft::{Drafter, Ngram, NgramConfig, Suffix, SuffixConfig};

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
