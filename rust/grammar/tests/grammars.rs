//! Grammars over a vocabulary of bytes: what they take, what they refuse, and that their state can be taken back.

mod common;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{EOS, VOCAB_SIZE, WORDS, compiler};
use frizzen_core::{TokenId, TokenMatcher};
use frizzen_grammar::{Grammar, GrammarKind, GrammarSpec, Matcher, Whitespace};
use proptest::prelude::*;

const MASK_WORDS: usize = (VOCAB_SIZE as usize).div_ceil(32);

fn json(schema: &str) -> GrammarSpec {
    GrammarKind::Json(schema.to_owned()).into()
}

fn regex(regex: &str) -> GrammarSpec {
    GrammarKind::Regex(regex.to_owned()).into()
}

fn lark(lark: &str) -> GrammarSpec {
    GrammarKind::Lark(lark.to_owned()).into()
}

fn choice(texts: &[&str]) -> GrammarSpec {
    GrammarKind::Choice(texts.iter().map(|text| (*text).to_owned()).collect()).into()
}

fn compile(spec: &GrammarSpec) -> Arc<Grammar> {
    compiler().compile(spec).expect("this specification can be enforced")
}

fn refused(spec: &GrammarSpec) -> String {
    compiler().compile(spec).expect_err("this specification must be refused").0
}

fn bytes(text: &str) -> Vec<TokenId> {
    text.bytes().map(TokenId::from).collect()
}

/// Accepts as much of `text` as is allowed, byte by byte; returns how much.
fn feed(matcher: &mut Matcher, text: &str) -> usize {
    bytes(text).into_iter().take_while(|token| matcher.accept(*token).is_ok()).count()
}

/// True if the grammar takes the whole text and may end there.
fn takes(spec: &GrammarSpec, text: &str) -> bool {
    let mut matcher = compile(spec).start();
    feed(&mut matcher, text) == text.len() && matcher.can_end()
}

