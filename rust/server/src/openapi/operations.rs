//! One operation of the description: what it takes, what it answers, how it fails.

use serde_json::{Map, Value, json};

use super::{answers, bodies, component, dialect, reference, verb};
use crate::routes::{Auth, Endpoint, Method, Route};

/// What a status means, whatever the route.
const STATUSES: [(u16, &str); 9] = [
    (400, "the request is wrong; `param` names the field"),
    (401, "a key is needed"),
    (404, "there is no such model or response"),
    (409, "the server sleeps"),
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
        let mut answer = json!({"description": "the answer"});
        if let Some(content) = answers::content(route.endpoint) {
            answer["content"] = content;
        }
        responses.insert("200".to_owned(), answer);
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
            .map_or_else(|| own(route.endpoint), |dialect| reference(component(dialect)));
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
        409 => endpoint == Endpoint::Resume,
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

/// A body without a field table.
fn own(endpoint: Endpoint) -> Value {
    bodies::of(endpoint).unwrap_or_else(|| json!({"type": "object"}))
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
        Endpoint::Response => vec![
            query("stream", json!({"type": "boolean"})),
            query("starting_after", json!({"type": "integer", "minimum": 0})),
        ],
        Endpoint::InputItems => vec![
            query("order", json!({"enum": ["asc", "desc"]})),
            query("limit", json!({"type": "integer", "minimum": 1, "maximum": 100})),
            query("after", json!({"type": "string"})),
        ],
        _ => Vec::new(),
    };
    in_path.chain(in_query).collect()
}
