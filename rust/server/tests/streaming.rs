//! Streams and whole answers: the same deltas, said in two ways.

mod common;

use common::{Server, finish_reasons, joined, letters, saying, script, streamed, text_of};
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock;
use serde_json::{Value, json};

fn usage(prompt: u64, completion: u64) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0}})
}

#[test]
fn joined_deltas_equal_the_whole_answer_trtllm_3280() {
    let server = Server::start(saying(Content::Chain));
    let (client, before) =
        (server.client(), streamed(&json!({"prompt": "1 2 3 4 5 6", "max_tokens": 40, "temperature": 0})));
    let copies: Vec<_> = (0..16)
        .map(|_| {
            let (client, body) = (client.clone(), before.clone());
            std::thread::spawn(move || joined(&client.completion(&body).events(), 0))
        })
        .collect();
    let whole = client.completion(&json!({"prompt": "1 2 3 4 5 6", "max_tokens": 40, "temperature": 0})).ok();
    for copy in copies {
        assert_eq!(copy.join().unwrap(), text_of(&whole, 0));
    }
}

#[test]
fn chat_deltas_equal_the_whole_answer() {
    let server = Server::start(saying(Content::Chain));
    for seed in 0..20 {
        let fields = json!({"max_tokens": 50, "seed": seed, "n": 2, "skip_special_tokens": seed % 2 == 0});
        let whole = server.client().chat(&fields).ok();
        let events = server.client().chat(&streamed(&fields)).events();
        for index in 0..2 {
            assert_eq!(joined(&events, index), text_of(&whole, index));
            assert_eq!(
                finish_reasons(&events, index),
                [whole["choices"][index]["finish_reason"].as_str().unwrap()]
            );
        }
    }
}

#[test]
fn a_chat_stream_is_role_content_finish_usage() {
    let server = Server::start(script("hi"));
    let events =
        server.client().chat(&json!({"stream": true, "stream_options": {"include_usage": true}})).events();
    let shown: Vec<(Value, Value)> = events
        .iter()
        .map(|event| (event["choices"].clone(), event["usage"].clone()))
        .map(|(choices, usage)| {
            (choices.get(0).map_or(json!("none"), |choice| choice["delta"].clone()), usage)
        })
        .collect();
    let prompt =
        server.client().post("/tokenize", &common::chat_body(&json!({}))).ok()["count"].as_u64().unwrap();
    assert_eq!(shown[0], (json!({"role": "assistant", "content": ""}), Value::Null));
    let contents = &shown[1..shown.len() - 2];
    assert!(
        contents.iter().all(|(delta, usage)| delta["content"].is_string() && usage.is_null()),
        "{contents:?}"
    );
    assert_eq!(shown[shown.len() - 2], (json!({}), Value::Null));
    // Two letters, and the token that ended it.
    assert_eq!(shown[shown.len() - 1], (json!("none"), usage(prompt, 3)));
    let same =
        |name: &str| events.iter().all(|event| event[name] == events[0][name] && !event[name].is_null());
    assert!(same("id") && same("created") && same("model") && same("object"));
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert!(events[0]["id"].as_str().unwrap().starts_with("chatcmpl-"));
}

#[test]
fn every_choice_finishes_exactly_once_before_the_usage_dynamo_10513() {
    // Runs of tokens: the last content and the end come together.
    for run in [1, 3, 8] {
        let worker = MockWorker::new(mock::info())
            .saying(Content::Script(b"some text".iter().map(|byte| u32::from(*byte)).collect()))
            .in_runs_of(run);
        let server = Server::start(worker);
        let body = json!({"prompt": "x", "max_tokens": 40, "n": 3, "stream": true, "temperature": 0,
            "stream_options": {"include_usage": true}});
        let events = server.client().completion(&body).events();
        for index in 0..3 {
            assert_eq!(joined(&events, index), "some text");
            assert_eq!(finish_reasons(&events, index), ["stop"]);
        }
        let last = events.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"], usage(1, 30));
    }
}

