//! Queries against documents: scores and rankings.
//!
//! A classifier with one class reads each pair as one prompt; of embeddings the angle counts, or, where the model makes
//! one of every token, how well the tokens fit.

use std::sync::Arc;

use axum::extract::{Request, State};
use frizzen_core::pooling::{cosine, late_interaction};
use frizzen_core::{PoolingInfo, PoolingTask};

use crate::error::ApiError;
use crate::pooling::answer::float;
use crate::pooling::request::{Common, Input, texts};
use crate::pooling::run::{Job, Piece, Prepared, pooling_info, run};
use crate::pooling::{Answer, head, prepared};
use crate::request::{Dialect, Fields, Limits, Unused};
use crate::state::{AppState, SharedState};

/// A body of `/score`.
#[derive(Clone, Debug)]
pub struct ScoreRequest {
    /// What all endpoints ask for.
    pub common: Common,
    /// One, or as many as there are documents.
    pub queries: Vec<String>,
    /// At least one.
    pub documents: Vec<String>,
}

impl ScoreRequest {
    /// Reads and checks a body.
    pub fn read(mut fields: Fields, limits: &Limits) -> Result<(Self, Unused), ApiError> {
        let queries = texts(&mut fields, &["queries", "data_1", "text_1", "query"])?;
        let documents = texts(&mut fields, &["documents", "items", "data_2", "text_2"])?;
        let common = Common::read(&mut fields, limits)?;
        Ok((Self { common, queries, documents }, fields.finish()))
    }
}

/// A body of `/rerank`.
#[derive(Clone, Debug)]
pub struct RerankRequest {
    /// What all endpoints ask for.
    pub common: Common,
    /// What the documents are to fit.
    pub query: String,
    /// At least one.
    pub documents: Vec<String>,
    /// How many of them are answered.
    pub top: usize,
    /// Most tokens of a document.
    pub limit: Option<usize>,
    /// The answer repeats them.
    pub shown: bool,
}

impl RerankRequest {
    /// Reads and checks a body.
    pub fn read(mut fields: Fields, limits: &Limits) -> Result<(Self, Unused), ApiError> {
        let mut query = texts(&mut fields, &["query"])?;
        if query.len() != 1 {
            return Err(ApiError::invalid("query", format!("query must be one text, got {}", query.len())));
        }
        let documents = texts(&mut fields, &["documents"])?;
        let top = match fields.integer::<u32>("top_n", 0..=u32::MAX)?.unwrap_or(0) {
            0 => documents.len(),
            top => top as usize,
        };
        let limit = fields.integer::<u32>("max_tokens_per_doc", 1..=u32::MAX)?.map(|limit| limit as usize);
        let shown = fields.boolean("return_documents")?.unwrap_or(true);
        let common = Common::read(&mut fields, limits)?;
        let request = Self { common, query: query.swap_remove(0), documents, top, limit, shown };
        Ok((request, fields.finish()))
    }
}

/// How vectors become scores.
enum Judge {
    /// Each vector is a pair's.
    Pairs(PoolingInfo),
    /// So many vectors of queries, one or as many as the others; then the others.
    Distances(usize, PoolingInfo),
}

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
    Ok((all.collect(), Judge::Distances(few, pooling.clone())))
}

impl Judge {
    fn per_token(&self) -> bool {
        matches!(self, Self::Distances(_, pooling) if pooling.per_token)
    }

    fn scores(&self, vectors: Vec<Vec<f32>>, activate: Option<bool>) -> Vec<f32> {
        let (few, pooling) = match self {
            Self::Pairs(pooling) => {
                let score = |vector| pooling.probabilities(vector, activate).first().copied().unwrap_or(0.0);
                return vectors.into_iter().map(score).collect();
            }
            Self::Distances(few, pooling) => (*few, pooling),
        };
        let size = pooling.size as usize;
        let fit = |query: &[f32], document: &[f32]| {
            if pooling.per_token { late_interaction(query, document, size) } else { cosine(query, document) }
        };
        let directions = |vector: Vec<f32>| {
            if pooling.per_token { pooling.finish(vector, None, Some(true)) } else { vector }
        };
        let vectors: Vec<Vec<f32>> = vectors.into_iter().map(directions).collect();
        let (queries, documents) = vectors.split_at(few);
        let pair =
            |(index, document): (usize, &Vec<f32>)| fit(queries.get(index).unwrap_or(&queries[0]), document);
        documents.iter().enumerate().map(pair).collect()
    }
}

async fn scores(
    state: &SharedState,
    prepared: Prepared,
    judge: &Judge,
    activate: Option<bool>,
) -> Result<(Vec<f32>, u64), ApiError> {
    let found = run(state, prepared).await?;
    Ok((judge.scores(found.vectors, activate), found.prompt_tokens))
}

/// `POST /score`
pub async fn score(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, fields: Fields, limits: &Limits| {
        let (request, unused) = ScoreRequest::read(fields, limits)?;
        state.note(&unused);
        let (pieces, judge) = comparison(state, "/score", request.queries, request.documents)?;
        let common = Common { per_token: judge.per_token(), ..request.common };
        let activate = common.activate;
        Ok((Job { common, field: "documents", pieces, last_to: None }, (judge, activate)))
    };
    let (prepared, model, (judge, activate)) = prepared(&state, request, Dialect::Score, read).await?;
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
    let read = |state: &AppState, fields: Fields, limits: &Limits| {
        let (request, unused) = RerankRequest::read(fields, limits)?;
        state.note(&unused);
        let RerankRequest { common, query, documents, top, limit, shown } = request;
        let (pieces, judge) = comparison(state, "/rerank", vec![query], documents.clone())?;
        // The query is a piece of its own unless it is read together with each document.
        let first = match &judge {
            Judge::Pairs(_) => 0,
            Judge::Distances(few, _) => *few,
        };
        let last_to = limit.map(|limit| (first, limit));
        let common = Common { per_token: judge.per_token(), ..common };
        let activate = common.activate;
        Ok((Job { common, field: "documents", pieces, last_to }, (judge, activate, documents, top, shown)))
    };
    let (prepared, model, (judge, activate, documents, top, shown)) =
        prepared(&state, request, Dialect::Rerank, read).await?;
    let name = Arc::clone(&prepared.name);
    let (scores, prompt_tokens) = scores(&state, prepared, &judge, activate).await?;
    Ok(head("rerank", &name, model, prompt_tokens).ranking(&scores, &documents, top, shown))
}
