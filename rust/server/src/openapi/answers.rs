//! Schemas of the answers: what clients may rely on. Members that only some requests get are not required.

use serde_json::{Value, json};

use crate::routes::Endpoint;

/// The content of a route's 200, by media type; `None` if it is empty.
pub fn content(endpoint: Endpoint) -> Option<Value> {
    let text = json!({"schema": {"type": "string"}});
    let json = json!({"schema": of(endpoint)});
    // Each event is JSON of its own, for which the description has no words.
    let events = json!({});
    Some(match endpoint {
        Endpoint::Ping => return None,
        Endpoint::Metrics => json!({"text/plain": text, "application/openmetrics-text": text}),
        Endpoint::Docs => json!({"text/html": text}),
        Endpoint::Embeddings | Endpoint::Pooling => {
            let bytes = json!({"schema": {"type": "string", "format": "binary"}});
            json!({"application/json": json, "application/octet-stream": bytes})
        }
        Endpoint::Chat
        | Endpoint::Completions
        | Endpoint::Responses
        | Endpoint::Response
        | Endpoint::Messages
        | Endpoint::Tokens
        | Endpoint::Generate
        | Endpoint::Invocations => json!({"application/json": json, "text/event-stream": events}),
        _ => json!({"application/json": json}),
    })
}

fn of(endpoint: Endpoint) -> Value {
    let (text, count) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}));
    let flag = json!({"type": "boolean"});
    match endpoint {
        Endpoint::Chat => choices("chat.completion", &json!({"message": message()})),
        Endpoint::Completions => choices("text_completion", &json!({"text": text})),
        Endpoint::Generate => {
            let one =
                object(&json!({"text": text, "output_ids": array(&count), "meta_info": {"type": "object"}}));
            json!({"anyOf": [one, array(&one)]})
        }
        Endpoint::CohereEmbed => object(&json!({
            "id": text,
            "embeddings": {"type": "object"},
            "texts": array(&text),
            "meta": {"type": "object"},
            "response_type": text,
        })),
        Endpoint::DeleteResponse => object(&json!({"id": text, "object": text, "deleted": flag})),
        Endpoint::InputItems => object(
            &json!({"object": {"const": "list"}, "data": array(&json!({"type": "object"})), "has_more": flag}),
        ),
        Endpoint::Tokens => choices("generation", &json!({"token_ids": array(&count)})),
        Endpoint::Responses | Endpoint::Response | Endpoint::CancelResponse => object(&json!({
            "id": text,
            "object": {"const": "response"},
            "created_at": count,
            "model": text,
            "status": {"enum": ["completed", "incomplete", "failed", "in_progress", "cancelled"]},
            "output": array(&json!({"type": "object", "required": ["type", "id"]})),
            "usage": {"type": ["object", "null"]},
            "error": {"type": ["object", "null"]},
            "incomplete_details": {"type": ["object", "null"]},
        })),
        Endpoint::Messages => object(&json!({
            "id": text,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": text,
            "content": array(&json!({"type": "object", "required": ["type"]})),
            "stop_reason": {"type": ["string", "null"]},
            "stop_sequence": {"type": ["string", "null"]},
            "usage": object(&json!({"input_tokens": count, "output_tokens": count})),
        })),
        Endpoint::CountTokens => object(&json!({"input_tokens": count})),
        Endpoint::Models => object(&json!({"object": {"const": "list"}, "data": array(&model())})),
        Endpoint::Model => model(),
        Endpoint::Health | Endpoint::HealthGenerate => {
            object(&json!({"status": {"enum": ["ready", "degraded"]}}))
        }
        Endpoint::Version => object(&json!({"version": text})),
        Endpoint::Load => object(&json!({
            "server_load": count, "running": count, "waiting": count, "used_blocks": count, "total_blocks": count,
        })),
        Endpoint::Tokenize => object(&json!({
            "count": count, "max_model_len": count, "tokens": array(&count), "token_strs": {"type": ["array", "null"]},
        })),
        Endpoint::Detokenize => object(&json!({"prompt": text, "text": text})),
        Endpoint::Parse => {
            object(&json!({"message": {"type": "object"}, "complete": flag, "notes": array(&text)}))
        }
        Endpoint::Embeddings => list(&json!({
            "index": count, "object": {"const": "embedding"}, "embedding": {"type": ["array", "string"]},
        })),
        Endpoint::Pooling => list(&json!({
            "index": count, "object": {"const": "pooling"}, "data": {"type": ["array", "string"]},
        })),
        Endpoint::Classify => list(&json!({
            "index": count, "label": {"type": ["string", "null"]}, "probs": array(&number()), "num_classes": count,
        })),
        Endpoint::Score => list(&json!({"index": count, "object": {"const": "score"}, "score": number()})),
        Endpoint::Rerank => object(&json!({
            "id": text,
            "model": text,
            "usage": {"type": "object"},
            "results": array(&object(&json!({"index": count, "relevance_score": number()}))),
        })),
        Endpoint::AbortRequests => object(&json!({"aborted": count})),
        Endpoint::ResetPrefixCache => object(&json!({"reset": flag})),
        Endpoint::Pause | Endpoint::Resume => object(&json!({"status": text, "is_paused": flag})),
        Endpoint::IsPaused => object(&json!({"is_paused": flag})),
        Endpoint::Sleep | Endpoint::WakeUp | Endpoint::IsSleeping => object(&json!({"is_sleeping": flag})),
        _ => of_sglang(endpoint),
    }
}

