//! The JSON schema of each request field, for the `OpenAPI` description.
//!
//! The checks themselves are in the readers; a schema says what type they take, and a test holds every supported field
//! against this list.

use serde_json::{Value, json};

use super::common::{MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_N, MAX_SALT, MAX_STOP};
use super::completion::MAX_PROMPTS;
use super::parity::{Dialect, Off};
use crate::pooling::request::MAX_INPUTS;

/// The schema of a field that `dialect` reads; `None` for one that has none here.
pub fn of(dialect: Dialect, name: &str) -> Option<Value> {
    of_dialect(dialect, name).or_else(|| shared(name)).or_else(|| pooled(name)).or_else(|| flag(name))
}

fn flag(name: &str) -> Option<Value> {
    let is_flag = matches!(
        name,
        "activation"
            | "add_generation_prompt"
            | "add_special_tokens"
            | "background"
            | "continue_final_message"
            | "echo"
            | "enable_thinking"
            | "ignore_eos"
            | "include_reasoning"
            | "include_stop_str_in_output"
            | "no_stop_trim"
            | "normalize"
            | "parallel_tool_calls"
            | "return_documents"
            | "return_logprob"
            | "return_text_in_logprobs"
            | "return_prompt_text"
            | "return_token_ids"
            | "return_token_offsets"
            | "return_tokens_as_token_ids"
            | "skip_special_tokens"
            | "softmax"
            | "stop_in_reasoning"
            | "store"
            | "stream"
            | "timings"
            | "use_activation"
    );
    is_flag.then(|| json!({"type": "boolean"}))
}

fn shared(name: &str) -> Option<Value> {
    Some(match name {
        "model" | "request_id" | "rid" | "instructions" | "previous_response_id" | "reasoning_effort" => {
            json!({"type": "string"})
        }
        "cache_salt" => json!({"type": "string", "minLength": 1, "maxLength": MAX_SALT}),
        "truncation_side" => json!({"enum": ["left", "right"]}),
        "temperature" => json!({"type": "number", "minimum": 0, "maximum": f32::MAX}),
        "top_p" => json!({"type": "number", "minimum": f32::MIN_POSITIVE, "maximum": 1}),
        "min_p" => json!({"type": "number", "minimum": 0, "maximum": 1}),
        "presence_penalty" | "frequency_penalty" => json!({"type": "number", "minimum": -2, "maximum": 2}),
        "repetition_penalty" => json!({"type": "number", "minimum": f32::MIN_POSITIVE, "maximum": f32::MAX}),
        "n" => integer(1, MAX_N),
        "top_k" => integer(-1, i32::MAX),
        // -1 is the model's own limit, and 0 would leave nothing.
        "truncate_prompt_tokens" => json!({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}),
        "max_tokens" | "max_completion_tokens" | "min_tokens" => integer(0, u32::MAX),
        "prompt_logprobs" | "top_logprobs" => alternatives(),
        "thinking_budget" | "thinking_token_budget" => integer(-1, u32::MAX),
        "priority" => integer(i32::MIN, i32::MAX),
        "seed" => json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}),
        "stop" | "stop_sequences" => one_or_many(MAX_STOP),
        "bad_words" => one_or_many(MAX_BAD_WORDS),
        "stop_token_ids" | "allowed_token_ids" | "logprob_token_ids" | "token_ids" | "prompt_token_ids" => {
            ids()
        }
        "logit_bias" => {
            json!({"type": "object", "maxProperties": MAX_LOGIT_BIAS,
                "propertyNames": {"pattern": "^[0-9]+$"},
                "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})
        }
        "messages" => json!({"type": "array", "minItems": 1, "items": message()}),
        "tools" => json!({"type": "array", "items": {"type": "object"}}),
        // Whatever the template makes of them.
        "documents" => json!({"type": "array", "items": {}}),
        "include" => json!({"type": "array", "items": {"type": "string"}}),
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
        "stream_options" => {
            json!({"type": "object", "properties": {"include_usage": {"type": ["boolean", "null"]},
            "continuous_usage_stats": {"type": ["boolean", "null"]}}})
        }
        "speculation" => json!({"anyOf": [{"enum": ["off", "auto"]},
            {"type": "object", "required": ["max_tokens"], "properties": {"max_tokens": integer(1, u32::MAX)}}]}),
        "tool_choice" => json!({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}),
        "input" | "system" => json!({"type": ["string", "array"]}),
        "prompt" => texts_or_ids(MAX_PROMPTS),
        _ => return None,
    })
}

