//! Endpoints that return vectors, and what is made of vectors: scores and rankings.
//!
//! * [`request`]: their bodies. [`run`]: from texts to the model's vectors. * [`encode`]: how vectors are written.
//!   [`answer`]: the answers.

pub mod answer;
pub mod encode;
pub mod request;
pub mod run;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use frizzen_core::pooling::cosine;
use frizzen_core::{PoolingInfo, PoolingTask};

use crate::body;
use crate::edge::RequestName;
use crate::error::{ApiError, quoted};
use crate::prepare::off_thread;
use crate::request::{Fields, Limits};
use crate::state::{AppState, SharedState, unix_time};
use answer::{Head, float};
use encode::Encoding;
use request::{Common, Input, inputs, texts};
use run::{Job, Piece, Prepared, has_task, pooling_info, prepare, run};

type Answer = Result<Response, ApiError>;

/// Bodies longer than this many bytes are prepared on the blocking pool.
const INLINE: usize = 4096;

/// Reads the body and lets `read` make a job of it, wherever that disturbs nobody.
async fn prepared<T: Send + 'static>(
    state: &SharedState,
    request: Request,
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
        let (job, rest) = read(&shared, Fields::parse_untabled(&body)?, &limits)?;
        let served = shared.check_model(job.common.model.as_deref())?.to_owned();
        shared.check_samples(job.field, job.pieces.len())?;
        Ok((prepare(&shared, job, &name)?, served, rest))
    };
    if small { work() } else { off_thread(work).await }
}

fn head(prefix: &str, name: &str, model: String, prompt_tokens: u64) -> Head {
    Head { id: format!("{prefix}-{name}"), created: unix_time(), model, prompt_tokens }
}

fn one_each(state: &AppState, mut fields: Fields, limits: &Limits) -> Result<Job, ApiError> {
    let common = Common::read(&mut fields, limits)?;
    let pieces = inputs(&mut fields, limits.params.vocab_size)?.into_iter().map(Piece::One).collect();
    state.note(&fields.finish());
    Ok(Job { common, field: "input", pieces, last_to: None })
}

/// `POST /v1/embeddings`
pub async fn embeddings(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, mut fields: Fields, limits: &Limits| {
        let pooling = pooling_info(state.model()?.0, "/v1/embeddings", has_task(PoolingTask::Embed))?;
        let encoding = Encoding::read(&mut fields)?;
        let dimensions = fields.integer::<u32>("dimensions", 1..=u32::MAX)?;
        dimensions.map_or(Ok(()), |asked| pooling.check_dimensions(asked))?;
        let job = one_each(state, fields, limits)?;
        let activate = job.common.activate;
        Ok((job, (pooling.clone(), encoding, dimensions, activate)))
    };
    let (prepared, model, (pooling, encoding, dimensions, activate)) =
        prepared(&state, request, read).await?;
    let name = Arc::clone(&prepared.name);
    let found = run(&state, prepared).await?;
    let vectors = found.vectors.into_iter().map(|vector| pooling.embedding(vector, dimensions, activate));
    let vectors: Vec<_> = vectors.collect();
    head("embd", &name, model, found.prompt_tokens).vectors(&vectors, &encoding, "embedding", "embedding")
}

/// `POST /pooling`
pub async fn pooling(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, mut fields: Fields, limits: &Limits| {
        let pooling = pooling_info(state.model()?.0, "/pooling", |_| true)?;
        if fields.take("dimensions").is_some() {
            return Err(ApiError::invalid("dimensions", "dimensions belongs to /v1/embeddings"));
        }
        let own = match pooling.task {
            PoolingTask::Embed => "embed",
            PoolingTask::Classify => "classify",
        };
        let asked = fields.string("task")?;
        match asked.as_deref() {
            None => {}
            Some(task) if task == own => {}
            Some("token_embed" | "token_classify") => {
                let message = format!("task must be {own}: a vector per token is not supported");
                return Err(ApiError::unsupported("task", message));
            }
            Some(other) => {
                let message = format!("the model's task is {own}, not {}", quoted(other, 32));
                return Err(ApiError::invalid("task", message));
            }
        }
        let encoding = Encoding::read(&mut fields)?;
        let job = one_each(state, fields, limits)?;
        let activate = job.common.activate;
        Ok((job, (pooling.clone(), encoding, activate)))
    };
    let (prepared, model, (pooling, encoding, activate)) = prepared(&state, request, read).await?;
    let name = Arc::clone(&prepared.name);
    let found = run(&state, prepared).await?;
    let vectors = found.vectors.into_iter().map(|vector| pooling.finish(vector, None, activate));
    let vectors: Vec<_> = vectors.collect();
    head("pool", &name, model, found.prompt_tokens).vectors(&vectors, &encoding, "pooling", "data")
}

