//! The small routes of SGLang that its clients and routers ask: load by engine, the version of the weights, and a text read
//! by one parser alone.

use axum::extract::{Request, State};
use frizzen_engine::Load;
use serde_json::{Value, json};

use crate::body;
use crate::error::ApiError;
use crate::handlers::{Answer, to_json};
use crate::parse::read_text;
use crate::prepare::off_thread;
use crate::request::Fields;
use crate::state::{AppState, SharedState};

/// The load of each engine: one, where it is in this process.
fn loads(state: &AppState) -> Vec<(u32, Load)> {
    let replicas = state.engine.replicas();
    if replicas.is_empty() {
        return vec![(0, state.engine.load())];
    }
    replicas.iter().map(|replica| (replica.rank, replica.load)).collect()
}

/// `GET /get_load`
pub async fn load(State(state): State<SharedState>) -> Answer {
    let block = u64::from(state.model()?.0.block_size);
    let entry = |(rank, load): (u32, Load)| {
        json!({
            "dp_rank": rank,
            "num_reqs": load.running + load.waiting,
            "num_waiting_reqs": load.waiting,
            "num_tokens": load.used_blocks * block,
            "num_pages": load.used_blocks,
        })
    };
    Ok(to_json(&loads(&state).into_iter().map(entry).collect()))
}

/// `GET /v1/loads`
pub async fn every_load(State(state): State<SharedState>) -> Answer {
    let info = state.model()?.0;
    let (block, rows) = (u64::from(info.block_size), info.max_num_seqs);
    let loads = loads(&state);
    let usage = |load: &Load| load.used_blocks as f64 / load.total_blocks.max(1) as f64;
    let entry = |(rank, load): &(u32, Load)| {
        json!({
            "dp_rank": rank,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_total_reqs": load.running + load.waiting,
            "num_used_tokens": load.used_blocks * block,
            "max_total_num_tokens": load.total_blocks * block,
            "token_usage": usage(load),
            "max_running_requests": rows,
        })
    };
    let sum = |part: fn(&Load) -> u64| loads.iter().map(|(_, load)| part(load)).sum::<u64>();
    let (running, waiting) = (sum(|load| load.running), sum(|load| load.waiting));
    let mean = loads.iter().map(|(_, load)| usage(load)).sum::<f64>() / loads.len().max(1) as f64;
    Ok(to_json(&json!({
        "dp_rank_count": loads.len(),
        "loads": loads.iter().map(entry).collect::<Vec<_>>(),
        "aggregate": {
            "total_running_reqs": running,
            "total_waiting_reqs": waiting,
            "total_reqs": running + waiting,
            "avg_token_usage": mean,
        },
    })))
}

/// `GET /weight_version`: weights are never exchanged here.
pub async fn weight_version(State(state): State<SharedState>) -> Answer {
    state.model()?;
    Ok(to_json(&json!({"weight_version": WEIGHT_VERSION})))
}

/// The version of weights that were loaded at start, in SGLang's words.
pub const WEIGHT_VERSION: &str = "default";

/// `POST /parse_function_call`
pub async fn parse_function_call(State(state): State<SharedState>, request: Request) -> Answer {
    parsed(state, request, |state, fields| {
        let tools = fields.string("tool_call_parser")?.unwrap_or_else(|| "auto".to_owned());
        let message = read_text(state, fields, Some("none"), Some(&tools))?;
        let call = |(index, call): (usize, &frizzen_text::parse::ToolCall)| {
            json!({"tool_index": index, "name": call.name, "parameters": call.arguments})
        };
        let calls: Vec<Value> = message.calls.iter().enumerate().map(call).collect();
        Ok(json!({"normal_text": message.content, "calls": calls}))
    })
    .await
}

/// `POST /separate_reasoning`
pub async fn separate_reasoning(State(state): State<SharedState>, request: Request) -> Answer {
    parsed(state, request, |state, fields| {
        let reasoning = fields.string("reasoning_parser")?.unwrap_or_else(|| "auto".to_owned());
        let message = read_text(state, fields, Some(&reasoning), Some("none"))?;
        Ok(json!({"reasoning_text": message.reasoning, "text": message.content}))
    })
    .await
}

async fn parsed(
    state: SharedState,
    request: Request,
    read: fn(&AppState, &mut Fields) -> Result<Value, ApiError>,
) -> Answer {
    let body = body::read(request, state.http.body_limit).await?;
    off_thread(move || {
        let mut fields = Fields::parse_untabled(&body)?;
        let answer = read(&state, &mut fields)?;
        state.note(&fields.finish());
        Ok(answer)
    })
    .await
    .map(|answer| to_json(&answer))
}
