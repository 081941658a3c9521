//! Grammars after reasoning, budgets of reasoning, and tool calls that are forced: over HTTP, on a model that wants
//! something else.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use common::{Server, finish_reasons, saying, script, streamed};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock;
use frizzen_text::parse::registry;
use proptest::prelude::*;
use serde_json::{Value, json};

const REASONS: &[&str] = &["--reasoning-parser", "qwen3"];
/// Opens the reasoning, unless it is told not to.
const OPENS: &str = "{% for message in messages %}{{ message.content }}{% endfor %}\
                     {% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}";

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "kind": {"enum": ["red", "green", "blue"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["kind", "size"], "additionalProperties": false})
}

fn format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "r", "schema": schema()}})
}

fn fits(text: &str) -> bool {
    let Ok(Value::Object(value)) = serde_json::from_str(text) else { return false };
    value.len() == 2
        && ["red", "green", "blue"].iter().any(|kind| value["kind"] == *kind)
        && value["size"].as_u64().is_some_and(|size| size <= 99)
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "paint", "parameters": schema()}},
        {"type": "function", "function": {"name": "paint_all", "parameters": {
            "type": "object", "properties": {"now": {"type": "boolean"}}, "required": ["now"],
            "additionalProperties": false}}},
    ])
}

fn is_call(call: &Value) -> bool {
    let arguments = call["function"]["arguments"].as_str().unwrap();
    match call["function"]["name"].as_str().unwrap() {
        "paint" => fits(arguments),
        "paint_all" => {
            let value: Value = serde_json::from_str(arguments).unwrap();
            value.as_object().unwrap().len() == 1 && value["now"].is_boolean()
        }
        _ => false,
    }
}

fn with(fields: &Value, more: &Value) -> Value {
    let mut fields = fields.clone();
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

/// Asks with and without a stream: the message and the reason, which are the same.
fn both_ways(server: &Server, fields: &Value) -> (Value, String) {
    // A seed makes a random model say the same twice.
    let mut fields = fields.clone();
    fields.as_object_mut().unwrap().entry("seed").or_insert(json!(7));
    let fields = &fields;
    let whole = server.client().chat(fields).ok();
    let events = server.client().chat(&streamed(fields)).events();
    let choice = &whole["choices"][0];
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut arguments = String::new();
    for event in &events {
        let delta = &event["choices"][0]["delta"];
        text += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            arguments += call["function"]["arguments"].as_str().unwrap();
        }
    }
    let message = &choice["message"];
    assert_eq!(text, message["content"].as_str().unwrap_or_default());
    assert_eq!(reasoning, message["reasoning"].as_str().unwrap_or_default());
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    assert_eq!(
        arguments,
        calls.map(|call| call["function"]["arguments"].as_str().unwrap()).collect::<String>()
    );
    let reason = choice["finish_reason"].as_str().unwrap().to_owned();
    assert_eq!(finish_reasons(&events, 0), [reason.as_str()]);
    (message.clone(), reason)
}

#[test]
fn a_grammar_binds_after_the_reasoning_that_the_prompt_opened_vllm_57726() {
    for text in ["hm</think>banana", "hm</think>\n\n```json\n{", "a < b </thin </think>x", "</think>"] {
        let server = Server::with_template(REASONS, script(text), OPENS);
        let asked = json!({"response_format": format(), "max_tokens": 500});
        let (message, reason) = both_ways(&server, &asked);
        assert!(fits(message["content"].as_str().unwrap()), "{message}");
        let thought = text.split_once("</think>").unwrap().0;
        assert_eq!(message["reasoning"].as_str().unwrap_or_default(), thought);
        assert_eq!(reason, "stop");
        assert_eq!(server.client().chat(&asked).ok()["grammar_enforced"], json!(true));
        // Without reasoning the first token is bound.
        if text.starts_with('<') {
            continue;
        }
        let direct = with(&asked, &json!({"enable_thinking": false}));
        let (message, _) = both_ways(&server, &direct);
        assert!(
            fits(message["content"].as_str().unwrap()) && message.get("reasoning").is_none(),
            "{message}"
        );
    }
}

