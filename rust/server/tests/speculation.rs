//! Speculation over HTTP: the field, the usage, the route, the metrics.

#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use common::{Server, chat_body, letters, script, series, streamed};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock;
use serde_json::{Value, json};

/// A server with a drafter over a mock that says its prompt again and again.
fn echo(flags: &[&str]) -> Server {
    let worker = MockWorker::new(WorkerInfo { max_drafts: 8, ..mock::info() }).saying(Content::Echo);
    Server::with(flags, worker)
}

#[test]
fn a_request_that_speaks_of_speculation_gets_its_usage_and_others_do_not() {
    let server = echo(&["--drafter", "ngram"]);
    let body = json!({"prompt": "abcdefgh", "max_tokens": 41, "speculation": {"max_tokens": 4}});
    let answer = server.client().completion(&body).ok();
    assert_eq!(answer["choices"][0]["text"], "abcdefgh".repeat(6)[..41]);
    let usage = &answer["usage"]["speculation"];
    assert_eq!(usage["drafts"], usage["accepted"]);
    assert!(usage["drafts"].as_u64().unwrap() >= 24, "{usage}");
    let steps =
        |key: &str| -> u64 { usage[key].as_object().unwrap().values().filter_map(Value::as_u64).sum() };
    assert_eq!(steps("lengths"), steps("reasons"));
    assert!(usage["saved_ms"].is_number());
    for (silent, speculation) in [(true, Value::Null), (false, json!("off"))] {
        let body = json!({"prompt": "abcdefgh", "max_tokens": 9, "speculation": speculation});
        let usage = server.client().completion(&body).ok()["usage"].clone();
        assert_eq!(usage.get("speculation"), None, "silent: {silent}");
    }
}

#[test]
fn the_route_and_the_metrics_say_what_was_drafted() {
    let server = echo(&["--drafter", "suffix", "--speculation", "4", "--metrics-compat", "vllm"]);
    server.client().completion(&json!({"prompt": "abcdefgh", "max_tokens": 60})).ok();
    server.quiesce();
    let status = server.client().get("/v1/speculation").ok();
    assert_eq!((&status["drafter"], &status["default"]), (&json!("suffix"), &json!({"max_tokens": 4})));
    let accepted = status["totals"]["accepted"].as_f64().unwrap();
    assert!(accepted > 20.0);
    assert_eq!(server.metric(&series("spec_decode_num_accepted_tokens_total")), accepted);
    assert_eq!(
        server.metric(&series("spec_decode_num_draft_tokens_total")),
        status["totals"]["drafts"].as_f64().unwrap()
    );
    let without = Server::start(letters());
    assert_eq!(without.client().get("/v1/speculation").ok(), json!({"drafter": null}));
}

#[test]
fn tokens_of_one_chunk_have_their_own_alternatives_sglang_39260() {
    let server = echo(&["--drafter", "suffix", "--speculation", "4"]);
    let body = chat_body(&json!({"max_tokens": 60, "logprobs": true, "top_logprobs": 2}));
    let whole = server.client().post("/v1/chat/completions", &body).ok()["choices"][0]["logprobs"].clone();
    let events = server.client().post("/v1/chat/completions", &streamed(&body)).events();
    let chunks: Vec<&Vec<Value>> =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).collect();
    assert!(chunks.iter().any(|chunk| chunk.len() > 1), "drafts come several at a time");
    let joined: Vec<Value> = chunks.into_iter().flatten().cloned().collect();
    assert_eq!(Value::from(joined), whole["content"]);
}

#[test]
fn a_wish_that_the_server_cannot_grant_is_refused_by_name() {
    let server = Server::start(letters());
    for speculation in [json!("auto"), json!({"max_tokens": 2})] {
        let answer = server.client().completion(&json!({"prompt": "a", "speculation": speculation}));
        assert_eq!(answer.status, 400);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], "speculation");
        assert!(error["message"].as_str().unwrap().contains("--drafter"), "{error}");
    }
    server.client().completion(&json!({"prompt": "a", "max_tokens": 1, "speculation": "off"})).ok();
}

#[test]
fn ids_text_and_usage_end_at_the_stop_string_among_accepted_drafts_vllm_47616() {
    let text = " ha ha ha ha ho ho hi hi ha ha ho hi";
    let plain = Server::start(script(text));
    let worker = MockWorker::new(WorkerInfo { max_drafts: 8, ..mock::info() });
    let bytes = text.bytes().map(u32::from).collect();
    let drafted =
        Server::with(&["--drafter", "ngram", "--speculation", "8"], worker.saying(Content::Script(bytes)));
    let body = json!({"prompt": " ha ha ha ha ha", "max_tokens": 30, "stop": [" ha ho"], "logprobs": 2,
        "return_token_ids": true});
    let [one, two] = [plain, drafted].map(|server| server.client().completion(&body).ok());
    assert_eq!(one["choices"], two["choices"]);
    assert_eq!(one["usage"]["completion_tokens"], two["usage"]["completion_tokens"]);
}
