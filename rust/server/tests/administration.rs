//! Pause, sleep, abort, token in and token out, and what the server says of itself.

mod common;

use std::time::Duration;

use common::{Server, chat_body, letters, read_answer, script, series, slow_letters, streamed, wait_until};
use serde_json::{Value, json};

const STEP: Duration = Duration::from_millis(2);

fn long() -> serde_json::Value {
    json!({"prompt": "x", "max_tokens": 400, "ignore_eos": true})
}

#[test]
fn a_paused_server_takes_requests_and_lets_them_wait() {
    let server = Server::start(letters());
    let client = server.client();
    assert_eq!(client.post("/pause", &json!({})).ok()["is_paused"], true);
    assert_eq!(client.get("/is_paused").ok()["is_paused"], true);
    let waiting = client.request("POST", "/v1/completions", Some(long().to_string().as_bytes()));
    wait_until("it waits", || client.get("/load").ok()["waiting"] == 1);
    assert_eq!(client.get("/load").ok()["running"], 0);
    assert_eq!(client.post("/resume", &json!({})).ok()["is_paused"], false);
    assert_eq!(read_answer(waiting).ok()["usage"]["completion_tokens"], 400);
    server.quiesce();
}

#[test]
fn a_pause_aborts_waits_for_or_freezes_what_runs() {
    for (mode, reason, tokens) in
        [("abort", "abort", None), ("wait", "length", Some(400)), ("keep", "length", Some(400))]
    {
        let server = Server::start(slow_letters(STEP));
        let client = server.client();
        let running = client.request("POST", "/v1/completions", Some(long().to_string().as_bytes()));
        wait_until("it runs", || client.get("/load").ok()["running"] == 1);
        client.post(&format!("/pause?mode={mode}"), &json!({})).ok();
        let frozen = client.get("/load").ok();
        assert_eq!(frozen["running"], u64::from(mode == "keep"), "{mode}");
        let before = server.metric(&series("generation_tokens_total"));
        if mode == "keep" {
            assert_eq!(client.get("/health").status, 200);
            assert!((server.metric(&series("generation_tokens_total")) - before).abs() < 0.5);
            client.post("/resume", &json!({})).ok();
        }
        let answer = read_answer(running).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], reason, "{mode}");
        if let Some(tokens) = tokens {
            assert_eq!(answer["usage"]["completion_tokens"], tokens, "{mode}");
        }
        client.post("/continue_generation", &json!({})).ok();
        assert_eq!(
            client.completion(&json!({"prompt": "x", "max_tokens": 2})).ok()["usage"]["completion_tokens"],
            2
        );
    }
}

#[test]
fn a_request_that_leaves_while_it_is_held_back_is_forgotten() {
    let server = Server::start(letters());
    let client = server.client();
    client.post("/pause", &json!({})).ok();
    let waiting = client.request("POST", "/v1/completions", Some(long().to_string().as_bytes()));
    wait_until("it waits", || server.state.engine.open_streams() == 1);
    drop(waiting);
    wait_until("it is gone", || server.state.engine.open_streams() == 0);
    client.post("/resume", &json!({})).ok();
    server.quiesce();
    assert!(server.metric(&series("generation_tokens_total")) < 0.5);
}

#[test]
fn a_pause_that_nobody_knows_is_refused() {
    let server = Server::start(letters());
    let (status, _, param) = server.client().post("/pause?mode=now", &json!({})).error();
    assert_eq!((status, param.as_deref()), (400, Some("mode")));
    assert_eq!(server.client().get("/is_paused").ok()["is_paused"], false);
}

