//! Constrained output over HTTP: enforced, or refused with a reason that names field and construct.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use common::{Server, finish_reasons, joined, saying, script, streamed, text_of};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock::{self, END};
use serde_json::{Value, json};

/// A small object, its keys in the order of the schema.
fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3}
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false
    })
}

fn is_person(text: &str) -> bool {
    let Ok(Value::Object(person)) = serde_json::from_str(text) else { return false };
    let keys: Vec<&String> = person.keys().collect();
    keys == ["name", "age", "tags"]
        && person["name"].as_str().is_some_and(|name| name.chars().count() <= 6)
        && person["age"].as_u64().is_some_and(|age| age <= 130)
        && person["tags"].as_array().is_some_and(|tags| tags.len() <= 3)
}

fn json_schema(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "r", "strict": true, "schema": schema}})
}

fn refusal(server: &Server, fields: &Value) -> (String, Option<String>) {
    let answer = server.client().chat(fields);
    let (status, kind, param) = answer.error();
    assert_eq!((status, kind.as_str()), (400, "BadRequestError"), "{fields}: {}", answer.text());
    (answer.json()["error"]["message"].as_str().unwrap().to_owned(), param)
}

#[test]
fn a_schema_is_enforced_on_a_model_that_wants_to_say_something_else_tensorrt_4855() {
    let server = Server::start(script("banana"));
    let asked = json!({"response_format": json_schema(&person()), "max_tokens": 500, "temperature": 0});
    let whole = server.client().chat(&asked).ok();
    assert!(is_person(&text_of(&whole, 0)), "{whole}");
    assert_eq!(
        (&whole["choices"][0]["finish_reason"], &whole["choices"][0]["stop_reason"]),
        (&json!("stop"), &Value::Null)
    );
    assert_eq!(whole["grammar_enforced"], json!(true));
    let events = server.client().chat(&streamed(&asked)).events();
    assert_eq!(joined(&events, 0), text_of(&whole, 0));
    assert_eq!(finish_reasons(&events, 0), ["stop"]);
    assert!(events.iter().all(|event| event["grammar_enforced"] == json!(true)));
}

#[test]
fn every_sample_of_a_random_model_is_valid_beside_plain_requests_tgi_1661() {
    for overlap in [&["--overlap"][..], &[]] {
        let server = Server::with(overlap, saying(Content::Chain));
        std::thread::scope(|scope| {
            for seed in 0..6 {
                let client = server.client();
                scope.spawn(move || {
                    let asked = json!({"response_format": json_schema(&person()), "max_tokens": 300, "n": 4, "seed": seed});
                    let whole = client.chat(&asked).ok();
                    for choice in 0..4 {
                        assert!(is_person(&text_of(&whole, choice)), "{}", whole["choices"][choice]);
                    }
                });
                let client = server.client();
                scope.spawn(move || {
                    let whole =
                        client.chat(&json!({"max_tokens": 40, "seed": seed, "ignore_eos": true})).ok();
                    assert_eq!(whole["usage"]["completion_tokens"], json!(40));
                    assert!(whole.get("grammar_enforced").is_none());
                });
            }
        });
    }
}

