//! Reasoning and tool calls, from the model's text to the client.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use common::{Client, Server, finish_reasons, joined, saying, script, streamed};
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock::START;
use serde_json::{Map, Value, json};

const FLAGS: &[&str] =
    &["--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice"];
const CALL: &str =
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"q\": \"a </tool_call> {b\"}}\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "look", "parameters": {
        "type": "object", "properties": {"q": {"type": "string"}}}}}])
}

fn calling(fields: &Value) -> Value {
    let mut fields: Map<String, Value> = fields.as_object().unwrap().clone();
    fields.entry("tools").or_insert_with(tools);
    fields.entry("max_tokens").or_insert(json!(2000));
    Value::Object(fields)
}

/// The message that a stream's deltas add up to, as a client adds them up.
fn accumulated(events: &[Value], index: usize) -> Value {
    let mut message = json!({"role": null, "content": "", "calls": []});
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        if choice["index"] != index {
            continue;
        }
        let delta = &choice["delta"];
        if delta["role"].is_string() {
            assert!(message["role"].is_null(), "the role comes once");
            message["role"] = delta["role"].clone();
        }
        for name in ["content", "reasoning", "reasoning_content"] {
            if let Some(text) = delta[name].as_str() {
                message[name] = json!(message[name].as_str().unwrap_or_default().to_owned() + text);
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let calls = message["calls"].as_array_mut().unwrap();
            let at = call["index"].as_u64().unwrap() as usize;
            if at == calls.len() {
                assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()), "{call}");
                calls.push(json!({"name": call["function"]["name"], "arguments": ""}));
            } else {
                assert!(
                    call.get("id").is_none() && call["function"].get("name").is_none(),
                    "sent once: {call}"
                );
            }
            let arguments = calls[at]["arguments"].as_str().unwrap().to_owned();
            calls[at]["arguments"] = json!(arguments + call["function"]["arguments"].as_str().unwrap());
        }
    }
    message
}

/// A whole answer's message in the same form.
fn flattened(choice: &Value) -> Value {
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls: Vec<Value> = calls
        .map(|call| json!({"name": call["function"]["name"], "arguments": call["function"]["arguments"]}))
        .collect();
    let content = message["content"].as_str().unwrap_or_default();
    let mut flat = json!({"role": message["role"], "content": content, "calls": calls});
    for name in ["reasoning", "reasoning_content"] {
        if let Some(text) = message.get(name) {
            flat[name] = text.clone();
        }
    }
    flat
}

/// Asks with and without a stream, checks that both say the same, and returns the choice's message and reason.
fn both_ways(client: &Client, fields: &Value) -> (Value, String) {
    let whole = client.chat(fields).ok()["choices"][0].clone();
    let events = client.chat(&streamed(fields)).events();
    let message = flattened(&whole);
    assert_eq!(accumulated(&events, 0), message);
    let reason = whole["finish_reason"].as_str().unwrap().to_owned();
    assert_eq!(finish_reasons(&events, 0), [reason.as_str()]);
    (message, reason)
}

#[test]
fn a_stream_adds_up_to_the_whole_message_tensorrt_llm_3280() {
    let text = format!("<think>\nhm\n</think>\n\nI look.\n{CALL}\n{CALL}");
    for run in [1, 3, 1000] {
        let server = Server::with(FLAGS, script(&text).in_runs_of(run));
        let (message, reason) = both_ways(&server.client(), &calling(&json!({})));
        let call = json!({"name": "look", "arguments": "{\"q\": \"a </tool_call> {b\"}"});
        let expected =
            json!({"role": "assistant", "content": "I look.", "reasoning": "hm", "calls": [call, call]});
        assert_eq!((message, reason.as_str()), (expected, "tool_calls"));
    }
}

/// The call and the end of the sequence come in one run of tokens, or in two, or the end is a limit.
#[test]
fn exactly_one_chunk_has_a_finish_reason_dynamo_10513_dynamo_1856() {
    for (run, max_tokens, reason) in
        [(1000, 2000, "tool_calls"), (1, 2000, "tool_calls"), (1000, 40, "length")]
    {
        let server = Server::with(FLAGS, script(CALL).in_runs_of(run));
        let options = json!({"include_usage": true});
        let fields =
            calling(&json!({"stream": true, "stream_options": options, "max_tokens": max_tokens, "n": 2}));
        let events = server.client().chat(&fields).events();
        assert_eq!(finish_reasons(&events, 0), [reason]);
        assert_eq!(finish_reasons(&events, 1), [reason]);
        let (last, chunks) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert!(last["usage"]["completion_tokens"].as_u64().unwrap() > 0);
        for chunk in chunks {
            let choice = &chunk["choices"][0];
            let shows = choice["delta"].as_object().is_some_and(|delta| !delta.is_empty());
            assert!(shows || choice["finish_reason"].is_string(), "an event that shows nothing: {chunk}");
        }
    }
}

