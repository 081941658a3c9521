//! The handlers of the route table.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use frizzen_engine::watchdog::Stall;
use frizzen_engine::{Health, ReplicaStatus};
use frizzen_metrics::TextFormat;
use frizzen_text::ChatTemplate;
use serde_json::{Value, json};

use crate::background;
use crate::body;
use crate::edge::{self, RequestName};
use crate::error::ApiError;
use crate::output::generation::Watch;
use crate::output::stream::EventStream;
use crate::output::{ChoiceDelta, generation};
use crate::parse::parse_now;
use crate::prepare::{self, off_thread};
use crate::request::chat::conversation;
use crate::request::{Dialect, Fields, ToolChoice};
use crate::speculation;
use crate::state::{AppState, SharedState};
use crate::traces::RequestTrace;

pub(crate) type Answer = Result<Response, ApiError>;

/// An id in the path; what is wrong with it is an answer like others, in JSON.
pub(crate) type PathId = Result<Path<String>, PathRejection>;

pub(crate) fn to_json(value: &Value) -> Response {
    edge::json(value.to_string().into_bytes())
}

/// `POST /v1/chat/completions`
pub async fn chat(State(state): State<SharedState>, request: Request) -> Answer {
    generate(state, request, Dialect::Chat).await
}

/// `POST /v1/completions`
pub async fn completions(State(state): State<SharedState>, request: Request) -> Answer {
    generate(state, request, Dialect::Completions).await
}

/// Whoever leaves, wherever, drops this future or the body it returned, and with it the generation.
pub(crate) async fn generate(state: SharedState, request: Request, dialect: Dialect) -> Answer {
    state.model()?;
    state.check_samples("n", 1)?;
    let name = request.extensions().get::<RequestName>().map(|name| Arc::clone(&name.0));
    let name = name.unwrap_or_else(|| state.ids.next().into());
    let trace = request.extensions().get::<RequestTrace>().cloned();
    let body = body::read(request, state.http.body_limit).await?;
    let lowered = prepare::prepare(&state, dialect, body, name).await?;
    let (n, stream) = (lowered.n, lowered.stream);
    if let Some(trace) = &trace {
        trace.note(|record| {
            record.operation = dialect.operation();
            record.asked = Some(lowered.asked(&state.engine, dialect.id_prefix(), &state.names[0]));
        });
    }
    let watch = Watch { metrics: state.engine_metrics.front_end(), shown: lowered.timings, trace };
    let (mut generation, mut writer) = lowered.submit(&state.engine, watch)?;
    state.engine_metrics.params_n(n);
    if let Some(begun) = writer.begun() {
        let work = background::make(generation, writer, &begun)?;
        return Ok(match &work.events {
            Some(events) => edge::event_stream(Body::from_stream(events.follow(0, state.http.keep_alive))),
            None => to_json(&begun.response),
        });
    }
    if stream {
        let mut events = EventStream::new(generation, writer, state.http.keep_alive);
        events.start().await?;
        return Ok(edge::event_stream(Body::from_stream(events)));
    }
    let choices = generation::collect(&mut generation).await?;
    let is_aborted =
        |choice: &ChoiceDelta| choice.finish.as_ref().is_some_and(|finish| finish.reason == "abort");
    if matches!(dialect, Dialect::Responses | Dialect::Messages) && choices.iter().any(is_aborted) {
        return Err(ApiError::aborted());
    }
    let mut out = Vec::new();
    writer.answer(&choices, &generation.usage(), &mut out);
    Ok(edge::json(out))
}

fn model_card(state: &AppState, name: &str, max_model_len: u32) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "frizzen",
        "root": state.names[0],
        "parent": null,
        "max_model_len": max_model_len,
    })
}

/// `GET /v1/models`
pub async fn models(State(state): State<SharedState>) -> Answer {
    let max_model_len = state.model()?.0.max_model_len;
    let data: Vec<Value> = state.names.iter().map(|name| model_card(&state, name, max_model_len)).collect();
    Ok(to_json(&json!({"object": "list", "data": data})))
}

