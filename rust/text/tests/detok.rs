//! Detokenisation: what is streamed is what would have been decoded at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, LazyLock};

use common::{
    SENTENCEPIECE_VOCAB, byte_tokenizer, byte_tokenizer_json, llama_decoder, sentencepiece_json,
    tokenizer_from_json,
};
use frizzen_core::TokenId;
use frizzen_text::{Detokenizer, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A tokenizer of ours beside the `tokenizers` crate's own on the same file.
struct Pair {
    ours: Arc<Tokenizer>,
    theirs: tokenizers::Tokenizer,
}

impl Pair {
    fn new(json: &str) -> Self {
        Self { ours: tokenizer_from_json(json), theirs: json.parse().unwrap() }
    }

    fn sentencepiece(decoder: &Value) -> Self {
        Self::new(&sentencepiece_json(decoder))
    }
}

static BYTE_LEVEL: LazyLock<Pair> = LazyLock::new(|| Pair::new(&byte_tokenizer_json()));
static LLAMA: LazyLock<Pair> = LazyLock::new(|| Pair::sentencepiece(&llama_decoder()));
static METASPACE: LazyLock<Pair> = LazyLock::new(|| {
    Pair::sentencepiece(
        &json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
    )
});
static WORDPIECE: LazyLock<Pair> =
    LazyLock::new(|| Pair::sentencepiece(&json!({"type": "WordPiece", "prefix": "##", "cleanup": true})));
static NO_DECODER: LazyLock<Pair> = LazyLock::new(|| Pair::sentencepiece(&Value::Null));

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[TokenId], skip_special: bool) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), skip_special);
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
    text += detokenizer.finish();
    assert_eq!(detokenizer.finish(), "", "finish is idempotent");
    text
}

/// Mostly bytes of one script, so that valid, broken and mixed sequences all occur.
fn byte_ids() -> impl Strategy<Value = Vec<TokenId>> {
    let byte = prop_oneof![
        4 => prop::sample::select("ďábelské 😀👩‍👩‍👧 ไทย “x”".bytes().map(TokenId::from).collect::<Vec<_>>()),
        1 => 0..=255u32,
        1 => 250..=270u32,
    ];
    prop::collection::vec(byte, 0..64)
}

fn piece_ids() -> impl Strategy<Value = Vec<TokenId>> {
    let byte = |b: u8| 3 + TokenId::from(b);
    let id = prop_oneof![
        3 => 259..SENTENCEPIECE_VOCAB,
        1 => prop::sample::select("é😀 ".bytes().map(byte).collect::<Vec<_>>()),
        1 => 0..SENTENCEPIECE_VOCAB + 3,
    ];
    prop::collection::vec(id, 0..24)
}

