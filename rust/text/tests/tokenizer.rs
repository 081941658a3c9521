//! Loading, encoding, decoding and the bytes of tokens.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{
    byte_tokenizer, byte_tokenizer_json, gguf_bpe, gguf_spm, llama_decoder, load_directory, load_gguf,
    scratch, sentencepiece_json, tokenizer_from_json,
};
use frizzen_text::{ChatTemplate, RenderRequest, Tokenizer};
use serde_json::json;

fn refusal<T: std::fmt::Debug, E: std::fmt::Display>(result: Result<T, E>) -> String {
    result.expect_err("it must be refused").to_string()
}

#[test]
fn special_tokens_in_a_text_become_their_ids() {
    let tokenizer = byte_tokenizer();
    assert_eq!(tokenizer.encode("a<s>b</s>", false).unwrap(), [97, 256, 98, 257]);
    assert_eq!(tokenizer.encode("<tool é>", false).unwrap(), [258]);
    assert_eq!(tokenizer.encode("", false).unwrap(), [0; 0]);
    assert_eq!(tokenizer.encode("a", true).unwrap(), [256, 97]);
    assert_eq!(tokenizer.decode(&[256, 97, 258, 257], false), "<s>a<tool é></s>");
    assert_eq!(tokenizer.decode(&[256, 97, 258, 257], true), "a<tool é>");
    assert_eq!((256..=258).map(|id| tokenizer.is_special(id)).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((tokenizer.token_id("</s>"), tokenizer.token_id("nope")), (Some(257), None));
}

#[test]
fn a_word_is_spelled_at_the_beginning_of_a_text_and_after_a_space() {
    let bpe = load_gguf(&gguf_bpe("gpt-2", &["Ġ t", "Ġt o", "t o"]).build()).unwrap();
    let ids = |text: &str| bpe.encode(text, false).unwrap();
    for word in ["to", " to", "  to"] {
        assert_eq!(bpe.spellings(word).unwrap(), [ids("to"), ids(" to")], "{word:?}");
    }
    assert_eq!(ids("to").len(), 1);
    assert_eq!(ids(" to").len(), 1);
    assert_eq!(bpe.spellings(" ").unwrap(), [ids(" ")], "a space is what was asked for");
    assert_eq!(bpe.spellings("\n").unwrap(), [ids("\n"), ids(" \n")]);
}

/// The model's table may be larger than the tokenizer, and clients send any number.
#[test]
fn ids_without_a_token_decode_to_nothing_vllm_51795() {
    let tokenizer = byte_tokenizer();
    assert_eq!(tokenizer.vocab_size(), 259);
    assert_eq!(tokenizer.decode(&[97, 259, u32::MAX, 98], false), "ab");
    assert_eq!((tokenizer.token_bytes(u32::MAX), tokenizer.token_str(259)), (&[][..], "".into()));
    assert!(!tokenizer.is_special(u32::MAX));
}

#[test]
fn token_bytes_are_text_bytes_not_the_internal_alphabet_vllm_19177() {
    let tokenizer = byte_tokenizer();
    let text = "是谢谢 \u{1f336}";
    let ids = tokenizer.encode(text, false).unwrap();
    assert_eq!(tokenizer.token_bytes(ids[0]), [0xE6]);
    assert_eq!(tokenizer.token_bytes(32), b" ");
    assert_eq!(tokenizer.token_str(0xE6), "\u{FFFD}");
    assert_eq!(tokenizer.token_bytes(258), "<tool é>".as_bytes());
}

#[test]
fn joined_token_bytes_are_the_text_vllm_34875() {
    let tokenizer = load_gguf(&gguf_bpe("gpt-2", &["Ġ t", "h e", "Ã ©"]).build()).unwrap();
    for text in ["“x” \u{1f336}", "the café, then\n\n 12", "\u{0}\u{ad}"] {
        let ids = tokenizer.encode(text, false).unwrap();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
        assert_eq!(bytes, text.as_bytes());
        assert_eq!(tokenizer.decode(&ids, true), text);
    }
}

#[test]
fn end_tokens_come_from_the_tokenizer_and_the_generation_configuration() {
    let json = byte_tokenizer_json();
    let base = [("tokenizer.json", json.as_str()), ("tokenizer_config.json", r#"{"eos_token": "</s>"}"#)];
    let eos = |extra: &[(&str, &str)]| {
        load_directory(&[&base[..], extra].concat()).map(|tokenizer| tokenizer.eos_token_ids().to_vec())
    };
    assert_eq!(eos(&[]).unwrap(), [257]);
    assert_eq!(
        eos(&[("generation_config.json", r#"{"eos_token_id": [10, 257, 11]}"#)]).unwrap(),
        [257, 10, 11]
    );
    assert_eq!(eos(&[("generation_config.json", r#"{"eos_token_id": 9}"#)]).unwrap(), [257, 9]);
    assert_eq!(eos(&[("config.json", r#"{"eos_token_id": 8}"#)]).unwrap(), [257, 8]);
    let both =
        [("config.json", r#"{"eos_token_id": 8}"#), ("generation_config.json", r#"{"eos_token_id": 9}"#)];
    assert_eq!(eos(&both).unwrap(), [257, 9]);
    assert!(refusal(eos(&[("generation_config.json", r#"{"eos_token_id": -1}"#)])).contains("eos_token_id"));
    assert!(refusal(eos(&[("generation_config.json", r#"{"eos_token_id": 999}"#)])).contains("999"));
}

/// Saved training habits must not cut or fill a prompt.
#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let mut json: serde_json::Value = serde_json::from_str(&byte_tokenizer_json()).unwrap();
    json["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let tokenizer = tokenizer_from_json(&json.to_string());
    assert_eq!(tokenizer.encode("abcd", false).unwrap(), [97, 98, 99, 100]);
}

#[test]
fn chat_templates_are_found_in_every_place() {
    let json = byte_tokenizer_json();
    let names = |files: &[(&str, &str)]| {
        let tokenizer = load_directory(&[&[("tokenizer.json", json.as_str())][..], files].concat()).unwrap();
        let mut found: Vec<String> =
            tokenizer.chat_templates().iter().map(|t| format!("{}={}", t.name, t.source)).collect();
        found.sort();
        found
    };
    assert_eq!(names(&[]), [""; 0]);
    assert_eq!(names(&[("tokenizer_config.json", r#"{"chat_template": "A"}"#)]), ["default=A"]);
    let list =
        r#"{"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]}"#;
    assert_eq!(names(&[("tokenizer_config.json", list)]), ["default=A", "tool_use=B"]);
    let files = [
        ("tokenizer_config.json", list),
        ("chat_template.jinja", "C"),
        ("additional_chat_templates/rag.jinja", "D"),
    ];
    assert_eq!(names(&files), ["default=C", "rag=D", "tool_use=B"]);
}

#[test]
fn what_cannot_be_loaded_is_named() {
    assert!(refusal(load_directory(&[("config.json", "{}")])).contains("no tokenizer.json"));
    assert!(refusal(load_directory(&[("tokenizer.json", "{")])).contains("tokenizer.json is not usable"));
    let json = byte_tokenizer_json();
    let broken = [("tokenizer.json", json.as_str()), ("tokenizer_config.json", "[1]")];
    assert!(
        refusal(load_directory(&broken))
            .contains("tokenizer_config.json is not usable: it is not a JSON object")
    );
    assert!(refusal(Tokenizer::load(&scratch("nothing"))).contains("does not exist"));
    let decoder = json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true});
    assert!(refusal(load_directory(&[("tokenizer.json", &sentencepiece_json(&decoder))])).contains("CTC"));
}

#[test]
fn gguf_pre_tokenizers_cut_words_as_their_names_say() {
    // "12" is a merge, but only a pre-tokenizer that keeps digits together lets it happen.
    let merges = ["1 2", "Ġ 12"];
    let text = "x 123";
    let tokens = |pre: &str| {
        let tokenizer = load_gguf(&gguf_bpe(pre, &merges).build()).unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        ids.iter().map(|id| tokenizer.token_str(*id).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(tokens("smollm"), ["x", " ", "1", "2", "3"]);
    assert_eq!(tokens("gpt-2"), ["x", " 12", "3"]);
    assert_eq!(tokens("llama-bpe"), ["x", " ", "12", "3"]);
    assert_eq!(tokens("qwen2"), ["x", " ", "1", "2", "3"]);
}

/// Digits and numerals outside ASCII are digits too.
#[test]
fn smollm_isolates_every_unicode_number() {
    let tokenizer = load_gguf(&gguf_bpe("smollm", &["Ù ¡", "Ù¡ Ù¡", "Â ½", "Â½ Â½"]).build()).unwrap();
    let count = |text: &str| tokenizer.encode(text, false).unwrap().len();
    assert_eq!((count("\u{661}\u{661}"), count("½½")), (2, 2));
}

#[test]
fn gguf_special_tokens_and_template_are_read() {
    let bytes = gguf_bpe("smollm", &[])
        .uint("tokenizer.ggml.eot_token_id", 0)
        .uint("tokenizer.ggml.padding_token_id", 2)
        .string("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}")
        .build();
    let tokenizer = load_gguf(&bytes).unwrap();
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.eos_token_ids()),
        (Some(1), Some(2), &[2, 0][..])
    );
    assert_eq!(tokenizer.special_tokens().names["pad_token"], "<|im_end|>");
    assert_eq!(tokenizer.encode("<|im_start|>a", false).unwrap()[0], 1);
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(3));
    assert_eq!(tokenizer.chat_templates()[0].name, "default");
}

/// One beginning-of-sequence token, however the prompt comes about.
#[test]
fn chat_prompts_have_one_bos_vllm_55288() {
    let bytes = gguf_bpe("llama-bpe", &[])
        .bool("tokenizer.ggml.add_bos_token", true)
        .string("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}")
        .build();
    let tokenizer = load_gguf(&bytes).unwrap();
    let template = ChatTemplate::of_tokenizer(&tokenizer).unwrap().unwrap();
    let messages = [json!({"role": "user", "content": "hi"})];
    let prompt = template.render(&RenderRequest { messages: &messages, ..RenderRequest::default() }).unwrap();
    let chat = tokenizer.encode(&prompt, false).unwrap();
    assert_eq!(chat, tokenizer.encode("hi", true).unwrap());
    assert_eq!(chat.iter().filter(|id| Some(**id) == tokenizer.bos_id()).count(), 1);
}

#[test]
fn a_gguf_tokenizer_that_is_not_known_exactly_is_refused_by_name() {
    let with = |key: &str, value: &str| common::GgufBuilder::new().string(key, value);
    assert!(refusal(load_gguf(&gguf_bpe("brand-new", &[]).build())).contains("pre-tokenizer \"brand-new\""));
    let bert = with("tokenizer.ggml.model", "bert").strings("tokenizer.ggml.tokens", &["a"]);
    assert!(refusal(load_gguf(&bert.build())).contains("\"bert\""));
    assert!(refusal(load_gguf(&with("a", "b").build())).contains("tokenizer.ggml.model"));
    assert!(
        refusal(load_gguf(&with("tokenizer.ggml.model", "gpt2").build())).contains("tokenizer.ggml.tokens")
    );
    let twice = with("tokenizer.ggml.model", "gpt2").strings("tokenizer.ggml.tokens", &["a", "a"]);
    assert!(refusal(load_gguf(&twice.build())).contains("\"a\" occurs twice"));
    assert!(refusal(load_gguf(&gguf_bpe("gpt-2", &["qq z"]).build())).contains("merges"));
    assert!(
        refusal(load_gguf(&gguf_bpe("gpt-2", &[]).uint("tokenizer.ggml.eom_token_id", 9999).build()))
            .contains("9999")
    );
    let no_bytes = with("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["a"])
        .floats("tokenizer.ggml.scores", &[0.0]);
    assert!(refusal(load_gguf(&no_bytes.build())).contains("byte 0x00"));
}

/// Pieces are merged by score, the leftmost of equals first; what is not a piece becomes bytes.
#[test]
fn sentencepiece_merges_the_best_piece_first() {
    let pieces =
        [("▁", 0.0), ("a", -9.0), ("b", -9.0), ("ab", -3.0), ("bb", -2.0), ("aa", -4.0), ("▁a", -5.0)];
    let tokenizer = load_gguf(&gguf_spm(&pieces).build()).unwrap();
    let pieces_of = |text: &str| {
        let ids = tokenizer.encode(text, false).unwrap();
        ids.iter()
            .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(pieces_of("abb"), [" a", "bb"]);
    assert_eq!(pieces_of("aab"), [" a", "ab"]);
    assert_eq!(pieces_of("baaa"), [" ", "b", "aa", "a"]);
    assert_eq!(tokenizer.encode("é", false).unwrap(), [259, 3 + 0xC3, 3 + 0xA9]);
    assert_eq!(tokenizer.encode("a", true).unwrap(), [1, 265]);
    assert_eq!(tokenizer.encode("a</s>a", false).unwrap(), [265, 2, 265]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("ab é b", false).unwrap(), true), "ab é b");
    let plain = gguf_spm(&pieces).bool("tokenizer.ggml.add_space_prefix", false).build();
    assert_eq!(load_gguf(&plain).unwrap().encode("ab", false).unwrap(), [262]);
}

#[test]
fn a_leading_space_is_dropped_once_at_the_beginning() {
    let tokenizer = tokenizer_from_json(&sentencepiece_json(&llama_decoder()));
    let id = |piece: &str| tokenizer.token_id(piece).unwrap();
    assert_eq!(tokenizer.decode(&[id("▁Hello"), id("▁world")], true), "Hello world");
    assert_eq!(tokenizer.decode(&[id("▁▁"), id("▁Hello")], true), "  Hello");
    assert_eq!(tokenizer.decode(&[1, id("▁Hello")], true), "Hello");
    assert_eq!(tokenizer.decode(&[1, id("▁Hello")], false), "<s> Hello");
    assert_eq!(tokenizer.token_bytes(id("▁Hello")), b" Hello");
}

/// Converters leave empty tokens in gaps; the ids after them stay.
#[test]
fn empty_gguf_tokens_do_not_move_the_others() {
    let tokens = ["a", "", "", "b"];
    let bytes = common::GgufBuilder::new()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings::<&str>("tokenizer.ggml.merges", &[])
        .build();
    assert_eq!(load_gguf(&bytes).unwrap().encode("ab", false).unwrap(), [0, 3]);
}

#[test]
fn a_tokenizer_and_a_template_are_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<ChatTemplate>();
    let tokenizer = byte_tokenizer();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert_eq!(tokenizer.decode(&tokenizer.encode("é<s>", false).unwrap(), false), "é<s>");
            });
        }
    });
}