/// `POST /classify`
pub async fn classify(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, fields: Fields, limits: &Limits| {
        let pooling = pooling_info(state.model()?.0, "/classify", has_task(PoolingTask::Classify))?;
        let job = one_each(state, fields, limits)?;
        let activate = job.common.activate;
        Ok((job, (pooling.clone(), activate)))
    };
    let (prepared, model, (pooling, activate)) = prepared(&state, request, read).await?;
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

/// How vectors become scores.
enum Judge {
    /// Each vector is a pair's.
    Pairs(PoolingInfo),
    /// So many vectors of queries, one or as many as the others; then the others.
    Distances(usize),
}

/// Queries against documents: one against each, or pair by pair.
fn comparison(
    state: &AppState,
    path: &str,
    queries: Vec<String>,
    documents: Vec<String>,
) -> Result<(Vec<Piece>, Judge), ApiError> {
    let serves = |pooling: &PoolingInfo| pooling.task == PoolingTask::Embed || pooling.is_cross_encoder();
    let pooling = pooling_info(state.model()?.0, path, serves)?;
    let (few, many) = (queries.len(), documents.len());
    if few != 1 && few != many {
        let message =
            format!("one text is compared with each of several, or pair by pair; got {few} and {many}");
        return Err(ApiError::invalid("documents", message));
    }
    if pooling.is_cross_encoder() {
        let first = queries[0].clone();
        let pair = |(index, document)| {
            let query = queries.get(index).unwrap_or(&first).clone();
            Piece::Pair(query, document)
        };
        return Ok((documents.into_iter().enumerate().map(pair).collect(), Judge::Pairs(pooling.clone())));
    }
    let all = queries.into_iter().chain(documents).map(|text| Piece::One(Input::Text(text)));
    Ok((all.collect(), Judge::Distances(few)))
}

async fn scores(
    state: &SharedState,
    prepared: Prepared,
    judge: &Judge,
    activate: Option<bool>,
) -> Result<(Vec<f32>, u64), ApiError> {
    let found = run(state, prepared).await?;
    let scores = match judge {
        Judge::Pairs(pooling) => {
            let score = |vector| pooling.probabilities(vector, activate).first().copied().unwrap_or(0.0);
            found.vectors.into_iter().map(score).collect()
        }
        Judge::Distances(few) => {
            let (queries, documents) = found.vectors.split_at(*few);
            let pair = |(index, document): (usize, &Vec<f32>)| {
                cosine(queries.get(index).unwrap_or(&queries[0]), document)
            };
            documents.iter().enumerate().map(pair).collect()
        }
    };
    Ok((scores, found.prompt_tokens))
}

/// `POST /score`
pub async fn score(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, mut fields: Fields, limits: &Limits| {
        let queries = texts(&mut fields, &["queries", "data_1", "text_1"])?;
        let documents = texts(&mut fields, &["documents", "items", "data_2", "text_2"])?;
        let (pieces, judge) = comparison(state, "/score", queries, documents)?;
        let common = Common::read(&mut fields, limits)?;
        state.note(&fields.finish());
        let activate = common.activate;
        Ok((Job { common, field: "documents", pieces, last_to: None }, (judge, activate)))
    };
    let (prepared, model, (judge, activate)) = prepared(&state, request, read).await?;
    let name = Arc::clone(&prepared.name);
    let (scores, prompt_tokens) = scores(&state, prepared, &judge, activate).await?;
    Ok(head("score", &name, model, prompt_tokens).list(
        scores.into_iter().enumerate(),
        |out, (index, score)| {
            out.extend_from_slice(format!("{{\"index\":{index},\"object\":\"score\",\"score\":").as_bytes());
            float(out, score);
            out.push(b'}');
        },
    ))
}

/// `POST /rerank`
pub async fn rerank(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, mut fields: Fields, limits: &Limits| {
        let query = texts(&mut fields, &["query"])?;
        if query.len() != 1 {
            return Err(ApiError::invalid("query", format!("query must be one text, got {}", query.len())));
        }
        let documents = texts(&mut fields, &["documents"])?;
        let (pieces, judge) = comparison(state, "/rerank", query, documents.clone())?;
        let top = match fields.integer::<u32>("top_n", 0..=u32::MAX)?.unwrap_or(0) {
            0 => documents.len(),
            top => top as usize,
        };
        let limit = fields.integer::<u32>("max_tokens_per_doc", 1..=u32::MAX)?;
        let shown = fields.boolean("return_documents")?.unwrap_or(true);
        let common = Common::read(&mut fields, limits)?;
        state.note(&fields.finish());
        // The query is a piece of its own unless it is read together with each document.
        let first = match &judge {
            Judge::Pairs(_) => 0,
            Judge::Distances(few) => *few,
        };
        let last_to = limit.map(|limit| (first, limit as usize));
        let activate = common.activate;
        Ok((Job { common, field: "documents", pieces, last_to }, (judge, activate, documents, top, shown)))
    };
    let (prepared, model, (judge, activate, documents, top, shown)) = prepared(&state, request, read).await?;
    let name = Arc::clone(&prepared.name);
    let (scores, prompt_tokens) = scores(&state, prepared, &judge, activate).await?;
    Ok(head("rerank", &name, model, prompt_tokens).ranking(&scores, &documents, top, shown))
}
