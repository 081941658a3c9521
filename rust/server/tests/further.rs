//! Reports against other servers that are in no collection, each with the input that showed it.

#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use std::time::Duration;

use common::{Server, chat_body, letters, saying, script, slow_letters, streamed, wait_until};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock;
use serde_json::{Value, json};

const HERMES: [&str; 2] = ["--tool-call-parser", "hermes"];

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "w", "parameters":
        {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"]}}}])
}

fn choices(events: &[Value]) -> Vec<&Value> {
    events.iter().flat_map(|event| event["choices"].as_array().unwrap()).collect()
}

#[test]
fn the_chunk_with_the_reason_brings_no_text_vllm_35705() {
    for worker in [letters(), script("hello")] {
        let server = Server::start(worker);
        let events =
            server.client().post("/v1/chat/completions", &streamed(&chat_body(&json!({"max_tokens": 5}))));
        let events = events.events();
        let choices = choices(&events);
        let (last, others) = choices.split_last().unwrap();
        assert_eq!(last["delta"], json!({}));
        assert!(last["finish_reason"].is_string());
        assert!(others.iter().all(|choice| choice["finish_reason"].is_null()));
    }
}

#[test]
fn every_chunk_says_that_it_has_no_reason_yet_vllm_19650_vllm_27572() {
    let server = Server::with(&HERMES, letters());
    for fields in
        [json!({"max_tokens": 4}), json!({"max_tokens": 40, "tools": weather(), "tool_choice": "required"})]
    {
        let events = server.client().post("/v1/chat/completions", &streamed(&chat_body(&fields))).events();
        let choices = choices(&events);
        assert!(choices.iter().all(|choice| choice.get("finish_reason").is_some()), "{choices:?}");
        assert_eq!(choices.iter().filter(|choice| choice["finish_reason"].is_string()).count(), 1);
    }
}