#[test]
fn a_model_may_begin_to_reason_by_itself_and_what_it_answers_is_bound() {
    for (text, thought) in [
        ("<think>hm</think>banana", "hm"),
        ("<think>a</think><think>b</think>banana", "a"),
        ("banana <think>", ""),
        // Half a marker is completed, and what follows it is reasoning.
        ("<thornapple", "pple"),
    ] {
        let server = Server::with(REASONS, script(text));
        let asked = json!({"response_format": format(), "max_tokens": 500, "thinking_budget": 14});
        let (message, reason) = both_ways(&server, &asked);
        assert!(fits(message["content"].as_str().unwrap()), "{text}: {message}");
        assert!(message["reasoning"].as_str().unwrap_or_default().starts_with(thought), "{text}: {message}");
        assert_eq!(reason, "stop");
    }
}

#[test]
fn an_answer_cannot_end_in_its_reasoning_while_a_grammar_waits() {
    // It wants to end after two letters; the end is closed to it until there is an answer.
    let server = Server::with_template(REASONS, script("hm"), OPENS);
    let asked = json!({"response_format": format(), "max_tokens": 60});
    let (message, reason) = both_ways(&server, &asked);
    assert_eq!(reason, "length", "{message}");
    let bounded = with(&asked, &json!({"thinking_token_budget": 10, "max_tokens": 500}));
    let (message, reason) = both_ways(&server, &bounded);
    assert!(fits(message["content"].as_str().unwrap()) && reason == "stop", "{message}");
    // Without a grammar it ends where it wants.
    let (message, reason) = both_ways(&server, &json!({"max_tokens": 60}));
    assert_eq!((message["reasoning"].as_str(), reason.as_str()), (Some("hm"), "stop"));
}

#[test]
fn a_budget_of_reasoning_is_spent_and_no_more() {
    let letters = (b'a'..=b'z').map(u32::from).collect();
    let server = Server::with_template(REASONS, saying(Content::Alphabet(letters)), OPENS);
    for budget in [0, 1, 7, 20] {
        for name in ["thinking_token_budget", "thinking_budget"] {
            let (message, reason) = both_ways(&server, &json!({name: budget, "max_tokens": 40}));
            let thought = message["reasoning"].as_str().unwrap_or_default();
            assert_eq!(thought.len(), budget, "one letter is one token: {message}");
            // The marker has eight tokens.
            assert_eq!(message["content"].as_str().unwrap().len(), 40 - budget - 8, "{message}");
            assert_eq!(reason, "length");
        }
    }
    let (message, _) = both_ways(&server, &json!({"thinking_token_budget": -1, "max_tokens": 40}));
    assert_eq!(message["reasoning"].as_str().unwrap().len(), 40);
    let refused = Server::start(script("x")).client().chat(&json!({"thinking_token_budget": 5}));
    assert_eq!(refused.error().0, 501, "{}", refused.text());
}

#[test]
fn a_grammar_may_bind_reasoning_too() {
    let server = Server::with_template(REASONS, script("hm</think>banana"), OPENS);
    let asked =
        json!({"structured_outputs": {"json": schema(), "enable_in_reasoning": true}, "max_tokens": 500});
    let (message, _) = both_ways(&server, &asked);
    assert!(fits(message["reasoning"].as_str().unwrap()), "{message}");
}

