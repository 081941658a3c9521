//! What a step's events mean for streams and metrics.

use frizzen_core::OutputDelta;
use frizzen_metrics::{EngineMetrics, FinishedRequest};
use frizzen_sched::{Finish, RowEvent, StepOutput};

/// Appends a row's event to what its stream has not read yet.
pub(crate) fn extend(delta: &mut OutputDelta, event: &RowEvent, output: &StepOutput) {
    delta.tokens.extend_from_slice(&output.tokens[event.tokens.clone()]);
    delta.tokens.extend_from_slice(&event.forced);
    if event.wants_logprobs {
        delta.logprobs.extend(output.logprobs[event.tokens.clone()].iter().map(|at| output.logprobs_of(at)));
    }
    let scores = output.prompt_logprobs[event.prompt_scores.clone()].iter();
    delta.prompt_logprobs.extend(scores.map(|at| output.logprobs_of(at)));
    delta.pooled.extend_from_slice(&output.pooled[event.pooled.clone()]);
    delta.pooled.extend_from_slice(&output.token_vectors[event.token_vectors.clone()]);
    delta.prefill = delta.prefill.or(event.first.map(|first| first.prefill));
    delta.timing = Some(event.timing);
    if let Some(finish) = &event.finish {
        delta.finish = Some(finish.reason.clone());
    }
}

/// Counts a row's event; returns its share of the step's tokens: generated ones and computed prompt tokens.
pub(crate) fn observe(metrics: &EngineMetrics, event: &RowEvent) -> u64 {
    let generated = (event.tokens.len() + event.forced.len()) as u64;
    metrics.tokens(generated);
    if let Some(gap) = event.gap {
        metrics.inter_token(gap.as_secs_f64());
    }
    if event.corrupted {
        metrics.corrupted();
    }
    let mut computed = 0;
    if let Some(first) = event.first {
        metrics.first_token(first.prefill);
        metrics.time_to_first_token(first.latency.as_secs_f64());
        computed = u64::from(first.prefill.computed_tokens);
    }
    // An end that the reader may call by another name is counted when it has named it.
    if let Some(finish) = event.finish.as_ref().filter(|finish| !finish.is_open) {
        count_finish(metrics, finish);
    }
    generated + computed
}

/// Counts the end of a request.
pub(crate) fn count_finish(metrics: &EngineMetrics, finish: &Finish) {
    metrics.finished(
        &finish.reason,
        &FinishedRequest {
            prompt_tokens: finish.prompt_tokens,
            generation_tokens: finish.generation_tokens,
            max_tokens: finish.max_tokens,
            cached_tokens: finish.cached_tokens,
            timing: finish.timing,
        },
    );
}
