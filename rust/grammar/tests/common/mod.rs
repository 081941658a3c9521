//! A vocabulary small enough to read: one token per byte, a few of several, and special ones above them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::LazyLock;

use frizzen_core::TokenId;
use frizzen_grammar::{GrammarCompiler, GrammarLimits};
use frizzen_text::{SpecialTokens, Tokenizer};
use serde_json::{Map, Value, json};

/// Tokens of several bytes; their ids follow those of the bytes.
pub const WORDS: [&str; 6] = ["{\"", "\":", "\": ", " null", "true", "``"];
/// The ends of a text.
pub const EOS: [TokenId; 2] = [262, 263];
/// Logits of the model: more than there are tokens.
pub const VOCAB_SIZE: u32 = 300;

fn byte_alphabet() -> Vec<String> {
    let mut extra = 0x100;
    let mut stand_in = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            extra += 1;
            char::from_u32(extra - 1).expect("these are characters")
        }
    };
    (0..=255).map(|byte| stand_in(byte).to_string()).collect()
}

/// A tokenizer of [`WORDS`], with special tokens after the two ends of a text.
pub fn tokenizer(special: &[&str]) -> Tokenizer {
    let alphabet = byte_alphabet();
    let spelled =
        |word: &&str| word.bytes().map(|byte| alphabet[usize::from(byte)].as_str()).collect::<String>();
    let words: Vec<String> = WORDS.iter().map(spelled).collect();
    let vocab: Map<String, Value> =
        alphabet.iter().chain(&words).cloned().zip((0..).map(Value::from)).collect();
    let added: Vec<Value> = ["<|end|>", "<|stop|>"]
        .iter()
        .chain(special)
        .zip(EOS[0]..)
        .map(|(content, id)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let model = json!({"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []},
                       "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level});
    let special = SpecialTokens { eos: EOS.to_vec(), ..SpecialTokens::default() };
    Tokenizer::from_json(model.to_string().as_bytes(), special, Vec::new()).expect("the vocabulary is valid")
}

/// The compiler that all tests share.
pub fn compiler() -> &'static GrammarCompiler {
    static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| {
        GrammarCompiler::new(&tokenizer(&[]), VOCAB_SIZE, &EOS, GrammarLimits::default())
            .expect("a valid vocabulary")
    });
    &COMPILER
}
