//! The JSON schema of each request field, for the `OpenAPI` description.
//!
//! The checks themselves are in the readers; a schema says what type they take, and a test holds every supported field
//! against this list.

use serde_json::{Value, json};

use super::common::{MAX_BAD_WORDS, MAX_N, MAX_SALT, MAX_STOP};
use super::parity::{Dialect, Off};

/// The schema of a field that `dialect` reads; `None` for one that has none here.
pub fn of(dialect: Dialect, name: &str) -> Option<Value> {
    if let Some(own) = of_dialect(dialect, name) {
        return Some(own);
    }
    Some(match name {
        "add_generation_prompt"
        | "add_special_tokens"
        | "continue_final_message"
        | "echo"
        | "enable_thinking"
        | "ignore_eos"
        | "include_reasoning"
        | "include_stop_str_in_output"
        | "no_stop_trim"
        | "parallel_tool_calls"
        | "return_token_ids"
        | "return_tokens_as_token_ids"
        | "skip_special_tokens"
        | "stop_in_reasoning"
        | "store"
        | "stream"
        | "timings" => json!({"type": "boolean"}),
        "model" | "request_id" | "rid" | "instructions" | "previous_response_id" | "reasoning_effort" => {
            json!({"type": "string"})
        }
        "cache_salt" => json!({"type": "string", "minLength": 1, "maxLength": MAX_SALT}),
        "truncation_side" => json!({"enum": ["left", "right"]}),
        "temperature" => json!({"type": "number", "minimum": 0}),
        "top_p" => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        "min_p" => json!({"type": "number", "minimum": 0, "maximum": 1}),
        "presence_penalty" | "frequency_penalty" => json!({"type": "number", "minimum": -2, "maximum": 2}),
        "repetition_penalty" => json!({"type": "number", "exclusiveMinimum": 0}),
        "n" => json!({"type": "integer", "minimum": 1, "maximum": MAX_N}),
        "top_k" => json!({"type": "integer", "minimum": -1}),
        "truncate_prompt_tokens" => crate::openapi::bodies::truncation(),
        "max_tokens"
        | "max_completion_tokens"
        | "min_tokens"
        | "prompt_logprobs"
        | "top_logprobs"
        | "thinking_budget"
        | "thinking_token_budget" => json!({"type": "integer", "minimum": 0}),
        "priority" | "seed" => json!({"type": "integer"}),
        "stop" | "stop_sequences" => {
            json!({"anyOf": [{"type": "string", "minLength": 1},
                {"type": "array", "maxItems": MAX_STOP, "items": {"type": "string", "minLength": 1}}]})
        }
        "bad_words" => {
            json!({"type": "array", "maxItems": MAX_BAD_WORDS, "items": {"type": "string", "minLength": 1}})
        }
        "stop_token_ids" | "allowed_token_ids" | "token_ids" => ids(),
        "logit_bias" => {
            json!({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})
        }
        "messages" => crate::openapi::bodies::messages(),
        "documents" | "tools" | "include" => json!({"type": "array", "items": {}}),
        "response_format"
        | "structured_outputs"
        | "chat_template_kwargs"
        | "metadata"
        | "reasoning"
        | "text"
        | "thinking"
        | "output_config"
        | "output_format"
        | "sampling_params" => json!({"type": "object"}),
        "stream_options" => json!({"type": "object", "properties": {"include_usage": {"type": "boolean"},
            "continuous_usage_stats": {"type": "boolean"}}}),
        "speculation" | "tool_choice" => json!({"type": ["string", "object"]}),
        "input" | "system" => json!({"type": ["string", "array"]}),
        "prompt" => {
            json!({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {}}]})
        }
        _ => return None,
    })
}

/// The values of a refused field that ask for nothing.
pub fn off(off: Off) -> Value {
    let alone = match off {
        Off::Null => return json!({"type": "null"}),
        Off::False => json!({"const": false}),
        Off::True => json!({"const": true}),
        Off::Empty => {
            json!({"type": ["array", "object", "string"], "maxItems": 0, "maxProperties": 0, "maxLength": 0})
        }
        Off::Zero => json!({"const": 0}),
        Off::One => json!({"const": 1}),
        Off::Text(text) => json!({"const": text}),
        Off::Type(text) => {
            json!({"type": "object", "required": ["type"], "properties": {"type": {"const": text}}})
        }
        Off::Only(text) => json!({"type": "array", "minItems": 1, "maxItems": 1, "items": {"const": text}}),
    };
    json!({"anyOf": [alone, {"type": "null"}]})
}

fn of_dialect(dialect: Dialect, name: &str) -> Option<Value> {
    match (dialect, name) {
        (Dialect::Chat, "logprobs") => Some(json!({"type": "boolean"})),
        (_, "logprobs") => Some(json!({"type": "integer", "minimum": 0})),
        (Dialect::Responses, "max_output_tokens") | (Dialect::Messages, "max_tokens") => {
            Some(json!({"type": "integer", "minimum": 1}))
        }
        (Dialect::Messages, "tool_choice") => Some(json!({"type": "object"})),
        _ => None,
    }
}

fn ids() -> Value {
    json!({"type": "array", "items": {"type": "integer", "minimum": 0}})
}

/// The fields that a body must have.
pub const fn required(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Chat => &["messages"],
        Dialect::Completions => &["prompt"],
        Dialect::Responses => &["input"],
        Dialect::Messages => &["messages", "max_tokens"],
        Dialect::Tokens => &["token_ids"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::parity;

    #[test]
    fn every_field_that_is_read_has_a_schema() {
        for dialect in
            [Dialect::Chat, Dialect::Completions, Dialect::Responses, Dialect::Messages, Dialect::Tokens]
        {
            for name in parity::supported(dialect) {
                assert!(of(dialect, name).is_some(), "{dialect:?} {name}");
            }
            for name in required(dialect) {
                assert!(matches!(parity::support(dialect, name), parity::Support::Yes), "{name}");
            }
        }
    }
}
