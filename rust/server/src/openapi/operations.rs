//! One operation of the description: what it takes, what it answers, how it fails.

use serde_json::{Map, Value, json};

use super::{component, dialect, reference, verb};
use crate::routes::{Auth, Endpoint, Method, Route};

/// What a status means, whatever the route.
const STATUSES: [(u16, &str); 8] = [
    (400, "the request is wrong; `param` names the field"),
    (401, "a key is needed"),
    (404, "there is no such model or response"),
    (413, "the body is too long"),
    (415, "the body is not JSON"),
    (500, "this request failed"),
    (501, "known, and not supported"),
    (503, "loading, asleep, full, or at an end; `retry-after` says when to come back"),
];

/// The operation of a route.
pub(super) fn operation(route: &Route) -> Value {
    let is_served = route.endpoint != Endpoint::Unsupported;
    let mut responses = Map::new();
    if is_served {
        let content = content(route.endpoint);
        responses.insert("200".to_owned(), json!({"description": "the answer", "content": content}));
    }
    let error = if route.is_anthropic() { "AnthropicError" } else { "Error" };
    for (status, what) in STATUSES.into_iter().filter(|(status, _)| fails_with(route, *status)) {
        let schema = json!({"schema": reference(error)});
        let mut response = json!({"description": what, "content": {"application/json": schema}});
        if status == 503 {
            response["headers"] = json!({"retry-after": {"schema": {"type": "integer"}}});
        }
        responses.insert(status.to_string(), response);
    }
    let name = route.path.replace(['/', '{', '}', '*', '.'], " ");
    let name: Vec<&str> = name.split_whitespace().collect();
    let mut operation = json!({
        "operationId": format!("{}_{}", verb(route).to_lowercase(), name.join("_")),
        "summary": route.doc,
        "tags": [if is_served { "served" } else { "not served" }],
        "responses": responses,
    });
    if route.auth == Auth::Open {
        operation["security"] = json!([]);
    }
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if has_body(route) {
        let schema = dialect(route.endpoint)
            .map_or_else(|| untabled(route.endpoint), |dialect| reference(component(dialect)));
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// Whether a route can answer with this status.
fn fails_with(route: &Route, status: u16) -> bool {
    let endpoint = route.endpoint;
    if endpoint == Endpoint::Unsupported {
        return matches!(status, 501) || status == 401 && route.auth == Auth::Key;
    }
    let has_body = has_body(route);
    let is_static = matches!(
        endpoint,
        Endpoint::OpenApi | Endpoint::Docs | Endpoint::Version | Endpoint::Load | Endpoint::Metrics
    );
    match status {
        400 => has_body || !parameters(route).is_empty(),
        401 => route.auth == Auth::Key,
        404 => has_body || route.path.contains('{'),
        413 | 415 | 500 => has_body,
        501 => has_body || endpoint == Endpoint::Sleep,
        _ => !is_static,
    }
}

const fn has_body(route: &Route) -> bool {
    matches!(route.method, Method::Post)
        && !matches!(
            route.endpoint,
            Endpoint::Unsupported
                | Endpoint::CancelResponse
                | Endpoint::ResetPrefixCache
                | Endpoint::Pause
                | Endpoint::Resume
                | Endpoint::Sleep
                | Endpoint::WakeUp
        )
}

/// Bodies without a field table.
fn untabled(endpoint: Endpoint) -> Value {
    let names =
        json!({"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]});
    match endpoint {
        Endpoint::CountTokens => {
            let messages = json!({"$ref": "#/components/schemas/MessagesRequest/properties/messages"});
            json!({"type": "object", "required": ["messages"], "properties": {"messages": messages}})
        }
        Endpoint::Tokenize => json!({
            "type": "object",
            "properties": {
                "model": {"type": ["string", "null"]},
                "prompt": {"type": "string"},
                "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"], "properties": {"role": {"type": "string", "minLength": 1}}}},
                "add_special_tokens": {"type": ["boolean", "null"]},
                "return_token_strs": {"type": ["boolean", "null"]},
            },
            "oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}],
        }),
        Endpoint::Detokenize => json!({
            "type": "object",
            "required": ["tokens"],
            "properties": {
                "model": {"type": ["string", "null"]},
                "tokens": {"type": "array", "items": reference("TokenId")},
            },
        }),
        Endpoint::AbortRequests => json!({
            "type": "object",
            "properties": {
                "request_ids": names,
                "request_id": names,
                "rid": names,
                "prefix": {"type": ["string", "null"]},
                "all": {"type": ["boolean", "null"]},
                "abort_all": {"type": ["boolean", "null"]},
            },
            "anyOf": [
                {"required": ["request_ids"], "properties": {"request_ids": {"type": "string"}}},
                {"required": ["request_id"], "properties": {"request_id": {"type": "string"}}},
                {"required": ["rid"], "properties": {"rid": {"type": "string"}}},
                {"required": ["request_ids"], "properties": {"request_ids": {"type": "array", "minItems": 1}}},
                {"required": ["prefix"], "properties": {"prefix": {"type": "string", "minLength": 1}}},
                {"required": ["all"], "properties": {"all": {"const": true}}},
                {"required": ["abort_all"], "properties": {"abort_all": {"const": true}}},
            ],
        }),
        Endpoint::Parse => json!({
            "type": "object",
            "properties": {"text": {"type": "string"}, "token_ids": {"type": "array", "items": reference("TokenId")}},
            "oneOf": [{"required": ["text"]}, {"required": ["token_ids"]}],
        }),
        Endpoint::Invocations => {
            json!({"anyOf": [reference("ChatRequest"), reference("CompletionRequest")]})
        }
        _ => json!({"type": "object"}),
    }
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?.trim_start_matches('*');
        Some(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
    });
    let query = |name: &str, schema: Value| json!({"name": name, "in": "query", "schema": schema});
    let modes = || query("mode", json!({"enum": ["abort", "wait", "keep"]}));
    let in_query = match route.endpoint {
        Endpoint::Pause => vec![modes()],
        Endpoint::Sleep => vec![modes(), query("level", json!({"enum": [0, 1]}))],
        Endpoint::InputItems => vec![
            query("order", json!({"enum": ["asc", "desc"]})),
            query("limit", json!({"type": "integer", "minimum": 1, "maximum": 100})),
            query("after", json!({"type": "string"})),
        ],
        _ => Vec::new(),
    };
    in_path.chain(in_query).collect()
}

