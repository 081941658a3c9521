//! The ids, and the words, are those of the `tokenizers` crate.

use std::path::Path;
use std::sync::LazyLock;

use frizzen_core::TokenId;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{NormalizedString, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

use super::super::bytes::byte_level_alphabet;
use super::super::{SpecialTokens, Tokenizer, expressions as known};
use super::merges::{Merges, Room};
use super::words::{self, Stage};

/// Sequences of stages as models have them.
const FAMILIES: [&[&str]; 8] = [
    &[known::BYTE_LEVEL],
    &[known::DIGITS, known::GPT2],
    &[known::LLAMA3],
    &[known::QWEN2],
    &[known::QWEN35],
    &[known::TEKKEN],
    &[known::O200K],
    &[known::DIGITS_1_TO_3, known::DEEPSEEK3_CJK, known::DEEPSEEK3_WORDS],
];

/// Both sides of a family.
struct Pair {
    stages: Vec<Stage>,
    splits: Vec<Split>,
}

impl Pair {
    fn new(family: &[&str]) -> Self {
        let split = |expression: &&str| {
            let pattern = SplitPattern::Regex((*expression).to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap()
        };
        let stages = family.iter().map(|expression| Stage::new(expression).unwrap()).collect();
        Self { stages, splits: family.iter().map(split).collect() }
    }

    fn ours(&self, text: &str) -> Vec<String> {
        let mut caches: Vec<_> = self.stages.iter().map(Stage::cache).collect();
        let mut words = Vec::new();
        words::split(&self.stages, &mut caches, text, &mut |word| words.push(word.to_owned()));
        words
    }

    fn theirs(&self, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        for split in &self.splits {
            split.pre_tokenize(&mut pieces).unwrap();
        }
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(piece, ..)| piece.to_owned()).filter(|piece| !piece.is_empty()).collect()
    }
}

static PAIRS: LazyLock<Vec<Pair>> =
    LazyLock::new(|| FAMILIES.iter().map(|family| Pair::new(family)).collect());

fn assert_same_words(text: &str) {
    for (pair, family) in PAIRS.iter().zip(FAMILIES) {
        assert_eq!(pair.ours(text), pair.theirs(text), "{text:?} by {family:?}");
    }
}

/// Two libraries know Unicode's classes; both must know the same version.
#[test]
fn every_character_is_in_the_same_class() {
    // The planes above these two hold ideographs, private characters and unassigned ones, in long runs of a kind.
    let characters: Vec<char> = ('\0'..'\u{20000}').chain(('\u{20000}'..=char::MAX).step_by(61)).collect();
    for characters in characters.chunks(1024) {
        let text: String =
            characters.iter().flat_map(|c| [*c, 'a', *c, ' ', *c, '1', *c, '.', *c, '\n']).collect();
        assert_same_words(&text);
    }
}

/// The crate's stage asks the standard library, not the library of expressions: another version of Unicode.
#[test]
fn digits_are_isolated_by_the_standard_librarys_classes() {
    let text: String = ('\0'..'\u{20000}').flat_map(|c| ['a', c, c]).collect();
    let mut theirs = PreTokenizedString::from(text.as_str());
    Digits::new(true).pre_tokenize(&mut theirs).unwrap();
    let theirs = theirs.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let mut ours = Vec::new();
    words::split(&[Stage::Digits], &mut [None], &text, &mut |word| ours.push(word.to_owned()));
    assert_eq!(ours, theirs.iter().map(|(piece, ..)| (*piece).to_owned()).collect::<Vec<_>>());
}

/// What composition may change: characters that decompose otherwise than they compose, that come after the first in a
/// decomposition, or that are put in another order.
#[test]
fn composition_leaves_texts_of_usual_characters_as_they_are() {
    let normalized = |text: String, normalize: fn(&mut NormalizedString) -> &mut NormalizedString| {
        let mut string = NormalizedString::from(text);
        normalize(&mut string);
        string.get().to_owned()
    };
    for c in '\0'..=char::MAX {
        let parts = normalized(c.into(), NormalizedString::nfd);
        assert!(!parts.chars().skip(1).any(super::is_composed), "{c:?} is {parts:?}");
        if super::is_composed(c) {
            assert_eq!(normalized(c.into(), NormalizedString::nfc), c.to_string());
            // Nothing is in the highest class but the iota below, which all other marks go before.
            let after_iota = format!("a\u{345}{c}");
            assert_eq!(normalized(after_iota.clone(), NormalizedString::nfd).chars().nth(1), Some('\u{345}'));
        }
    }
}

#[test]
fn the_last_space_of_a_run_belongs_to_the_word_after_it() {
    let words = |family: usize, text: &str| PAIRS[family].ours(text);
    assert_eq!(words(0, "a  b \n\n c\n"), ["a", " ", " b", " \n\n", " c", "\n"]);
    assert_eq!(words(2, "a  b \n\n  c  "), ["a", " ", " b", " \n\n", " ", " c", "  "]);
    assert_eq!(words(0, "a\u{3000}\u{3000}b"), ["a", "\u{3000}", "\u{3000}", "b"]);
}

#[test]
fn an_expression_that_is_not_known_is_left_to_the_crate() {
    for expression in ["", r"\s+", r"(?i:'s)|\p{L}++|\s+(?!\S)|\s+", r"\p{L}|\s+(?!\S)|\s+"] {
        assert!(Stage::new(expression).is_none(), "{expression}");
    }
}

/// Texts in which expressions differ.
fn text() -> impl Strategy<Value = String> {
    let parts = [
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\n\n",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
        "\u{85}",
        "\u{1c}",
        "a",
        "B",
        "the",
        "The",
        "ǅ",
        "ʰ",
        "ª",
        "ß",
        "é",
        "e\u{301}",
        "\u{301}",
        "ſ",
        "\u{212a}",
        "İ",
        "'s",
        "'S",
        "'ſ",
        "'ll",
        "'LL",
        "'re",
        "'Ve",
        "'x",
        "'",
        "’s",
        "1",
        "12",
        "1234",
        "½",
        "Ⅷ",
        "٣",
        "𝟘",
        ".",
        "...",
        "/",
        "//",
        "-",
        "_",
        "$",
        "+",
        "你好",
        "ひらがな",
        "カナ",
        "ー",
        "한국어",
        "\u{1112}\u{1161}\u{11ab}",
        "ไทย",
        "हिन्दी",
        "العربية",
        "😀",
        "👩‍👩‍👧",
        "\u{200d}",
        "\u{feff}",
        "\u{0}",
        "\u{7f}",
        "\u{378}",
        "\u{e000}",
        "<s>",
        "<tool é>",
        "e\u{301}>",
        "</s>",
        "s>",
        "<",
        "abab",
        "aaaaaaaaaaaaaaaa",
    ];
    let part =
        prop_oneof![8 => prop::sample::select(parts.to_vec()).prop_map(str::to_owned), 1 => any::<String>()];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

/// A merge for each pair of numbers: of two tokens that exist by then.
fn grown(pairs: &[(usize, usize)]) -> (Vec<String>, Vec<(String, String)>) {
    let mut alphabet: Vec<(u8, char)> =
        byte_level_alphabet().into_iter().map(|(c, byte)| (byte, c)).collect();
    alphabet.sort_unstable();
    let mut tokens: Vec<String> = alphabet.iter().map(|(_, c)| c.to_string()).collect();
    let mut merges: Vec<(String, String)> = Vec::new();
    // Few bytes, so that their merges meet in a text; and whatever has grown out of them.
    let mut parts: Vec<String> =
        b"ab the\xc3\xa9\xcc\x81'1".iter().map(|byte| tokens[usize::from(*byte)].clone()).collect();
    for (left, right) in pairs {
        let (left, right) = (parts[left % parts.len()].clone(), parts[right % parts.len()].clone());
        let merged = format!("{left}{right}");
        if merged.chars().count() <= 12 && !merges.contains(&(left.clone(), right.clone())) {
            if !tokens.contains(&merged) {
                tokens.push(merged.clone());
                parts.push(merged);
            }
            merges.push((left, right));
        }
    }
    (tokens, merges)
}

fn merges() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((any::<usize>(), any::<usize>()), 0..60)
}

fn added(id: usize, content: &str, normalized: bool) -> Value {
    json!({"id": id, "content": content, "special": !normalized, "normalized": normalized,
           "single_word": false, "lstrip": false, "rstrip": false})
}

/// A `tokenizer.json` of everything that is taken over.
fn description(family: &[&str], pairs: &[(usize, usize)], [nfc, ignore_merges, joined]: [bool; 3]) -> Value {
    let (tokens, merges) = grown(pairs);
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().zip(0..).map(|(token, id)| (token.clone(), json!(id))).collect();
    let merges: Vec<Value> =
        merges.iter().map(|(l, r)| if joined { json!(format!("{l} {r}")) } else { json!([l, r]) }).collect();
    let mut stages: Vec<Value> = family
        .iter()
        .map(|expression| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false}))
        .collect();
    stages.push(
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
    );
    let first = tokens.len();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "normalizer": nfc.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": stages},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": ignore_merges},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "added_tokens": [added(first, "<s>", false), added(first + 1, "</s>", false), added(first + 2, "<tool é>", true),
            added(first + 3, "e\u{301}>", true), added(first + 4, "s>", true), added(first + 5, "</s", false)],
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [first], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [first + 1], "tokens": ["</s>"]}}}
    })
}

