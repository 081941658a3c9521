//! Pairs of texts, and cuts that keep the special tokens.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use frizzen_text::{Cut, SpecialTokens, Tokenizer};
use serde_json::{Value, json};

const CLS: u32 = 0;
const SEP: u32 = 1;

/// Words a to f are 3 to 8; the template is BERT's.
fn bert_like() -> Tokenizer {
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    };
    let piece = |text: &str, kind: u32| json!({"SpecialToken": {"id": text, "type_id": kind}});
    let sequence = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let token = |id: u32, text: &str| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}));
    let words = ["[CLS]", "[SEP]", "[UNK]", "a", "b", "c", "d", "e", "f"];
    let vocab: serde_json::Map<String, Value> =
        words.iter().zip(0u32..).map(|(word, id)| ((*word).to_owned(), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [special(CLS, "[CLS]"), special(SEP, "[SEP]")],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("[CLS]", 0), sequence("A", 0), piece("[SEP]", 0)],
            "pair": [piece("[CLS]", 0), sequence("A", 0), piece("[SEP]", 0), sequence("B", 1), piece("[SEP]", 1)],
            "special_tokens": serde_json::Map::from_iter([token(CLS, "[CLS]"), token(SEP, "[SEP]")]),
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    });
    Tokenizer::from_json(tokenizer.to_string().as_bytes(), SpecialTokens::default(), Vec::new()).unwrap()
}

fn to(length: usize) -> Cut {
    Cut { to: Some(length), ..Cut::default() }
}

#[test]
fn a_pair_is_joined_as_the_template_says_and_its_second_text_begins_after_the_separator() {
    let encoded = bert_like().encode_pair("a b", Some("c"), true, Cut::default()).unwrap();
    assert_eq!((encoded.ids, encoded.second_start), (vec![CLS, 3, 4, SEP, 5, SEP], Some(4)));
    let alone = bert_like().encode_pair("a b", None, true, Cut::default()).unwrap();
    assert_eq!((alone.ids, alone.second_start), (vec![CLS, 3, 4, SEP], None));
    let bare = bert_like().encode_pair("a b", Some("c"), false, Cut::default()).unwrap();
    assert_eq!(bare.ids, [3, 4, 5]);
}

#[test]
fn one_text_is_what_encode_makes_of_it() {
    let tokenizer = bert_like();
    for text in ["a b c d e f", "", "x a", "[SEP] a"] {
        for add_special in [true, false] {
            let encoded = tokenizer.encode_pair(text, None, add_special, Cut::default()).unwrap();
            assert_eq!(encoded.ids, tokenizer.encode(text, add_special).unwrap());
        }
    }
}

#[test]
fn a_cut_keeps_the_special_tokens_and_one_side() {
    let tokenizer = bert_like();
    let ids = |cut| tokenizer.encode_pair("a b c d", None, true, cut).unwrap().ids;
    assert_eq!(ids(to(4)), [CLS, 3, 4, SEP]);
    assert_eq!(ids(Cut { left: true, ..to(4) }), [CLS, 5, 6, SEP]);
    assert_eq!(ids(to(100)), [CLS, 3, 4, 5, 6, SEP]);
    let error = tokenizer.encode_pair("a", None, true, to(2)).unwrap_err();
    assert_eq!(error.to_string(), "truncate_prompt_tokens is 2, and 2 of them are special tokens");
}

#[test]
fn of_a_pair_the_longer_text_is_cut_or_the_last_one_to_its_own_limit() {
    let tokenizer = bert_like();
    let ids = |cut| tokenizer.encode_pair("a b", Some("c d e f"), true, cut).unwrap().ids;
    assert_eq!(ids(to(7)), [CLS, 3, 4, SEP, 5, 6, SEP]);
    assert_eq!(ids(Cut { last_to: Some(1), ..Cut::default() }), [CLS, 3, 4, SEP, 5, SEP]);
    assert_eq!(ids(Cut { last_to: Some(9), ..to(8) }), [CLS, 3, 4, SEP, 5, 6, 7, SEP]);
    let one = tokenizer.encode_pair("a b c", None, true, Cut { last_to: Some(2), ..Cut::default() }).unwrap();
    assert_eq!(one.ids, [CLS, 3, 4, SEP]);
}
