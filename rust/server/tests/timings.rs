//! Where the time went: in the answer on demand, and as histograms.

mod common;

use std::io::{BufRead, BufReader};
use std::time::Duration;

use common::{Server, chat_body, letters, script, series, slow_letters, streamed};
use serde_json::{Value, json};

const STEP: Duration = Duration::from_millis(5);

fn ms(timings: &Value, name: &str) -> f64 {
    timings[name].as_f64().unwrap_or_else(|| panic!("no {name} in {timings}"))
}

#[test]
fn an_answer_says_where_the_time_went_if_it_is_asked() {
    let server = Server::start(slow_letters(STEP));
    let body = json!({"prompt": "x".repeat(40), "max_tokens": 5, "n": 2, "timings": true});
    let answer = server.client().completion(&body).ok();
    let timings = answer["timings"].as_array().unwrap();
    assert_eq!(timings.len(), 2, "one of each choice");
    for timings in timings {
        assert!(ms(timings, "prefill_ms") >= 5.0, "{timings}");
        assert!(ms(timings, "decode_ms") >= 4.0 * 5.0, "{timings}");
        assert!(ms(timings, "detokenize_ms") > 0.0);
        assert_eq!(timings["decode_tokens"], 5);
        let prefill = &timings["prefill_tokens"];
        assert_eq!(prefill["cached"].as_u64().unwrap() + prefill["computed"].as_u64().unwrap(), 40);
    }
    assert!(server.client().completion(&json!({"prompt": "x"})).ok().get("timings").is_none());
}

#[test]
fn a_stream_brings_them_in_its_last_chunk_with_the_usage_if_that_was_asked_for() {
    let server = Server::start(script("abc"));
    for usage in [false, true] {
        let mut body = streamed(&chat_body(&json!({"timings": true})));
        if usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        let mut events = server.client().post("/v1/chat/completions", &body).events();
        let last = events.pop().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"].is_object(), usage);
        assert_eq!(last["timings"].as_array().map(Vec::len), Some(1));
        assert!(events.iter().all(|event| event.get("timings").is_none()));
    }
}

#[test]
fn a_request_that_a_stop_string_ended_has_times_too() {
    let server = Server::start(slow_letters(STEP));
    let body = json!({"prompt": "x", "max_tokens": 200, "stop": ["a", "e", "i", "o", "u", "r", "s", "t"]});
    let whole = {
        let mut body = body.clone();
        body["timings"] = json!(true);
        server.client().completion(&body).ok()
    };
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let timings = &whole["timings"][0];
    assert!(ms(timings, "prefill_ms") >= 5.0, "{timings}");
    assert!(timings["decode_tokens"].as_u64().unwrap() > 0);
    let per_token = ms(timings, "decode_ms") - 5.0 * (timings["decode_tokens"].as_f64().unwrap() - 1.0);
    assert!(per_token >= 0.0, "a step per token: {timings}");
}

#[test]
fn every_dialect_says_it() {
    let server = Server::start(script("abc"));
    let client = server.client();
    let responses = client.post("/v1/responses", &json!({"input": "q", "timings": true})).ok();
    let messages = json!({"messages": [{"role": "user", "content": "q"}], "max_tokens": 9, "timings": true});
    let message = client.post("/v1/messages", &messages).ok();
    let tokens = json!({"token_ids": [97, 98], "timings": true, "sampling_params": {"max_tokens": 3}});
    let tokens = client.post("/inference/v1/generate", &tokens).ok();
    for answer in [responses, message, tokens] {
        assert!(answer["timings"][0]["decode_tokens"].as_u64().unwrap() > 0, "{answer}");
    }
    let text = client.post("/v1/messages", &streamed(&messages)).text();
    let delta = text.lines().find(|line| line.starts_with("data:") && line.contains("message_delta"));
    assert!(delta.unwrap().contains("\"timings\":[{"), "{text}");
}

#[test]
fn what_the_front_end_measures_is_observed_once_per_request() {
    let server = Server::start(letters());
    let body = json!({"prompt": "x", "max_tokens": 7, "n": 2});
    server.client().completion(&body).ok();
    server.client().completion(&streamed(&json!({"prompt": "x", "max_tokens": 7}))).events();
    server.quiesce();
    for name in ["request_detokenize_seconds", "request_backpressure_seconds"] {
        common::wait_until("both are over", || server.metric(&series(&format!("{name}_count"))) == 2.0);
    }
    assert!(server.metric(&series("request_detokenize_seconds_sum")) > 0.0);
    assert_eq!(server.metric(&series("request_lost_to_prefill_seconds_count")), 3.0, "one per sample");
}

#[test]
fn a_client_that_does_not_read_is_back_pressure() {
    let server = Server::start(slow_letters(Duration::from_millis(1)));
    // More than the sockets hold.
    let body = json!({"max_tokens": 600, "n": 16, "logprobs": true, "top_logprobs": 20, "stream": true,
        "timings": true});
    let body = chat_body(&body).to_string();
    let stream = server.client().request("POST", "/v1/chat/completions", Some(body.as_bytes()));
    common::wait_until("it has begun", || server.state.engine.open_streams() > 0);
    common::wait_until("the engine is done with it", || server.state.engine.open_streams() == 0);
    // Nobody reads while this runs: 100 steps.
    server.client().completion(&json!({"prompt": "x", "max_tokens": 100})).ok();
    let lines: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    let last = lines.iter().rev().find(|line| line.contains("\"timings\":[")).unwrap();
    let last: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert!(ms(&last["timings"][0], "backpressure_ms") >= 100.0, "{last}");
}
