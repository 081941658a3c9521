//! The description of the HTTP surface, made of the route table and the tables of request fields: as `OpenAPI` 3.1, as a
//! page, and as the document `docs/http.md`. [`bodies`] and [`answers`] have the schemas that no table of fields has.

pub mod answers;
pub mod bodies;

mod operations;

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

use crate::handlers::to_json;
use crate::request::parity::{self, Dialect, Support};
use crate::request::schema;
use crate::routes::{Auth, Endpoint, Method, ROUTES, Route};
use crate::state::SharedState;

/// `GET /openapi.json`
pub async fn json(State(state): State<SharedState>) -> Response {
    let mut document = document();
    if !state.http.root_path.is_empty() {
        document["servers"] = json!([{"url": state.http.root_path}]);
    }
    // What no description of the program can know.
    if let Some(info) = state.engine.info() {
        let schemas = &mut document["components"]["schemas"];
        schemas["TokenId"]["maximum"] = info.vocab_size.saturating_sub(1).into();
        schemas["Alternatives"]["maximum"] = info.max_logprobs.into();
    }
    to_json(&document)
}

/// `GET /docs`
pub async fn html() -> Response {
    let mut rows = String::new();
    for route in ROUTES.iter().filter(|route| route.endpoint != Endpoint::Unsupported) {
        write!(rows, "<tr><td>{}<td><code>{}</code><td>{}", verb(route), route.path, escaped(route.doc))
            .expect("writing to a String does not fail");
    }
    let page = format!(
        "<!doctype html><meta charset=utf-8><title>Frizzen</title><style>body{{font-family:sans-serif;margin:2em}}\
         td{{padding:.2em 1em .2em 0}}</style><h1>Frizzen {}</h1><p><a href=openapi.json>openapi.json</a></p><table>{rows}\
         </table>",
        env!("CARGO_PKG_VERSION")
    );
    let mut response = page.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

pub(crate) const fn verb(route: &Route) -> &'static str {
    match route.method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Delete => "DELETE",
    }
}

/// The dialect of a route's body, if it has a table.
pub(crate) const fn dialect(endpoint: Endpoint) -> Option<Dialect> {
    match endpoint {
        Endpoint::Chat => Some(Dialect::Chat),
        Endpoint::Completions => Some(Dialect::Completions),
        Endpoint::Responses => Some(Dialect::Responses),
        Endpoint::Messages => Some(Dialect::Messages),
        Endpoint::Tokens => Some(Dialect::Tokens),
        Endpoint::Generate => Some(Dialect::Generate),
        Endpoint::Embeddings => Some(Dialect::Embeddings),
        Endpoint::Pooling => Some(Dialect::Pooling),
        Endpoint::Classify => Some(Dialect::Classify),
        Endpoint::Score => Some(Dialect::Score),
        Endpoint::Rerank => Some(Dialect::Rerank),
        Endpoint::CohereEmbed => Some(Dialect::Cohere),
        _ => None,
    }
}

pub(crate) const fn component(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "ChatRequest",
        Dialect::Completions => "CompletionRequest",
        Dialect::Responses => "ResponsesRequest",
        Dialect::Messages => "MessagesRequest",
        Dialect::Tokens => "TokensRequest",
        Dialect::Generate => "GenerateRequest",
        Dialect::Embeddings => "EmbeddingsRequest",
        Dialect::Pooling => "PoolingRequest",
        Dialect::Classify => "ClassifyRequest",
        Dialect::Score => "ScoreRequest",
        Dialect::Rerank => "RerankRequest",
        Dialect::Cohere => "CohereEmbedRequest",
    }
}

/// The whole description.
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = route.path.replace("{*", "{");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[verb(route).to_lowercase()] = operations::operation(route);
    }
    let mut schemas: Map<String, Value> =
        Dialect::ALL.into_iter().map(|dialect| (component(dialect).to_owned(), body(dialect))).collect();
    schemas.insert("TokenId".to_owned(), json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}));
    schemas.insert("Alternatives".to_owned(), json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}));
    schemas.insert("Error".to_owned(), error());
    schemas.insert("AnthropicError".to_owned(), anthropic_error());
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Frizzen", "version": env!("CARGO_PKG_VERSION"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        // Neither is needed where no key is configured.
        "security": [{"bearer": []}, {"key": []}, {}],
    })
}

