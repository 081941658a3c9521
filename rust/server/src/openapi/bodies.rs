//! Schemas of the bodies whose fields stand in no table of [`crate::request::parity`].
//!
//! As in [`crate::request::schema`], the checks are the readers'; these say what types they take, and a field that is not
//! here is counted and has no effect.

use serde_json::{Map, Value, json};

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
        Endpoint::ParseFunctionCall => object(
            &["text"],
            &[
                ("text", text()),
                ("tools", json!({"type": "array", "items": {"type": "object"}})),
                ("tool_call_parser", text()),
            ],
        ),
        Endpoint::SeparateReasoning => object(&["text"], &[("text", text()), ("reasoning_parser", text())]),
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
    json!({"type": "array", "items": {"$ref": "#/components/schemas/TokenId"}})
}

fn strings() -> Value {
    json!({"anyOf": [text(), {"type": "array", "items": text()}]})
}