/// Every format of tool calls, its own grammar, and its own parser.
#[test]
fn a_required_call_is_made_in_every_format_vllm_53255() {
    for format in registry::TOOLS {
        // Where `<|end|>` is a marker of the format it does not end the output.
        let info = WorkerInfo { eos_token_ids: vec![mock::BOS], ..mock::info() };
        let server =
            Server::with(&["--tool-call-parser", format.name], MockWorker::new(info).saying(Content::Chain));
        for (seed, parallel) in [(1, true), (2, true), (3, false), (4, false)] {
            let asked = json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": parallel,
                "max_tokens": 3000, "seed": seed});
            let (message, reason) = both_ways(&server, &asked);
            let calls =
                message["tool_calls"].as_array().unwrap_or_else(|| panic!("{}: {message}", format.name));
            // A random model may go on with calls for as long as it is let; the last one is then cut.
            let whole = if reason == "length" { &calls[..calls.len() - 1] } else { &calls[..] };
            assert!(!whole.is_empty(), "{}: {message}", format.name);
            for call in whole {
                assert!(is_call(call), "{}: {call}, {reason}", format.name);
            }
            assert!(parallel || calls.len() == 1 && reason == "tool_calls", "{}: {message}", format.name);
            assert_eq!(message["content"], Value::Null, "{}", format.name);
            assert_eq!(server.client().chat(&asked).ok()["grammar_enforced"], json!(true));
        }
        let named = json!({"tools": tools(), "max_tokens": 3000, "seed": 5,
            "tool_choice": {"type": "function", "function": {"name": "paint_all"}}});
        let (message, reason) = both_ways(&server, &named);
        let calls = message["tool_calls"].as_array().unwrap();
        assert!(calls.len() == 1 && is_call(&calls[0]), "{message}");
        assert_eq!((&calls[0]["function"]["name"], reason.as_str()), (&json!("paint_all"), "stop"));
    }
}

#[test]
fn a_required_call_follows_the_reasoning() {
    let flags = [REASONS, &["--tool-call-parser", "hermes"]].concat();
    let server = Server::with_template(&flags, script("hm</think>banana"), OPENS);
    let asked =
        json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 500});
    let (message, reason) = both_ways(&server, &asked);
    assert!(is_call(&message["tool_calls"][0]) && reason == "tool_calls", "{message}");
    assert_eq!(message["reasoning"], json!("hm"));
}

/// Some models open a call before they close their reasoning; where a grammar waits for the end, that is a thought.
#[test]
fn a_call_in_a_thought_does_not_get_around_the_grammar() {
    let flags = [REASONS, &["--tool-call-parser", "hermes"]].concat();
    let call = "<tool_call>{\"name\": \"paint\", \"arguments\": {\"oops\": 1}}</tool_call>";
    let server = Server::with_template(&flags, script(&format!("hm {call}</think>banana")), OPENS);
    let asked =
        json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 500});
    let (message, reason) = both_ways(&server, &asked);
    let calls = message["tool_calls"].as_array().unwrap();
    assert!(calls.len() == 1 && is_call(&calls[0]) && reason == "tool_calls", "{message}");
    assert_eq!(message["reasoning"], json!(format!("hm {call}")));
}

#[test]
fn a_forced_call_cut_by_length_says_so_and_keeps_its_arguments_vllm_53269() {
    let server = Server::with(&["--tool-call-parser", "hermes"], saying(Content::Chain));
    let mut cut = 0;
    for max_tokens in [1, 8, 30, 50, 60, 70, 80, 2000] {
        let asked = json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
            "max_tokens": max_tokens, "seed": 3});
        let whole = server.client().chat(&asked).ok();
        let (message, reason) = both_ways(&server, &asked);
        let used = whole["usage"]["completion_tokens"].as_u64().unwrap();
        if used < max_tokens || reason == "tool_calls" {
            assert!(is_call(&message["tool_calls"][0]) && reason == "tool_calls", "{message}");
        } else {
            assert_eq!(reason, "length");
            cut += 1;
        }
    }
    assert!(cut > 3);
}

#[test]
fn strict_tools_bind_a_call_from_where_it_begins() {
    let mut strict = tools();
    strict[0]["function"]["strict"] = json!(true);
    let flags = ["--tool-call-parser", "hermes"];
    let asked = json!({"tools": strict, "max_tokens": 500});
    let plain = Server::with(&flags, script("no call here, 1 < 2"));
    let (message, reason) = both_ways(&plain, &asked);
    assert_eq!((message["content"].as_str(), reason.as_str()), (Some("no call here, 1 < 2"), "stop"));
    let broken = "I do: <tool_call>\n{\"name\": \"paint\", \"arguments\": {\"colour\": 1}}\n</tool_call>";
    let server = Server::with(&flags, script(broken));
    let (message, reason) = both_ways(&server, &asked);
    assert_eq!(message["content"], json!("I do:"));
    assert!(message["tool_calls"].as_array().unwrap().iter().all(is_call), "{message}");
    assert!(["tool_calls", "length"].contains(&reason.as_str()), "{reason}");
    // Tools that are not strict leave the model alone.
    let (message, _) = both_ways(&server, &json!({"tools": tools(), "max_tokens": 500}));
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!("{\"colour\": 1}"));
}

