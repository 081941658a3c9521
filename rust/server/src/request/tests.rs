//! What bodies are taken, and what each refusal says.

use axum::http::StatusCode;
use frizzen_core::{ParamLimits, SamplingParams};
use frizzen_text::parse::{Format, ToolFormat};
use serde_json::{Value, json};

use super::chat::ChatRequest;
use super::common::{Limits, MAX_N, MAX_STOP};
use super::completion::{CompletionRequest, Prompt};
use super::fields::{Fields, Unused};
use super::parity::{self, Dialect, FIELDS, Off, Support};
use super::tools::ToolChoice;
use crate::error::ApiError;

const LIMITS: Limits = Limits {
    params: ParamLimits { vocab_size: 1000, max_model_len: 64, max_logprobs: 20 },
    by_priority: false,
    format: Format { reasoning: None, tools: None },
};

fn chat_bytes(body: &[u8]) -> Result<ChatRequest, ApiError> {
    let (fields, _) = Fields::parse(body, Dialect::Chat)?;
    let request = ChatRequest::read(fields, &LIMITS)?;
    request.common.params.validate(&LIMITS.params)?;
    Ok(request)
}

fn completion_bytes(body: &[u8]) -> Result<CompletionRequest, ApiError> {
    let (fields, _) = Fields::parse(body, Dialect::Completions)?;
    let request = CompletionRequest::read(fields, &LIMITS)?;
    request.common.params.validate(&LIMITS.params)?;
    Ok(request)
}

fn body(dialect: Dialect, name: &str, value: Value) -> Vec<u8> {
    let mut body = match dialect {
        Dialect::Chat => json!({"messages": [{"role": "user", "content": "q"}]}),
        Dialect::Completions => json!({"prompt": "q"}),
    };
    body[name] = value;
    body.to_string().into_bytes()
}

/// The shared fields of a small body with this field.
fn read(dialect: Dialect, name: &str, value: Value) -> Result<super::Common, ApiError> {
    let body = body(dialect, name, value);
    match dialect {
        Dialect::Chat => chat_bytes(&body).map(|request| request.common),
        Dialect::Completions => completion_bytes(&body).map(|request| request.common),
    }
}

/// The prompt of a conversation under the mock's template.
fn render(messages: Value) -> Result<String, ApiError> {
    let request = chat_bytes(&body(Dialect::Chat, "messages", messages))?;
    crate::mock::text_model().unwrap().render(&request.conversation)
}

fn unused(dialect: Dialect, name: &str, value: Value) -> Unused {
    Fields::parse(&body(dialect, name, value), dialect).unwrap().1
}

const BOTH: [Dialect; 2] = [Dialect::Chat, Dialect::Completions];