/// True if every run of byte pieces is UTF-8 by itself: only then do the two libraries count U+FFFD alike.
fn byte_runs_are_valid(ids: &[TokenId], skip_special: bool) -> bool {
    let is_byte = |id: &TokenId| (3..259).contains(id);
    let absent = |id: &TokenId| *id >= SENTENCEPIECE_VOCAB || (skip_special && *id < 3);
    let seen: Vec<TokenId> = ids.iter().filter(|id| !absent(id)).copied().collect();
    seen.chunk_by(|a, b| is_byte(a) == is_byte(b)).filter(|run| is_byte(&run[0])).all(|run| {
        let bytes: Vec<u8> = run.iter().map(|id| (id - 3) as u8).collect();
        std::str::from_utf8(&bytes).is_ok()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn deltas_join_to_the_one_shot_decode_of_bytes(ids in byte_ids(), skip in any::<bool>()) {
        let Pair { ours, theirs } = &*BYTE_LEVEL;
        let decoded = ours.decode(&ids, skip);
        prop_assert_eq!(&streamed(ours, &ids, skip), &decoded);
        prop_assert_eq!(decoded, theirs.decode(&ids, skip).unwrap());
    }

    /// Rare tokens after spaces and broken bytes made another stream decoder fail with "invalid prefix".
    #[test]
    fn deltas_join_to_the_one_shot_decode_of_pieces_vllm_24159(ids in piece_ids(), skip in any::<bool>()) {
        let Pair { ours, theirs } = &*LLAMA;
        let decoded = ours.decode(&ids, skip);
        prop_assert_eq!(&streamed(ours, &ids, skip), &decoded);
        if byte_runs_are_valid(&ids, skip) {
            prop_assert_eq!(decoded, theirs.decode(&ids, skip).unwrap());
        }
    }

    #[test]
    fn decoders_that_treat_the_first_token_apart_agree_too(ids in piece_ids(), skip in any::<bool>()) {
        for Pair { ours, theirs } in [&*METASPACE, &*WORDPIECE, &*NO_DECODER] {
            let decoded = ours.decode(&ids, skip);
            prop_assert_eq!(&streamed(ours, &ids, skip), &decoded);
            prop_assert_eq!(decoded, theirs.decode(&ids, skip).unwrap());
        }
    }

    /// What was shown is never taken back: at each token the text so far is a prefix of the decode of all tokens so
    /// far, short of it by at most one incomplete character.
    #[test]
    fn text_is_held_back_only_while_a_character_is_incomplete(ids in byte_ids()) {
        let ours = &BYTE_LEVEL.ours;
        let mut detokenizer = Detokenizer::new(ours.clone(), true);
        let mut shown = String::new();
        for n in 0..ids.len() {
            shown += detokenizer.push(ids[n]);
            let decoded = ours.decode(&ids[..=n], true);
            let rest = decoded.strip_prefix(shown.as_str());
            prop_assert_eq!(rest, Some(if detokenizer.is_aligned() { "" } else { "\u{FFFD}" }));
        }
    }

    /// A text that continues a prompt has what the decode of both has beyond the prompt.
    #[test]
    fn a_continued_text_keeps_its_leading_space(ids in piece_ids()) {
        let ours = &LLAMA.ours;
        let prompt = [ours.token_id("▁Hello").unwrap()];
        let mut detokenizer = Detokenizer::continuing(ours.clone(), true);
        let mut text = ours.decode(&prompt, true);
        for id in &ids {
            text += detokenizer.push(*id);
        }
        text += detokenizer.finish();
        prop_assert_eq!(text, ours.decode(&[&prompt[..], &ids].concat(), true));
    }
}

/// Valid text: no U+FFFD in any split, each delta a whole number of characters.
#[test]
fn characters_over_several_tokens_stay_whole_tt_inference_2594() {
    let tokenizer = byte_tokenizer();
    let text = "ďábelské 😀👩‍👩‍👧 ไทย “x”";
    let ids = tokenizer.encode(text, false).unwrap();
    for step in 1..=3 {
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
        let mut shown = String::new();
        for run in ids.chunks(step) {
            let delta: String = run.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
            assert!(!delta.contains('\u{FFFD}'));
            shown += &delta;
        }
        assert_eq!((shown.as_str(), detokenizer.finish()), (text, ""));
    }
}

/// Invalid text: one U+FFFD for the broken lead byte, the text after it whole. A cut end: one U+FFFD, streamed or not.
#[test]
fn broken_bytes_cost_one_replacement_character_tt_inference_2594() {
    for (ids, expected) in [
        (&[0xE2, 0x79, 0x7A][..], "\u{FFFD}yz"),
        (&[0x61, 0xF0, 0x9F, 0x98], "a\u{FFFD}"),
        (&[0xF0, 0x9F, 0x98, 0x61], "\u{FFFD}a"),
        (&[0x80, 0x61], "\u{FFFD}a"),
    ] {
        assert_eq!(streamed(&BYTE_LEVEL.ours, ids, true), expected);
        let pieces: Vec<TokenId> = ids.iter().map(|byte| byte + 3).collect();
        assert_eq!(streamed(&LLAMA.ours, &pieces, true), expected);
    }
}

/// A hidden special token inside a character does not break it, in either way of decoding.
#[test]
fn hidden_tokens_leave_no_trace() {
    let ids = [0xC3, 257, 0xA9];
    assert_eq!(streamed(&BYTE_LEVEL.ours, &ids, true), "é");
    assert_eq!(streamed(&BYTE_LEVEL.ours, &ids, false), "\u{FFFD}</s>\u{FFFD}");
}

/// `FRIZZEN_TEST_GGUF`: random ids of a real vocabulary.
#[test]
fn a_real_vocabulary_streams_what_it_decodes() {
    let Some(path) = std::env::var_os("FRIZZEN_TEST_GGUF") else {
        eprintln!("FRIZZEN_TEST_GGUF is not set: skipped");
        return;
    };
    let tokenizer = Arc::new(Tokenizer::load(std::path::Path::new(&path)).unwrap());
    let mut state = 1u32;
    let ids: Vec<TokenId> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % tokenizer.vocab_size()
    })
    .take(50_000)
    .collect();
    assert_eq!(streamed(&tokenizer, &ids, true), tokenizer.decode(&ids, true));
    let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
    assert_eq!(tokenizer.decode(&ids, false), String::from_utf8_lossy(&bytes));
}
