//! What a caller hands to the engine.

use std::sync::Arc;

use crate::{Constraint, Pooling, SamplingParams, TokenId};

/// A request in tokens: validated, lowered, ready to schedule.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt ids; never empty, each below the vocabulary size.
    pub prompt: Arc<[TokenId]>,
    /// Sampling and stopping, already validated against the model.
    pub params: SamplingParams,
    /// What the output must satisfy, besides. The tokens that end the request are allowed where the output may end.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// The result is a vector and nothing is generated: `params` are the defaults and mean nothing.
    pub pooling: Option<Pooling>,
    /// Smaller is served first under the priority policy; 0 otherwise.
    pub priority: i32,
    /// Mixed into the first block's hash: requests with different salts never share KV blocks.
    pub cache_salt: Option<Arc<str>>,
    /// The caller's name for the request, for logs only.
    pub external_id: Arc<str>,
}