#[test]
fn every_supported_field_is_read() {
    // No field takes this number, so a field that accepts it is not read at all: its entry is stale.
    for dialect in BOTH {
        for name in parity::supported(dialect) {
            let error = read(dialect, name, json!(12.5e300)).expect_err(name);
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{name}");
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }
}

#[test]
fn every_refused_field_is_refused_by_name_and_its_off_value_is_not() {
    for dialect in BOTH {
        for field in FIELDS {
            let Support::Refused(status, off, why) = field.support(dialect) else { continue };
            let error = read(dialect, field.name, json!({"type": "asked", "n": 7})).expect_err(field.name);
            assert_eq!((error.status, error.param.as_deref()), (status, Some(field.name)));
            assert!(error.message.contains(why), "{error:?}");
            let neutral = match off {
                Off::Null => Value::Null,
                Off::False => json!(false),
                Off::True => json!(true),
                Off::Empty => json!([]),
                Off::Zero => json!(0),
                Off::One => json!(1),
                Off::Text(text) => json!(text),
                Off::Type(kind) => json!({"type": kind}),
                Off::Only(item) => json!([item]),
            };
            assert!(read(dialect, field.name, neutral).is_ok(), "{}", field.name);
            assert!(read(dialect, field.name, Value::Null).is_ok(), "{}", field.name);
        }
    }
}

#[test]
fn a_removed_field_names_its_successor() {
    for dialect in BOTH {
        for field in FIELDS {
            let Support::Renamed(successor) = field.support(dialect) else { continue };
            let error = read(dialect, field.name, json!({"a": 1})).expect_err(field.name);
            assert_eq!(error.param.as_deref(), Some(field.name));
            assert!(error.message.contains(successor), "{error:?}");
        }
    }
}

#[test]
fn ignored_and_unknown_fields_are_reported() {
    for dialect in BOTH {
        assert_eq!(unused(dialect, "no_such_field", json!(1)).unknown, ["no_such_field"]);
        assert_eq!(unused(dialect, "no_such_field", Value::Null), Unused::default());
        for field in FIELDS {
            if let Support::Ignored(why) = field.support(dialect) {
                assert_eq!(unused(dialect, field.name, json!("x")).ignored, [(field.name, why)]);
            }
        }
    }
    assert_eq!(unused(Dialect::Completions, "messages", json!([])).unknown, ["messages"]);
}

#[test]
fn bounds_of_every_sampling_field_vllm_47494() {
    let table: &[(&str, &[Value], &[Value])] = &[
        (
            "temperature",
            &[json!(0), json!(-0.0), json!(2), json!(5), json!(1e-320)],
            &[json!(-0.1), json!(1e39)],
        ),
        ("top_p", &[json!(1), json!(0.01)], &[json!(0), json!(1.01), json!(-1)]),
        ("min_p", &[json!(0), json!(1)], &[json!(-0.01), json!(1.01), json!(2)]),
        ("top_k", &[json!(-1), json!(0), json!(1), json!(2_147_483_647_i64)], &[json!(-2), json!(1.5)]),
        ("frequency_penalty", &[json!(-2), json!(2)], &[json!(-2.01), json!(2.01), json!(100)]),
        ("presence_penalty", &[json!(-2), json!(2)], &[json!(-2.01), json!(2.01)]),
        ("repetition_penalty", &[json!(0.01), json!(1), json!(1e9)], &[json!(0), json!(-1)]),
        ("min_tokens", &[json!(0), json!(1)], &[json!(-1), json!(0.5)]),
        ("prompt_logprobs", &[json!(0), json!(20)], &[json!(-1), json!(21)]),
        ("cache_salt", &[json!("s"), json!("é".repeat(128))], &[json!(""), json!("é".repeat(129))]),
        ("stream_options", &[], &[json!({}), json!({"include_usage": true})]),
        (
            "speculation",
            &[json!("off"), json!("auto"), json!({"max_tokens": 3})],
            &[
                json!("on"),
                json!(3),
                json!({}),
                json!({"max_tokens": -1}),
                json!({"max_tokens": "3"}),
                json!({"min": 1}),
            ],
        ),
        ("priority", &[json!(0)], &[json!(1), json!(2_147_483_648_i64)]),
    ];
    for dialect in BOTH {
        for (name, good, bad) in table {
            for value in *good {
                read(dialect, name, value.clone())
                    .unwrap_or_else(|error| panic!("{name} {value}: {error:?}"));
            }
            for value in bad.iter().chain(&[json!("0.5"), json!(true), json!([])]) {
                if *name == "cache_salt" && value == "0.5" {
                    continue;
                }
                let error = read(dialect, name, value.clone()).expect_err(&format!("{name} {value}"));
                assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(*name)), "{value}");
            }
            assert!(read(dialect, name, Value::Null).is_ok(), "{name}");
        }
    }
}

#[test]
fn numbers_that_are_not_json_are_refused_sglang_28153() {
    for value in ["NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5"] {
        let body = format!("{{\"prompt\":\"q\",\"temperature\":{value}}}");
        assert_eq!(completion_bytes(body.as_bytes()).unwrap_err().status, 400, "{value}");
    }
}