fn load(description: &Value) -> Tokenizer {
    Tokenizer::from_json(description.to_string().as_bytes(), SpecialTokens::default(), Vec::new()).unwrap()
}

fn assert_same_ids(tokenizer: &Tokenizer, text: &str) {
    let ours = tokenizer.byte_level.as_ref().expect("this kind is taken over");
    for add_special in [false, true] {
        let theirs = tokenizer.encode_by_crate(text, add_special).unwrap();
        assert_eq!(ours.encode(text, add_special), theirs, "{text:?}");
    }
}

proptest! {
    #[test]
    fn words_are_those_of_the_crate(text in text()) {
        assert_same_words(&text);
    }

    #[test]
    fn ids_are_those_of_the_crate(
        texts in prop::collection::vec(text(), 8),
        pairs in merges(),
        family in 0..FAMILIES.len(),
        flags in any::<[bool; 3]>(),
    ) {
        let tokenizer = load(&description(FAMILIES[family], &pairs, flags));
        for text in texts {
            assert_same_ids(&tokenizer, &text);
        }
    }

    /// Long words are merged by a queue, short ones in place.
    #[test]
    fn long_words_are_merged_like_short_ones(pairs in merges(), word in "[ab the1é']{0,200}") {
        let family = &[][..];
        let tokenizer = load(&description(family, &pairs, [false; 3]));
        assert_same_ids(&tokenizer, &word);
    }
}

