//! What the engine hands back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, SpeculationUsage, TokenId};

/// What made a request stop with reason `stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// One of the model's end-of-sequence tokens.
    Eos(TokenId),
    /// One of the request's `stop_token_ids`.
    Token(TokenId),
    /// One of the request's stop strings, found by the front end in the decoded text.
    Text,
    /// The output satisfies the request's constraint and nothing may follow it, or the result is a vector. No token
    /// stands for this end.
    Complete,
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// A stop token, a stop string found by the front end, or the end of a constraint.
    Stop(StopReason),
    /// `max_tokens` or the context length was reached.
    Length,
    /// The caller went away or asked for it.
    Abort,
    /// This request failed, or the engine did.
    Error(Error),
}

impl FinishReason {
    /// True if the last token ended the request: it stands for no text.
    pub const fn is_stop_token(&self) -> bool {
        matches!(self, Self::Stop(StopReason::Eos(_) | StopReason::Token(_)))
    }

    /// The label used in metrics: `stop`, `length`, `abort` or `error`.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Stop(_) => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error(_) => "error",
        }
    }
}

/// Log-probabilities at one position (natural log, after no processing: those of the raw logits).
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// Log-probability of the token itself.
    pub logprob: f32,
    /// Rank of the token, 1 = most likely.
    pub rank: u32,
    /// The most likely alternatives, best first, as many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}

/// How a prompt was computed. Sent once, with the first delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PrefillStats {
    /// Prompt tokens taken from the prefix cache (never the last one: it is recomputed for its logits).
    pub cached_tokens: u32,
    /// Prompt tokens computed by this engine.
    pub computed_tokens: u32,
}

/// When things happened to a request, on the engine's clock, as of its latest token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timing {
    /// The engine accepted the request.
    pub queued: Duration,
    /// First scheduled (preemption does not reset it).
    pub scheduled: Duration,
    /// First token came back.
    pub first_token: Duration,
    /// Last token came back.
    pub last_token: Duration,
    /// How often the request was preempted.
    pub preemptions: u32,
    /// Decode time lost to other requests' prefill: of each step in which this request decoded beside the prefill of
    /// others, what it took beyond the mean of the steps without prefill that decoded about as many tokens. A step
    /// before any such mean is known counts nothing.
    pub lost_to_prefill: Duration,
}

impl Timing {
    /// The same times on another clock, which shows `here` when this one shows `there`.
    #[must_use]
    pub fn on_clock(self, there: Duration, here: Duration) -> Self {
        let shift = |time: Duration| (time + here).saturating_sub(there);
        Self {
            queued: shift(self.queued),
            scheduled: shift(self.scheduled),
            first_token: shift(self.first_token),
            last_token: shift(self.last_token),
            ..self
        }
    }
}

/// Everything that became known about a request since the last delta.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OutputDelta {
    /// New tokens, in order. The end-of-sequence or stop token that ended the request is included.
    pub tokens: Vec<TokenId>,
    /// One entry per token of `tokens` if log-probabilities were asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Entry `i` is about prompt token `i + 1`; complete in the first delta if asked for, else empty.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Of a request that pools: what the model made of the prompt, with the last delta only; or what it made of each of
    /// the next tokens, one vector after the other.
    pub pooled: Vec<f32>,
    /// With the first delta only.
    pub prefill: Option<PrefillStats>,
    /// With the last delta only: nothing follows it.
    pub finish: Option<FinishReason>,
    /// As of the last of `tokens`. Whoever ends a request by its text has it too, though the engine's end never comes.
    pub timing: Option<Timing>,
    /// What speculation did so far, if the request said anything about it.
    pub speculation: Option<Box<SpeculationUsage>>,
}

impl OutputDelta {
    /// Appends a later delta of the same request.
    pub fn merge(&mut self, later: Self) {
        self.tokens.extend(later.tokens);
        self.logprobs.extend(later.logprobs);
        self.prompt_logprobs.extend(later.prompt_logprobs);
        self.pooled.extend(later.pooled);
        self.prefill = self.prefill.or(later.prefill);
        self.finish = later.finish.or(self.finish.take());
        self.timing = later.timing.or(self.timing);
        self.speculation = later.speculation.or(self.speculation.take());
    }
}