#[test]
fn huge_integers_are_refused_and_size_nothing_vllm_51137() {
    let huge =
        [json!(-1), json!(2_147_483_648_i64), json!(9_223_372_036_854_775_807_u64), json!(1e30), json!(1e3)];
    for name in ["n", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"] {
        for value in &huge[1..] {
            let error =
                read(Dialect::Completions, name, value.clone()).expect_err(&format!("{name} {value}"));
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }
    for name in ["max_tokens", "min_tokens"] {
        for value in [&huge[0], &huge[2], &huge[3]] {
            assert!(read(Dialect::Completions, name, value.clone()).is_err(), "{name} {value}");
        }
    }
}

#[test]
fn max_tokens_must_be_an_integer_vllm_39556() {
    for value in [json!(-1), json!(1.5), json!("8"), json!(true)] {
        for (dialect, name) in [
            (Dialect::Completions, "max_tokens"),
            (Dialect::Chat, "max_tokens"),
            (Dialect::Chat, "max_completion_tokens"),
        ] {
            assert_eq!(read(dialect, name, value.clone()).unwrap_err().param.as_deref(), Some(name));
        }
    }
    let max = |dialect, value| read(dialect, "max_tokens", value).unwrap().params.max_tokens;
    assert_eq!(max(Dialect::Completions, json!(8.0)), Some(8));
    assert_eq!(max(Dialect::Completions, Value::Null), Some(16));
    assert_eq!(max(Dialect::Chat, Value::Null), None);
    let both =
        json!({"messages": [{"role": "user", "content": "q"}], "max_tokens": 5, "max_completion_tokens": 7});
    let both = chat_bytes(both.to_string().as_bytes()).unwrap();
    assert_eq!(both.common.params.max_tokens, Some(7));
}

#[test]
fn logprobs_and_top_logprobs_go_together_lmdeploy_4121() {
    let chat = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "q"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        chat_bytes(body.to_string().as_bytes()).map(|request| request.common.params.logprobs)
    };
    assert_eq!(chat(json!({"logprobs": true})).unwrap(), Some(0));
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": 0})).unwrap(), Some(0));
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": null})).unwrap(), Some(0));
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": 5})).unwrap(), Some(5));
    assert_eq!(chat(json!({"logprobs": false, "top_logprobs": 0})).unwrap(), None);
    for bad in [
        json!({"logprobs": false, "top_logprobs": 5}),
        json!({"top_logprobs": 5}),
        json!({"logprobs": true, "top_logprobs": 21}),
        json!({"logprobs": true, "top_logprobs": -1}),
        json!({"logprobs": 5}),
    ] {
        assert_eq!(chat(bad.clone()).unwrap_err().status, 400, "{bad}");
    }
    for (value, wanted) in
        [(json!(0), Some(0)), (json!(1), Some(1)), (json!(5), Some(5)), (Value::Null, None)]
    {
        assert_eq!(read(Dialect::Completions, "logprobs", value).unwrap().params.logprobs, wanted);
    }
    assert!(read(Dialect::Completions, "logprobs", json!(-1)).is_err());
}

#[test]
fn an_empty_stop_string_is_refused_sglang_38712() {
    for dialect in BOTH {
        for bad in
            [json!(""), json!([""]), json!(["ok", ""]), json!([1]), json!({}), json!(vec!["x"; MAX_STOP + 1])]
        {
            assert_eq!(read(dialect, "stop", bad).unwrap_err().param.as_deref(), Some("stop"));
        }
        for none in [Value::Null, json!([])] {
            assert!(read(dialect, "stop", none).unwrap().stop.is_empty());
        }
        assert_eq!(read(dialect, "stop", json!("a")).unwrap().stop, ["a"]);
        assert_eq!(read(dialect, "stop", json!(["a", "b"])).unwrap().stop, ["a", "b"]);
    }
}