#[test]
fn a_sleeping_server_refuses_requests_and_says_what_it_dropped() {
    let server = Server::start(letters());
    let client = server.client();
    let prompt = json!({"prompt": "x".repeat(100), "max_tokens": 1});
    let cached =
        || client.completion(&prompt).ok()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(), Some(0));
    assert!(cached() > Some(0));
    let asleep = client.post("/sleep?level=1", &json!({})).ok();
    assert_eq!((&asleep["prefix_cache"], &asleep["weights"]), (&json!("dropped"), &json!("kept")));
    assert_eq!(asleep["memory_released_bytes"], 0);
    assert_eq!(client.get("/is_sleeping").ok()["is_sleeping"], true);
    let refused = client.completion(&prompt);
    assert_eq!((refused.error().0, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(client.post("/resume", &json!({})).status, 409);
    client.post("/wake_up", &json!({})).ok();
    assert_eq!(cached(), Some(0));
    let series = |operation| {
        format!("frizzen:sleep_mode_operation_duration_seconds_count{{operation=\"{operation}\"}}")
    };
    assert!((server.metric(&series("sleep")) - 1.0).abs() < 0.1);
    assert!((server.metric(&series("wake_up")) - 1.0).abs() < 0.1);
}

#[test]
fn light_sleep_keeps_the_prefixes_and_deep_sleep_is_a_typed_501() {
    let server = Server::start(letters());
    let client = server.client();
    let (status, _, param) = client.post("/sleep?level=2", &json!({})).error();
    assert_eq!((status, param.as_deref()), (501, Some("level")));
    assert_eq!(client.get("/is_sleeping").ok()["is_sleeping"], false);
    assert_eq!(client.post("/sleep?level=0", &json!({})).ok()["prefix_cache"], "kept");
    client.post("/wake_up", &json!({})).ok();
}

#[test]
fn requests_are_aborted_by_name_by_prefix_or_all_and_twice_is_no_error() {
    let server = Server::start(slow_letters(STEP));
    let start = |name: &str| {
        let client = server.client().header("x-request-id", name);
        client.request("POST", "/v1/completions", Some(streamed(&long()).to_string().as_bytes()))
    };
    for (names, body, aborted) in [
        (["a-1", "a-2", "b"], json!({"request_ids": ["cmpl-a-1", "b", "nobody"]}), 2),
        (["a-1", "a-2", "b"], json!({"prefix": "a-"}), 2),
        (["a-1", "a-2", "b"], json!({"rid": "a-2"}), 1),
        (["a-1", "a-2", "b"], json!({"abort_all": true}), 3),
    ] {
        let streams = names.map(start);
        wait_until("all run", || server.state.engine.open_streams() == 3);
        assert_eq!(server.client().post("/abort_requests", &body).ok()["aborted"], aborted, "{body}");
        assert_eq!(server.client().post("/abort_requests", &body).ok()["aborted"], 0, "{body}");
        server.client().post("/abort_request", &json!({"all": true})).ok();
        for stream in streams {
            let events = read_answer(stream).events();
            assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "abort");
        }
        server.quiesce();
    }
    let (status, _, param) = server.client().post("/abort_requests", &json!({})).error();
    assert_eq!((status, param.as_deref()), (400, Some("request_ids")));
}

#[test]
fn ids_go_in_and_ids_come_out() {
    let server = Server::start(script("hi"));
    let body = json!({"token_ids": [1, 2, 3], "request_id": "r", "sampling_params": {"max_tokens": 9, "logprobs": 1, "n": 2}});
    let answer = server.client().post("/inference/v1/generate", &body).ok();
    assert_eq!(answer["request_id"], "r");
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for choice in choices {
        assert_eq!(choice["token_ids"], json!([104, 105, 257]));
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 3);
        assert!(choice.get("text").is_none());
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    let events = server.client().post("/inference/v1/generate", &streamed(&body)).events();
    for index in 0..2 {
        let choices =
            events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        let ids: Vec<&serde_json::Value> =
            choices.flat_map(|choice| choice["token_ids"].as_array().unwrap()).collect();
        assert_eq!(json!(ids), json!([104, 105, 257]));
    }
}

#[test]
fn stop_strings_without_text_are_refused_vllm_57052() {
    let server = Server::start(script("hi"));
    let call = |params: serde_json::Value| {
        server.client().post("/inference/v1/generate", &json!({"token_ids": [1], "sampling_params": params}))
    };
    let (status, _, param) = call(json!({"stop": ["\n"], "max_tokens": 200})).error();
    assert_eq!((status, param.as_deref()), (400, Some("stop")));
    assert_eq!(
        call(json!({"stop": [], "stop_token_ids": [105]})).ok()["choices"][0]["token_ids"],
        json!([104, 105])
    );
    for (params, field) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"prompt": "x"}), "sampling_params"),
        (json!(3), "sampling_params"),
    ] {
        assert_eq!(call(params).error().2.as_deref(), Some(field));
    }
    for ids in [json!([]), json!([-1]), json!([259]), json!("x"), json!([[1]])] {
        let answer = server.client().post("/inference/v1/generate", &json!({"token_ids": ids}));
        assert_eq!(answer.error().2.as_deref(), Some("token_ids"), "{ids}");
    }
}

