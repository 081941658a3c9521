//! `/generate`, in SGLang's form, and what its clients read besides.

mod common;

use common::{Server, letters, read_answer, script};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock;
use serde_json::{Value, json};

#[test]
fn a_text_or_ids_go_in_and_text_ids_and_counts_come_out() {
    let server = Server::start(script("hello"));
    let text = server.client().post("/generate", &json!({"text": "abc"})).ok();
    assert_eq!(
        (&text["text"], &text["output_ids"]),
        (&json!("hello"), &json!([104, 101, 108, 108, 111, 257]))
    );
    let info = &text["meta_info"];
    assert_eq!((&info["prompt_tokens"], &info["completion_tokens"]), (&json!(3), &json!(6)));
    assert_eq!(info["finish_reason"], json!({"type": "stop", "matched": 257}));
    assert!(info["e2e_latency"].as_f64().is_some_and(|seconds| seconds > 0.0) && info["id"].is_string());
    let ids = server.client().post("/generate", &json!({"input_ids": [97, 98, 99], "rid": "mine"})).ok();
    assert_eq!((&ids["text"], &ids["meta_info"]["id"]), (&text["text"], &json!("mine")));
    let cut = json!({"text": "abc", "sampling_params": {"max_new_tokens": 2}});
    let cut = server.client().post("/generate", &cut).ok();
    assert_eq!(cut["meta_info"]["finish_reason"], json!({"type": "length", "length": 2}));
    let stop = json!({"text": "abc", "sampling_params": {"stop": ["l"], "temperature": 0}});
    let stopped = server.client().post("/generate", &stop).ok();
    assert_eq!(
        (&stopped["text"], &stopped["meta_info"]["finish_reason"]["matched"]),
        (&json!("he"), &json!("l"))
    );
}

#[test]
fn several_prompts_or_samples_are_answered_by_a_list_in_their_order() {
    let server = Server::start(script("hi"));
    let batch = server.client().post("/generate", &json!({"text": ["a", "bcd"]})).ok();
    let prompts: Vec<&Value> =
        batch.as_array().unwrap().iter().map(|one| &one["meta_info"]["prompt_tokens"]).collect();
    assert_eq!(prompts, [&json!(1), &json!(3)]);
    let samples = json!({"text": "a", "sampling_params": {"n": 3}});
    assert_eq!(server.client().post("/generate", &samples).ok().as_array().unwrap().len(), 3);
    let one = server.client().post("/generate", &json!({"input_ids": [[97]]})).ok();
    assert_eq!(one.as_array().unwrap().len(), 1);
}