#[test]
fn a_byte_without_a_token_is_left_out() {
    let mut tokenizer = description(&[known::BYTE_LEVEL], &[(0, 1), (4, 5)], [false; 3]);
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    for byte in ["\u{100}", "x"] {
        vocab.remove(byte).unwrap();
    }
    let long = "ab\0axb".repeat(20);
    assert_same_ids(&load(&tokenizer), &format!("ab\0axb x \0 {long}"));
    // Another model says what stands for it, so this one is not taken over.
    tokenizer["model"]["unk_token"] = "a".into();
    assert!(load(&tokenizer).byte_level.is_none());
}

#[test]
fn what_is_not_known_exactly_is_left_to_the_crate() {
    let plain = || description(&[known::LLAMA3], &[(0, 1)], [false; 3]);
    assert!(load(&plain()).byte_level.is_some());
    let changes: [(&str, Value); 6] = [
        ("/normalizer", json!({"type": "Lowercase"})),
        ("/pre_tokenizer/pretokenizers/0/invert", json!(true)),
        ("/pre_tokenizer/pretokenizers/0/pattern", json!({"Regex": r"\w+|\s+"})),
        ("/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true)),
        ("/model/end_of_word_suffix", json!("1")),
        ("/added_tokens/0/lstrip", json!(true)),
    ];
    for (pointer, value) in changes {
        let mut changed = plain();
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[member] = value;
        let tokenizer = load(&changed);
        assert!(tokenizer.byte_level.is_none(), "{pointer}");
        assert_eq!(tokenizer.encode("ab", false).unwrap(), tokenizer.encode_by_crate("ab", false).unwrap());
    }
}

/// A word of a megabyte takes moments, not hours.
#[test]
fn the_time_for_a_word_does_not_grow_with_its_square() {
    let merges =
        (0..8).map(|i| (300 + i - u32::from(i == 0) * 203, 300 + i - u32::from(i == 0) * 203, 301 + i));
    let bytes = std::array::from_fn(|byte| Some(byte as TokenId));
    let merges = Merges::new(&bytes, merges);
    let mut ids = Vec::new();
    merges.encode(&vec![b'a'; 1 << 20], &mut Room::default(), &mut ids);
    assert_eq!(ids, vec![308; 1 << 12]);
}

/// `FRIZZEN_TEST_GGUF` and the `.gguf` files in `FRIZZEN_TEST_VOCABS`: real vocabularies, on texts of this repository.
#[test]
fn real_vocabularies_give_the_ids_of_the_crate() {
    let mut files: Vec<_> = std::env::var_os("FRIZZEN_TEST_GGUF").map(Into::into).into_iter().collect();
    if let Some(folder) = std::env::var_os("FRIZZEN_TEST_VOCABS") {
        let paths = std::fs::read_dir(Path::new(&folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")));
    }
    let texts = [
        include_str!("../../../../../README.md"),
        include_str!("mod.rs"),
        include_str!("tests.rs"),
        include_str!("../../../tests/data/smollm2_prompts.json"),
    ];
    for file in files {
        // Kinds that are not read at all are another test's.
        let Ok(tokenizer) = Tokenizer::load(&file) else { continue };
        if tokenizer.byte_level.is_none() {
            eprintln!("{} is left to the crate", file.display());
            continue;
        }
        for text in texts {
            assert_same_ids(&tokenizer, text);
        }
    }
}

#[test]
fn the_crates_own_expression_is_the_one_written_here() {
    let mut theirs = PreTokenizedString::from("it's 12 o'clock!  \n x");
    ByteLevel::new(false, true, true).pre_tokenize(&mut theirs).unwrap();
    let theirs = theirs.get_splits(OffsetReferential::Original, OffsetType::Byte).len();
    assert_eq!(PAIRS[0].ours("it's 12 o'clock!  \n x").len(), theirs);
}
