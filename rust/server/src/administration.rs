//! The handlers for whoever runs the server: pause, sleep, abort, and what it is.
//!
//! A paused server takes requests and lets them wait; a sleeping one refuses them with 503. Sleep gives no memory back: the
//! cache's contents are dropped, the weights stay, and the answer says so.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, Request, State};
use axum::http::StatusCode;
use frizzen_core::{Request as EngineRequest, SamplingParams};
use frizzen_engine::PauseMode;
use frizzen_metrics::SleepOperation;
use serde_json::{Value, json};
use tokio::time::{sleep as wait, timeout};

use crate::body;
use crate::error::{ApiError, quoted};
use crate::handlers::{Answer, engine, to_json};
use crate::ids::without_prefix;
use crate::prepare::off_thread;
use crate::request::Fields;
use crate::sglang::WEIGHT_VERSION;
use crate::state::{AppState, SharedState};

/// How often a pause that is not complete yet is looked at.
const TICK: Duration = Duration::from_millis(2);
/// How long the one token of `/health_generate` may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most ids of one body of `/abort_requests`.
const MAX_IDS: usize = 65_536;

/// The value of `name` in a query; the last one counts.
pub fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.rev().find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn mode(query: Option<&str>, default: PauseMode) -> Result<PauseMode, ApiError> {
    match parameter(query, "mode") {
        None => Ok(default),
        Some("abort") => Ok(PauseMode::Abort),
        Some("wait") => Ok(PauseMode::Wait),
        Some("keep") => Ok(PauseMode::Keep),
        Some(other) => {
            let message = format!("mode must be abort, wait or keep, got {}", quoted(other, 32));
            Err(ApiError::invalid("mode", message))
        }
    }
}

/// Waits until nothing moves.
async fn settled(state: &AppState, receiver: Receiver<()>) -> Result<(), ApiError> {
    loop {
        match receiver.try_recv() {
            Ok(()) => return Ok(()),
            Err(TryRecvError::Empty) => wait(TICK).await,
            Err(TryRecvError::Disconnected) => {
                state.model()?;
                return Err(ApiError::busy("the server is shutting down"));
            }
        }
    }
}

/// `POST /pause`
pub async fn pause(State(state): State<SharedState>, RawQuery(query): RawQuery) -> Answer {
    state.model()?;
    let mode = mode(query.as_deref(), PauseMode::Abort)?;
    settled(&state, state.engine.pause(mode)).await?;
    let is_paused = state.engine.is_paused();
    Ok(to_json(&json!({"status": if is_paused { "paused" } else { "resumed" }, "is_paused": is_paused})))
}

/// `POST /resume`
pub async fn resume(State(state): State<SharedState>) -> Answer {
    state.model()?;
    if state.engine.is_asleep() {
        return Err(ApiError::new(StatusCode::CONFLICT, "the server sleeps: /wake_up wakes it"));
    }
    state.engine.resume();
    Ok(to_json(&json!({"status": "resumed", "is_paused": false})))
}

/// `GET /is_paused`
pub async fn is_paused(State(state): State<SharedState>) -> Answer {
    Ok(to_json(&json!({"is_paused": state.engine.is_paused()})))
}

/// `POST /sleep`
pub async fn sleep(State(state): State<SharedState>, RawQuery(query): RawQuery) -> Answer {
    state.model()?;
    let mode = mode(query.as_deref(), PauseMode::Abort)?;
    let level = match parameter(query.as_deref(), "level") {
        None | Some("1") => 1,
        Some("0") => 0,
        Some("2") => {
            let message = "level 2 would give the weights up, and this server cannot load them again";
            return Err(ApiError::unsupported("level", message));
        }
        Some(other) => {
            let message = format!("level must be 0, 1 or 2, got {}", quoted(other, 32));
            return Err(ApiError::invalid("level", message));
        }
    };
    let timer = state.metrics.sleeping().begin(SleepOperation::Sleep);
    state.engine.set_asleep(true);
    settled(&state, state.engine.pause(mode)).await?;
    let dropped = level > 0 && {
        let state = state.clone();
        off_thread(move || Ok(state.engine.reset_prefix_cache())).await?
    };
    timer.end();
    Ok(to_json(&json!({
        "is_sleeping": true,
        "level": level,
        "prefix_cache": if dropped { "dropped" } else { "kept" },
        "weights": "kept",
        "memory_released_bytes": 0,
    })))
}

/// `POST /wake_up`
pub async fn wake_up(State(state): State<SharedState>) -> Answer {
    state.model()?;
    let timer = state.metrics.sleeping().begin(SleepOperation::WakeUp);
    state.engine.set_asleep(false);
    state.engine.resume();
    timer.end();
    Ok(to_json(&json!({"is_sleeping": false})))
}

/// `GET /is_sleeping`
pub async fn is_sleeping(State(state): State<SharedState>) -> Answer {
    Ok(to_json(&json!({"is_sleeping": state.engine.is_asleep()})))
}