#[test]
fn the_engines_reason_reaches_the_client_dynamo_1856() {
    let server = Server::start(script("abc"));
    let reasons = |max_tokens: u32| {
        let body = json!({"prompt": "x", "max_tokens": max_tokens, "temperature": 0});
        let whole = server.client().completion(&body).ok();
        let events = server.client().completion(&streamed(&body)).events();
        assert_eq!(finish_reasons(&events, 0), [whole["choices"][0]["finish_reason"].as_str().unwrap()]);
        whole["choices"][0]["finish_reason"].clone()
    };
    assert_eq!(reasons(3), "length");
    assert_eq!(reasons(4), "stop");
}

#[test]
fn usage_is_shown_only_if_it_was_asked_for_kthena_202() {
    let server = Server::start(script("abc"));
    let events = |options: Value| {
        let body = json!({"prompt": "x", "max_tokens": 8, "n": 2, "stream": true, "stream_options": options});
        server.client().completion(&body).events()
    };
    for options in [Value::Null, json!({}), json!({"include_usage": false})] {
        let events = events(options);
        assert!(events.iter().all(|event| event.get("usage").is_none() && event["choices"] != json!([])));
    }
    let mut events = events(json!({"include_usage": true}));
    let last = events.pop().unwrap();
    assert_eq!((last["choices"].clone(), last["usage"].clone()), (json!([]), usage(1, 8)));
    assert!(events.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
    let whole = server.client().completion(&json!({"prompt": "x", "max_tokens": 8, "n": 2})).ok();
    assert_eq!(whole["usage"], usage(1, 8));
}

#[test]
fn continuous_usage_grows_to_the_total() {
    let server = Server::start(letters());
    let options = json!({"continuous_usage_stats": true, "include_usage": true});
    let fields = json!({"stream": true, "stream_options": options, "max_tokens": 9, "temperature": 0});
    let events = server.client().chat(&fields).events();
    let counts: Vec<u64> =
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last(), Some(&9));
    assert!(
        events.iter().all(|event| event["usage"]["prompt_tokens"] == events[0]["usage"]["prompt_tokens"])
    );
}

#[test]
fn no_chunk_is_empty() {
    // Four-byte characters: three steps of four have nothing to show.
    let server = Server::start(script("😀👩‍👩‍👧 ไทย “x”"));
    for fields in [json!({"stream": true}), json!({"stream": true, "logprobs": true, "top_logprobs": 2})] {
        for event in server.client().chat(&fields).events() {
            let choice = &event["choices"][0];
            let content = choice["delta"]["content"].as_str().unwrap_or_default();
            let is_role = choice["delta"].get("role").is_some();
            assert!(is_role || !content.is_empty() || choice["finish_reason"].is_string(), "{event}");
        }
    }
    let body = json!({"prompt": "x", "max_tokens": 60, "stream": true});
    for event in server.client().completion(&body).events() {
        let choice = &event["choices"][0];
        assert!(choice["text"] != "" || choice["finish_reason"].is_string(), "{event}");
    }
}

#[test]
fn characters_over_several_tokens_arrive_whole_tt_inference_2594() {
    let text = "ďábelské 😀👩‍👩‍👧 ไทย “x”";
    for run in [1, 2, 3] {
        let tokens = text.bytes().map(u32::from).collect();
        let worker = MockWorker::new(mock::info()).saying(Content::Script(tokens)).in_runs_of(run);
        let server = Server::start(worker);
        let fields = json!({"max_tokens": 200});
        assert_eq!(joined(&server.client().chat(&streamed(&fields)).events(), 0), text);
        assert_eq!(text_of(&server.client().chat(&fields).ok(), 0), text);
    }
}

#[test]
fn a_character_cut_by_the_end_is_the_same_both_ways() {
    let server = Server::start(script("ab😀"));
    let fields = json!({"max_tokens": 4});
    let whole = server.client().chat(&fields).ok();
    assert_eq!(text_of(&whole, 0), "ab\u{fffd}");
    assert_eq!(joined(&server.client().chat(&streamed(&fields)).events(), 0), "ab\u{fffd}");
    assert_eq!(whole["usage"]["completion_tokens"], 4);
}

