//! What bodies are taken, and what each refusal says.

use axum::http::StatusCode;
use frizzen_core::ParamLimits;
use frizzen_text::parse::{Format, ToolFormat};
use serde_json::{Value, json};

use super::chat::ChatRequest;
use super::common::Limits;
use super::completion::CompletionRequest;
use super::fields::{Fields, Unused};
use super::messages;
use super::native;
use super::parity::{self, Dialect, Off, Support};
use super::responses::ResponsesRequest;
use super::tokens;
use super::tools::ToolChoice;
use crate::defaults::SamplingDefaults;
use crate::error::ApiError;
use crate::pooling::cohere::CohereRequest;
use crate::pooling::compare::{RerankRequest, ScoreRequest};
use crate::pooling::request::VectorsRequest;

mod bodies;
mod fuzz;
mod values;

const LIMITS: Limits = Limits {
    params: ParamLimits { vocab_size: 1000, max_model_len: 64, max_logprobs: 20 },
    by_priority: false,
    format: Format { reasoning: None, tools: None },
    defaults: SamplingDefaults {
        temperature: None,
        top_p: None,
        top_k: None,
        min_p: None,
        repetition_penalty: None,
    },
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
        Dialect::Responses => json!({"input": "q"}),
        Dialect::Tokens => json!({"token_ids": [1, 2]}),
        Dialect::Messages => json!({"messages": [{"role": "user", "content": "q"}], "max_tokens": 5}),
        Dialect::Generate => json!({"text": "q"}),
        // The fields of a conversation are read where there is one.
        Dialect::Embeddings | Dialect::Pooling | Dialect::Classify => {
            json!({"messages": [{"role": "user", "content": "q"}]})
        }
        Dialect::Score => json!({"queries": "q", "documents": ["d"]}),
        Dialect::Rerank => json!({"query": "q", "documents": ["d"]}),
        Dialect::Cohere => json!({"texts": ["q"]}),
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
        Dialect::Responses => {
            let (fields, _) = Fields::parse(&body, dialect)?;
            let recall = |_: &str| Ok(Vec::new());
            ResponsesRequest::read(fields, &LIMITS, &recall).map(|request| request.chat.common)
        }
        Dialect::Tokens => {
            let (fields, _) = Fields::parse(&body, dialect)?;
            tokens::read(fields, &LIMITS).map(|(request, _)| request.common)
        }
        Dialect::Messages => {
            let (fields, _) = Fields::parse(&body, dialect)?;
            messages::read(fields, &LIMITS).map(|request| request.common)
        }
        Dialect::Generate => {
            let (fields, _) = Fields::parse(&body, dialect)?;
            native::read(fields, &LIMITS).map(|(request, _)| request.completion.common)
        }
        other => panic!("{other:?} has no sampling"),
    }
}

/// Whether a body is taken, in any dialect.
fn attempt_body(dialect: Dialect, body: &[u8], limits: &Limits) -> Result<(), ApiError> {
    let (fields, _) = Fields::parse(body, dialect)?;
    match dialect {
        Dialect::Chat => ChatRequest::read(fields, limits).map(drop),
        Dialect::Completions => CompletionRequest::read(fields, limits).map(drop),
        Dialect::Responses => ResponsesRequest::read(fields, limits, &|_| Ok(Vec::new())).map(drop),
        Dialect::Messages => messages::read(fields, limits).map(drop),
        Dialect::Tokens => tokens::read(fields, limits).map(drop),
        Dialect::Generate => native::read(fields, limits).map(drop),
        Dialect::Embeddings | Dialect::Pooling | Dialect::Classify => {
            VectorsRequest::read(fields, dialect, limits).map(drop)
        }
        Dialect::Score => ScoreRequest::read(fields, limits).map(drop),
        Dialect::Rerank => RerankRequest::read(fields, limits).map(drop),
        Dialect::Cohere => CohereRequest::read(fields, limits).map(drop),
    }
}

/// Whether a small body with this field is taken.
fn attempt(dialect: Dialect, name: &str, value: Value) -> Result<(), ApiError> {
    attempt_body(dialect, &body(dialect, name, value), &LIMITS)
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
const ALL: [Dialect; 12] = Dialect::ALL;

#[test]
fn every_supported_field_is_read() {
    // No field takes this number, so a field that accepts it is not read at all: its entry is stale.
    for dialect in ALL {
        for name in parity::supported(dialect) {
            let error = attempt(dialect, name, json!(12.5e300)).expect_err(name);
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{name}");
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }
}

#[test]
fn every_refused_field_is_refused_by_name_and_its_off_value_is_not() {
    for dialect in ALL {
        for (name, support) in parity::table(dialect) {
            let Support::Refused(status, off, why) = support else { continue };
            let error = attempt(dialect, name, json!({"type": "asked", "n": 7})).expect_err(name);
            assert_eq!((error.status, error.param.as_deref()), (status, Some(name)));
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
            assert!(attempt(dialect, name, neutral).is_ok(), "{}", name);
            assert!(attempt(dialect, name, Value::Null).is_ok(), "{}", name);
        }
    }
}

#[test]
fn a_removed_field_names_its_successor() {
    for dialect in ALL {
        for (name, support) in parity::table(dialect) {
            let Support::Renamed(successor) = support else { continue };
            let error = attempt(dialect, name, json!({"a": 1})).expect_err(name);
            assert_eq!(error.param.as_deref(), Some(name));
            assert!(error.message.contains(successor), "{error:?}");
        }
    }
}

#[test]
fn ignored_and_unknown_fields_are_reported() {
    for dialect in ALL {
        assert_eq!(unused(dialect, "no_such_field", json!(1)).unknown, ["no_such_field"]);
        assert_eq!(unused(dialect, "no_such_field", Value::Null), Unused::default());
        for (name, support) in parity::table(dialect) {
            if let Support::Ignored(why) = support {
                assert_eq!(unused(dialect, name, json!("x")).ignored, [(name, why)]);
            }
        }
    }
    assert_eq!(unused(Dialect::Completions, "messages", json!([])).unknown, ["messages"]);
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