/// `GET /v1/models/{id}`
pub async fn model(State(state): State<SharedState>, id: PathId) -> Answer {
    let Path(id) = id?;
    let max_model_len = state.model()?.0.max_model_len;
    let name = state.check_model(Some(&id))?;
    Ok(to_json(&model_card(&state, name, max_model_len)))
}

/// `GET /health`
pub async fn health(State(state): State<SharedState>) -> Answer {
    match state.engine.health() {
        Health::Ready => {
            let stall = Stall::of(&state.engine, state.http.step_timeout);
            match stall.filter(Stall::is_slow) {
                Some(stall) if stall.is_final() => Err(ApiError::busy(format!("stalled: {stall}"))),
                stall => Ok(to_json(&ready(&state, stall.as_ref()))),
            }
        }
        Health::Loading(what) => Err(ApiError::busy(format!("loading: {what}"))),
        Health::Draining => Err(ApiError::busy("draining: the server is shutting down")),
        Health::Failed(error) => Err(error.into()),
    }
}

/// Fewer engines than asked for, or a slow one, are facts that a probe must see, and no reason to send nobody here.
fn ready(state: &SharedState, slow: Option<&Stall>) -> Value {
    let replicas = state.engine.replicas();
    let all = replicas.iter().all(|replica| replica.ready);
    let mut answer = json!({"status": if all && slow.is_none() { "ready" } else { "degraded" }});
    if let Some(stall) = slow {
        answer["slow"] = stall.to_string().into();
    }
    if !replicas.is_empty() {
        answer["engines"] = replicas.iter().map(engine).collect();
    }
    answer
}

pub(crate) fn engine(replica: &ReplicaStatus) -> Value {
    let status = match replica {
        ReplicaStatus { ready: true, .. } => "ready",
        ReplicaStatus { given_up: true, .. } => "failed",
        _ => "starting",
    };
    let mut answer = json!({
        "engine": replica.rank,
        "status": status,
        "starts": replica.starts,
        "open": replica.open,
        "running": replica.load.running,
        "waiting": replica.load.waiting,
        "used_blocks": replica.load.used_blocks,
        "total_blocks": replica.load.total_blocks,
    });
    if !replica.note.is_empty() {
        answer["note"] = replica.note.as_str().into();
    }
    answer
}

/// `GET /ping`
pub async fn ping(State(state): State<SharedState>) -> Answer {
    match state.engine.health() {
        Health::Ready | Health::Draining => Ok(StatusCode::OK.into_response()),
        Health::Loading(what) => Err(ApiError::busy(format!("loading: {what}"))),
        Health::Failed(error) => Err(error.into()),
    }
}

