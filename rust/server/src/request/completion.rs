//! `/v1/completions`.

use frizzen_core::TokenId;
use serde_json::Value;

use crate::error::{ApiError, shortened};
use crate::request::common::{Common, Limits};
use crate::request::fields::{self, Fields};

/// Most prompts of one body.
pub const MAX_PROMPTS: usize = 4096;
/// What OpenAI generates if it is not told.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// A prompt as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// To be tokenised; not empty.
    Text(String),
    /// Checked against the vocabulary; not empty.
    Ids(Vec<TokenId>),
}

/// A completion as it was asked for.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// The shared fields, `max_tokens` and `logprobs` filled in.
    pub common: Common,
    /// At least one prompt.
    pub prompts: Vec<Prompt>,
    /// Begin each output with its prompt.
    pub echo: bool,
}

impl CompletionRequest {
    /// Reads and checks a body.
    pub fn read(mut fields: Fields, limits: &Limits) -> Result<Self, ApiError> {
        let prompts = prompts(fields.take("prompt"), limits.params.vocab_size)?;
        let mut common = Common::read(&mut fields, limits)?;
        common.params.logprobs = fields.integer("logprobs", 0..=limits.params.max_logprobs)?;
        let max_tokens = fields.integer("max_tokens", 0..=u32::MAX)?;
        common.params.max_tokens = Some(max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
        Ok(Self { common, prompts, echo: fields.flag("echo")? })
    }
}

/// Text, token ids, or a list of either.
pub fn prompts(value: Option<Value>, vocab_size: u32) -> Result<Vec<Prompt>, ApiError> {
    let empty = || ApiError::invalid("prompt", "prompt must not be empty");
    match value {
        Some(Value::Array(items)) if items.is_empty() => Err(empty()),
        Some(Value::Array(items)) if items.iter().all(Value::is_number) => {
            Ok(vec![Prompt::Ids(fields::token_ids("prompt", &items, vocab_size)?)])
        }
        Some(Value::Array(items)) if items.len() > MAX_PROMPTS => {
            let message = format!("prompt must have at most {MAX_PROMPTS} items, got {}", items.len());
            Err(ApiError::invalid("prompt", message))
        }
        Some(Value::Array(items)) => items.into_iter().map(|item| prompt(item, vocab_size)).collect(),
        Some(item) => Ok(vec![prompt(item, vocab_size)?]),
        None => Err(empty()),
    }
}

fn prompt(item: Value, vocab_size: u32) -> Result<Prompt, ApiError> {
    match item {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::invalid("prompt", "prompt must not be empty"))
        }
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) if ids.is_empty() => Err(ApiError::invalid("prompt", "prompt must not be empty")),
        Value::Array(ids) => Ok(Prompt::Ids(fields::token_ids("prompt", &ids, vocab_size)?)),
        other => {
            let text = other.to_string();
            let message =
                format!("prompt must be text, token ids or a list of either, got {}", shortened(&text, 64));
            Err(ApiError::invalid("prompt", message))
        }
    }
}