#[test]
fn every_event_repeats_what_is_known_so_far() {
    let server = Server::start(script("hello"));
    let events = server.client().post("/generate", &json!({"text": "a", "stream": true})).events();
    let mut before = String::new();
    for event in &events {
        let text = event["text"].as_str().unwrap();
        assert!(text.starts_with(&before), "{text} after {before}");
        text.clone_into(&mut before);
        assert_eq!(event["meta_info"]["completion_tokens"], event["output_ids"].as_array().unwrap().len());
    }
    let whole = server.client().post("/generate", &json!({"text": "a"})).ok();
    let last = events.last().unwrap();
    assert_eq!((&last["text"], &last["output_ids"]), (&whole["text"], &whole["output_ids"]));
    assert_eq!(last["meta_info"]["finish_reason"], whole["meta_info"]["finish_reason"]);
    let batch = server.client().post("/generate", &json!({"text": ["a", "b"], "stream": true})).events();
    let indexes: std::collections::BTreeSet<u64> =
        batch.iter().map(|event| event["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes.into_iter().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_stream_has_the_logprobs_of_every_chunk_of_its_prompt_sglang_2403() {
    let chunked = WorkerInfo { max_num_batched_tokens: 8, ..mock::info() };
    let server = Server::start(MockWorker::new(chunked).saying(Content::Alphabet([u32::from(b'a')].into())));
    let body = json!({"text": "a prompt of several chunks", "sampling_params": {"max_new_tokens": 3},
        "return_logprob": true, "logprob_start_len": 0});
    let whole = server.client().post("/generate", &body).ok()["meta_info"]["input_token_logprobs"].clone();
    assert_eq!(whole.as_array().unwrap().len(), 26);
    for event in server.client().post("/generate", &common::streamed(&body)).events() {
        assert_eq!(event["meta_info"]["input_token_logprobs"], whole);
    }
}

#[test]
fn logprobs_are_triples_one_per_token_and_begin_where_they_are_asked_to() {
    let server = Server::start(script("hi"));
    let body = json!({"text": "abcd", "return_logprob": true, "top_logprobs_num": 2, "logprob_start_len": 1,
        "return_text_in_logprobs": true});
    let info = server.client().post("/generate", &body).ok()["meta_info"].clone();
    let list = |name: &str| info[name].as_array().unwrap().clone();
    assert_eq!(list("output_token_logprobs").len(), 3);
    assert_eq!(list("output_token_logprobs")[0], json!([-0.5, 104, "h"]));
    assert_eq!(list("output_top_logprobs")[0].as_array().unwrap().len(), 2);
    assert_eq!(list("input_token_logprobs").len(), 3, "from the second token on");
    assert_eq!(list("input_token_logprobs")[0], json!([-0.5, 98, "b"]));
    let first = json!({"text": "ab", "return_logprob": true, "logprob_start_len": 0});
    let info = server.client().post("/generate", &first).ok()["meta_info"].clone();
    assert_eq!(info["input_token_logprobs"][0], json!([null, 97, null]));
    let plain = server.client().post("/generate", &json!({"text": "ab"})).ok();
    assert!(plain["meta_info"].get("output_token_logprobs").is_none());
}

#[test]
fn grammars_have_sglangs_names_and_are_enforced() {
    let server = Server::start(letters());
    let body = json!({"text": "a", "sampling_params": {"regex": "[0-9]{3}"}});
    let text = server.client().post("/generate", &body).ok()["text"].as_str().unwrap().to_owned();
    assert!(text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    let schema = json!({"text": "a", "sampling_params": {"json_schema": "{\"enum\": [\"x\"]}"}});
    assert_eq!(server.client().post("/generate", &schema).ok()["text"], "\"x\"");
}

#[test]
fn what_does_not_fit_is_refused_in_the_words_of_the_body() {
    let server = Server::start(script("hi"));
    for (body, status, param) in [
        (json!({}), 400, "text"),
        (json!({"text": ""}), 400, "text"),
        (json!({"text": 5}), 400, "text"),
        (json!({"text": [97]}), 400, "text"),
        (json!({"input_ids": ["a"]}), 400, "input_ids"),
        (json!({"text": "a", "input_ids": [1]}), 400, "input_ids"),
        (json!({"input_ids": [99999]}), 400, "input_ids"),
        (json!({"input_ids": "a"}), 400, "input_ids"),
        (json!({"text": "a", "sampling_params": [{}]}), 501, "sampling_params"),
        (json!({"text": "a", "sampling_params": 1}), 400, "sampling_params"),
        (json!({"text": "a", "sampling_params": {"max_new_tokens": -1}}), 400, "max_new_tokens"),
        (json!({"text": "a", "sampling_params": {"temperature": -1}}), 400, "temperature"),
        (
            json!({"text": "a", "sampling_params": {"regex": "a", "ebnf": "root ::= \"a\""}}),
            400,
            "sampling_params",
        ),
        (json!({"text": "a", "sampling_params": {"stop_regex": "a"}}), 501, "stop_regex"),
        (json!({"text": "a", "return_logprob": true, "top_logprobs_num": 1000}), 400, "top_logprobs_num"),
        (json!({"text": "a", "image_data": ["x"]}), 501, "image_data"),
        (json!({"text": "a", "lora_path": "x"}), 501, "lora_path"),
        (json!({"text": "a", "return_hidden_states": true}), 501, "return_hidden_states"),
    ] {
        let answer = server.client().post("/generate", &body);
        let (got, _, found) = answer.error();
        assert_eq!((got, found.as_deref()), (status, Some(param)), "{body} {}", answer.text());
    }
    server.quiesce();
}

#[test]
fn the_model_is_told_in_a_few_words() {
    let server = Server::start(script("hi"));
    for path in ["/get_model_info", "/model_info"] {
        let info = server.client().get(path).ok();
        assert_eq!((&info["model_path"], &info["is_generation"]), (&json!("mock"), &json!(true)));
        assert_eq!(info["vocab_size"], 259);
    }
}

#[test]
fn the_items_of_a_response_are_listed_page_by_page() {
    let server = Server::start(script("hi"));
    let client = server.client();
    let items = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"type": "message", "id": "mine", "role": "user", "content": "c"},
    ]);
    let made = client.post("/v1/responses", &json!({"input": items})).ok();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    let list = |query: &str| client.get(&format!("{path}/input_items{query}")).ok();
    let all = list("");
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&all["first_id"], all["data"].as_array().unwrap().len()), (&json!("mine"), 3));
    assert_eq!(all["data"][2]["type"], "message");
    let page = list("?order=asc&limit=2");
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (2, &json!(true)));
    let rest = list(&format!("?order=asc&after={}", page["last_id"].as_str().unwrap()));
    assert_eq!((&rest["first_id"], &rest["has_more"]), (&json!("mine"), &json!(false)));
    for bad in ["?limit=0", "?limit=x", "?order=up", "?after=nobody"] {
        assert_eq!(client.get(&format!("{path}/input_items{bad}")).error().0, 400, "{bad}");
    }
    assert_eq!(client.call("DELETE", &path, None).ok()["deleted"], true);
    assert_eq!(client.get(&format!("{path}/input_items")).error().0, 404);
    assert_eq!(client.call("DELETE", &path, None).error().0, 404);
    let plain = client.post("/v1/responses", &json!({"input": "q"})).ok();
    let cancel = client.post(&format!("/v1/responses/{}/cancel", plain["id"].as_str().unwrap()), &json!({}));
    assert!(cancel.status == 400 && cancel.text().contains("background"), "{}", cancel.text());
}

