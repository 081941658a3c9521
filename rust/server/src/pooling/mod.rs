//! Endpoints that return vectors, and what is made of vectors: scores and rankings.
//!
//! * [`request`]: their bodies. [`run`]: from texts to the model's vectors. * [`encode`]: how vectors are written.
//!   [`answer`]: the answers. * [`compare`]: scores and rankings. [`cohere`]: another dialect.

pub mod answer;
pub mod cohere;
pub mod compare;
pub mod encode;
pub mod request;
pub mod run;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use frizzen_core::{PoolingInfo, PoolingTask};

use crate::body;
use crate::edge::RequestName;
use crate::error::ApiError;
use crate::prepare::off_thread;
use crate::request::{Dialect, Fields, Limits};
use crate::state::{AppState, SharedState, unix_time};
use answer::{Head, float};
use encode::Matrix;
use request::{Common, Task, VectorsRequest};
use run::{Job, Piece, Prepared, pooling_info, prepare, run};

type Answer = Result<Response, ApiError>;

/// Bodies longer than this many bytes are prepared on the blocking pool.
const INLINE: usize = 4096;

/// Reads the body and lets `read` make a job of it, wherever that disturbs nobody.
async fn prepared<T: Send + 'static>(
    state: &SharedState,
    request: Request,
    dialect: Dialect,
    read: impl FnOnce(&AppState, Fields, &Limits) -> Result<(Job, T), ApiError> + Send + 'static,
) -> Result<(Prepared, String, T), ApiError> {
    state.model()?;
    state.check_samples("input", 1)?;
    let name = request.extensions().get::<RequestName>().map(|name| Arc::clone(&name.0));
    let name = name.unwrap_or_else(|| state.ids.next().into());
    let body = body::read(request, state.http.body_limit).await?;
    let small = body.len() <= INLINE;
    let shared = Arc::clone(state);
    let work = move || {
        let (info, model) = shared.model()?;
        let limits = shared.limits(info, model);
        let (fields, unused) = Fields::parse(&body, dialect)?;
        let (job, rest) = read(&shared, fields, &limits)?;
        shared.note(&unused);
        let served = shared.check_model(job.common.model.as_deref())?.to_owned();
        shared.check_samples(job.field, job.pieces.len())?;
        Ok((prepare(&shared, job, &name)?, served, rest))
    };
    if small { work() } else { off_thread(work).await }
}

fn head(prefix: &str, name: &str, model: String, prompt_tokens: u64) -> Head {
    Head { id: format!("{prefix}-{name}"), created: unix_time(), model, prompt_tokens }
}

/// A job of one vector, or one per token, of each input.
fn one_each(
    state: &AppState,
    request: VectorsRequest,
    unused: &crate::request::Unused,
    per_token: bool,
) -> Job {
    state.note(unused);
    let common = Common { per_token, ..request.common };
    Job {
        common,
        field: "input",
        pieces: request.inputs.into_iter().map(Piece::One).collect(),
        last_to: None,
    }
}

/// `POST /v1/embeddings`
pub async fn embeddings(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, fields: Fields, limits: &Limits| {
        let serves = |pooling: &PoolingInfo| pooling.task == PoolingTask::Embed;
        let pooling = pooling_info(state.model()?.0, "/v1/embeddings", serves)?;
        let (request, unused) = VectorsRequest::read(fields, Dialect::Embeddings, limits)?;
        let (encoding, dimensions) = (request.encoding, request.dimensions);
        dimensions.map_or(Ok(()), |asked| pooling.check_dimensions(asked))?;
        let job = one_each(state, request, &unused, pooling.per_token);
        let activate = job.common.activate;
        Ok((job, (pooling.clone(), encoding, dimensions, activate)))
    };
    let (prepared, model, (pooling, encoding, dimensions, activate)) =
        prepared(&state, request, Dialect::Embeddings, read).await?;
    let name = Arc::clone(&prepared.name);
    let found = run(&state, prepared).await?;
    let width = pooling.per_token.then(|| dimensions.unwrap_or(pooling.size) as usize);
    let vectors = found.vectors.into_iter().map(|vector| pooling.finish(vector, dimensions, activate));
    let vectors: Vec<_> = vectors.map(|values| Matrix { values, width }).collect();
    head("embd", &name, model, found.prompt_tokens).vectors(&vectors, &encoding, "embedding", "embedding")
}

/// What `/pooling` is to return: what was asked for, if the model has it, or what the model is for.
fn pooling_task(pooling: &PoolingInfo, asked: Option<Task>) -> Result<Task, ApiError> {
    let own = Task { kind: pooling.task, per_token: pooling.per_token };
    match asked {
        None => Ok(own),
        // Tokens have vectors whatever is made of them.
        Some(asked) if asked.kind == own.kind && asked.per_token >= own.per_token => Ok(asked),
        Some(asked) => {
            let message = format!("the model's task is {}, not {}", own.name(), asked.name());
            Err(ApiError::invalid("task", message))
        }
    }
}

/// `POST /pooling`
pub async fn pooling(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, fields: Fields, limits: &Limits| {
        let pooling = pooling_info(state.model()?.0, "/pooling", |_| true)?;
        let (request, unused) = VectorsRequest::read(fields, Dialect::Pooling, limits)?;
        let task = pooling_task(pooling, request.task)?;
        let encoding = request.encoding;
        let job = one_each(state, request, &unused, task.per_token);
        let activate = job.common.activate;
        Ok((job, (pooling.clone(), encoding, task, activate)))
    };
    let (prepared, model, (pooling, encoding, task, activate)) =
        prepared(&state, request, Dialect::Pooling, read).await?;
    let name = Arc::clone(&prepared.name);
    let found = run(&state, prepared).await?;
    let width = task.per_token.then_some(pooling.size as usize);
    let vectors = found.vectors.into_iter().map(|vector| pooling.finish(vector, None, activate));
    let vectors: Vec<_> = vectors.map(|values| Matrix { values, width }).collect();
    head("pool", &name, model, found.prompt_tokens).vectors(&vectors, &encoding, "pooling", "data")
}

/// `POST /classify`
pub async fn classify(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, fields: Fields, limits: &Limits| {
        let serves = |pooling: &PoolingInfo| pooling.task == PoolingTask::Classify && !pooling.per_token;
        let pooling = pooling_info(state.model()?.0, "/classify", serves)?;
        let (request, unused) = VectorsRequest::read(fields, Dialect::Classify, limits)?;
        let job = one_each(state, request, &unused, false);
        let activate = job.common.activate;
        Ok((job, (pooling.clone(), activate)))
    };
    let (prepared, model, (pooling, activate)) = prepared(&state, request, Dialect::Classify, read).await?;
    let name = Arc::clone(&prepared.name);
    let found = run(&state, prepared).await?;
    let probabilities = found.vectors.into_iter().map(|vector| pooling.probabilities(vector, activate));
    let head = head("classify", &name, model, found.prompt_tokens);
    Ok(head.list(probabilities.enumerate(), |out, (index, probs)| {
        // Of equally likely classes the first.
        let best = (0..probs.len()).rev().max_by(|a, b| probs[*a].total_cmp(&probs[*b]));
        let label = serde_json::json!(best.and_then(|best| pooling.labels.get(best)));
        let classes = probs.len();
        out.extend_from_slice(format!("{{\"index\":{index},\"label\":{label},\"probs\":").as_bytes());
        crate::json::list(out, probs, float);
        out.extend_from_slice(format!(",\"num_classes\":{classes}}}").as_bytes());
    }))
}