#[test]
fn a_call_cut_anywhere_is_the_same_streamed_or_not_vllm_47903_vllm_37937() {
    let server = Server::with(&HERMES, letters());
    for limit in [1, 4, 11, 12, 20, 30, 40, 50, 60] {
        let fields = json!({"tools": weather(), "tool_choice": "required", "max_tokens": limit, "seed": 1});
        let whole = server.client().chat(&fields).ok();
        let events = server.client().post("/v1/chat/completions", &streamed(&chat_body(&fields))).events();
        let message = &whole["choices"][0]["message"];
        let text: String =
            choices(&events).iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(message["content"].as_str().unwrap_or_default(), text, "{limit}");
        let arguments: String = choices(&events)
            .iter()
            .filter_map(|choice| choice["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
            .collect();
        let called = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default();
        assert_eq!(called, arguments, "{limit}");
        let reason = common::finish_reasons(&events, 0);
        assert_eq!([whole["choices"][0]["finish_reason"].as_str().unwrap()], reason.as_slice(), "{limit}");
    }
}

#[test]
fn calls_after_the_first_have_an_index_and_an_id_sglang_7048_sglang_6310_sglang_5661() {
    let call = r#"<tool_call>{"name": "w", "arguments": {"c": "x"}}</tool_call>"#;
    let server = Server::with(&HERMES, script(&call.repeat(3)));
    let body = streamed(&chat_body(&json!({"tools": weather(), "max_tokens": 500})));
    let events = server.client().post("/v1/chat/completions", &body).events();
    let choices = choices(&events);
    let calls =
        choices.iter().flat_map(|choice| choice["delta"]["tool_calls"].as_array().into_iter().flatten());
    let calls: Vec<&Value> = calls.collect();
    assert!(calls.iter().all(|call| call["index"].is_u64()), "{calls:?}");
    let mut begun: Vec<(u64, &str)> =
        calls.iter().filter_map(|call| Some((call["index"].as_u64()?, call["id"].as_str()?))).collect();
    assert_eq!(begun.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1, 2], "one id per call");
    begun.sort_unstable_by_key(|(_, id)| *id);
    begun.dedup_by_key(|(_, id)| *id);
    assert_eq!(begun.len(), 3);
}

#[test]
fn a_response_that_is_cut_ends_with_response_incomplete_agentic_api_273() {
    let server = Server::start(letters());
    let body = json!({"input": "q", "max_output_tokens": 3, "stream": true});
    let text = server.client().post("/v1/responses", &body).text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.starts_with("event: response.incomplete\n"), "{last}");
    assert!(last.contains(r#""incomplete_details":{"reason":"max_output_tokens"}"#), "{last}");
    assert!(!text.contains("response.completed"));
}

#[test]
fn events_of_a_response_are_numbered_and_whole_from_the_first_one_omniroute_13964_onyx_13624() {
    let server = Server::start(script("hello"));
    let text = server.client().post("/v1/responses", &json!({"input": "q", "stream": true})).text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        if let Some(response) = event.get("response") {
            assert!(response["output"].is_array() && response["background"] == false, "{event}");
            assert!(response.get("error").is_some());
        }
        if let Some(item) = event.get("item") {
            assert!(item["status"].is_string(), "{event}");
        }
    }
    assert_eq!(events[1]["type"], "response.in_progress");
}

#[test]
fn offsets_go_on_behind_an_echoed_prompt_vllm_47815() {
    let server = Server::start(letters());
    let body = json!({"prompt": "Wörter", "max_tokens": 9, "echo": true, "logprobs": 1});
    let whole = server.client().completion(&body).ok();
    let events = server.client().completion(&streamed(&body)).events();
    let offsets: Vec<Value> = choices(&events)
        .iter()
        .flat_map(|choice| choice["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(Value::from(offsets.clone()), whole["choices"][0]["logprobs"]["text_offset"]);
    assert_eq!(offsets.last().unwrap(), &json!("Wörter".chars().count() + 8));
}

#[test]
fn chunks_of_reasoning_and_of_calls_have_logprobs_sglang_26778_sglang_28601() {
    let said =
        "<think>hm</think>so<tool_call>\n{\"name\": \"w\", \"arguments\": {\"c\": \"x\"}}\n</tool_call>";
    let server = Server::with(&[&["--reasoning-parser", "qwen3"], &HERMES[..]].concat(), script(said));
    let body = chat_body(&json!({"tools": weather(), "logprobs": true, "top_logprobs": 1}));
    let whole = server.client().post("/v1/chat/completions", &body).ok()["choices"][0].clone();
    assert_eq!(
        (&whole["message"]["reasoning"], &whole["finish_reason"]),
        (&json!("hm"), &json!("tool_calls"))
    );
    let events = server.client().post("/v1/chat/completions", &streamed(&body)).events();
    let joined: Vec<Value> = choices(&events)
        .iter()
        .flat_map(|choice| choice["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert!(joined.len() >= said.len(), "every token has an entry");
    assert_eq!(Value::from(joined), whole["logprobs"]["content"]);
}

#[test]
fn a_streamed_echo_has_the_logprobs_of_every_chunk_of_its_prompt_sglang_2403() {
    let chunked = WorkerInfo { max_num_batched_tokens: 8, ..mock::info() };
    let server = Server::start(MockWorker::new(chunked).saying(Content::Alphabet([u32::from(b'a')].into())));
    let body = json!({"prompt": "a prompt of several chunks", "max_tokens": 3, "echo": true, "logprobs": 1});
    let whole = server.client().completion(&body).ok()["choices"][0]["logprobs"].clone();
    let events = server.client().completion(&streamed(&body)).events();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = choices(&events);
        let joined =
            parts.iter().flat_map(|choice| choice["logprobs"][list].as_array().into_iter().flatten());
        assert_eq!(Value::from(joined.cloned().collect::<Vec<_>>()), whole[list], "{list}");
    }
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 26 + 3);
}

#[test]
fn an_echoed_prompt_has_a_logprob_per_token_and_none_for_the_first_llama_cpp_27174() {
    let server = Server::start(letters());
    for most in [0, 1] {
        let body = json!({"prompt": "abcde", "max_tokens": most, "echo": true, "logprobs": 1});
        let logprobs = &server.client().completion(&body).ok()["choices"][0]["logprobs"];
        let values = logprobs["token_logprobs"].as_array().unwrap();
        assert_eq!(values.len(), 5 + most);
        assert!(values[0].is_null() && values[1..].iter().all(Value::is_number));
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 5 + most);
    }
}

#[test]
fn broken_arguments_in_a_history_are_the_clients_fault_llama_cpp_25510() {
    let server = Server::start(letters());
    let history = |arguments: Value| {
        json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls":
                [{"id": "c", "type": "function", "function": {"name": "w", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ], "max_tokens": 2})
    };
    for arguments in ["{", "[]", "null", "\"x\"", "{\"a\":1}}", "nonsense"] {
        let refused = server.client().chat(&history(json!(arguments)));
        assert_eq!(
            refused.error(),
            (400, "BadRequestError".to_owned(), Some("messages".to_owned())),
            "{arguments}"
        );
    }
    for arguments in [json!(""), json!("{}"), json!({"a": 1}), Value::Null] {
        server.client().chat(&history(arguments)).ok();
    }
}

#[test]
fn a_call_without_content_renders_like_one_with_none_mlx_vlm_1864_speech_to_speech_425() {
    // A template that reads the content of every message, as most do.
    let template = "{% for m in messages %}<{{ m.role }}>{% if 'x' in m.content %}x{% endif %}{{ m.content + '.' }}{% endfor %}";
    let server = Server::with_template(&[], letters(), template);
    let call = json!([{"id": "c", "type": "function", "function": {"name": "w", "arguments": "{}"}}]);
    let mut prompts = Vec::new();
    for content in [None, Some(Value::Null), Some(json!("")), Some(json!([]))] {
        let mut turn = json!({"role": "assistant", "tool_calls": call});
        if let Some(content) = content {
            turn["content"] = content;
        }
        let body = json!({"messages": [{"role": "user", "content": "a"}, turn]});
        prompts.push(server.client().post("/tokenize", &body).ok()["tokens"].clone());
    }
    prompts.dedup();
    assert_eq!(prompts.len(), 1);
}

#[test]
fn a_conversation_that_ends_with_the_assistant_gets_a_new_turn_unless_it_is_continued_vllm_46257() {
    let server = Server::start(letters());
    let tokens = |fields: Value| {
        let mut body =
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let ids = server.client().post("/tokenize", &body).ok()["tokens"].clone();
        server.client().post("/detokenize", &json!({"tokens": ids})).ok()["prompt"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(tokens(json!({})).ends_with("<|start|>assistant\n"));
    assert!(tokens(json!({"add_generation_prompt": false})).ends_with("b<|end|>\n"));
    let continued = json!({"continue_final_message": true, "add_generation_prompt": false});
    assert!(tokens(continued).ends_with("<|start|>assistant\nb"));
}

#[test]
fn developers_and_late_system_messages_are_heard_1cat_vllm_493_vllm_48874() {
    let server = Server::start(letters());
    let developer = json!([{"role": "developer", "content": "brief"}, {"role": "user", "content": "q"}]);
    server.client().chat(&json!({"messages": developer, "max_tokens": 1})).ok();
    let late =
        json!([{"role": "user", "content": "q"}, {"role": "system", "content": "Available agents: none."}]);
    let body = json!({"max_tokens": 2, "system": "s", "messages": late});
    assert!(server.client().post("/v1/messages", &body).ok()["usage"]["input_tokens"].as_u64().unwrap() > 30);
}

#[test]
fn input_tokens_stand_in_the_first_event_and_are_cumulative_mlx_node_45_agent_framework_7143() {
    let server = Server::start(letters());
    let body = json!({"max_tokens": 4, "stream": true, "messages": [{"role": "user", "content": "q"}]});
    let text = server.client().post("/v1/messages", &body).text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let usage = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap().clone();
    let (start, end) = (usage("message_start"), usage("message_delta"));
    assert!(start["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0);
    assert_eq!(start["message"]["usage"]["output_tokens"], 0);
    assert_eq!(end["usage"]["input_tokens"], start["message"]["usage"]["input_tokens"]);
    assert_eq!(end["usage"]["output_tokens"], 4);
}

#[test]
fn errors_of_messages_have_the_dialects_own_types_ray_65486() {
    let server = Server::start(letters());
    let message = json!([{"role": "user", "content": "q"}]);
    for (body, status, kind) in [
        (json!({"model": "nobody", "max_tokens": 1, "messages": message}), 404, "not_found_error"),
        (json!({"max_tokens": 1, "messages": []}), 400, "invalid_request_error"),
    ] {
        let answer = server.client().post("/v1/messages", &body);
        let error = answer.json();
        assert_eq!(
            (answer.status, &error["type"], &error["error"]["type"]),
            (status, &json!("error"), &json!(kind))
        );
    }
}

#[test]
fn a_stop_string_need_not_end_where_a_token_does_tgi_1039_tgi_1724() {
    let server = Server::start(script("The capital is Paris, of course."));
    for (stop, text) in
        [("Pari", "The capital is "), ("ital is P", "The cap"), (", of", "The capital is Paris")]
    {
        let choice = &server
            .client()
            .completion(&json!({"prompt": "x", "max_tokens": 99, "stop": [stop]}))
            .ok()["choices"][0];
        assert_eq!((choice["text"].as_str().unwrap(), &choice["stop_reason"]), (text, &json!(stop)));
    }
}

#[test]
fn an_answer_of_broken_bytes_is_valid_json_llama_cpp_11738() {
    let server = Server::start(saying(Content::Script((0..=255).rev().collect())));
    let text = server.client().completion(&json!({"prompt": "x", "max_tokens": 256})).ok();
    assert!(text["choices"][0]["text"].as_str().unwrap().contains('\u{fffd}'));
    let ids = json!({"prompt": "x", "max_tokens": 256, "logprobs": 3, "echo": true});
    let events = server.client().completion(&streamed(&ids)).events();
    assert_eq!(common::joined(&events, 0)[1..], *text["choices"][0]["text"].as_str().unwrap());
}

#[test]
fn whoever_leaves_before_a_whole_answer_is_noticed_litellm_37140_lattice_744() {
    let server = Server::start(slow_letters(Duration::from_millis(2)));
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"] {
        let body = json!({"prompt": "x", "input": "x", "messages": [{"role": "user", "content": "q"}],
            "max_tokens": 3000, "max_output_tokens": 3000});
        let mut body = body;
        for foreign in match path {
            "/v1/completions" => ["input", "messages", "max_output_tokens"].as_slice(),
            "/v1/responses" => &["prompt", "messages", "max_tokens"],
            _ => &["prompt", "input", "max_output_tokens"],
        } {
            body.as_object_mut().unwrap().remove(*foreign);
        }
        let stream = server.client().request("POST", path, Some(body.to_string().as_bytes()));
        wait_until("it runs", || server.state.engine.load().running == 1);
        drop(stream);
        server.quiesce();
    }
}

#[test]
fn the_end_of_a_stream_is_no_abort_atom_1589() {
    let server = Server::start(letters());
    for _ in 0..20 {
        server.client().post("/v1/completions", &streamed(&json!({"prompt": "x", "max_tokens": 3}))).events();
    }
    server.quiesce();
    let series = "frizzen:request_success_total{model_name=\"mock\",engine=\"0\",finished_reason=\"abort\"}";
    assert!(server.metric(series) < 0.5);
}

#[test]
fn requests_of_the_same_name_are_strangers() {
    let server = Server::start(slow_letters(Duration::from_millis(1)));
    let ask = |most: u32| {
        let client = server.client().header("x-request-id", "same");
        std::thread::spawn(move || {
            client.completion(&json!({"prompt": "x", "max_tokens": most, "request_id": "same"})).ok()
        })
    };
    for (most, asked) in [5, 40, 20].map(|most| (most, ask(most))) {
        assert_eq!(asked.join().unwrap()["usage"]["completion_tokens"], most);
    }
    server.quiesce();
}

#[test]
fn a_refusal_says_what_was_wrong_whatever_refuses_dynamo_13980_vllm_45286_vllm_44729() {
    let server = Server::start(letters());
    let long = "x".repeat(5000);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": []})),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}]})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "q"}], "structured_outputs": {"regex": "("}}),
        ),
        ("/inference/v1/generate", json!({"token_ids": vec![1; 5000], "sampling_params": {}})),
    ] {
        let (status, kind, param) = server.client().post(path, &body).error();
        assert_eq!((status, kind.as_str()), (400, "BadRequestError"), "{body}");
        assert!(param.is_some());
    }
    let schema = json!({"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "boolean"}}});
    server.client().chat(&json!({"response_format": schema})).ok();
}