#[test]
fn a_call_cut_by_length_says_so_and_keeps_its_arguments_vllm_53269() {
    let server = Server::with(FLAGS, script(CALL));
    for max_tokens in 1..CALL.len() + 3 {
        let fields = calling(&json!({"max_tokens": max_tokens}));
        let (message, reason) = both_ways(&server.client(), &fields);
        let cut = max_tokens <= CALL.len();
        assert_eq!(reason, if cut { "length" } else { "tool_calls" }, "{max_tokens}");
        for call in message["calls"].as_array().unwrap() {
            let arguments = call["arguments"].as_str().unwrap();
            assert!("{\"q\": \"a </tool_call> {b\"}".starts_with(arguments), "{arguments}");
            assert!(cut || serde_json::from_str::<Value>(arguments).is_ok());
        }
    }
}

#[test]
fn broken_arguments_are_not_reported_as_a_call_to_make() {
    let server =
        Server::with(FLAGS, script("<tool_call>{\"name\": \"look\", \"arguments\": {oops}}</tool_call>"));
    let (message, reason) = both_ways(&server.client(), &calling(&json!({})));
    assert_eq!((message["calls"][0]["arguments"].as_str(), reason.as_str()), (Some("{oops}}"), "stop"));
}

#[test]
fn content_beside_calls_is_null_and_ids_differ_hermes_agent_3468() {
    let server = Server::with(FLAGS, script(&CALL.repeat(3)));
    let answer = server.client().chat(&calling(&json!({}))).ok();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    let calls = message["tool_calls"].as_array().unwrap();
    let mut ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert!(calls.iter().all(|call| call["type"] == "function"));
    let one = server.client().chat(&calling(&json!({"parallel_tool_calls": false}))).ok();
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(one["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn tool_choice_none_shows_text_and_no_parser_is_a_400() {
    let server = Server::with(FLAGS, script(CALL));
    let (message, reason) = both_ways(&server.client(), &calling(&json!({"tool_choice": "none"})));
    assert_eq!((message["content"].as_str(), reason.as_str()), (Some(CALL), "stop"));
    let server = Server::start(script(CALL));
    let refused = server.client().chat(&calling(&json!({})));
    assert_eq!(refused.error(), (400, "BadRequestError".to_owned(), Some("tools".to_owned())));
    assert!(refused.text().contains("--tool-call-parser"));
    // Nothing is parsed that nobody asked for.
    let plain = server.client().chat(&json!({"max_tokens": 2000})).ok();
    assert_eq!(
        plain["choices"][0]["message"],
        json!({"role": "assistant", "content": CALL, "refusal": null})
    );
}

const THINKS: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}assistant\n\
                      {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n\
                      {% else %}<think>\n{% endif %}";

#[test]
fn a_thought_cut_by_length_is_reasoning_in_both_modes_rapid_mlx_576() {
    let server = Server::with_template(FLAGS, script("Okay, the user wants</think>Yes."), THINKS);
    let (message, reason) = both_ways(&server.client(), &json!({"max_tokens": 8}));
    assert_eq!((message["reasoning"].as_str(), message["content"].as_str()), (Some("Okay, th"), Some("")));
    assert_eq!(reason, "length");
}

#[test]
fn the_start_state_comes_from_the_prompt_vllm_mlx_537() {
    let off = json!({"chat_template_kwargs": {"enable_thinking": false}});
    for (template, fields) in [(THINKS, off), ("{{ messages[0].content }}", json!({}))] {
        let server = Server::with_template(FLAGS, script("Yes."), template);
        let (message, _) = both_ways(&server.client(), &fields);
        assert_eq!(message, json!({"role": "assistant", "content": "Yes.", "calls": []}));
        let server = Server::with_template(FLAGS, script("<think>x</think>y"), template);
        let (message, _) = both_ways(&server.client(), &fields);
        assert_eq!((message["reasoning"].as_str(), message["content"].as_str()), (Some("x"), Some("y")));
    }
    let server = Server::with_template(FLAGS, script("x</think>y"), THINKS);
    let (message, _) = both_ways(&server.client(), &json!({}));
    assert_eq!((message["reasoning"].as_str(), message["content"].as_str()), (Some("x"), Some("y")));
}

#[test]
fn stop_strings_end_the_answer_and_not_the_thought_vllm_14399() {
    let server = Server::with(FLAGS, script("<think>first a song then</think>Answer: song here"));
    for include in [false, true] {
        let fields = json!({"stop": ["song"], "include_stop_str_in_output": include});
        let (message, reason) = both_ways(&server.client(), &fields);
        let end = if include { "Answer: song" } else { "Answer: " };
        assert_eq!(message["reasoning"], "first a song then");
        assert_eq!((message["content"].as_str(), reason.as_str()), (Some(end), "stop"));
    }
    let asked = json!({"stop": ["song"], "stop_in_reasoning": true});
    let (message, reason) = both_ways(&server.client(), &asked);
    assert_eq!((message["reasoning"].as_str(), message["content"].as_str()), (Some("first a "), Some("")));
    assert_eq!(reason, "stop");
}

#[test]
fn reasoning_has_its_older_name_by_flag_and_can_be_left_out() {
    let text = "<think>hm</think>Yes.";
    let flags = [FLAGS, &["--emit-reasoning-content"]].concat();
    let server = Server::with(&flags, script(text));
    let (message, _) = both_ways(&server.client(), &json!({}));
    assert_eq!(
        (message["reasoning"].as_str(), message["reasoning_content"].as_str()),
        (Some("hm"), Some("hm"))
    );
    let (message, _) = both_ways(&server.client(), &json!({"include_reasoning": false}));
    assert_eq!(message, json!({"role": "assistant", "content": "Yes.", "calls": []}));
}

#[test]
fn logprobs_cover_every_token_of_a_parsed_message() {
    let text = format!("<think>hm</think>Yes.{CALL}");
    let server = Server::with(FLAGS, script(&text));
    let fields = calling(&json!({"logprobs": true, "return_token_ids": true}));
    let whole = server.client().chat(&fields).ok()["choices"][0].clone();
    let events = server.client().chat(&streamed(&fields)).events();
    let choices = || events.iter().map(|event| &event["choices"][0]);
    let logprobs: Vec<&Value> =
        choices().filter_map(|c| c["logprobs"]["content"].as_array()).flatten().collect();
    let ids: Vec<&Value> = choices().filter_map(|c| c["token_ids"].as_array()).flatten().collect();
    assert_eq!(json!(logprobs), whole["logprobs"]["content"]);
    assert_eq!(json!(ids), whole["token_ids"]);
    assert_eq!(ids.len(), text.len() + 1);
}

/// Hidden special tokens are markers all the same.
#[test]
fn markers_that_are_special_tokens_are_read() {
    let flags = ["--reasoning-parser", "openai_gptoss", "--tool-call-parser", "openai"];
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let tokens = [
        bytes("<|channel|>analysis<|message|>hm"),
        vec![START],
        bytes(
            "assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"q\": \"x\"}<|call|>",
        ),
    ];
    let server = Server::with(&flags, saying(Content::Script(tokens.concat().into())));
    let (message, reason) = both_ways(&server.client(), &calling(&json!({})));
    let call = json!({"name": "look", "arguments": "{\"q\": \"x\"}"});
    assert_eq!(message, json!({"role": "assistant", "content": "", "reasoning": "hm", "calls": [call]}));
    assert_eq!(reason, "tool_calls");
}

#[test]
fn auto_goes_by_the_chat_template() {
    let template = "{% if tools %}<tool_call></tool_call>{% endif %}{{ messages[0].content }}";
    for flags in [&["--enable-auto-tool-choice"][..], &["--tool-call-parser", "auto"]] {
        let server = Server::with_template(flags, script(CALL), template);
        let (message, reason) = both_ways(&server.client(), &calling(&json!({})));
        assert_eq!((message["calls"][0]["name"].as_str(), reason.as_str()), (Some("look"), "tool_calls"));
        let server = Server::with_template(flags, script(CALL), "{{ messages[0].content }}");
        assert_eq!(server.client().chat(&calling(&json!({}))).error().0, 400);
    }
}

#[test]
fn raw_completions_are_not_parsed_dynamo_7358() {
    let text = format!("<think>hm</think>{CALL}");
    let server = Server::with(FLAGS, script(&text));
    let body = json!({"prompt": "x", "max_tokens": 2000});
    assert_eq!(server.client().completion(&body).ok()["choices"][0]["text"], text);
    assert_eq!(joined(&server.client().completion(&streamed(&body)).events(), 0), text);
}

/// What comes back is what the template writes again, so the second turn finds the first one's blocks.
#[test]
fn a_second_turn_goes_on_from_the_tokens_of_the_first_dynamo_7358() {
    let template = "{% for message in messages %}{% if message.role == 'assistant' %}assistant\n<think>\n\
                    {{ message.reasoning_content }}\n</think>\n\n{{ message.content }}<|end|>{% else %}\
                    {{ message.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}assistant\n<think>\n\
                    {% endif %}";
    let server = Server::with_template(FLAGS, script("hm\n\nso\n</think>\n\nYes."), template);
    let ask = |messages: &Value| {
        server
            .client()
            .post("/v1/chat/completions", &json!({"messages": messages, "return_token_ids": true}))
            .ok()
    };
    let first = ask(&json!([{"role": "user", "content": "q"}]));
    let choice = &first["choices"][0];
    let again =
        json!([{"role": "user", "content": "q"}, choice["message"], {"role": "user", "content": "r"}]);
    let second = ask(&again);
    let ids = |value: &Value| value.as_array().unwrap().clone();
    let known = [ids(&first["prompt_token_ids"]), ids(&choice["token_ids"])].concat();
    assert!(ids(&second["prompt_token_ids"]).starts_with(&known), "{second}");
}

#[test]
fn parse_shows_what_a_parser_makes_of_a_text() {
    let server = Server::with(FLAGS, MockWorker::new(frizzen_server::mock::info()));
    let parse = |body: Value| server.client().post("/v1/parse", &body);
    let text = format!("<think>hm</think>Yes.\n{CALL}");
    let by_text = parse(json!({"text": text})).ok();
    assert_eq!(by_text["message"]["reasoning"], "hm");
    assert_eq!(by_text["message"]["content"], "Yes.");
    assert_eq!(by_text["message"]["tool_calls"][0]["function"]["name"], "look");
    assert_eq!((&by_text["complete"], &by_text["notes"]), (&json!(true), &json!([])));
    assert_eq!(
        (&by_text["reasoning_parser"], &by_text["tool_call_parser"]),
        (&json!("qwen3"), &json!("hermes"))
    );
    let ids: Vec<u8> = text.bytes().collect();
    assert_eq!(parse(json!({"token_ids": ids})).ok()["message"]["content"], "Yes.");

    let glm = "<tool_call>look\n<arg_key>q</arg_key>\n<arg_value>5</arg_value>\n</tool_call>";
    let body =
        json!({"text": glm, "tool_call_parser": "glm45", "reasoning_parser": "none", "tools": tools()});
    let arguments = parse(body).ok()["message"]["tool_calls"][0]["function"]["arguments"].clone();
    assert_eq!(arguments, "{\"q\": \"5\"}");
    let thought = parse(json!({"text": "hm</think>Yes.", "starts_in_reasoning": true})).ok();
    assert_eq!(thought["message"]["reasoning"], "hm");
    let broken = parse(json!({"text": "<tool_call>oops"})).ok();
    assert_eq!(
        (&broken["message"]["content"], broken["notes"].as_array().unwrap().len()),
        (&json!("<tool_call>oops"), 1)
    );

    for (body, param) in [
        (json!({}), "text"),
        (json!({"text": "a", "token_ids": [1]}), "text"),
        (json!({"text": "a", "tool_call_parser": "nobody"}), "tool_call_parser"),
        (json!({"text": "a", "reasoning_parser": "nobody"}), "reasoning_parser"),
        (json!({"token_ids": [100_000]}), "token_ids"),
        (json!({"text": "a", "tools": [1]}), "tools"),
    ] {
        let error = parse(body).error();
        assert_eq!((error.0, error.2.as_deref()), (400, Some(param)));
    }
}

#[test]
fn what_a_limit_leaves_of_a_call_without_a_name_is_no_content_vllm_47903() {
    let server = Server::with(FLAGS, script(&format!("Ok.{CALL}")));
    let begins = "Ok.<tool_call>".len();
    for max_tokens in begins..begins + CALL.len() {
        let asked = calling(&json!({"max_tokens": max_tokens}));
        let choice = server.client().chat(&asked).ok()["choices"][0].clone();
        let events = server.client().chat(&streamed(&asked)).events();
        let (message, stream) = (flattened(&choice), accumulated(&events, 0));
        assert_eq!(
            (&message["content"], &message["calls"]),
            (&json!("Ok."), &stream["calls"]),
            "{max_tokens}"
        );
        assert_eq!(message["content"], stream["content"], "{max_tokens}");
    }
    // A model that ends so by itself has said it: the text is all that is left of what it meant.
    let server = Server::with(FLAGS, script("Ok.<tool_call>\n{\"na"));
    let whole = server.client().chat(&calling(&json!({}))).ok();
    assert_eq!(whole["choices"][0]["message"]["content"], "Ok.<tool_call>\n{\"na");
}
