//! From texts to vectors: tokenise, submit all or none, wait for each.

use std::sync::Arc;

use frizzen_core::{FinishReason, Pooling, PoolingInfo, Request, SamplingParams};
use frizzen_engine::{OutputStream, WorkerInfo};
use frizzen_text::{Cut, Encoded};

use crate::error::ApiError;
use crate::ids::is_name;
use crate::pooling::request::{Common, Input};
use crate::state::{AppState, SharedState};

/// What the model has to read for one vector.
#[derive(Clone, Debug)]
pub enum Piece {
    /// One text.
    One(Input),
    /// A pair, read together.
    Pair(String, String),
}

/// Pieces, and how they are cut.
#[derive(Clone, Debug)]
pub struct Job {
    /// What all endpoints ask for.
    pub common: Common,
    /// The field at fault if a text does not fit.
    pub field: &'static str,
    /// In the order of the answer.
    pub pieces: Vec<Piece>,
    /// From this piece on, at most `limit` tokens of a piece's last text.
    pub last_to: Option<(usize, usize)>,
}

/// A request whose prompts are tokens.
#[derive(Debug)]
pub struct Prepared {
    /// The name that the answer carries.
    pub name: Arc<str>,
    requests: Vec<Request>,
}

/// Vectors as the model computes them, in the order of the pieces.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// One per piece.
    pub vectors: Vec<Vec<f32>>,
    /// Of all prompts.
    pub prompt_tokens: u64,
}

/// What the model's vectors are, if it has the task that `path` needs.
///
/// # Errors
/// 400 that says which task it has.
pub fn pooling_info<'a>(
    info: &'a WorkerInfo,
    path: &str,
    serves: impl Fn(&PoolingInfo) -> bool,
) -> Result<&'a PoolingInfo, ApiError> {
    let has = match &info.pooling {
        None => {
            "generates text (/v1/chat/completions, /v1/completions); --runner pooling would make it embed"
                .to_owned()
        }
        Some(pooling) if serves(pooling) => return Ok(pooling),
        Some(pooling) => format!("has the task {}", pooling.tasks()),
    };
    Err(ApiError::invalid("model", format!("{path} is not served by this model, which {has}")))
}

/// Refuses to let a model generate that does not.
///
/// # Errors
/// 400 that says which task it has.
pub fn check_generates(info: &WorkerInfo) -> Result<(), ApiError> {
    let Some(pooling) = &info.pooling else { return Ok(()) };
    let message = format!("this model generates no text; its task is {}", pooling.tasks());
    Err(ApiError::invalid("model", message))
}

/// Tokenises. Takes long for long texts: not for the threads that serve everybody.
pub fn prepare(state: &AppState, job: Job, name: &Arc<str>) -> Result<Prepared, ApiError> {
    let (info, model) = state.model()?;
    let Job { common, field, pieces, last_to } = job;
    let asked = common.request_id.as_deref().filter(|id| is_name(id));
    let name: Arc<str> = asked.map_or_else(|| Arc::clone(name), Into::into);
    let salt: Option<Arc<str>> = common.cache_salt.as_deref().map(Into::into);
    let mut requests = Vec::with_capacity(pieces.len());
    for (index, piece) in pieces.into_iter().enumerate() {
        let last_to = last_to.filter(|(from, _)| index >= *from).map(|(_, limit)| limit);
        let cut = Cut { to: common.truncate.map(|to| to as usize), left: common.truncate_left, last_to };
        let encode = |first: &str, second: Option<&str>| {
            model.tokenizer.encode_pair(first, second, common.add_special.unwrap_or(true), cut)
        };
        let Encoded { ids, second_start } = match piece {
            Piece::One(Input::Text(text)) => encode(&text, None)?,
            Piece::One(Input::Ids(mut ids)) => {
                let keep = cut.to.unwrap_or(ids.len()).min(ids.len());
                if cut.left {
                    ids.drain(..ids.len() - keep);
                } else {
                    ids.truncate(keep);
                }
                Encoded { ids, second_start: None }
            }
            Piece::One(Input::Conversation(conversation)) => {
                let text = model.render(&conversation)?;
                model.tokenizer.encode_pair(&text, None, common.add_special.unwrap_or(false), cut)?
            }
            Piece::Pair(first, second) => encode(&first, Some(&second))?,
        };
        let (length, limit) = (ids.len(), info.max_model_len as usize);
        let problem = match length {
            0 => "has no tokens".to_owned(),
            _ if length > limit => format!("has {length} tokens, and the model takes {limit}"),
            _ => {
                requests.push(Request {
                    prompt: ids.into(),
                    params: SamplingParams::default(),
                    pooling: Some(Pooling { second_start, per_token: common.per_token }),
                    priority: common.priority,
                    constraint: None,
                    cache_salt: salt.clone(),
                    external_id: Arc::clone(&name),
                });
                continue;
            }
        };
        let hint = if length > 0 { "; truncate_prompt_tokens can cut it" } else { "" };
        return Err(ApiError::invalid(field, format!("text {index} of {field} {problem}{hint}")));
    }
    Ok(Prepared { name, requests })
}

/// Hands all prompts to the engine and waits for their vectors.
///
/// Whoever leaves drops this future, and with it the streams, which aborts what is left.
pub async fn run(state: &SharedState, prepared: Prepared) -> Result<Vectors, ApiError> {
    let mut prompt_tokens = 0;
    let mut streams: Vec<OutputStream> = Vec::with_capacity(prepared.requests.len());
    for request in prepared.requests {
        prompt_tokens += request.prompt.len() as u64;
        streams.push(state.engine.submit(request)?);
    }
    let mut vectors = Vec::with_capacity(streams.len());
    for mut stream in streams {
        let mut vector = Vec::new();
        while let Some(delta) = stream.next().await {
            vector.extend(delta.pooled);
            match delta.finish {
                Some(FinishReason::Error(error)) => return Err(error.into()),
                Some(FinishReason::Abort) => return Err(ApiError::busy("the request was aborted")),
                _ => {}
            }
        }
        vectors.push(vector);
    }
    Ok(Vectors { vectors, prompt_tokens })
}
