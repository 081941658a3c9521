//! Cost of tokenising prompts of about 2,048 tokens.
//!
//! `FRIZZEN_TEST_GGUF=FILE cargo bench -p frizzen-text --bench encode`, with a model file or a vocabulary-only one. English
//! and code are texts of this repository; random tokens are what `frizzen bench serve` sends.
#![expect(clippy::unwrap_used, reason = "a benchmark has no caller to report to")]

use std::path::Path;
use std::sync::LazyLock;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use frizzen_core::TokenId;
use frizzen_text::Tokenizer;

const TOKENS: usize = 2048;
const ENGLISH: &str = concat!(include_str!("../../../README.md"), include_str!("../../../ARCHITECTURE.md"));
const CODE: &str = concat!(include_str!("../src/stop.rs"), include_str!("../src/gguf.rs"));
const CHINESE: &str =
    "水循环描述了水在地球表面及其上下的运动。蒸发、凝结和降水是它的三个主要阶段，缺一不可。";

fn main() {
    if std::env::var_os("FRIZZEN_TEST_GGUF").is_none() {
        eprintln!("FRIZZEN_TEST_GGUF is not set: skipped");
        return;
    }
    divan::main();
}

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(load);

#[divan::bench(sample_count = 5)]
fn load() -> Tokenizer {
    Tokenizer::load(Path::new(&std::env::var_os("FRIZZEN_TEST_GGUF").unwrap())).unwrap()
}

/// The text of the first tokens of `text`.
fn prompt(text: &str) -> String {
    let ids = TOKENIZER.encode(text, false).unwrap();
    TOKENIZER.decode(&ids[..TOKENS.min(ids.len())], false)
}

fn encode(bencher: Bencher<'_, '_>, text: &str) {
    let tokens = TOKENIZER.encode(text, false).unwrap().len();
    bencher.counter(ItemsCount::new(tokens)).bench(|| TOKENIZER.encode(black_box(text), false));
}

#[divan::bench]
fn english(bencher: Bencher<'_, '_>) {
    encode(bencher, &prompt(ENGLISH));
}

#[divan::bench]
fn code(bencher: Bencher<'_, '_>) {
    encode(bencher, &prompt(CODE));
}

#[divan::bench]
fn chinese(bencher: Bencher<'_, '_>) {
    encode(bencher, &prompt(&CHINESE.repeat(100)));
}

#[divan::bench]
fn random(bencher: Bencher<'_, '_>) {
    let vocab = TOKENIZER.vocab_size();
    let ids: Vec<TokenId> = (0..TOKENS as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    encode(bencher, &TOKENIZER.decode(&ids, true));
}