#[test]
fn a_stop_string_is_never_shown_in_part_sglang_11446() {
    for run in [1, 2, 5] {
        let stopped = |text: &str, fields: Value| {
            let tokens = text.bytes().map(u32::from).collect();
            let worker = MockWorker::new(mock::info()).saying(Content::Script(tokens)).in_runs_of(run);
            let server = Server::start(worker);
            let mut body = json!({"prompt": "x", "max_tokens": 64, "stop": ["DEFGHIJ"]});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let whole = server.client().completion(&body).ok();
            let events = server.client().completion(&streamed(&body)).events();
            assert_eq!(joined(&events, 0), text_of(&whole, 0));
            server.quiesce();
            let choice = &whole["choices"][0];
            (text_of(&whole, 0), choice["finish_reason"].clone(), choice["stop_reason"].clone())
        };
        let shown = |text: &str| text.to_owned();
        assert_eq!(stopped("ABCDEFGHIJKL", json!({})), (shown("ABC"), json!("stop"), json!("DEFGHIJ")));
        assert_eq!(stopped("ABCDEFGHIXKL", json!({})), (shown("ABCDEFGHIXKL"), json!("stop"), Value::Null));
        let kept = stopped("ABCDEFGHIJKL", json!({"include_stop_str_in_output": true}));
        assert_eq!(kept, (shown("ABCDEFGHIJ"), json!("stop"), json!("DEFGHIJ")));
    }
}

#[test]
fn held_text_is_flushed_at_the_end_llama_cpp_9867() {
    let server = Server::start(script("abc"));
    let body = json!({"prompt": "x", "max_tokens": 3, "stop": ["cd"]});
    assert_eq!(joined(&server.client().completion(&streamed(&body)).events(), 0), "abc");
    assert_eq!(text_of(&server.client().completion(&body).ok(), 0), "abc");
}

#[test]
fn ids_logprobs_text_and_usage_stop_at_the_same_token_vllm_47616() {
    let worker = MockWorker::new(mock::info())
        .saying(Content::Script(b"ha ha ha ho hi".iter().map(|byte| u32::from(*byte)).collect()))
        .in_runs_of(14);
    let server = Server::start(worker);
    let body =
        json!({"prompt": "x", "max_tokens": 64, "stop": [" ha ha"], "logprobs": 2, "return_token_ids": true});
    let whole = server.client().completion(&body).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], "ha");
    // The tokens up to the one that completed the stop string: eight bytes.
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 8);
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(whole["usage"]["completion_tokens"], 8);
}

#[test]
fn a_stop_token_is_counted_and_not_shown() {
    let server = Server::start(script("abc"));
    let body = json!({"prompt": "x", "max_tokens": 9, "stop_token_ids": [98], "return_token_ids": true});
    let choice = server.client().completion(&body).ok()["choices"][0].clone();
    assert_eq!((choice["text"].clone(), choice["stop_reason"].clone()), (json!("a"), json!(98)));
    assert_eq!(
        (choice["token_ids"].clone(), choice["finish_reason"].clone()),
        (json!([97, 98]), json!("stop"))
    );
}

#[test]
fn token_ids_of_all_deltas_are_those_of_the_answer() {
    let server = Server::start(script("😀 stop here"));
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 40, "return_token_ids": true, "stop": ["herX"]});
    let choice = server.client().completion(&body).ok()["choices"][0].clone();
    let events = server.client().completion(&streamed(&body)).events();
    let streamed: Vec<Value> = events
        .iter()
        .flat_map(|event| event["choices"][0]["token_ids"].as_array().unwrap().clone())
        .collect();
    assert_eq!(choice["token_ids"], json!(streamed));
    assert_eq!(choice["prompt_token_ids"], json!([1, 2, 3]));
    assert_eq!(events[0]["choices"][0]["prompt_token_ids"], json!([1, 2, 3]));
    let chat =
        server.client().chat(&json!({"return_token_ids": true, "stream": true, "max_tokens": 40})).events();
    assert!(chat[0]["prompt_token_ids"].as_array().unwrap().len() > 5);
    assert!(chat[1..].iter().all(|event| event.get("prompt_token_ids").is_none()));
}

#[test]
fn an_answer_without_text_still_has_its_role_dynamo_10776() {
    let server = Server::start(script(""));
    let whole = server.client().chat(&json!({})).ok();
    assert_eq!(whole["choices"][0]["message"], json!({"role": "assistant", "content": "", "refusal": null}));
    assert_eq!(whole["usage"]["completion_tokens"], 1);
    let events = server.client().chat(&json!({"stream": true})).events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(finish_reasons(&events, 0), ["stop"]);
}