pub(crate) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A body: the fields that are read, those that may only ask for nothing, and any others, which are counted.
fn body(dialect: Dialect) -> Value {
    let required = schema::required(dialect);
    let properties: Map<String, Value> = parity::table(dialect)
        .filter_map(|(name, support)| {
            let property = match support {
                Support::Yes if required.contains(&name) => schema::of(dialect, name)?,
                Support::Yes => json!({"anyOf": [schema::of(dialect, name)?, {"type": "null"}]}),
                Support::Ignored(why) => json!({"description": format!("no effect: {why}")}),
                Support::Refused(status, off, why) => {
                    let mut property = schema::off(off);
                    property["deprecated"] = true.into();
                    property["description"] = format!("refused with {}: {why}", status.as_u16()).into();
                    property
                }
                Support::Renamed(successor) => json!({
                    "type": "null",
                    "deprecated": true,
                    "description": format!("removed; its successor is {successor}"),
                }),
                Support::Unknown => return None,
            };
            Some((name.to_owned(), property))
        })
        .collect();
    let mut body = json!({"type": "object", "required": required, "properties": properties});
    let mut choices: Vec<Value> = schema::one_of(dialect)
        .iter()
        .map(|names| {
            let one =
                |name: &&str| json!({"required": [name], "properties": {*name: {"not": {"type": "null"}}}});
            json!({"oneOf": names.iter().map(one).collect::<Vec<_>>()})
        })
        .collect();
    if streams_with_options(dialect) {
        let unless = json!({"properties": {"stream_options": {"type": "null"}}});
        let then = json!({"required": ["stream"], "properties": {"stream": {"const": true}}});
        choices.push(json!({"anyOf": [unless, then]}));
        // The prompt's log-probabilities are in whole answers.
        let unless = json!({"properties": {"prompt_logprobs": {"type": "null"}}});
        let then = json!({"properties": {"stream": {"enum": [null, false]}}});
        choices.push(json!({"anyOf": [unless, then]}));
    }
    if !choices.is_empty() {
        body["allOf"] = choices.into();
    }
    body
}

/// Whether `stream_options` needs `stream`.
fn streams_with_options(dialect: Dialect) -> bool {
    matches!(parity::support(dialect, "stream_options"), Support::Yes)
}

fn error() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }},
    })
}

fn anthropic_error() -> Value {
    json!({
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": ["string", "null"]},
        },
    })
}

/// `docs/http.md`.
pub fn markdown() -> String {
    let mut text = "# The HTTP surface\n\nMade from the route table and the tables of request fields \
                    (`rust/server/src/openapi.rs`); `/openapi.json` says the same to programs.\n\n\
                    | route | key | what it does |\n|---|---|---|\n"
        .to_owned();
    let mut line =
        |line: std::fmt::Arguments<'_>| text.write_fmt(line).expect("writing to a String does not fail");
    for route in ROUTES {
        let key = if route.auth == Auth::Open { "open" } else { "key" };
        let served = if route.endpoint == Endpoint::Unsupported { "501: " } else { "" };
        line(format_args!("| `{} {}` | {key} | {served}{} |\n", verb(route), route.path, route.doc));
    }
    for dialect in Dialect::ALL {
        let route = ROUTES.iter().find(|route| self::dialect(route.endpoint) == Some(dialect));
        let path = route.map_or("", |route| route.path);
        line(format_args!("\n## Fields of `{path}`\n\n| field | |\n|---|---|\n"));
        let mut fields: Vec<(&str, Support)> = parity::table(dialect).collect();
        fields.sort_unstable_by_key(|(name, _)| *name);
        for (name, support) in fields {
            match support {
                Support::Yes => line(format_args!("| `{name}` | yes |\n")),
                Support::Ignored(why) => line(format_args!("| `{name}` | no effect: {why} |\n")),
                Support::Refused(status, _, why) => {
                    line(format_args!("| `{name}` | {}: {why} |\n", status.as_u16()));
                }
                Support::Renamed(successor) => line(format_args!("| `{name}` | 400: now `{successor}` |\n")),
                Support::Unknown => {}
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_the_tables_own() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http.md");
        if std::env::var_os("FRIZZEN_WRITE_DOCS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == markdown(), "run with FRIZZEN_WRITE_DOCS=1 to write docs/http.md again");
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let document = document();
        let operations =
            document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap());
        let mut names: Vec<&str> =
            operations.map(|(_, operation)| operation["operationId"].as_str().unwrap()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), count), (ROUTES.len(), ROUTES.len()));
    }
}