/// `GET /metrics`
pub async fn metrics(State(state): State<SharedState>, headers: HeaderMap) -> Response {
    let format = TextFormat::from_accept(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let asked = Arc::clone(&state);
    // What cannot be asked for now is shown as it was.
    let _ = off_thread(move || {
        asked.worker_report.refresh(&asked.engine);
        Ok(())
    })
    .await;
    let mut response = state.metrics.encode_with(format, &state.engine.remote_metrics()).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response
}

/// `GET /version`
pub async fn version() -> Response {
    to_json(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /load`
pub async fn load(State(state): State<SharedState>) -> Response {
    let load = state.engine.load();
    let mut answer = json!({
        "server_load": state.engine.open_streams(),
        "running": load.running,
        "waiting": load.waiting,
        "used_blocks": load.used_blocks,
        "total_blocks": load.total_blocks,
    });
    let replicas = state.engine.replicas();
    if !replicas.is_empty() {
        answer["engines"] = replicas.iter().map(engine).collect();
    }
    to_json(&answer)
}

/// `GET /v1/plan`: of several engines the first one's, and of each whether its own is the same.
pub async fn plan(State(state): State<SharedState>) -> Answer {
    let mut plan = state.model()?.0.plan.clone();
    let engines: Vec<Value> = state
        .engine
        .replicas()
        .iter()
        .map(|replica| match &replica.info {
            Some(info) if info.plan == plan => json!({"engine": replica.rank, "same": true}),
            Some(info) => json!({"engine": replica.rank, "same": false, "plan": info.plan}),
            None => json!({"engine": replica.rank, "plan": null}),
        })
        .collect();
    if !engines.is_empty() {
        plan["engines"] = engines.into();
    }
    Ok(to_json(&plan))
}

/// `GET /v1/speculation`
pub async fn speculation(State(state): State<SharedState>) -> Answer {
    state.model()?;
    let replicas = state.engine.replicas();
    if replicas.is_empty() {
        return Ok(to_json(&speculation::status(&state.engine)));
    }
    let reports = replicas.iter().map(|replica| (replica.rank, &*replica.report));
    Ok(to_json(&speculation::merged(reports)))
}

/// `POST /reset_prefix_cache`
pub async fn reset_prefix_cache(State(state): State<SharedState>) -> Answer {
    state.model()?;
    // The engine answers between two steps.
    let reset = off_thread(move || Ok(state.engine.reset_prefix_cache())).await?;
    Ok(to_json(&json!({"reset": reset})))
}

/// `GET /tokenizer_info`
pub async fn tokenizer_info(State(state): State<SharedState>) -> Answer {
    let (info, model) = state.model()?;
    let special = model.tokenizer.special_tokens();
    let templates: Vec<&str> = model.template.iter().flat_map(ChatTemplate::sources).collect();
    Ok(to_json(&json!({
        "vocab_size": model.tokenizer.vocab_size(),
        "model_vocab_size": info.vocab_size,
        "max_model_len": info.max_model_len,
        "special_tokens": special.names,
        "eos_token_ids": info.eos_token_ids,
        "chat_template": templates.first(),
    })))
}

/// `POST /tokenize`
pub async fn tokenize(State(state): State<SharedState>, request: Request) -> Answer {
    let body = body::read(request, state.http.body_limit).await?;
    off_thread(move || tokenize_now(&state, &body)).await.map(|answer| to_json(&answer))
}

fn tokenize_now(state: &AppState, body: &[u8]) -> Result<Value, ApiError> {
    let (info, model) = state.model()?;
    let mut fields = Fields::parse_untabled(body)?;
    state.check_model(fields.string("model")?.as_deref())?;
    let add_special = fields.boolean("add_special_tokens")?;
    let with_strings = fields.flag("return_token_strs")?;
    let tokens = if let Some(text) = fields.string("prompt")? {
        if fields.take("messages").is_some() {
            return Err(ApiError::invalid("messages", "exactly one of prompt and messages must be given"));
        }
        model.tokenizer.encode(&text, add_special.unwrap_or(true))?
    } else {
        let conversation = conversation(&mut fields)?;
        // It changes nothing about the prompt, and clients that send a chat's body send it.
        ToolChoice::read(&mut fields, conversation.tools.as_deref())?;
        let text = model.render(&conversation)?;
        model.tokenizer.encode(&text, add_special.unwrap_or(false))?
    };
    state.note(&fields.finish());
    let strings: Option<Vec<_>> =
        with_strings.then(|| tokens.iter().map(|id| model.tokenizer.token_str(*id)).collect());
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": info.max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    }))
}

/// `POST /v1/parse`
pub async fn parse(State(state): State<SharedState>, request: Request) -> Answer {
    let body = body::read(request, state.http.body_limit).await?;
    off_thread(move || parse_now(&state, &body)).await.map(|answer| to_json(&answer))
}

/// `POST /detokenize`
pub async fn detokenize(State(state): State<SharedState>, request: Request) -> Answer {
    let body = body::read(request, state.http.body_limit).await?;
    off_thread(move || detokenize_now(&state, &body)).await.map(|answer| to_json(&answer))
}

fn detokenize_now(state: &AppState, body: &[u8]) -> Result<Value, ApiError> {
    let (info, model) = state.model()?;
    let mut fields = Fields::parse_untabled(body)?;
    state.check_model(fields.string("model")?.as_deref())?;
    let tokens = fields
        .token_ids("tokens", info.vocab_size)?
        .ok_or_else(|| ApiError::invalid("tokens", "tokens must be a list of token ids"))?;
    state.note(&fields.finish());
    let text = model.tokenizer.decode(&tokens, false);
    // vLLM's name, and SGLang's.
    Ok(json!({"prompt": text, "text": text}))
}