#[test]
fn overlap_does_not_change_a_constrained_text() {
    let texts = [&["--overlap"][..], &[]].map(|flags| {
        let server = Server::with(flags, saying(Content::Chain));
        let asked = json!({"response_format": json_schema(&person()), "max_tokens": 300, "n": 5, "seed": 3});
        let whole = server.client().chat(&asked).ok();
        (0..5).map(|choice| text_of(&whole, choice)).collect::<Vec<_>>()
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn drafts_do_not_change_a_constrained_text_vllm_27969() {
    let texts = [&["--drafter", "ngram", "--speculation", "5"][..], &[]].map(|flags| {
        // What it wants to say is its prompt, and the drafter sees that it repeats itself.
        let worker = MockWorker::new(WorkerInfo { max_drafts: 8, ..mock::info() }).saying(Content::Echo);
        let server = Server::with(flags, worker);
        let schemas = [person(), json!({"type": "array", "items": {"enum": ["aaaa", "bbbb"]}, "minItems": 9, "maxItems": 9})];
        schemas.map(|schema| {
            let asked = json!({"prompt": "[\"aaaa\",\"aaaa\",\"aaaa\"", "max_tokens": 500,
                "structured_outputs": {"json": schema}, "speculation": if flags.is_empty() { Value::Null } else { json!({"max_tokens": 5}) }});
            let whole = server.client().completion(&asked).ok();
            assert_eq!(whole["choices"][0]["finish_reason"], json!("stop"), "{whole}");
            if !flags.is_empty() {
                assert!(whole["usage"]["speculation"]["accepted"].as_u64().unwrap() > 0, "{whole}");
            }
            whole["choices"][0]["text"].as_str().unwrap().to_owned()
        })
    });
    assert_eq!(texts[0], texts[1]);
    assert!(is_person(&texts[0][0]));
}

#[test]
fn every_kind_of_structured_output_is_enforced_in_both_dialects() {
    let server = Server::start(saying(Content::Chain));
    for (structured, fits) in [
        (
            json!({"regex": "[a-c]{3,5}!"}),
            (|text| text.ends_with('!') && text.len() <= 6) as fn(&str) -> bool,
        ),
        (json!({"choice": ["yes", "no", "maybe\n"]}), |text| ["yes", "no", "maybe\n"].contains(&text)),
        (json!({"grammar": "start: \"<\" word \">\"\nword: /[xy]{1,4}/"}), |text| {
            text.starts_with('<') && text.ends_with('>')
        }),
        (json!({"json": {"type": "boolean"}}), |text| ["true", "false"].contains(&text)),
        (json!({"grammar": "root ::= \"<\" [xy]{1,4} \">\""}), |text| {
            text.starts_with('<') && text.ends_with('>')
        }),
        (
            json!({"structural_tag": {"format": {"type": "tag", "begin": "<a>", "end": "</a>",
                "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}}}}),
            |text| ["<a>true</a>", "<a>false</a>"].contains(&text),
        ),
        (json!({"json": "{\"type\": \"null\"}", "disable_any_whitespace": true}), |text| text == "null"),
        (json!({"json": person(), "whitespace_pattern": " ?"}), is_person),
    ] {
        let asked = json!({"structured_outputs": structured, "max_tokens": 300, "seed": 1});
        let chat = server.client().chat(&asked).ok();
        assert!(fits(&text_of(&chat, 0)), "{chat}");
        let mut asked = asked;
        asked["prompt"] = json!("x");
        let completion = server.client().completion(&asked).ok();
        assert!(fits(completion["choices"][0]["text"].as_str().unwrap()), "{completion}");
        assert_eq!(completion["grammar_enforced"], json!(true));
    }
}

#[test]
fn what_cannot_be_enforced_is_a_400_and_the_server_lives_on_vllm_19270() {
    let server = Server::start(script("banana"));
    for (fields, param, construct) in [
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs", "unclosed group"),
        (json!({"structured_outputs": {"regex": ""}}), "structured_outputs", "regex is empty"),
        (json!({"structured_outputs": {"grammar": "  "}}), "structured_outputs", "grammar is empty"),
        (json!({"structured_outputs": {"choice": []}}), "structured_outputs", "choice is empty"),
        (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs", "json and regex"),
        (
            json!({"structured_outputs": {"structural_tag": {}}}),
            "structured_outputs",
            "structural_tag: it needs",
        ),
        (
            json!({"structured_outputs": {"grammar": "root ::= x"}}),
            "structured_outputs",
            "at 1(10): there is no rule",
        ),
        (json!({"structured_outputs": {"grammar": "start: nothing"}}), "structured_outputs", "at 1("),
        (
            json!({"response_format": json_schema(&json!({"items": {"not": {"pattern": "a"}}}))}),
            "response_format",
            "#/items: the keyword \"not\"",
        ),
        (
            json!({"response_format": json_schema(&json!({"$ref": "#"}))}),
            "response_format",
            "no finite instance",
        ),
        (
            json!({"response_format": json_schema(&json!({"type": "integer", "minimum": 3, "maximum": 2}))}),
            "response_format",
            "minimum (3)",
        ),
        (json!({"response_format": json_schema(&json!("text"))}), "response_format", "json_schema.schema"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format", "json_schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "r"}}}),
            "response_format",
            "schema is missing",
        ),
        (json!({"response_format": {"type": "xml"}}), "response_format", "'json_object'"),
        (
            json!({"response_format": {"type": "json_object", "schema": {}}}),
            "response_format",
            "'schema' is not supported",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "structured_outputs",
            "exactly one",
        ),
        (json!({"guided_json": {}}), "guided_json", "structured_outputs"),
    ] {
        let (message, named) = refusal(&server, &fields);
        assert!(message.contains(construct) && !message.contains('\n'), "{fields}: {message}");
        assert_eq!(named.as_deref(), Some(param));
        assert_eq!(text_of(&server.client().chat(&json!({"max_tokens": 9})).ok(), 0), "banana");
    }
}

#[test]
fn a_structural_tag_is_a_response_format_too() {
    let server = Server::start(script("so <f x>12</f> and <f y"));
    let asked = json!({"max_tokens": 100, "response_format": {"type": "structural_tag", "triggers": ["<f"],
        "structures": [{"begin": "<f x>", "schema": {"type": "integer", "maximum": 99, "minimum": 10}, "end": "</f>"}]}});
    let text = text_of(&server.client().chat(&asked).ok(), 0);
    assert!(text.starts_with("so <f x>12</f> and <f x>"), "{text}");
}

#[test]
fn formats_that_ask_for_nothing_constrain_nothing() {
    let server = Server::start(script("banana"));
    for fields in [
        json!({"response_format": {"type": "text"}}),
        json!({"response_format": null, "structured_outputs": {}}),
        json!({"structured_outputs": {"json": null}}),
    ] {
        let whole = server.client().chat(&fields).ok();
        assert_eq!(text_of(&whole, 0), "banana");
        assert!(whole.get("grammar_enforced").is_none());
    }
}

#[test]
fn a_model_that_wants_nothing_but_blanks_ends_its_json_vllm_38696() {
    let server = Server::start(script(&" \n\t".repeat(200)));
    let schema = json!({"type": "object", "properties": {"q": {"enum": ["a", "b"]}}, "required": ["q"], "additionalProperties": false});
    let whole =
        server.client().chat(&json!({"response_format": json_schema(&schema), "max_tokens": 200})).ok();
    assert_eq!(whole["choices"][0]["finish_reason"], json!("stop"), "{whole}");
    assert!(serde_json::from_str::<Value>(&text_of(&whole, 0)).is_ok());
}

#[test]
fn a_lenient_grammar_is_not_said_to_be_enforced() {
    let server = Server::start(script("banana"));
    let schema = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2, "not": {"pattern": "a"}});
    let whole = server.client().chat(&json!({"structured_outputs": {"json": schema, "lenient": true}})).ok();
    assert_eq!(whole["grammar_enforced"], json!(false));
    assert!(serde_json::from_str::<[bool; 2]>(&text_of(&whole, 0)).is_ok());
}

#[test]
fn an_output_ends_with_its_text_whatever_is_said_of_eos_vllm_29632() {
    let server = Server::start(saying(Content::Chain));
    let bias = json!({END.to_string(): -100});
    for fields in [
        json!({"structured_outputs": {"choice": ["a"]}, "logit_bias": bias, "max_tokens": 32}),
        json!({"structured_outputs": {"choice": ["a"]}, "ignore_eos": true, "max_tokens": 32}),
        json!({"structured_outputs": {"choice": ["a"]}, "min_tokens": 20, "max_tokens": 32}),
    ] {
        let whole = server.client().chat(&fields).ok();
        assert_eq!(
            (text_of(&whole, 0).as_str(), &whole["choices"][0]["finish_reason"]),
            ("a", &json!("stop"))
        );
        assert_eq!(whole["usage"]["completion_tokens"], json!(1));
    }
}

#[test]
fn stop_tokens_are_masked_until_the_text_may_end_vllm_49227() {
    let quote = u32::from(b'"');
    let server = Server::start(saying(Content::Chain));
    let schema = json!({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-z]*$"});
    let asked = json!({"structured_outputs": {"json": schema}, "logit_bias": {END.to_string(): 100}, "stop_token_ids": [b'z']});
    let text = text_of(&server.client().chat(&asked).ok(), 0);
    assert!(text.len() >= 4 && !text.contains('z') && text.ends_with('"'), "{text}");
    // A stop token without which no text is possible leaves nothing to say.
    let impossible = json!({"structured_outputs": {"json": schema}, "stop_token_ids": [quote]});
    let answer = server.client().chat(&impossible);
    assert_eq!(answer.status, 400, "the request's own contradiction is no fault of the server");
    assert!(answer.text().contains("no token can follow"), "{}", answer.text());
    assert_eq!(server.client().chat(&json!({"max_tokens": 3, "ignore_eos": true})).status, 200);
}

#[test]
fn a_limit_of_tokens_keeps_the_partial_text() {
    let server = Server::start(saying(Content::Chain));
    let long = json!({"type": "string", "minLength": 50, "pattern": "^[a-z]*$"});
    let whole = server.client().chat(&json!({"structured_outputs": {"json": long}, "max_tokens": 10})).ok();
    assert_eq!(whole["choices"][0]["finish_reason"], json!("length"));
    assert_eq!(text_of(&whole, 0).len(), 10);
    assert!(text_of(&whole, 0).starts_with('"'));
    assert_eq!(whole["grammar_enforced"], json!(true));
}

#[test]
fn a_grammar_that_grows_too_complex_fails_its_request_only_guidance_1042() {
    let server = Server::start(script(&format!("\"{}", "a".repeat(400))));
    let nested = json!({"type": "string", "pattern": "^((a{1,500}){1,500}){1,500}$"});
    std::thread::scope(|scope| {
        let other = server.client();
        let other = scope.spawn(move || other.chat(&json!({"max_tokens": 100, "ignore_eos": true})).ok());
        let answer = server
            .client()
            .chat(&json!({"structured_outputs": {"json": nested}, "max_tokens": 500, "ignore_eos": true}));
        assert_eq!(answer.status, 500);
        assert!(answer.text().contains("the grammar cannot go on"), "{}", answer.text());
        assert_eq!(other.join().unwrap()["usage"]["completion_tokens"], json!(100));
    });
    assert_eq!(server.client().get("/health").status, 200);
}

#[test]
fn bad_words_do_not_come_at_the_beginning_of_a_text_or_after_a_space() {
    let server = Server::start(script("one two three two one"));
    let asked = |words: Value| json!({"prompt": "x", "max_tokens": 40, "temperature": 0, "bad_words": words});
    let text = text_of(&server.client().completion(&asked(json!([]))).ok(), 0);
    assert_eq!(text, "one two three two one");
    let body = asked(json!(["two", " one"]));
    let whole = server.client().completion(&body).ok();
    let text = text_of(&whole, 0);
    assert!(!text.contains("two") && !text.contains("one"), "{text}");
    assert!(text.starts_with("on"), "only what would complete a word is masked: {text}");
    let events = server.client().completion(&streamed(&body)).events();
    assert_eq!(joined(&events, 0), text);
    let tokens = json!({"token_ids": [120], "sampling_params": {"max_tokens": 3, "temperature": 0, "bad_words": "one"}});
    let tokens = server.client().post("/inference/v1/generate", &tokens).ok();
    let tokens = &tokens["choices"][0]["token_ids"];
    assert_eq!((&tokens[0], &tokens[1]), (&json!(b'o'), &json!(b'n')));
    assert_ne!(tokens[2], json!(b'e'));
}

#[test]
fn bad_words_hold_within_a_grammar_and_a_dead_end_is_that_requests_error() {
    let server = Server::start(script("red"));
    let asked = |choices: Value| {
        json!({"structured_outputs": {"choice": choices}, "bad_words": ["red"], "temperature": 0,
            "max_tokens": 20})
    };
    let answer = server.client().chat(&asked(json!(["red", "rex"]))).ok();
    assert_eq!(text_of(&answer, 0), "rex");
    let refused = server.client().chat(&asked(json!(["red"])));
    assert!(refused.status >= 400 && refused.text().contains("bad_words"), "{}", refused.text());
    assert_eq!(server.client().chat(&json!({"max_tokens": 3})).status, 200, "the others go on");
}
