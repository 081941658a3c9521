//! What `Engine.generate` returns.

use frizzen_core::{FinishReason, OutputDelta, StopReason, TokenId, TokenLogprobs};
use frizzen_server::output::Waterfall;
use frizzen_server::output::usage::speculation_json;
use pyo3::IntoPyObject;
use pyo3::prelude::*;

/// Log-probabilities at one position.
#[pyclass(module = "frizzen._core", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct TokenLogprob {
    /// The token at this position.
    token_id: TokenId,
    /// Its log-probability under the raw logits.
    logprob: f32,
    /// Its rank, 1 = most likely.
    rank: u32,
    /// The alternatives that were asked for, best first.
    top: Vec<(TokenId, f32)>,
}

/// The id of a stop token, or a stop string.
#[derive(Clone, Debug, IntoPyObject)]
pub(crate) enum Stopper {
    /// One of the request's stop token ids.
    Token(TokenId),
    /// One of the request's stop strings.
    Text(String),
}

/// One prompt and what was generated for it.
#[pyclass(module = "frizzen._core", frozen)]
#[derive(Debug)]
pub(crate) struct RequestOutput {
    /// The prompt as text, if it was given as text.
    #[pyo3(get)]
    prompt: Option<String>,
    #[pyo3(get)]
    prompt_token_ids: Vec<TokenId>,
    #[pyo3(get)]
    text: String,
    #[pyo3(get)]
    token_ids: Vec<TokenId>,
    /// `stop` or `length`.
    #[pyo3(get)]
    finish_reason: Option<&'static str>,
    stop_reason: Option<Stopper>,
    /// Prompt tokens taken from the prefix cache.
    #[pyo3(get)]
    cached_tokens: u32,
    /// What speculation did, as JSON, if the request spoke of it.
    #[pyo3(get)]
    speculation_json: Option<String>,
    /// Where its time went, as JSON.
    #[pyo3(get)]
    timings_json: String,
    logprobs: Option<Vec<Py<TokenLogprob>>>,
    prompt_logprobs: Option<Vec<Py<TokenLogprob>>>,
}

/// What the engine's deltas of one request add up to.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// All deltas in one.
    pub all: OutputDelta,
    /// The text, without what follows a stop string.
    pub text: String,
    /// Tokens of the text; later ones were computed and are not shown.
    pub shown: usize,
    /// The stop string that ended the request.
    pub stopped_by: Option<String>,
}

impl RequestOutput {
    /// Makes the result of a finished request.
    pub(crate) fn new(
        py: Python<'_>,
        prompt: Option<String>,
        prompt_token_ids: &[TokenId],
        wants: (bool, bool),
        collected: Collected,
    ) -> PyResult<Self> {
        let Collected { all, text, shown, stopped_by } = collected;
        let (logprobs, prompt_logprobs) = wants;
        let shown = shown.min(all.tokens.len());
        let token_ids = all.tokens[..shown].to_vec();
        let finish_reason =
            if stopped_by.is_some() { Some("stop") } else { all.finish.as_ref().map(FinishReason::label) };
        let stop_reason = stopped_by.map(Stopper::Text).or(match &all.finish {
            Some(FinishReason::Stop(StopReason::Token(token))) => Some(Stopper::Token(*token)),
            _ => None,
        });
        let scored = |ids: &[TokenId], scores: &[TokenLogprobs]| -> PyResult<Vec<Py<TokenLogprob>>> {
            ids.iter().zip(scores).map(|(id, score)| Py::new(py, TokenLogprob::new(*id, score))).collect()
        };
        let prefill = all.prefill.unwrap_or_default();
        let tokens = all.tokens.len() as u64;
        let mut timings = Waterfall { timing: all.timing, prefill, tokens, ..Waterfall::default() }.json();
        // Nobody measures these here: there is no connection, and the text is made between two steps.
        if let Some(members) = timings.as_object_mut() {
            members.retain(|name, _| name != "detokenize_ms" && name != "backpressure_ms");
        }
        Ok(Self {
            timings_json: timings.to_string(),
            prompt,
            prompt_token_ids: prompt_token_ids.to_vec(),
            text,
            finish_reason,
            stop_reason,
            speculation_json: all.speculation.as_deref().map(|usage| speculation_json(usage).to_string()),
            cached_tokens: all.prefill.map_or(0, |prefill| prefill.cached_tokens),
            logprobs: logprobs.then(|| scored(&token_ids, &all.logprobs)).transpose()?,
            prompt_logprobs: prompt_logprobs
                .then(|| scored(&prompt_token_ids[1..], &all.prompt_logprobs))
                .transpose()?,
            token_ids,
        })
    }
}

impl TokenLogprob {
    fn new(token_id: TokenId, score: &TokenLogprobs) -> Self {
        Self { token_id, logprob: score.logprob, rank: score.rank, top: score.top.clone() }
    }
}

fn shared(py: Python<'_>, list: Option<&Vec<Py<TokenLogprob>>>) -> Option<Vec<Py<TokenLogprob>>> {
    list.map(|list| list.iter().map(|entry| entry.clone_ref(py)).collect())
}

#[pymethods]
impl RequestOutput {
    /// The stop string or stop token id that matched; `None` for the model's own end of sequence.
    #[getter]
    fn stop_reason(&self) -> Option<Stopper> {
        self.stop_reason.clone()
    }

    /// One entry per token of `token_ids`, if asked for.
    #[getter]
    fn logprobs(&self, py: Python<'_>) -> Option<Vec<Py<TokenLogprob>>> {
        shared(py, self.logprobs.as_ref())
    }

    /// Entry `i` is about prompt token `i + 1`, if asked for.
    #[getter]
    fn prompt_logprobs(&self, py: Python<'_>) -> Option<Vec<Py<TokenLogprob>>> {
        shared(py, self.prompt_logprobs.as_ref())
    }

    fn __repr__(&self) -> String {
        let (n, reason) = (self.token_ids.len(), self.finish_reason.unwrap_or("none"));
        format!("RequestOutput(text={:?}, {n} tokens, finish_reason={reason})", self.text)
    }
}