/// The fields of the endpoints that return vectors or compare texts.
fn pooled(name: &str) -> Option<Value> {
    Some(match name {
        "encoding_format" => json!({"enum": ["float", "base64", "bytes", "bytes_only"]}),
        "embed_dtype" => json!({"enum": ["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]}),
        "endianness" => json!({"enum": ["native", "big", "little"]}),
        "task" => json!({"enum": ["embed", "classify", "token_embed", "token_classify"]}),
        "input_type" => {
            json!({"enum": ["search_document", "search_query", "classification", "clustering", "image"]})
        }
        "truncate" => json!({"enum": ["NONE", "START", "END"]}),
        "embedding_types" => {
            let kinds = json!({"enum": ["float", "base64", "binary", "ubinary", "int8", "uint8"]});
            json!({"anyOf": [kinds, {"type": "array", "maxItems": 4, "items": kinds}]})
        }
        "dimensions" | "output_dimension" | "max_tokens_per_doc" => integer(1, u32::MAX),
        "top_n" => integer(0, u32::MAX),
        "query" | "queries" | "documents" | "items" | "texts" | "data_1" | "data_2" | "text_1" | "text_2" => {
            documents()
        }
        "inputs" => {
            let part = json!({"type": "object", "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string", "minLength": 1}}});
            json!({"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": {"type": "object",
                "required": ["content"], "properties": {"content": {"type": "array", "minItems": 1, "items": part}}}})
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
    use Dialect::{
        Chat, Classify, Cohere, Embeddings, Generate, Messages, Pooling, Rerank, Responses, Score,
    };
    Some(match (dialect, name) {
        (Chat, "logprobs") => json!({"type": "boolean"}),
        (_, "logprobs") | (Generate, "top_logprobs_num") => alternatives(),
        (Responses, "max_output_tokens") | (Messages | Cohere, "max_tokens") => integer(1, u32::MAX),
        (Messages, "messages") => json!({"type": "array", "minItems": 1, "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": {"anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "object", "required": ["type"],
                    "properties": {"type": {"type": "string"}}}},
            ]}},
        }}),
        (Messages, "tool_choice") => json!({"type": "object"}),
        (Responses, "input") => json!({"anyOf": [{"type": "string"},
            {"type": "array", "minItems": 1, "items": {"type": "object"}}]}),
        (Responses, "metadata") => json!({"type": "object", "maxProperties": 16,
            "propertyNames": {"maxLength": 64}, "additionalProperties": {"type": "string", "maxLength": 512}}),
        (Embeddings | Pooling | Classify, "input") => texts_or_ids(MAX_INPUTS),
        (Rerank, "query") => json!({"type": "string"}),
        (Score | Rerank, "documents") => documents(),
        (Generate, "text") => one_or_many(MAX_PROMPTS),
        (Generate, "input_ids") => {
            json!({"anyOf": [ids(), {"type": "array", "minItems": 1, "items": ids()}]})
        }
        (Generate, "logprob_start_len") => integer(-1, u32::MAX),
        _ => return None,
    })
}

fn integer(least: impl Into<i64>, most: impl Into<i64>) -> Value {
    json!({"type": "integer", "minimum": least.into(), "maximum": most.into()})
}

fn ids() -> Value {
    json!({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}})
}

/// Alternatives per token; the server says how many it gives at most.
fn alternatives() -> Value {
    json!({"$ref": "#/components/schemas/Alternatives"})
}

/// A text or several, none of them empty.
fn one_or_many(most: usize) -> Value {
    let text = json!({"type": "string", "minLength": 1});
    json!({"anyOf": [text, {"type": "array", "maxItems": most, "items": text}]})
}

fn texts_or_ids(most: usize) -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let several =
        json!({"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": [text, ids()]}});
    json!({"anyOf": [text, ids(), several]})
}

/// Texts of a pair: an empty one is fine where the tokenizer adds tokens of its own.
fn documents() -> Value {
    let text = json!({"anyOf": [{"type": "string"}, {"type": "object", "required": ["text"],
        "properties": {"text": {"type": "string"}}}]});
    json!({"anyOf": [text, {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": text}]})
}

fn message() -> Value {
    json!({
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "minLength": 1},
            "name": {"type": ["string", "null"]},
            "tool_call_id": {"type": ["string", "null"]},
            "content": {"anyOf": [
                {"type": ["string", "null"]},
                {"type": "array", "items": {"type": "object", "required": ["type"],
                    "properties": {"type": {"type": "string"}}}},
            ]},
        },
    })
}

/// Sets of fields of which a body must have exactly one.
pub const fn one_of(dialect: Dialect) -> &'static [&'static [&'static str]] {
    match dialect {
        Dialect::Generate => &[&["text", "input_ids"]],
        Dialect::Embeddings | Dialect::Pooling | Dialect::Classify => &[&["input", "messages"]],
        Dialect::Score => {
            &[&["queries", "data_1", "text_1", "query"], &["documents", "items", "data_2", "text_2"]]
        }
        Dialect::Cohere => &[&["texts", "inputs"]],
        _ => &[],
    }
}

/// The fields that a body must have.
pub const fn required(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Chat => &["messages"],
        Dialect::Completions => &["prompt"],
        Dialect::Responses => &["input"],
        Dialect::Messages => &["messages", "max_tokens"],
        Dialect::Tokens => &["token_ids"],
        Dialect::Rerank => &["query", "documents"],
        // One of several.
        Dialect::Generate
        | Dialect::Embeddings
        | Dialect::Pooling
        | Dialect::Classify
        | Dialect::Score
        | Dialect::Cohere => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::parity;

    #[test]
    fn every_field_that_is_read_has_a_schema() {
        for dialect in Dialect::ALL {
            for name in parity::supported(dialect) {
                assert!(of(dialect, name).is_some(), "{dialect:?} {name}");
            }
            for name in required(dialect) {
                assert!(matches!(parity::support(dialect, name), parity::Support::Yes), "{name}");
            }
        }
    }
}
