//! Time per mask, per compilation and per matcher, on a real vocabulary.
//!
//! `FRIZZEN_TEST_GGUF=model.gguf cargo bench -p frizzen-grammar`: the tokenizer of that file, and random walks through
//! grammars of growing difficulty that take any token the mask allows (harder than a model, which would write text).
#![expect(clippy::print_stdout, reason = "a benchmark reports on its output")]
#![expect(clippy::expect_used, reason = "a benchmark has no caller to report to")]

use std::path::Path;
use std::time::{Duration, Instant};

use frizzen_core::TokenMatcher;
use frizzen_grammar::{GrammarCompiler, GrammarKind, GrammarLimits, GrammarSpec};
use frizzen_text::Tokenizer;

const WALKS: usize = 40;
const STEPS: usize = 60;

fn specs() -> Vec<(&'static str, GrammarSpec)> {
    let person = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":40},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":5}},"required":["name","age","email","tags"],"additionalProperties":false}"#;
    let tree = r##"{"$defs":{"node":{"type":"object","properties":{"label":{"type":"string"},"kind":{"enum":["leaf","branch"]},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["label","kind","children"],"additionalProperties":false}},"$ref":"#/$defs/node"}"##;
    vec![
        ("json_object", GrammarSpec::json_object()),
        ("person", GrammarKind::Json(person.to_owned()).into()),
        ("tree", GrammarKind::Json(tree.to_owned()).into()),
        ("regex date", GrammarKind::Regex(r"\d{4}-\d{2}-\d{2}( \d{2}:\d{2})?".to_owned()).into()),
        ("regex prose", GrammarKind::Regex(r"([A-Z][a-z]+ ){3,20}end\.".to_owned()).into()),
        (
            "lark sum",
            GrammarKind::Lark("start: term (\"+\" term)*\nterm: /[0-9]{1,9}/ | \"(\" start \")\"".to_owned())
                .into(),
        ),
    ]
}

/// A next state of a small generator, good enough to wander.
fn step(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

fn allowed(mask: &[u32], pick: usize) -> Option<u32> {
    let count: usize = mask.iter().map(|word| word.count_ones() as usize).sum();
    let pick = pick.checked_rem(count)?;
    (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).nth(pick)
}

fn main() {
    if let Some(folder) = std::env::var_os("FRIZZEN_BENCH_VOCABULARY") {
        return compare(Path::new(&folder));
    }
    let Some(path) = std::env::var_os("FRIZZEN_TEST_GGUF") else {
        println!("set FRIZZEN_TEST_GGUF to a model file for its vocabulary");
        return;
    };
    let (compiler, made) = compiler_of(Path::new(&path));
    println!("vocabulary made in {made:.0?}");
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "grammar", "compile", "matcher", "median", "p99", "max", "masks"
    );
    let mut all = Vec::new();
    for (name, spec) in specs() {
        let started = Instant::now();
        let grammar = compiler.compile(&spec).expect("the specification is valid");
        let compiled = started.elapsed();
        let started = Instant::now();
        drop(grammar.start());
        let cloned = started.elapsed();
        let mut times = walk(&grammar);
        all.extend_from_slice(&times);
        report(name, Some((compiled, cloned)), &mut times);
    }
    report("all", None, &mut all);
}

fn compiler_of(path: &Path) -> (GrammarCompiler, Duration) {
    let tokenizer = Tokenizer::load(path).expect("the file has a tokenizer");
    let started = Instant::now();
    let limits = GrammarLimits { max_cached: 0, ..GrammarLimits::default() };
    let compiler =
        GrammarCompiler::new(&tokenizer, tokenizer.vocab_size(), tokenizer.eos_token_ids(), limits);
    (compiler.expect("a usable vocabulary"), started.elapsed())
}

/// For `benches/cpu/grammars.py`: the times of the schemas in a folder, and of masks, as JSON.
fn compare(folder: &Path) {
    let (compiler, made) = compiler_of(folder);
    let text = std::fs::read_to_string(folder.join("schemas.json")).expect("the caller wrote it");
    let schemas: Vec<serde_json::Value> = serde_json::from_str(&text).expect("a list of schemas");
    let compile = |schema: &serde_json::Value| {
        let spec = GrammarSpec::json("schema", schema).ok()?;
        let started = Instant::now();
        compiler.compile(&spec).ok()?;
        Some(started.elapsed().as_secs_f64() * 1e3)
    };
    let times: Vec<Option<f64>> = schemas.iter().map(compile).collect();
    let mut masks = serde_json::Map::new();
    for (name, spec) in specs() {
        let grammar = compiler.compile(&spec).expect("the specification is valid");
        let mut times = walk(&grammar);
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        masks.insert(name.to_owned(), serde_json::json!({"p50_us": at(0.5), "p99_us": at(0.99)}));
    }
    println!(
        "{}",
        serde_json::json!({"made_ms": made.as_secs_f64() * 1e3, "compile_ms": times, "masks": masks})
    );
}

fn walk(grammar: &frizzen_grammar::Grammar) -> Vec<Duration> {
    let mut mask = vec![0; 1 << 13];
    let mut times = Vec::new();
    for seed in 0..WALKS {
        let mut matcher = grammar.start();
        let mut state = seed as u64;
        for _ in 0..STEPS {
            let started = Instant::now();
            matcher.fill(&mut mask).expect("the grammar is simple enough");
            times.push(started.elapsed());
            let Some(token) = allowed(&mask, step(&mut state)) else { break };
            matcher.accept(token).expect("the mask allows it");
        }
    }
    times
}

fn report(name: &str, made: Option<(Duration, Duration)>, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let (compiled, cloned) = made.unwrap_or_default();
    println!(
        "{name:<12} {compiled:>9.0?} {cloned:>9.0?} {:>9.1?} {:>9.1?} {:>9.1?} {:>7}",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}