/// SGLang's small routes.
fn of_sglang(endpoint: Endpoint) -> Value {
    let (text, count) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}));
    match endpoint {
        Endpoint::SglangLoad => array(&object(&json!({
            "dp_rank": count, "num_reqs": count, "num_waiting_reqs": count, "num_tokens": count, "num_pages": count,
        }))),
        Endpoint::EveryLoad => {
            let one = json!({
                "dp_rank": count, "num_running_reqs": count, "num_waiting_reqs": count, "num_used_tokens": count,
                "max_total_num_tokens": count, "token_usage": number(), "max_running_requests": count,
            });
            object(
                &json!({"dp_rank_count": count, "loads": array(&object(&one)), "aggregate": {"type": "object"}}),
            )
        }
        Endpoint::WeightVersion => object(&json!({"weight_version": text})),
        Endpoint::ParseFunctionCall => {
            let call = object(&json!({"tool_index": count, "name": text, "parameters": text}));
            object(&json!({"normal_text": text, "calls": array(&call)}))
        }
        Endpoint::SeparateReasoning => object(&json!({"reasoning_text": text, "text": text})),
        _ => json!({"type": "object"}),
    }
}

/// An object that has all of these members, and may have others.
fn object(members: &Value) -> Value {
    let names: Vec<&String> = members.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
    json!({"type": "object", "required": names, "properties": members})
}

fn array(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

fn number() -> Value {
    json!({"type": "number"})
}

fn choices(kind: &str, own: &Value) -> Value {
    let mut choice = json!({
        "index": {"type": "integer", "minimum": 0},
        "logprobs": {"type": ["object", "null"]},
        "finish_reason": {"enum": ["stop", "length", "tool_calls", "abort", "content_filter"]},
    });
    for (name, schema) in own.as_object().into_iter().flatten() {
        choice[name.as_str()] = schema.clone();
    }
    object(&json!({
        "id": {"type": "string"},
        "object": {"const": kind},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "minItems": 1, "items": object(&choice)},
        "usage": usage(),
    }))
}

fn usage() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    object(&json!({"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}))
}

fn message() -> Value {
    let call = object(&json!({
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": object(&json!({"name": {"type": "string"}, "arguments": {"type": "string"}})),
    }));
    let mut message = object(&json!({
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
    }));
    message["properties"]["reasoning"] = json!({"type": ["string", "null"]});
    message["properties"]["tool_calls"] = array(&call);
    message
}

fn model() -> Value {
    object(&json!({
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "max_model_len": {"type": "integer", "minimum": 1},
    }))
}

fn list(entry: &Value) -> Value {
    object(&json!({
        "id": {"type": "string"},
        "object": {"const": "list"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "data": array(&object(entry)),
        "usage": {"type": "object"},
    }))
}