fn content(endpoint: Endpoint) -> Value {
    let object = answer(endpoint).map_or_else(|| json!({"type": "object"}), reference);
    let object = json!({"schema": object});
    let text = json!({"schema": {"type": "string"}});
    // Each event is JSON of its own, for which the description has no words.
    let events = json!({});
    match endpoint {
        Endpoint::Metrics => json!({"text/plain": text, "application/openmetrics-text": text}),
        Endpoint::Docs => json!({"text/html": text}),
        Endpoint::Ping => json!({}),
        Endpoint::Embeddings | Endpoint::Pooling => {
            json!({"application/json": object, "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}})
        }
        Endpoint::Generate => {
            let list = json!({"schema": {"anyOf": [object["schema"], {"type": "array", "items": object["schema"]}]}});
            json!({"application/json": list, "text/event-stream": events})
        }
        Endpoint::Chat
        | Endpoint::Completions
        | Endpoint::Responses
        | Endpoint::Messages
        | Endpoint::Tokens
        | Endpoint::Invocations => json!({"application/json": object, "text/event-stream": events}),
        _ => json!({"application/json": object}),
    }
}

/// The component of an answer, where clients are made from it.
const fn answer(endpoint: Endpoint) -> Option<&'static str> {
    Some(match endpoint {
        Endpoint::Chat => "ChatCompletion",
        Endpoint::Completions => "Completion",
        Endpoint::Generate => "Generated",
        Endpoint::Tokens => "Generation",
        Endpoint::Responses | Endpoint::Response | Endpoint::CancelResponse => "Response",
        Endpoint::Messages => "Message",
        Endpoint::CountTokens => "TokenCount",
        Endpoint::Models => "ModelList",
        Endpoint::Model => "Model",
        Endpoint::Tokenize => "Tokens",
        Endpoint::Detokenize => "Text",
        Endpoint::Embeddings | Endpoint::Pooling | Endpoint::Classify | Endpoint::Score => "VectorList",
        Endpoint::Rerank => "Ranking",
        Endpoint::CohereEmbed => "CohereEmbeddings",
        _ => return None,
    })
}

/// An object that always has these members.
fn object(members: &Value) -> Value {
    let names: Vec<&String> = members.as_object().into_iter().flat_map(Map::keys).collect();
    json!({"type": "object", "required": names, "properties": members})
}

/// The components of answers.
pub(super) fn answers() -> impl Iterator<Item = (String, Value)> {
    let text = || json!({"type": "string"});
    let count = || json!({"type": "integer", "minimum": 0});
    let list = |item: Value| json!({"type": "array", "items": item});
    let any = || json!({"type": "object"});
    let usage =
        || object(&json!({"prompt_tokens": count(), "total_tokens": count(), "completion_tokens": count()}));
    let read = || object(&json!({"prompt_tokens": count(), "total_tokens": count()}));
    let finish = json!({"enum": ["stop", "length", "tool_calls", "abort"]});
    let chosen = |members: Value| {
        let choice = object(&members);
        object(
            &json!({"id": text(), "object": text(), "created": count(), "model": text(), "choices": list(choice),
            "usage": usage()}),
        )
    };
    let message = json!({"type": "object", "required": ["role"], "properties": {"role": text(),
        "content": {"type": ["string", "null"]}, "reasoning": {"type": ["string", "null"]}, "tool_calls": list(any())}});
    let ids = || list(count());
    let model =
        || object(&json!({"id": text(), "object": text(), "created": count(), "max_model_len": count()}));
    [
        ("ChatCompletion", chosen(json!({"index": count(), "message": message, "finish_reason": finish}))),
        ("Completion", chosen(json!({"index": count(), "text": text(), "finish_reason": finish}))),
        ("Generation", chosen(json!({"index": count(), "token_ids": ids(), "finish_reason": finish}))),
        ("Generated", object(&json!({"text": text(), "output_ids": ids(), "meta_info": any()}))),
        (
            "Response",
            object(&json!({"id": text(), "object": text(), "created_at": count(), "model": text(), "output": list(any()),
                "status": {"enum": ["completed", "incomplete", "failed", "in_progress", "cancelled"]}})),
        ),
        (
            "Message",
            object(&json!({"id": text(), "type": text(), "role": text(), "model": text(), "content": list(any()),
                "usage": any()})),
        ),
        ("TokenCount", object(&json!({"input_tokens": count()}))),
        ("Model", model()),
        ("ModelList", object(&json!({"object": text(), "data": list(model())}))),
        ("Tokens", object(&json!({"count": count(), "max_model_len": count(), "tokens": ids()}))),
        ("Text", object(&json!({"prompt": text()}))),
        (
            "VectorList",
            object(&json!({"id": text(), "object": text(), "created": count(), "model": text(), "data": list(any()),
                "usage": read()})),
        ),
        (
            "Ranking",
            object(&json!({"id": text(), "model": text(), "usage": read(),
                "results": list(object(&json!({"index": count(), "relevance_score": {"type": "number"}})))})),
        ),
        (
            "CohereEmbeddings",
            object(&json!({"id": text(), "embeddings": any(), "texts": list(text()), "meta": any(),
                "response_type": text()})),
        ),
    ]
    .map(|(name, schema)| (name.to_owned(), schema))
    .into_iter()
}