#[test]
fn browsers_are_told_what_they_may_do() {
    let server = Server::with(&["--allowed-origins", "https://a.example"], script("hi"));
    let asked = server.client().header("origin", "https://a.example");
    let preflight = asked.clone().header("access-control-request-method", "POST");
    let answer = read_answer(preflight.request("OPTIONS", "/v1/chat/completions", None));
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://a.example"));
    assert!(answer.header("access-control-allow-methods").is_some());
    assert_eq!(asked.get("/health").header("access-control-allow-origin"), Some("https://a.example"));
    let named = ["--allowed-origins", "https://a.example", "--allowed-methods", "GET", "POST"];
    let flags = [&named[..], &["--allowed-headers", "x-own", "--allow-credentials"]].concat();
    let strict = Server::with(&flags, script("hi"));
    let answer = strict.client().header("origin", "https://a.example");
    let answer = answer.header("access-control-request-method", "POST");
    let answer = read_answer(answer.request("OPTIONS", "/v1/chat/completions", None));
    assert_eq!(answer.header("access-control-allow-methods"), Some("GET,POST"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("x-own"));
    assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
    let stranger = server.client().header("origin", "https://b.example").get("/health");
    assert_eq!(stranger.header("access-control-allow-origin"), None);
}

#[test]
fn the_load_of_each_engine_has_sglangs_names() {
    let server = Server::start(letters());
    let loads = server.client().get("/get_load").ok();
    assert_eq!(
        loads,
        json!([{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0, "num_pages": 0}])
    );
    let all = server.client().get("/v1/loads").ok();
    assert_eq!((&all["dp_rank_count"], &all["aggregate"]["total_reqs"]), (&json!(1), &json!(0)));
    let load = server.state.engine.load();
    let block = server.state.engine.info().map_or(0, |info| u64::from(info.block_size));
    assert_eq!(all["loads"][0]["max_total_num_tokens"], load.total_blocks * block);
    for path in ["/weight_version", "/get_weight_version"] {
        assert_eq!(server.client().get(path).ok()["weight_version"], "default");
    }
}

#[test]
fn one_parser_alone_reads_a_text_as_sglangs_routes_do() {
    let server = Server::start(script("hi"));
    let client = server.client();
    let call = "Look: <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let body = json!({"text": call, "tools": tools, "tool_call_parser": "hermes"});
    let parsed = client.post("/parse_function_call", &body).ok();
    let calls = json!([{"tool_index": 0, "name": "f", "parameters": "{\"a\": 1}"}]);
    assert_eq!(parsed, json!({"normal_text": "Look:", "calls": calls}));
    let body = json!({"text": "<think>hm</think>yes", "reasoning_parser": "qwen3"});
    let parsed = client.post("/separate_reasoning", &body).ok();
    assert_eq!(parsed, json!({"reasoning_text": "hm", "text": "yes"}));
    for (path, body, param) in [
        ("/parse_function_call", json!({"text": "x", "tool_call_parser": "nobody"}), "tool_call_parser"),
        ("/parse_function_call", json!({"tool_call_parser": "hermes"}), "text"),
        ("/separate_reasoning", json!({"text": "x", "reasoning_parser": "nobody"}), "reasoning_parser"),
    ] {
        let (status, _, found) = client.post(path, &body).error();
        assert_eq!((status, found.as_deref()), (400, Some(param)), "{path}");
    }
    let ids = client.post("/v1/tokenize", &json!({"prompt": "ab"})).ok()["tokens"].clone();
    assert_eq!(client.post("/v1/detokenize", &json!({"tokens": ids})).ok()["text"], "ab");
}
