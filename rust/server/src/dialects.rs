//! The handlers of the dialects that are translated into a chat or a completion.

use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use serde_json::{Value, json};

use crate::administration::parameter;
use crate::body;
use crate::edge;
use crate::error::{ApiError, quoted};
use crate::handlers::{Answer, PathId, generate, to_json};
use crate::ids::without_prefix;
use crate::prepare::off_thread;
use crate::request::{Dialect, Fields, messages};
use crate::state::{AppState, SharedState};

/// Items of one page of a list, if it is not said, and the most: OpenAI's.
const DEFAULT_ITEMS: usize = 20;
const MAX_ITEMS: usize = 100;

/// `POST /invocations`
pub async fn invocations(State(state): State<SharedState>, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    let bytes = body::read(Request::from_parts(parts.clone(), body), state.http.body_limit).await?;
    let (bytes, dialect) = off_thread(move || {
        let dialect = if Fields::parse_untabled(&bytes)?.has("messages") {
            Dialect::Chat
        } else {
            Dialect::Completions
        };
        Ok((bytes, dialect))
    })
    .await?;
    generate(state, Request::from_parts(parts, bytes.into()), dialect).await
}

/// `POST /v1/responses`
pub async fn responses(State(state): State<SharedState>, request: Request) -> Answer {
    generate(state, request, Dialect::Responses).await
}

/// `GET /v1/responses/{id}`; with `stream=true` its events, from the one after `starting_after` on.
pub async fn response(State(state): State<SharedState>, id: PathId, RawQuery(query): RawQuery) -> Answer {
    let Path(id) = id?;
    let streams = match parameter(query.as_deref(), "stream") {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            let message = format!("stream must be true or false, got {}", quoted(other, 32));
            return Err(ApiError::invalid("stream", message));
        }
    };
    let from = match parameter(query.as_deref(), "starting_after") {
        None => 0,
        Some(text) if streams => {
            text.parse::<u64>().ok().and_then(|after| after.checked_add(1)).ok_or_else(|| {
                let message =
                    format!("starting_after must be the number of an event, got {}", quoted(text, 32));
                ApiError::invalid("starting_after", message)
            })?
        }
        Some(_) => {
            let message = "starting_after needs stream=true: it says where a stream begins";
            return Err(ApiError::invalid("starting_after", message));
        }
    };
    if !streams {
        return Ok(edge::json(state.store.response(&id)?.to_vec()));
    }
    let events = state.store.events(&id, from, state.http.keep_alive)?;
    Ok(edge::event_stream(Body::from_stream(events)))
}

/// `DELETE /v1/responses/{id}`
pub async fn delete_response(State(state): State<SharedState>, id: PathId) -> Answer {
    let Path(id) = id?;
    state.store.delete(&id)?;
    Ok(to_json(&json!({"id": id, "object": "response", "deleted": true})))
}

/// `POST /v1/responses/{id}/cancel`
pub async fn cancel_response(State(state): State<SharedState>, id: PathId) -> Answer {
    let Path(id) = id?;
    Ok(edge::json(state.store.cancel(&id)?.to_vec()))
}

/// `GET /v1/responses/{id}/input_items`: the items of that response's own request, the last one first unless `order` is
/// `asc`; `limit` of them, those after `after`.
pub async fn input_items(State(state): State<SharedState>, id: PathId, RawQuery(query): RawQuery) -> Answer {
    let Path(id) = id?;
    let mut items = state.store.input(&id)?;
    for (index, item) in items.iter_mut().enumerate() {
        if let Some(members) = item.as_object_mut() {
            members.entry("type").or_insert_with(|| "message".into());
            members.entry("id").or_insert_with(|| format!("item_{}_{index}", without_prefix(&id)).into());
        }
    }
    match parameter(query.as_deref(), "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => {
            let message = format!("order must be asc or desc, got {}", quoted(other, 32));
            return Err(ApiError::invalid("order", message));
        }
    }
    if let Some(after) = parameter(query.as_deref(), "after") {
        let found = items.iter().position(|item| item["id"] == after).ok_or_else(|| {
            ApiError::invalid("after", format!("after must be the id of an item, got {}", quoted(after, 64)))
        })?;
        items.drain(..=found);
    }
    let limit = match parameter(query.as_deref(), "limit") {
        None => DEFAULT_ITEMS,
        Some(text) => text.parse().ok().filter(|limit| (1..=MAX_ITEMS).contains(limit)).ok_or_else(|| {
            let message = format!("limit must be from 1 to {MAX_ITEMS}, got {}", quoted(text, 32));
            ApiError::invalid("limit", message)
        })?,
    };
    let has_more = items.len() > limit;
    items.truncate(limit);
    let end = |item: Option<&Value>| item.map(|item| item["id"].clone());
    let (first, last) = (end(items.first()), end(items.last()));
    Ok(to_json(
        &json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}),
    ))
}

/// `POST /generate`
pub async fn native(State(state): State<SharedState>, request: Request) -> Answer {
    generate(state, request, Dialect::Generate).await
}

/// `POST /v1/messages`
pub async fn messages(State(state): State<SharedState>, request: Request) -> Answer {
    generate(state, request, Dialect::Messages).await
}

/// `POST /inference/v1/generate`
pub async fn tokens(State(state): State<SharedState>, request: Request) -> Answer {
    generate(state, request, Dialect::Tokens).await
}

/// `POST /v1/messages/count_tokens`
pub async fn count_tokens(State(state): State<SharedState>, request: Request) -> Answer {
    let body = body::read(request, state.http.body_limit).await?;
    off_thread(move || count_now(&state, &body)).await.map(|answer| to_json(&answer))
}

fn count_now(state: &AppState, body: &[u8]) -> Result<Value, ApiError> {
    let (_, model) = state.model()?;
    let (mut fields, unused) = Fields::parse(body, Dialect::Messages)?;
    state.note(&unused);
    state.check_model(fields.string("model")?.as_deref())?;
    let text = model.render(&messages::read_conversation(fields)?)?;
    Ok(json!({"input_tokens": model.tokenizer.encode(&text, false)?.len()}))
}
