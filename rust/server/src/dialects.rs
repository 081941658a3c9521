//! The handlers of the dialects that are translated into a chat or a completion.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::body;
use crate::edge;
use crate::error::ApiError;
use crate::handlers::{Answer, PathId, generate, to_json};
use crate::prepare::off_thread;
use crate::request::{Dialect, Fields, messages};
use crate::state::{AppState, SharedState};

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

/// `GET /v1/responses/{id}`
pub async fn response(State(state): State<SharedState>, id: PathId) -> Answer {
    let Path(id) = id?;
    Ok(edge::json(state.store.response(&id)?.to_vec()))
}

/// `POST /v1/responses/{id}/cancel`
pub async fn cancel_response(State(state): State<SharedState>, id: PathId) -> Answer {
    let Path(id) = id?;
    state.store.response(&id)?;
    let message = "only responses that are made in the background can be cancelled, and none is";
    Err(ApiError::new(StatusCode::BAD_REQUEST, message))
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