/// The model is shown all tools, as `allowed_tools` promises to caches of prompts, and can begin a call of those only.
#[test]
fn allowed_tools_are_the_only_ones_that_can_be_called() {
    let flags = ["--tool-call-parser", "hermes"];
    let among = |mode: &str, names: &[&str]| {
        let listed: Vec<Value> =
            names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
        json!({"tools": tools(), "max_tokens": 500, "tool_choice":
            {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}})
    };
    let other = "I do: <tool_call>\n{\"name\": \"paint\", \"arguments\": {\"kind\": \"red\", \"size\": 1}}\n</tool_call>";
    let server = Server::with(&flags, script(other));
    for mode in ["auto", "required"] {
        let (message, _) = both_ways(&server, &among(mode, &["paint_all"]));
        let calls = message["tool_calls"].as_array().unwrap();
        assert!(!calls.is_empty(), "{mode}: {message}");
        assert!(
            calls.iter().all(|call| call["function"]["name"] == "paint_all" && is_call(call)),
            "{message}"
        );
    }
    let (message, reason) = both_ways(&server, &among("auto", &["paint"]));
    assert_eq!(
        (message["tool_calls"][0]["function"]["name"].as_str(), reason.as_str()),
        (Some("paint"), "tool_calls")
    );
    let plain = Server::with(&flags, script("no call"));
    let (message, reason) = both_ways(&plain, &among("auto", &["paint"]));
    assert_eq!((message["content"].as_str(), reason.as_str()), (Some("no call"), "stop"));

    let all = json!({"tools": tools()});
    let shown =
        |body: &Value| server.client().post("/tokenize", &common::chat_body(body)).ok()["count"].clone();
    assert_eq!(shown(&all), shown(&among("auto", &["paint"])));

    let response = json!({"input": "hello", "max_output_tokens": 500, "tools": [
        {"type": "function", "name": "paint", "parameters": schema()},
        {"type": "function", "name": "g", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}});
    let answer = server.client().post("/v1/responses", &response).ok();
    assert_eq!(answer["tool_choice"], response["tool_choice"]);
    let calls = answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call");
    assert!(calls.clone().count() > 0 && calls.into_iter().all(|call| call["name"] == "g"), "{answer}");

    for wrong in [among("any", &["paint"]), among("auto", &[]), among("auto", &["sing"])] {
        let (status, _, param) = server.client().chat(&wrong).error();
        assert_eq!((status, param.as_deref()), (400, Some("tool_choice")));
    }
}

#[test]
fn beside_tools_a_format_binds_the_answer_that_is_no_call() {
    let flags = ["--tool-call-parser", "hermes"];
    let asked = json!({"tools": tools(), "response_format": format(), "max_tokens": 500});
    let (message, reason) = both_ways(&Server::with(&flags, script("{banana")), &asked);
    assert!(fits(message["content"].as_str().unwrap()) && reason == "stop", "{message}");
    let one = with(&asked, &json!({"parallel_tool_calls": false}));
    let (message, reason) = both_ways(&Server::with(&flags, script("<banana")), &one);
    assert!(is_call(&message["tool_calls"][0]) && reason == "tool_calls", "{message}");
    let none = with(&asked, &json!({"tool_choice": "none"}));
    let (message, _) = both_ways(&Server::with(&flags, script("<banana")), &none);
    assert!(fits(message["content"].as_str().unwrap()), "{message}");
    let bare = Server::with(&["--tool-call-parser", "llama3_json"], script("x")).client().chat(&asked);
    assert_eq!(
        (bare.error().0, bare.error().2.as_deref()),
        (501, Some("response_format")),
        "{}",
        bare.text()
    );
}

#[test]
fn what_no_call_can_be_made_of_is_refused_vllm_53255() {
    let refused = |flags: &[&str], fields: Value| {
        let answer = Server::with(flags, script("x")).client().chat(&fields);
        let (status, _, param) = answer.error();
        (status, param.unwrap_or_default(), answer.text())
    };
    let required = json!({"tools": tools(), "tool_choice": "required"});
    assert_eq!(refused(&[], required.clone()).0, 400, "nothing would read the call");
    let hermes = ["--tool-call-parser", "hermes"];
    let (status, param, _) = refused(&hermes, json!({"tools": [], "tool_choice": "required"}));
    assert_eq!((status, param.as_str()), (400, "tool_choice"));
    let unknown = json!({"type": "function", "function": {"name": "nobody"}});
    let (status, param, _) = refused(&hermes, with(&required, &json!({"tool_choice": unknown})));
    assert_eq!((status, param.as_str()), (400, "tool_choice"));
    let mut strict = tools();
    strict[0]["function"] = json!({"name": "f", "strict": true, "parameters": {"type": "object", "properties": {"x": {"not": {"pattern": "a"}}}}});
    for choice in ["required", "auto"] {
        let (status, param, text) = refused(&hermes, json!({"tools": strict, "tool_choice": choice}));
        assert_eq!((status, param.as_str()), (400, "tools"), "{text}");
        assert!(text.contains("the keyword \\\"not\\\" cannot be enforced"), "{text}");
    }
    let mut strict = tools();
    strict[0]["function"]["strict"] = json!(true);
    let (status, param, text) = refused(&["--tool-call-parser", "pythonic"], json!({"tools": strict}));
    assert_eq!((status, param.as_str()), (400, "tools"), "{text}");
}

/// gpt-oss: reasoning, calls and answers are messages on channels.
#[test]
fn channels_carry_a_bound_answer_and_a_bound_call() {
    let flags = ["--reasoning-parser", "openai_gptoss", "--tool-call-parser", "openai"];
    for text in [
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>banana",
        "<|channel|>final<|message|>banana",
    ] {
        // In this family `<|end|>` ends a message, not the output.
        let info = WorkerInfo { eos_token_ids: vec![mock::BOS], ..mock::info() };
        let tokens = mock::tokenizer().unwrap().encode(text, false).unwrap();
        let server = Server::with(&flags, MockWorker::new(info).saying(Content::Script(tokens.into())));
        let asked = json!({"response_format": format(), "max_tokens": 600});
        let (message, reason) = both_ways(&server, &asked);
        assert!(
            fits(message["content"].as_str().unwrap_or_default()) && reason == "stop",
            "{text}: {message}"
        );
        if text.contains("|>final<|message|>") && !text.contains("analysis") {
            continue;
        }
        let required = json!({"tools": tools(), "tool_choice": "required", "max_tokens": 600});
        let (message, reason) = both_ways(&server, &required);
        assert!(is_call(&message["tool_calls"][0]) && reason == "tool_calls", "{text}: {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Any draft length and any run of the model's tokens gives the text of no drafts.
    #[test]
    fn drafts_do_not_change_what_is_bound_after_reasoning_vllm_44993(
        length in 1..8_usize,
        open in any::<bool>(),
        budget in prop::option::of(0..12_u32),
        thought in "[a-c<]{0,9}",
    ) {
        let end = format!("{thought}</think>{thought}{thought}{{\"kind\": \"red\", \"size\": 12}}");
        let text = if open { end } else { format!("<think>{end}") };
        let template = if open { OPENS } else { "{% for message in messages %}{{ message.content }}{% endfor %}" };
        let length = length.to_string();
        let drafted = [REASONS, &["--drafter", "ngram", "--speculation", &length]].concat();
        let texts = [REASONS, &drafted].map(|flags| {
            let info = WorkerInfo { max_drafts: 8, ..mock::info() };
            let worker = MockWorker::new(info).saying(Content::Script(text.bytes().map(u32::from).collect()));
            let server = Server::with_template(flags, worker, template);
            // The drafter finds the whole answer in the prompt, the end marker among the drafts.
            let asked = json!({"messages": [{"role": "user", "content": format!("{text} {text}")}],
                "response_format": format(), "thinking_token_budget": budget, "max_tokens": 300, "temperature": 0});
            let (message, reason) = both_ways(&server, &asked);
            assert!(reason == "length" || fits(message["content"].as_str().unwrap()), "{message}");
            message
        });
        prop_assert_eq!(&texts[0], &texts[1]);
    }
}