fn mask(matcher: &mut Matcher) -> Vec<TokenId> {
    let mut words = [u32::MAX; MASK_WORDS];
    matcher.fill(&mut words).expect("the grammar is simple enough");
    (0..MASK_WORDS as TokenId * 32).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

#[test]
fn pattern_and_length_of_a_string_hold_together_xgrammar_895() {
    let most = json(r#"{"type":"string","pattern":"^[a-z]+$","maxLength":3}"#);
    assert!(takes(&most, "\"abc\"") && !takes(&most, "\"abcdef\""));
    let least = json(r#"{"type":"string","pattern":"^[a-z]+$","minLength":5}"#);
    assert!(takes(&least, "\"abcde\"") && !takes(&least, "\"abc\""));
    assert!(refused(&json(r#"{"type":"string","format":"date","maxLength":4}"#)).contains("Unsatisfiable"));
}

#[test]
fn pattern_properties_do_not_break_the_object_llguidance_265() {
    let spec = json(
        r#"{"type":"object","properties":{"score":{"type":"integer","multipleOf":5}},"required":["score"],
            "additionalProperties":false,"patternProperties":{"^score$":{"type":"integer"}}}"#,
    );
    assert!(takes(&spec, "{\"score\":10}") && !takes(&spec, "{\"score\":11}") && !takes(&spec, "{}"));
}

#[test]
fn keys_come_in_the_order_of_the_schema_llguidance_187() {
    let spec =
        json(r#"{"type":"object","properties":{"limit":{"type":"integer"},"page":{"type":"integer"}}}"#);
    let mut matcher = compile(&spec).start();
    let drafts = bytes("{\"page\":0,\"limit\":1}");
    assert_eq!(
        matcher.validate(&drafts),
        "{\"page\":0,\"limit".len(),
        "a draft in another order is cut, no error"
    );
    assert!(takes(&spec, "{\"limit\":1,\"page\":0}"));
}

#[test]
fn an_invalid_regex_is_refused_and_the_compiler_lives_vllm_19270() {
    for (bad, why) in [
        ("(", "unclosed group"),
        ("a{2,1}", "invalid repetition"),
        (r"\p{Foo}", "Unicode property"),
        ("(?<=x)a", "look-around"),
        ("a(?=b)", "look-around"),
        (r"\bfoo", "lookarounds"),
        ("[a&&b]", "nothing satisfies"),
        ("a{0}", "only the empty text"),
    ] {
        let message = refused(&regex(bad));
        assert!(message.contains(why) && !message.contains('\n'), "{bad}: {message}");
    }
    assert!(takes(&regex("foo**"), "foooo"));
    assert!(takes(&regex("^a$"), "a") && !takes(&regex("^a$"), "aa"));
    assert!(takes(&regex("[\u{0}-\u{2e7f}]+"), "xé"));
}

#[test]
fn long_repetitions_compile_xgrammar_863() {
    for length in [127, 128, 129, 255, 256, 1000] {
        let spec = json(&format!(r#"{{"type":"string","pattern":"^[^\\n\\r]{{1,{length}}}$"}}"#));
        let longest = format!("\"{}\"", "x".repeat(length));
        assert!(takes(&spec, &longest) && !takes(&spec, &format!("\"{}\"", "x".repeat(length + 1))));
    }
}

#[test]
fn a_grammar_that_grows_too_complex_fails_with_an_error_guidance_1042() {
    let mut matcher = compile(&json(r#"{"type":"string","pattern":"^((a{1,500}){1,500}){1,500}$"}"#)).start();
    let mut words = [0; MASK_WORDS];
    let mut text = bytes("\"").into_iter().chain(std::iter::repeat(TokenId::from(b'a')));
    let failure = (0..200).find_map(|_| {
        let token = text.next().expect("the text has no end");
        matcher.fill(&mut words).and_then(|()| matcher.accept(token)).err()
    });
    let message = failure.expect("the lexer has a limit").to_string();
    assert!(message.starts_with("the grammar cannot go on: ") && !message.contains('\n'), "{message}");
    assert!(matcher.fill(&mut words).is_err() && !matcher.can_end() && !matcher.is_complete());
    assert_eq!(matcher.validate(&bytes("a")), 0);
}

#[test]
fn a_schema_with_thousands_of_alternatives_is_refused_or_fails_with_an_error_guidance_1042() {
    let mut many = String::from(r#"{"anyOf":["#);
    for key in 0..2400 {
        let comma = if key == 0 { "" } else { "," };
        let _ = write!(
            many,
            r#"{comma}{{"type":"object","properties":{{"{key}":{{"type":"null"}}}},"required":["{key}"]}}"#
        );
    }
    many.push_str("]}");
    assert!(refused(&json(&many)).contains("2400 items"), "at the first choice: before the request is taken");
    let later = format!(
        r#"{{"type":"object","properties":{{"a":{{"type":"boolean"}},"b":{many}}},"required":["a","b"]}}"#
    );
    let mut matcher = compile(&json(&later)).start();
    let mut words = [0; MASK_WORDS];
    let text = r#"{"a":true,"b":{"#;
    let failure = text.bytes().try_for_each(|byte| matcher.accept(TokenId::from(byte)));
    let failure = failure.and_then(|()| matcher.fill(&mut words));
    let message = failure.expect_err("a row of the parser has a limit").to_string();
    assert!(message.contains("max is 2000"), "{message}");
}

#[test]
fn blank_space_is_bounded_vllm_38696() {
    let schema = r#"{"type":"object","properties":{"q":{"enum":["a","b"]}},"required":["q"],"additionalProperties":false}"#;
    for pretty in ["{\"q\":\"a\"}", "{ \"q\": \"a\" }", "{\n  \"q\": \"b\"\n}", "{\r\n\t\"q\":\"b\"\r\n}"] {
        assert!(takes(&json(schema), pretty), "{pretty}");
    }
    let mut matcher = compile(&json(schema)).start();
    assert_eq!(feed(&mut matcher, &format!("{{{}", " ".repeat(400))), 2, "one space, then the key");
    let mut matcher = compile(&json(schema)).start();
    assert!(feed(&mut matcher, &format!("{{\n{}", " ".repeat(400))) < 30);
    let compact = GrammarSpec { whitespace: Whitespace::None, ..json(schema) };
    assert!(takes(&compact, "{\"q\":\"a\"}") && !takes(&compact, "{\"q\": \"a\"}"));
    let own = GrammarSpec { whitespace: Whitespace::Pattern(" {2}".to_owned()), ..json(schema) };
    assert!(takes(&own, "{  \"q\":  \"a\"}") && !takes(&own, "{ \"q\":\"a\"}"));
}

#[test]
fn nothing_follows_a_complete_text_vllm_29632() {
    let mut matcher = compile(&choice(&["a"])).start();
    assert!(!matcher.is_complete() && !matcher.can_end());
    assert_eq!(feed(&mut matcher, "ab"), 1);
    assert!(matcher.is_complete() && matcher.can_end());
    assert_eq!(mask(&mut matcher), Vec::<TokenId>::new());
    let mut longer = compile(&choice(&["a", "ab"])).start();
    feed(&mut longer, "a");
    assert!(!longer.is_complete() && longer.can_end(), "it may end here or go on");
    assert_eq!(mask(&mut longer), bytes("b"));
    let mut boolean = compile(&json(r#"{"type":"boolean"}"#)).start();
    assert_eq!(feed(&mut boolean, "true "), 4);
    assert!(boolean.is_complete());
}

#[test]
fn choices_are_literal() {
    let texts = ["c/d\"e\\f", "é\n", "[x]", "a.b-c#&~", "<|end|>", "(", "^a$", " "];
    for text in texts {
        assert!(takes(&choice(&texts), text), "{text:?}");
    }
    assert!(!takes(&choice(&texts), "axb-c#&~") && !takes(&choice(&texts), "a"));
}

#[test]
fn ends_and_special_tokens_are_never_content() {
    let mut matcher = compile(&regex("(?s).*")).start();
    assert!(matcher.can_end());
    let allowed = mask(&mut matcher);
    assert!(EOS.iter().all(|id| !allowed.contains(id)));
    assert!(
        allowed.iter().all(|id| *id < 256 + WORDS.len() as TokenId),
        "ids without a token are never allowed"
    );
    assert!(matcher.accept(EOS[0]).is_err());
    assert!(compile(&lark("start: \"<|end|>\"")).start().accept(EOS[0]).is_err());
    assert_eq!(compile(&regex("a*")).start().validate(&[97, EOS[1], 97]), 1);
}

#[test]
fn a_refused_token_changes_nothing() {
    let mut matcher = compile(&json(r#"{"const":"ab"}"#)).start();
    assert_eq!(feed(&mut matcher, "\"a"), 2);
    let message = matcher.accept(TokenId::from(b'x')).expect_err("only b may follow").to_string();
    assert_eq!(message, "the grammar forbids token 120 at position 2 of the output");
    assert_eq!(feed(&mut matcher, "b\""), 2);
    assert!(matcher.is_complete());
}

#[test]
fn lark_errors_have_a_position() {
    assert!(refused(&lark("start: item\nitem: undefined")).starts_with("at 2("));
    assert!(refused(&lark("foo: \"a\"")).contains("no start rule"));
    assert!(refused(&lark("start: \"a")).starts_with("1(10)"));
    assert!(refused(&lark("start: start")).contains("nothing satisfies"));
    assert!(takes(&lark("start: item (\",\" item)*\nitem: /[a-z]+/"), "a,bc"));
}

#[test]
fn over_large_specifications_are_refused_before_the_work() {
    assert!(refused(&regex(&"a".repeat(300_000))).contains("the limit is 262144"));
    let nested = format!("{}a{}", "(".repeat(50_000), ")".repeat(50_000));
    assert!(refused(&regex(&nested)).contains("50000 deep"));
    assert!(refused(&lark(&format!("start: {nested}"))).contains("50000 deep"));
    let deep = format!("{}{}", r#"{"items":"#.repeat(5000), "}".repeat(5000));
    assert!(refused(&json(&deep)).contains("not valid JSON"));
}

#[test]
fn every_compilation_ends_within_its_time() {
    let started = Instant::now();
    let words: Vec<String> = (0..20_000).map(|i| format!("word{}", i * 7919)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(takes(&choice(&words), "word7919"));
    for hard in [
        r"((((a{0,99}){0,99}){0,99}){0,99}){0,99}",
        r"(x+x+)+y",
        r"\w{1,5000}\p{L}{1,5000}",
        "(a|b|ab)*c{1000}",
    ] {
        // Compiled or refused, both are fine; a hang or a crash is not.
        let _ = compiler().compile(&regex(hard));
    }
    assert!(started.elapsed() < Duration::from_mins(1));
}

#[test]
fn a_lenient_schema_says_what_it_dropped() {
    let strict = json(r#"{"type":"array","uniqueItems":true,"items":{"type":"integer"}}"#);
    assert!(refused(&strict).contains("#: the keyword \"uniqueItems\""));
    let lenient = GrammarSpec { lenient: true, ..strict };
    assert_eq!(compile(&lenient).dropped(), ["#/uniqueItems"]);
    assert!(takes(&lenient, "[1,1]"));
}

#[test]
fn equal_specifications_share_a_grammar() {
    let spec = regex("shared");
    assert!(Arc::ptr_eq(&compile(&spec), &compile(&spec)));
}

const SCHEMAS: [&str; 6] = [
    r#"{"type":"object","properties":{"a":{"type":"integer","minimum":-5,"maximum":300},"b":{"type":["string","null"],"maxLength":4}},"required":["a","b"]}"#,
    r#"{"type":"array","items":{"anyOf":[{"type":"boolean"},{"type":"null"},{"enum":["x\"y","z"]}]},"minItems":1,"maxItems":4}"#,
    r#"{"type":"string","minLength":2,"maxLength":5}"#,
    r#"{"type":"number","minimum":0,"maximum":1}"#,
    r##"{"$defs":{"t":{"type":"object","properties":{"v":{"type":"boolean"},"l":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/t"}]}},"required":["v","l"],"additionalProperties":false}},"$ref":"#/$defs/t"}"##,
    r#"{"type":"string","format":"date"}"#,
];

fn token_bytes(id: TokenId) -> Vec<u8> {
    match id.checked_sub(256) {
        None => vec![id as u8],
        Some(word) => WORDS[word as usize].as_bytes().to_vec(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A walk that takes only what the mask allows ends in JSON, and on the way mask, validation, rollback and fork
    /// agree: the state after taking tokens back is the state of a fresh matcher (vLLM 55313).
    #[test]
    fn masks_validation_rollback_and_forks_agree(schema in 0..SCHEMAS.len(), picks in prop::collection::vec(any::<u32>(), 40)) {
        let grammar = compile(&json(SCHEMAS[schema]));
        let mut matcher = grammar.start();
        let (mut text, mut tokens) = (Vec::new(), Vec::new());
        for pick in picks {
            if matcher.is_complete() {
                break;
            }
            let allowed = mask(&mut matcher);
            for id in 0..VOCAB_SIZE {
                prop_assert_eq!(matcher.validate(&[id]) == 1, allowed.contains(&id), "token {}", id);
            }
            prop_assert!(!allowed.is_empty() || matcher.can_end());
            if allowed.is_empty() {
                break;
            }
            let token = allowed[pick as usize % allowed.len()];
            let mut fork = matcher.fork();
            matcher.accept(token).expect("the mask allows it");
            fork.accept(token).expect("a fork is in the same state");
            prop_assert_eq!(fork.can_end(), matcher.can_end());
            tokens.push(token);
            text.extend(token_bytes(token));
            let back = pick as usize % tokens.len();
            matcher.rollback(back).expect("they were accepted");
            let rest = tokens[tokens.len() - back..].to_vec();
            prop_assert_eq!(matcher.validate(&rest), rest.len());
            for token in rest {
                matcher.accept(token).expect("they were accepted before");
            }
            let mut fresh = grammar.start();
            for token in &tokens {
                fresh.accept(*token).expect("they were accepted before");
            }
            prop_assert_eq!(fresh.is_complete(), matcher.is_complete());
            prop_assert_eq!(mask(&mut fresh), mask(&mut matcher));
        }
        if matcher.is_complete() {
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&text).is_ok(), "{:?}", String::from_utf8_lossy(&text));
        }
        prop_assert!(matcher.rollback(tokens.len() + 1).is_err());
    }
}

/// llama.cpp's notation: exactly its texts, whether one regular expression can be made of it or not.
#[test]
fn ebnf_means_what_it_says() {
    let flat = lark(
        "root ::= greeting \" \" [a-z]{2,4} tail? # one word\ngreeting ::= \"hi\" | \"hit\"\ntail ::=\n  \"!\" | \".\" \".\"",
    );
    for (text, fits) in
        [("hi ab", true), ("hit abcd!", true), ("hi abc..", true), ("hi a", false), ("hi abc.", false)]
    {
        assert_eq!(takes(&flat, text), fits, "{text}");
    }
    let nested =
        lark("root ::= value\nvalue ::= \"a\" | \"ab\" | \"(\" value (\",\" value)* \")\" | [^\\x00-\\x7f]");
    for (text, fits) in [("a", true), ("(ab,(a,ab),é)", true), ("(a,b)", false), ("((a)", false)] {
        assert_eq!(takes(&nested, text), fits, "{text}");
    }
    // A lexer that takes the longest match would read `ab` as one word and then find no `b`.
    let ambiguous = lark("root ::= \"a\" rest | \"ab\" \"c\"\nrest ::= \"b\" | \"(\" rest \")\"");
    assert!(takes(&ambiguous, "ab") && takes(&ambiguous, "abc") && takes(&ambiguous, "a((b))"));
}

#[test]
fn ebnf_errors_name_the_construct_and_its_place() {
    for (text, why) in [
        ("root ::= foo", "at 1(10): there is no rule \"foo\""),
        ("start ::= \"a\"", "no rule \"root\""),
        ("root ::= \"a", "at 1(10): the string is not closed"),
        ("root ::= [z-a]", "is empty"),
        ("root ::= \"a\" &other", "at 1(14): the construct '&' is not supported"),
        ("root ::= \"a\"{3,2}", "{3,2} is no number of repetitions"),
        ("root ::= (\"a\" | \"b\"", "at 1(10): the group is not closed"),
        ("root ::= \"\\q\"", "\\q is no escape"),
        ("root ::= root \"a\"", "nothing satisfies"),
        ("root ::= \"a\"\nroot ::= \"b\"", "at 2(1): the rule \"root\" is there twice"),
    ] {
        let message = refused(&lark(text));
        assert!(message.contains(why), "{text}: {message}");
    }
}

fn tagged(tag: &serde_json::Value) -> Result<GrammarSpec, frizzen_grammar::GrammarError> {
    let fields = serde_json::json!({"structural_tag": tag});
    let fields = fields.as_object().expect("an object");
    GrammarSpec::from_structured_outputs(fields).map(|spec| spec.expect("it asks for something"))
}

#[test]
fn structural_tags_bind_what_stands_between_them() {
    let old = tagged(&serde_json::json!({"structures": [
        {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<g x=", "schema": {"type": "boolean"}, "end": ">"}], "triggers": ["<f", "<g"]}))
    .expect("vLLM's older form");
    for (text, fits) in [
        ("plain text, 1 < 2", true),
        ("so <f>12</f> and <g x=true> or <f>3</f>", true),
        ("so <f>x</f>", false),
        ("so <f", false),
        ("<g x=1>", false),
    ] {
        assert_eq!(takes(&old, text), fits, "{text}");
    }
    let new = tagged(&serde_json::json!({"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "any_text"}, {"type": "const_string", "value": "=>"},
        {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]/[0-9]"}, {"type": "const_string", "value": "none"}]},
        {"type": "tags_with_separator", "separator": ",", "at_least_one": true, "tags": [
            {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ">"}]}]}}))
    .expect("xgrammar's newer form");
    for (text, fits) in [("so =>1/2<a>,<b>", true), ("=>none<>", true), ("=>none", false), ("=>12<a>", false)]
    {
        assert_eq!(takes(&new, text), fits, "{text}");
    }
    for (tag, why) in [
        (serde_json::json!({"structures": [], "triggers": []}), "triggers must be"),
        (
            serde_json::json!({"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<g"]}),
            "begins with none",
        ),
        (
            serde_json::json!({"format": {"type": "qwen_xml_parameter"}}),
            "\"qwen_xml_parameter\" is not supported",
        ),
        (serde_json::json!({"format": {"type": "const_string", "value": "a", "x": 1}}), "the field \"x\""),
        (serde_json::json!("{"), "not valid JSON"),
        (serde_json::json!({}), "structures and triggers, or a format"),
    ] {
        let error = tagged(&tag).expect_err("this must be refused").0;
        assert!(error.contains("structural_tag") && error.contains(why), "{error}");
    }
}

/// A drafter copies ` null` with its blank from a text that had none before it: cut where it does not fit, taken where
/// it does, and the state is as before.
#[test]
fn a_draft_with_another_token_boundary_is_cut_and_no_error_vllm_15554() {
    let spec = json(
        r#"{"type":"object","properties":{"e":{"type":["string","null"],"maxLength":200}},"required":["e"]}"#,
    );
    let word = |text: &str| 256 + WORDS.iter().position(|word| *word == text).expect("a word") as TokenId;
    let grammar = compile(&spec);
    for (colon, fits) in [("\":", true), ("\": ", false)] {
        let mut matcher = grammar.start();
        let drafts = [word("{\""), TokenId::from(b'e'), word(colon), word(" null"), TokenId::from(b'}')];
        assert_eq!(matcher.validate(&drafts), if fits { 5 } else { 3 });
        let before = mask(&mut matcher);
        assert_eq!(
            drafts.iter().take_while(|token| matcher.accept(**token).is_ok()).count(),
            if fits { 5 } else { 3 }
        );
        matcher.rollback(if fits { 5 } else { 3 }).expect("they were accepted");
        assert_eq!(mask(&mut matcher), before);
    }
}

/// Tools bring schemas that their callers did not write: what of them cannot be enforced must not cost the request.
#[test]
fn a_pattern_that_cannot_be_read_is_named_or_left_out_llama_cpp_26930() {
    let schema =
        r#"{"type":"object","properties":{"a":{"type":"string","pattern":"^(?=a)b"}},"required":["a"]}"#;
    let error = refused(&json(schema));
    assert!(error.contains("#/properties/a") && error.contains("look-around"), "{error}");
    let lenient = GrammarSpec { lenient: true, ..json(schema) };
    assert_eq!(compile(&lenient).dropped(), ["#/properties/a/pattern"]);
    assert!(takes(&lenient, r#"{"a":"anything"}"#));
    let unanchored = json(r#"{"type":"string","pattern":"\\S"}"#);
    assert!(takes(&unanchored, r#"" x ""#) && !takes(&unanchored, r#""  ""#));
}

#[test]
fn an_excluded_bound_in_the_form_of_draft_4_is_an_exclusive_bound() {
    let spec = json(
        r#"{"type":"integer","minimum":1,"exclusiveMinimum":true,"maximum":3,"exclusiveMaximum":false}"#,
    );
    assert!(takes(&spec, "2") && takes(&spec, "3") && !takes(&spec, "1") && !takes(&spec, "4"));
    assert!(takes(&json(r#"{"type":"integer","exclusiveMinimum":true}"#), "-7"), "no bound is excluded");
}

#[test]
fn schemas_that_other_compilers_drop_or_refuse_are_enforced_llama_cpp_19051_25746_26596_16790_8073() {
    // An escaped character that needs no escape.
    let escaped = json(r#"{"type":"string","pattern":"^hello there indeed\\!$"}"#);
    assert!(takes(&escaped, "\"hello there indeed!\"") && !takes(&escaped, "\"hello there indeed\""));
    // Long strings, deep inside, beside an anchored pattern.
    let nested = json(
        r#"{"type":"object","properties":{"o":{"type":"object","properties":{"s":{"type":"string","maxLength":2000},
            "t":{"type":"string","minLength":1,"maxLength":65536},"p":{"type":"string","pattern":"^[a-z]+$"}},
            "required":["s","t","p"],"additionalProperties":false}},"required":["o"],"additionalProperties":false}"#,
    );
    let text =
        |s: usize, p: &str| format!("{{\"o\":{{\"s\":\"{}\",\"t\":\"t\",\"p\":\"{p}\"}}}}", "x".repeat(s));
    assert!(
        takes(&nested, &text(2000, "a"))
            && !takes(&nested, &text(2001, "a"))
            && !takes(&nested, &text(1, "A"))
    );
    // References into a list of alternatives, and to themselves.
    let tree = json(
        r##"{"type":"object","properties":{"left":{"anyOf":[{"type":"string"},{"$ref":"#"}]},
            "right":{"$ref":"#/properties/left/anyOf/0"}},"required":["left","right"],"additionalProperties":false}"##,
    );
    assert!(takes(&tree, r#"{"left":{"left":"a","right":"b"},"right":"c"}"#));
    assert!(!takes(&tree, r#"{"left":"a","right":{"left":"a","right":"b"}}"#));
    let choice = json(
        r##"{"$defs":{"E":{"enum":["a","b"]}},"type":"object","properties":{"e":{"$ref":"#/$defs/E"}},
            "required":["e"],"additionalProperties":false}"##,
    );
    assert!(
        takes(&choice, r#"{"e":"b"}"#) && !takes(&choice, r#"{"e":"c"}"#) && !takes(&choice, r#"{"e":{}}"#)
    );
}