#[test]
fn token_ids_in_every_field_are_of_the_vocabulary_vllm_16529() {
    for dialect in BOTH {
        for bias in [
            json!({"1000": 5}),
            json!({"-1": 5}),
            json!({"abc": 1}),
            json!({"5": 1000}),
            json!({"5": "1"}),
            json!({"99999999999999999999": 1}),
        ] {
            assert_eq!(read(dialect, "logit_bias", bias).unwrap_err().param.as_deref(), Some("logit_bias"));
        }
        let many: Value =
            (0..100_000).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into();
        assert!(read(dialect, "logit_bias", many).is_err());
        for name in ["stop_token_ids", "allowed_token_ids"] {
            for bad in [json!([1000]), json!([-1]), json!([1.5]), json!([true]), json!(["7"]), json!(7)] {
                assert_eq!(read(dialect, name, bad).unwrap_err().param.as_deref(), Some(name));
            }
        }
        assert!(read(dialect, "allowed_token_ids", json!([])).is_err());
        let bias = read(dialect, "logit_bias", json!({"5": -100, "999": 0.5})).unwrap().params.logit_bias;
        assert_eq!(bias, [(5, -100.0), (999, 0.5)]);
    }
}

#[test]
fn seeds_of_any_sign_are_seeds_tt_metal_53802() {
    for dialect in BOTH {
        let seed = |value| read(dialect, "seed", value).map(|common| common.params.seed);
        assert_eq!(seed(json!(0)).unwrap(), Some(0));
        assert_eq!(seed(json!(-1)).unwrap(), Some(u64::MAX));
        assert_eq!(seed(json!(u64::MAX)).unwrap(), Some(u64::MAX));
        assert_eq!(seed(Value::Null).unwrap(), None);
        assert!(seed(json!(1e30)).is_err());
    }
}

#[test]
fn n_is_bounded_and_never_dropped_vllm_52843() {
    for dialect in BOTH {
        assert_eq!(read(dialect, "n", json!(4)).unwrap().n, 4);
        assert_eq!(read(dialect, "n", Value::Null).unwrap().n, 1);
        for bad in [json!(0), json!(-1), json!(MAX_N + 1), json!(2.5)] {
            assert_eq!(read(dialect, "n", bad).unwrap_err().param.as_deref(), Some("n"));
        }
    }
}

#[test]
fn truncation_takes_minus_one_and_the_context_vllm_22635() {
    for dialect in BOTH {
        let cut = |value| read(dialect, "truncate_prompt_tokens", value).map(|common| common.truncate);
        for (value, wanted) in
            [(json!(-1), Some(63)), (json!(1), Some(1)), (json!(2), Some(2)), (json!(64), Some(64))]
        {
            assert_eq!(cut(value).unwrap(), wanted);
        }
        for bad in [json!(-2), json!(0), json!(65)] {
            assert!(cut(bad.clone()).is_err(), "{bad}");
        }
        assert!(read(dialect, "truncation_side", json!("middle")).is_err());
    }
}

#[test]
fn stream_options_need_a_stream_kthena_202() {
    for dialect in BOTH {
        let mut body: Value = serde_json::from_slice(&body(dialect, "stream", json!(true))).unwrap();
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": null});
        let (fields, _) = Fields::parse(body.to_string().as_bytes(), dialect).unwrap();
        let shown = match dialect {
            Dialect::Chat => ChatRequest::read(fields, &LIMITS).unwrap().common.shown,
            Dialect::Completions => CompletionRequest::read(fields, &LIMITS).unwrap().common.shown,
        };
        assert!(shown.stream && shown.include_usage && !shown.continuous_usage);
        assert!(read(dialect, "stream_options", json!({"include_usage": false})).is_err());
    }
}