#[test]
fn health_can_be_asked_for_a_token() {
    let server = Server::start(letters());
    assert_eq!(server.client().get("/health_generate").ok()["status"], "ready");
    server.quiesce();
}

#[test]
fn the_server_says_what_it_is_and_no_key() {
    let server = Server::with(&["--api-key", "secret-key", "--max-queue", "7"], letters());
    let client = server.client().header("authorization", "Bearer secret-key");
    let answer = client.get("/server_info");
    let info = answer.ok();
    assert_eq!((&info["http"]["api_keys"], &info["scheduling"]["max_queue"]), (&json!(1), &json!(7)));
    assert_eq!(info["worker"]["vocab_size"], 259);
    assert!(!answer.text().contains("secret-key"));
}

#[test]
fn the_description_lists_every_route_and_is_open_to_keys_only() {
    let server = Server::with(&["--api-key", "k"], letters());
    assert_eq!(server.client().get("/openapi.json").status, 401);
    let client = server.client().header("x-api-key", "k");
    let document = client.get("/openapi.json").ok();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/v1/chat/completions"]["post"]["requestBody"].is_object());
    let docs = client.get("/docs");
    assert_eq!(docs.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(docs.text().contains("/v1/messages"));
}

#[test]
fn one_route_takes_chats_and_completions() {
    let server = Server::start(script("hi"));
    let chat = server.client().post("/invocations", &common::chat_body(&json!({}))).ok();
    assert_eq!(chat["choices"][0]["message"]["content"], "hi");
    let completion = server.client().post("/invocations", &json!({"prompt": "x"})).ok();
    assert_eq!(completion["choices"][0]["text"], "hi");
    assert_eq!(server.client().post("/invocations", &json!({})).error().2.as_deref(), Some("prompt"));
    assert_eq!(server.client().call("POST", "/invocations", Some(b"{")).error().0, 400);
}

#[test]
fn the_tokenizer_says_what_it_is() {
    let info = Server::start(letters()).client().get("/tokenizer_info").ok();
    assert_eq!((&info["vocab_size"], &info["eos_token_ids"]), (&json!(259), &json!([257])));
    assert_eq!(info["special_tokens"]["bos_token"], "<|bos|>");
    assert!(info["chat_template"].as_str().unwrap().contains("message.role"));
}

#[test]
fn a_proxys_prefix_may_be_left_on_or_taken_off() {
    let server = Server::with(&["--root-path", "/models/a/", "--api-key", "k"], script("hi"));
    let client = server.client().header("authorization", "Bearer k");
    for path in ["/v1/models", "/models/a/v1/models", "/models/a/v1/models/mock"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    assert_eq!(server.client().get("/models/a/v1/models").error().0, 401);
    assert_eq!(server.client().get("/models/a/health").status, 200, "open, as without the prefix");
    assert_eq!(client.get("/models/ab/v1/models").error().0, 404);
    let wrong = client.call("GET", "/models/a/v1/completions", None);
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST, OPTIONS")));
    assert_eq!(client.get("/models/a/openapi.json").ok()["servers"], json!([{"url": "/models/a"}]));
    assert_eq!(Server::start(script("hi")).client().get("/openapi.json").ok().get("servers"), None);
}

#[test]
fn variables_of_the_template_have_defaults_that_requests_overrule() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}|{{ enable_thinking }}|{{ depth }}";
    let flags = ["--default-chat-template-kwargs", r#"{"enable_thinking": false, "depth": 1}"#];
    let server = Server::with_template(&flags, script("hi"), template);
    let prompt = |fields: &Value| {
        let ids = server.client().post("/tokenize", &chat_body(fields)).ok()["tokens"].clone();
        server.client().post("/detokenize", &json!({"tokens": ids})).ok()["prompt"].clone()
    };
    assert_eq!(prompt(&json!({})), "hello|False|1");
    assert_eq!(prompt(&json!({"chat_template_kwargs": {"depth": 2}})), "hello|False|2");
    assert_eq!(prompt(&json!({"enable_thinking": true})), "hello|True|1");
}
