//! What is noted of a request while it runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use frizzen_core::SamplingParams;

use super::context::{SpanId, TraceId};
use crate::error::ApiError;
use crate::output::Waterfall;
use crate::routes::Route;

/// Everything that the spans of a request are made of.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its trace.
    pub trace: TraceId,
    /// Its root span.
    pub span: SpanId,
    /// The client's span.
    pub parent: Option<SpanId>,
    /// What vendors added to the client's context.
    pub state: Option<String>,
    /// The route's template.
    pub route: &'static str,
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    /// The request's head was read.
    pub received: SystemTime,
    /// The last thing that happened.
    pub ended: SystemTime,
    /// What the engine was asked for; `None` if it was not asked.
    pub asked: Option<Asked>,
    /// One per choice that the engine has said anything of.
    pub choices: Vec<Choice>,
    /// The status of the answer; `None` if the client left before it.
    pub status: Option<u16>,
    /// Why there is no answer, or no whole one.
    pub error: Option<Failure>,
}

/// What the engine was asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// When.
    pub at: SystemTime,
    /// When the engine's clock, by which choices are timed, showed zero.
    pub epoch: SystemTime,
    /// The model, by the name that the client used.
    pub model: String,
    /// The request's id.
    pub name: Arc<str>,
    /// What stands before it in the answer's.
    pub prefix: &'static str,
    /// Of the first sample.
    pub params: SamplingParams,
    /// Samples per prompt.
    pub n: u32,
    /// Of all prompts.
    pub prompt_tokens: u64,
    /// As events.
    pub stream: bool,
}

/// One choice.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Where its time went.
    pub waterfall: Waterfall,
    /// `abort` if the client left first.
    pub finish: &'static str,
}

/// Why there is no answer, or no whole one.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `error.type`.
    pub kind: &'static str,
    /// For people.
    pub message: Cow<'static, str>,
}

impl Record {
    /// A request that has just come.
    pub fn new(
        trace: TraceId,
        span: SpanId,
        parent: Option<SpanId>,
        state: Option<String>,
        route: &Route,
    ) -> Self {
        let now = SystemTime::now();
        Self {
            trace,
            span,
            parent,
            state,
            route: route.path,
            operation: route.operation().unwrap_or("other"),
            received: now,
            ended: now,
            asked: None,
            choices: Vec::new(),
            status: None,
            error: None,
        }
    }

    /// The answer, or the rest of one, is this error.
    pub fn failed(&mut self, error: &ApiError) {
        self.error = Some(Failure { kind: error.kind(), message: error.message.clone() });
    }

    /// Nothing follows.
    pub fn end(&mut self) {
        self.ended = SystemTime::now();
    }
}

/// When a clock that shows `now` now showed zero.
pub fn epoch(now: Duration) -> SystemTime {
    SystemTime::now().checked_sub(now).unwrap_or(SystemTime::UNIX_EPOCH)
}