#[test]
fn prompts_are_text_or_ids_or_lists_of_them() {
    let prompts = |value| {
        let (fields, _) =
            Fields::parse(json!({"prompt": value}).to_string().as_bytes(), Dialect::Completions)?;
        CompletionRequest::read(fields, &LIMITS).map(|request| request.prompts)
    };
    let text = |text: &str| Prompt::Text(text.to_owned());
    assert_eq!(prompts(json!("a")).unwrap(), [text("a")]);
    assert_eq!(prompts(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
    assert_eq!(prompts(json!([1, 2])).unwrap(), [Prompt::Ids(vec![1, 2])]);
    assert_eq!(prompts(json!([[1], [2, 3]])).unwrap(), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
    assert_eq!(prompts(json!(["a", [1]])).unwrap(), [text("a"), Prompt::Ids(vec![1])]);
}

#[test]
fn one_bad_prompt_refuses_the_whole_body_vllm_45035() {
    for bad in
        [json!([]), json!(""), json!([[]]), json!([[1], []]), json!([""]), json!(["a", ""]), json!(["a", 1])]
    {
        let error = read(Dialect::Completions, "prompt", bad.clone()).expect_err(&bad.to_string());
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("prompt")));
    }
    assert_eq!(completion_bytes(b"{}").unwrap_err().param.as_deref(), Some("prompt"));
}

#[test]
fn prompt_ids_are_of_the_vocabulary_vllm_51795() {
    for bad in
        ["[-1]", "[1000]", "[4294967295]", "[5279552648203111001]", "[1.5]", "[true]", "[[0,1000]]", "[1e99]"]
    {
        let body = format!("{{\"prompt\":{bad}}}");
        let error = completion_bytes(body.as_bytes()).expect_err(bad);
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("prompt")), "{bad}");
    }
}

#[test]
fn unpaired_surrogates_are_refused_without_internals_rapid_mlx_730() {
    for text in ["a\\ud83db", "\\ud800", "\\udc00"] {
        for body in [
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"),
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"q\"}}],\"stop\":\"{text}\"}}"),
        ] {
            let error = chat_bytes(body.as_bytes()).expect_err(text);
            assert_eq!(error.status, 400);
            assert!(error.message.starts_with("the body is not valid JSON"), "{error:?}");
        }
    }
    for text in ["\\ud83d\\ude00", "\\u0000"] {
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}");
        assert!(chat_bytes(body.as_bytes()).is_ok(), "{text}");
    }
}

#[test]
fn a_deep_body_is_refused_and_overflows_nothing_llama_cpp_26600() {
    let deep = format!("{{\"prompt\":{}", "[".repeat(100_000));
    assert_eq!(completion_bytes(deep.as_bytes()).unwrap_err().status, 400);
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    for body in ["", " ", "[]", "null", "3", "\"x\"", "{", "{\"prompt\":\"a\"}x", "\u{feff}{}"] {
        assert_eq!(completion_bytes(body.as_bytes()).expect_err(body).status, 400);
    }
    assert_eq!(completion_bytes(b"{\"prompt\":\"\xff\"}").unwrap_err().status, 400);
}

#[test]
fn messages_that_no_template_expects_are_refused_dynamo_2067() {
    for bad in [
        json!([]),
        Value::Null,
        json!("hi"),
        json!([{}]),
        json!(["hi"]),
        json!([{"role": "robot", "content": "q"}]),
        json!([{"role": 5, "content": "q"}]),
        json!([{"role": "user", "content": 5}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": [{"type": "hologram"}]}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "tool", "content": "x", "tool_call_id": "nobody"}]),
    ] {
        let error = render(bad.clone()).expect_err(&bad.to_string());
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("messages")), "{bad}");
    }
}

#[test]
fn media_parts_are_a_typed_501() {
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]);
    let error = read(Dialect::Chat, "messages", image).unwrap_err();
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (501, Some("messages")));
}

#[test]
fn empty_contents_are_contents_vllm_21089() {
    for content in [json!(""), json!([]), json!([{"type": "text", "text": ""}]), Value::Null] {
        let messages = json!([
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": content},
            {"role": "user", "content": "B"},
        ]);
        render(messages).unwrap_or_else(|error| panic!("{content}: {error:?}"));
    }
}