/// `POST /abort_requests`: by `request_ids` (or `rid`, or `request_id`), by `prefix`, or `all` (or `abort_all`). A name is
/// that of the answer, with or without what stands before it there. Who is not there any more is no error.
pub async fn abort_requests(State(state): State<SharedState>, request: Request) -> Answer {
    let body = body::read(request, state.http.body_limit).await?;
    let mut fields = Fields::parse_untabled(&body)?;
    let mut names = fields.strings("request_ids", MAX_IDS)?;
    for one in ["request_id", "rid"] {
        names.extend(fields.strings(one, MAX_IDS)?);
    }
    let prefix = fields.string("prefix")?.filter(|prefix| !prefix.is_empty());
    let all = fields.flag("all")? | fields.flag("abort_all")?;
    state.note(&fields.finish());
    if names.is_empty() && prefix.is_none() && !all {
        let message = "one of request_ids, prefix and all must say which requests are meant";
        return Err(ApiError::invalid("request_ids", message));
    }
    let spellings = names.iter().flat_map(|name| [name.as_str(), without_prefix(name)]);
    let names: HashSet<&str> = spellings.collect();
    let prefix = prefix.as_deref();
    let aborted = state.engine.abort_where(|name| {
        all || names.contains(name)
            || prefix
                .is_some_and(|prefix| name.starts_with(prefix) || name.starts_with(without_prefix(prefix)))
    });
    Ok(to_json(&json!({"aborted": aborted})))
}

/// `GET /health_generate`: one token, through everything that computes.
pub async fn health_generate(State(state): State<SharedState>) -> Answer {
    state.model()?;
    let started = Instant::now();
    let params = SamplingParams { temperature: 0.0, max_tokens: Some(1), ..SamplingParams::default() };
    let request = EngineRequest {
        prompt: vec![0].into(),
        params: params.canonical(),
        priority: 0,
        constraint: None,
        pooling: None,
        cache_salt: None,
        external_id: "health".into(),
    };
    let mut stream = state.engine.submit(request)?;
    let generated = timeout(PATIENCE, async {
        while let Some(delta) = stream.next().await {
            if !delta.tokens.is_empty() {
                return true;
            }
        }
        false
    });
    match generated.await {
        Ok(true) => Ok(to_json(&json!({"status": "ready", "seconds": started.elapsed().as_secs_f64()}))),
        Ok(false) => Err(ApiError::busy("the engine generated nothing")),
        Err(_) => Err(ApiError::busy(format!("no token within {} s", PATIENCE.as_secs()))),
    }
}

/// `GET /server_info`
pub async fn server_info(State(state): State<SharedState>) -> Answer {
    let mut info = state.description.clone();
    let (worker, model) = state.model()?;
    let mut worker = serde_json::to_value(worker).unwrap_or_default();
    if let Some(worker) = worker.as_object_mut() {
        // At /v1/plan.
        worker.remove("plan");
    }
    info["worker"] = worker;
    info["parsers"] = json!({
        "reasoning": model.format.reasoning.map(|format| format.name),
        "tool_calls": model.format.tools.map(|format| format.name),
    });
    info["generation_config"] = serde_json::to_value(model.defaults).unwrap_or_default();
    let engines: Vec<Value> = state
        .engine
        .replicas()
        .iter()
        .map(|replica| {
            let mut entry = engine(replica);
            if let Some(info) = &replica.info {
                entry["max_model_len"] = info.max_model_len.into();
                entry["num_blocks"] = info.num_blocks.into();
            }
            entry
        })
        .collect();
    if !engines.is_empty() {
        info["engines"] = engines.into();
    }
    info["is_paused"] = state.engine.is_paused().into();
    info["is_sleeping"] = state.engine.is_asleep().into();
    Ok(to_json(&info))
}

/// `GET /get_model_info`
pub async fn model_info(State(state): State<SharedState>) -> Answer {
    let (worker, model) = state.model()?;
    Ok(to_json(&json!({
        "model_path": state.names[0],
        "tokenizer_path": state.names[0],
        "is_generation": worker.pooling.is_none(),
        "weight_version": WEIGHT_VERSION,
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "max_model_len": worker.max_model_len,
        "vocab_size": worker.vocab_size,
        "preferred_sampling_params": model.defaults,
    })))
}

/// What the flags say, for [`server_info`]: no key, only how many there are.
pub fn describe(config: &crate::ServerConfig) -> Value {
    let http = &config.http;
    let seconds = |duration: Duration| duration.as_secs_f64();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "served_model_names": config.model_names(),
        "engine": config.engine,
        "scheduling": {
            "policy": format!("{:?}", config.scheduling.scheduling_policy).to_lowercase(),
            "prefix_caching": config.scheduling.prefix_caching(),
            "overlap": config.scheduling.overlap,
            "max_queue": config.scheduling.max_queue,
        },
        "speculation": {
            "drafter": config.speculation.drafter,
            "default": config.speculation.speculation,
            "speculative_config": config.speculation.speculative_config,
        },
        "http": {
            "host": http.host,
            "port": http.port,
            "uds": http.uds,
            "tls": http.tls.ssl_certfile.is_some(),
            "root_path": http.root_path,
            "default_chat_template_kwargs": http.default_chat_template_kwargs,
            "api_keys": http.api_key.len(),
            "allowed_origins": http.allowed_origins,
            "body_limit_bytes": http.body_limit,
            "response_store_bytes": http.response_store,
            "drain_timeout_s": seconds(http.drain_timeout),
            "step_timeout_s": seconds(http.step_timeout),
            "keep_alive_s": seconds(http.keep_alive),
            "otlp_traces_endpoint": http.otlp_traces_endpoint.as_ref().map(ToString::to_string),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_by_name_and_unknown_modes_are_refused() {
        assert_eq!(parameter(Some("a=1&mode=wait&mode=keep"), "mode"), Some("keep"));
        assert_eq!(parameter(Some("mode"), "mode"), None);
        assert_eq!(parameter(None, "mode"), None);
        assert_eq!(mode(Some("mode=wait"), PauseMode::Abort).unwrap(), PauseMode::Wait);
        assert_eq!(mode(Some("mode=now"), PauseMode::Abort).unwrap_err().status, 400);
    }
}
