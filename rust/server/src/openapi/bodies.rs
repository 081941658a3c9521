//! Schemas of the bodies whose fields stand in no table of [`crate::request::parity`].
//!
//! As in [`crate::request::schema`], the checks are the readers'; these say what types they take, and a field that is not
//! here is counted and has no effect.

use serde_json::{Map, Value, json};

use crate::pooling::request::MAX_INPUTS;
use crate::request::common::MAX_SALT;
use crate::routes::Endpoint;

/// The schema of a route's body; `None` if its fields are those of a dialect, or it has none.
pub fn of(endpoint: Endpoint) -> Option<Value> {
    Some(match endpoint {
        Endpoint::CountTokens => object(&["messages"], &[("messages", messages())]),
        Endpoint::Tokenize => one_of(
            &["prompt", "messages"],
            &[
                ("prompt", text()),
                ("messages", messages()),
                ("model", text()),
                ("add_special_tokens", flag()),
                ("add_generation_prompt", flag()),
                ("continue_final_message", flag()),
                ("return_token_strs", flag()),
                ("tools", json!({"type": "array", "items": {"type": "object"}})),
                ("chat_template_kwargs", json!({"type": "object"})),
            ],
        ),
        Endpoint::Detokenize => object(&["tokens"], &[("tokens", ids()), ("model", text())]),
        Endpoint::Parse => one_of(
            &["text", "token_ids"],
            &[
                ("text", text()),
                ("token_ids", ids()),
                ("model", text()),
                ("reasoning_parser", text()),
                ("tool_call_parser", text()),
                ("tools", json!({"type": "array", "items": {"type": "object"}})),
                ("starts_in_reasoning", flag()),
            ],
        ),
        Endpoint::Invocations => one_of(
            &["prompt", "messages"],
            &[("prompt", json!({"type": ["string", "array"]})), ("messages", messages())],
        ),
        Endpoint::AbortRequests => one_of(
            &["request_ids", "request_id", "rid", "prefix", "all", "abort_all"],
            &[
                ("request_ids", strings()),
                ("request_id", strings()),
                ("rid", strings()),
                ("prefix", text()),
                ("all", flag()),
                ("abort_all", flag()),
            ],
        ),
        Endpoint::Embeddings => vectors(&[("dimensions", json!({"type": "integer", "minimum": 1}))]),
        Endpoint::Pooling => vectors(&[("task", text())]),
        Endpoint::Classify => pooled(&["input"], &[("input", inputs())]),
        Endpoint::Score => pooled(&["queries", "documents"], &[("queries", texts()), ("documents", texts())]),
        Endpoint::Rerank => pooled(
            &["query", "documents"],
            &[
                ("query", json!({"type": ["string", "object"]})),
                ("documents", texts()),
                ("top_n", json!({"type": "integer", "minimum": 0})),
                ("max_tokens_per_doc", json!({"type": "integer", "minimum": 1})),
                ("return_documents", flag()),
            ],
        ),
        _ => return None,
    })
}

type Fields<'a> = &'a [(&'a str, Value)];

/// What must be there cannot be null; everything else can.
fn object(required: &[&str], fields: Fields<'_>) -> Value {
    let property = |(name, schema): &(&str, Value)| {
        let schema = if required.contains(name) { schema.clone() } else { nullable(schema) };
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// At least one of `names` must be there.
fn one_of(names: &[&str], fields: Fields<'_>) -> Value {
    let mut schema = object(&[], fields);
    schema["anyOf"] = names
        .iter()
        .map(|name| {
            let of_its_own = fields.iter().find(|(field, _)| field == name).map(|(_, schema)| schema);
            json!({"required": [name], "properties": {*name: of_its_own}})
        })
        .collect();
    schema
}

/// A schema that takes null too.
pub fn nullable(schema: &Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

/// What all endpoints take that return what a pooling model makes of texts.
fn pooled(required: &[&str], fields: Fields<'_>) -> Value {
    let shared = [
        ("model", text()),
        ("add_special_tokens", flag()),
        ("truncate_prompt_tokens", truncation()),
        ("truncation_side", json!({"enum": ["left", "right"]})),
        ("use_activation", flag()),
        ("normalize", flag()),
        ("activation", flag()),
        ("priority", json!({"type": "integer"})),
        ("cache_salt", json!({"type": "string", "minLength": 1, "maxLength": MAX_SALT})),
        ("request_id", text()),
        ("user", text()),
    ];
    object(required, &[fields, shared.as_slice()].concat())
}

fn vectors(fields: Fields<'_>) -> Value {
    let shared = [
        ("input", inputs()),
        ("encoding_format", json!({"enum": ["float", "base64", "bytes", "bytes_only"]})),
        ("embed_dtype", json!({"enum": ["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]})),
        ("endianness", json!({"enum": ["native", "big", "little"]})),
    ];
    pooled(&["input"], &[fields, shared.as_slice()].concat())
}

/// To the context's length, or to so many tokens.
pub fn truncation() -> Value {
    json!({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]})
}

/// Turns of a conversation. A template may name further roles.
pub fn messages() -> Value {
    let turn = json!({"type": "object", "required": ["role"], "properties": {"role": {"type": "string", "minLength": 1}}});
    json!({"type": "array", "minItems": 1, "items": turn})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn ids() -> Value {
    json!({"type": "array", "items": {"type": "integer", "minimum": 0}})
}

fn strings() -> Value {
    json!({"anyOf": [text(), {"type": "array", "items": text()}]})
}

fn inputs() -> Value {
    let ids = json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}});
    let many =
        json!({"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": {"anyOf": [text(), ids]}});
    json!({"anyOf": [text(), ids, many]})
}

fn texts() -> Value {
    let one =
        json!({"anyOf": [text(), {"type": "object", "required": ["text"], "properties": {"text": text()}}]});
    json!({"anyOf": [one, {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": one}]})
}