#[test]
fn templates_are_not_taken_from_requests_vllm_52025() {
    let bomb = "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}";
    let error = read(Dialect::Chat, "chat_template", json!(bomb)).unwrap_err();
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("chat_template")));
}

#[test]
fn tools_may_be_called_where_a_parser_reads_the_call() {
    let with = |tools: Option<&str>, choice: Value| {
        let limits =
            Limits { format: Format { tools: tools.and_then(ToolFormat::named), ..LIMITS.format }, ..LIMITS };
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let mut body = json!({"messages": [{"role": "user", "content": "q"}], "tools": tools});
        body["tool_choice"] = choice;
        let (fields, _) = Fields::parse(body.to_string().as_bytes(), Dialect::Chat)?;
        ChatRequest::read(fields, &limits)
    };
    let (parser, named) =
        (Some("hermes"), |name: &str| json!({"type": "function", "function": {"name": name}}));
    assert_eq!(with(None, json!("none")).unwrap().conversation.tools.unwrap().len(), 1);
    for auto in [Value::Null, json!("auto")] {
        assert_eq!(with(parser, auto.clone()).unwrap().tool_choice, ToolChoice::Auto);
        let error = with(None, auto).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tools")));
        assert!(error.message.contains("--tool-call-parser"), "{error:?}");
    }
    for enforced in [json!("required"), named("f")] {
        assert!(with(parser, enforced.clone()).is_ok());
        let error = with(None, enforced).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tools")));
    }
    for wrong in [named("g"), json!({"type": "function"}), json!("any"), json!(1)] {
        let error = with(parser, wrong).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tool_choice")));
    }
    assert!(read(Dialect::Chat, "tools", json!([{"type": "function"}])).is_err());
}

/// Nothing answers `tool_calls` with an empty list: the impossible set-ups are refused.
#[test]
fn a_call_cannot_be_required_without_tools_vllm_53255() {
    assert!(read(Dialect::Chat, "tool_choice", json!("auto")).is_ok());
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
        let mut body = json!({"messages": [{"role": "user", "content": "q"}], "tool_choice": choice});
        for tools in [Value::Null, json!([])] {
            body["tools"] = tools;
            let error = chat_bytes(body.to_string().as_bytes()).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tool_choice")));
        }
    }
}

#[test]
fn reasoning_is_left_out_only_by_a_server_that_finds_it() {
    assert_eq!(read(Dialect::Chat, "include_reasoning", json!(false)).unwrap_err().status, 501);
    assert!(read(Dialect::Chat, "include_reasoning", json!(true)).is_ok());
}

#[test]
fn the_end_of_the_prompt_is_said_once() {
    let ends = |fields: Value| {
        let mut body = json!({"messages": [{"role": "assistant", "content": "q"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        chat_bytes(body.to_string().as_bytes()).map(|request| {
            (request.conversation.add_generation_prompt, request.conversation.continue_final_message)
        })
    };
    assert_eq!(ends(json!({})).unwrap(), (true, false));
    assert_eq!(ends(json!({"continue_final_message": true})).unwrap(), (false, true));
    assert_eq!(ends(json!({"add_generation_prompt": false})).unwrap(), (false, false));
    assert!(ends(json!({"continue_final_message": true, "add_generation_prompt": true})).is_err());
}

#[test]
fn nothing_given_is_the_default() {
    let request = completion_bytes(b"{\"prompt\":\"q\"}").unwrap();
    let defaults = SamplingParams { max_tokens: Some(16), ..SamplingParams::default() };
    assert_eq!(request.common.params, defaults);
    assert!(request.common.skip_special && !request.common.include_stop && !request.echo);
}

#[test]
fn an_error_quotes_little_of_what_was_sent() {
    let error = read(Dialect::Chat, "temperature", json!("x".repeat(100_000))).unwrap_err();
    assert!(error.message.len() < 200, "{}", error.message.len());
}
