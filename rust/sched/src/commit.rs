//! Outputs of a step: which tokens count, who has finished, what the caller is told.

use std::ops::Range;
use std::time::Duration;

use frizzen_core::{
    Error, FinishReason, PrefillStats, RequestId, StopReason, Timing, TokenId, TokenLogprobs,
};

use crate::failure;
use crate::plan::{PlannedRow, PositionLogprobs, StepOutput, StepPlan};
use crate::scheduler::Scheduler;
use crate::state::State;

/// What one step meant for one request. Rows that became stale since the step was planned have none.
#[derive(Clone, Debug)]
pub struct RowEvent {
    /// The request.
    pub request: RequestId,
    /// Its new tokens: a range of [`StepOutput::tokens`] and, if it asked, of [`StepOutput::logprobs`].
    pub tokens: Range<usize>,
    /// Tokens after them that needed no sampling, because its constraint allows no others; their KV is computed with
    /// the next step's. None for requests whose tokens need more than to be known: log-probabilities, penalties.
    pub forced: Vec<TokenId>,
    /// True if the request asked for log-probabilities.
    pub wants_logprobs: bool,
    /// The request's vector: a range of [`StepOutput::pooled`]; empty unless it pools and this is its end.
    pub pooled: Range<usize>,
    /// Vectors of its tokens: a range of [`StepOutput::token_vectors`]; empty unless it wants one of each.
    pub token_vectors: Range<usize>,
    /// Newly scored prompt positions: a range of [`StepOutput::prompt_logprobs`].
    pub prompt_scores: Range<usize>,
    /// With the first token only.
    pub first: Option<FirstToken>,
    /// Time since the request's previous token; `None` for the first one.
    pub gap: Option<Duration>,
    /// When things happened to it so far.
    pub timing: Timing,
    /// The end, if this is it.
    pub finish: Option<Finish>,
    /// It ended because its logits were not finite.
    pub corrupted: bool,
}

/// What becomes known with a request's first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstToken {
    /// How the prompt was computed.
    pub prefill: PrefillStats,
    /// Time since the request was queued.
    pub latency: Duration,
}

/// The end of a request, with what metrics want to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// When what happened.
    pub timing: Timing,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub generation_tokens: u32,
    /// The request's `max_tokens`.
    pub max_tokens: Option<u32>,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u32,
    /// The reader of the text may find that it ended otherwise, and says so in any case.
    pub is_open: bool,
}

/// A row's parts of the step's results.
struct RowResults {
    tokens: Range<usize>,
    pooled: Range<usize>,
    token_vectors: Range<usize>,
    scores: Range<usize>,
    /// Tokens that need no sampling may follow.
    appends: bool,
    /// What the step took longer because of rows in prefill.
    lost: Duration,
    /// Why there are no tokens. Boxed, since an error is large to hand over and hardly any row has one.
    failure: Option<Box<Error>>,
}

impl StepOutput {
    /// The log-probabilities at one position, with their alternatives.
    pub fn logprobs_of(&self, at: &PositionLogprobs) -> TokenLogprobs {
        let top = &self.top[at.top_start as usize..(at.top_start + at.top_len) as usize];
        TokenLogprobs { logprob: at.logprob, rank: at.rank, top: top.to_vec() }
    }
}

impl State {
    /// The reason to stop after `token`, the last of `self.tokens`.
    fn stop_after(&self, token: TokenId) -> Option<FinishReason> {
        if self.num_outputs() >= self.request.params.min_tokens
            && let Some(at) = self.stops.iter().position(|stop| *stop == token)
        {
            let reason = if at < self.num_eos { StopReason::Eos(token) } else { StopReason::Token(token) };
            return Some(FinishReason::Stop(reason));
        }
        (self.tokens.len() as u32 >= self.max_total).then_some(FinishReason::Length)
    }

    /// Of what has not happened yet the time is that of what has.
    fn timing(&self) -> Timing {
        let timing = &self.timing;
        let scheduled = timing.scheduled.unwrap_or(timing.queued);
        let first_token = timing.first_token.unwrap_or(scheduled);
        Timing {
            queued: timing.queued,
            scheduled,
            first_token,
            last_token: timing.last_token.unwrap_or(first_token),
            preemptions: timing.preemptions,
            lost_to_prefill: timing.lost_to_prefill,
        }
    }

    fn finish(&self, reason: FinishReason) -> Finish {
        Finish {
            is_open: reason == FinishReason::Length && self.request.params.stop_strings,
            reason,
            timing: self.timing(),
            prompt_tokens: self.prompt_len(),
            generation_tokens: self.num_outputs(),
            max_tokens: self.request.params.max_tokens,
            cached_tokens: self.cached.unwrap_or(0),
        }
    }
}

impl Scheduler {
    /// Takes over the results of a step: appends tokens up to the first stop, undoes rejected drafts, ends requests.
    ///
    /// Fills `events` (emptied first) with one entry per row that still means something.
    pub fn commit(
        &mut self,
        plan: &StepPlan,
        output: &StepOutput,
        now: Duration,
        events: &mut Vec<RowEvent>,
    ) {
        events.clear();
        // A drafter of the worker proposes after the token that was sampled, and knows no others.
        let appends = plan.propose == 0 && self.lookahead == 0;
        let lost = self.pace.step(plan, now);
        self.pool.residency.set_now(now);
        let mut next_token = 0;
        let mut next_prompt = 0;
        let mut next_vector = 0;
        let mut next_token_vector = 0;
        for (at, row) in plan.rows.iter().enumerate() {
            let sampled = output.num_sampled[at] as usize;
            let tokens = next_token..next_token + sampled;
            next_token = tokens.end;
            let scores =
                plan.prompt_positions[next_prompt..].iter().take_while(|p| p.row as usize == at).count();
            let scores = next_prompt..next_prompt + scores;
            next_prompt = scores.end;
            let pooled = next_vector..next_vector + if row.samples { output.pooled_size } else { 0 };
            next_vector = pooled.end;
            let token_vectors =
                next_token_vector..next_token_vector + row.num_vectors as usize * output.pooled_size;
            next_token_vector = token_vectors.end;
            // The request has ended, or was preempted and computes this again: the output is stale.
            let Some(slot) = self.index.get(&row.request).copied() else { continue };
            if self.state(slot).epoch != row.epoch {
                continue;
            }
            let failed = output.failed.iter().find(|(failed, _)| *failed == row.row);
            let failure =
                failed.map(|(_, message)| Box::new(failure::of_row(self.state(slot), plan, at, message)));
            let results = RowResults { tokens, pooled, token_vectors, scores, appends, lost, failure };
            self.commit_row(slot, row, output, results, now, events);
        }
    }

    /// Why and how a live request ends now, for requests that the front end gave up. `None` if it has ended.
    pub fn finish_of(&self, id: RequestId, reason: FinishReason) -> Option<Finish> {
        self.index.get(&id).map(|slot| self.state(*slot).finish(reason))
    }

    fn commit_row(
        &mut self,
        slot: usize,
        row: &PlannedRow,
        output: &StepOutput,
        results: RowResults,
        now: Duration,
        events: &mut Vec<RowEvent>,
    ) {
        let RowResults { tokens, pooled, token_vectors, scores: prompt_scores, appends, lost, failure } =
            results;
        let state = self.state_mut(slot);
        state.prompt_scored += prompt_scores.len() as u32;
        state.vectors_sent += row.num_vectors;
        if row.samples {
            state.placeholders -= 1;
            state.drafts_in_flight -= row.num_drafts;
            let accepted = (tokens.len() as u32).saturating_sub(1);
            state.computed -= row.num_drafts - accepted.min(row.num_drafts);
            state.drafts.clear();
        }
        let has_failed = failure.is_some();
        let corrupted = matches!(failure.as_deref(), Some(Error::Request { .. }));
        let (kept, mut reason) = match failure {
            Some(error) => (0, Some(FinishReason::Error(*error))),
            None if state.pools() => (0, row.samples.then_some(FinishReason::Stop(StopReason::Complete))),
            None => append_tokens(state, &output.tokens[tokens.clone()]),
        };
        let forced = if reason.is_none() && row.samples && appends {
            append_forced(state, &output.tokens[tokens.clone()], &mut reason)
        } else {
            Vec::new()
        };
        let has_vector = !has_failed && !pooled.is_empty();
        let of_tokens = state.pools_tokens();
        let mut first = None;
        let mut gap = None;
        if kept > 0 || has_vector {
            gap = state.timing.last_token.map(|last| now.saturating_sub(last));
            if gap.is_some() && !row.prefills {
                state.timing.lost_to_prefill += lost;
            }
            if state.timing.first_token.is_none() {
                state.timing.first_token = Some(now);
                let cached_tokens = state.cached.unwrap_or(0);
                let computed_tokens = state.prompt_len() - cached_tokens;
                let prefill = PrefillStats { cached_tokens, computed_tokens };
                first = Some(FirstToken { prefill, latency: now.saturating_sub(state.timing.queued) });
            }
            state.timing.last_token = Some(now);
        }
        if kept == 0 && prompt_scores.is_empty() && token_vectors.is_empty() && reason.is_none() {
            return;
        }
        events.push(RowEvent {
            request: row.request,
            // Where nobody asked for log-probabilities there are none, not even to take an empty range of.
            tokens: if kept > 0 { tokens.start..tokens.start + kept } else { 0..0 },
            forced,
            pooled: if has_vector && !of_tokens { pooled } else { 0..0 },
            token_vectors: if has_failed { 0..0 } else { token_vectors },
            wants_logprobs: state.request.params.logprobs.is_some(),
            prompt_scores,
            first,
            gap,
            timing: state.timing(),
            finish: reason.take().map(|reason| state.finish(reason)),
            corrupted,
        });
        if corrupted {
            self.distrust(slot);
        }
        if events.last().is_some_and(|event| event.finish.is_some()) {
            self.publish_full_blocks(slot, 0);
            self.remove(slot);
        }
    }

    /// A row whose logits are not finite may have left KV that is not finite: nobody may find it.
    fn distrust(&mut self, slot: usize) {
        let state = self.states[slot].as_mut().expect("the caller looked it up");
        for block in &state.blocks {
            self.pool.forget(*block);
        }
        // Nothing is published any more by the removal that follows.
        state.published = state.blocks.len();
    }
}

/// Appends what the constraint leaves no choice about after `sampled`, and ends the request if that does.
fn append_forced(state: &mut State, sampled: &[TokenId], reason: &mut Option<FinishReason>) -> Vec<TokenId> {
    let params = &state.request.params;
    // The worker counts tokens for penalties as it samples them, and has log-probabilities of sampled ones only.
    if params.logprobs.is_some() || params.needs_history() || params.min_tokens > 0 {
        return Vec::new();
    }
    let foreseen = state.constrained.as_mut().map(|constrained| constrained.take_foreseen(sampled));
    let mut forced = foreseen.unwrap_or_default();
    let (kept, end) = append_tokens(state, &forced);
    forced.truncate(kept);
    *reason = end;
    forced
}

/// Appends tokens up to and including the one that ends the request. Returns how many, and the reason.
fn append_tokens(state: &mut State, tokens: &[TokenId]) -> (usize, Option<FinishReason>) {
    let before = state.tokens.len();
    let mut kept = tokens.len();
    let mut reason = None;
    for (at, token) in tokens.iter().enumerate() {
        state.tokens.push(*token);
        reason = state.stop_after(*token);
        if reason.is_some() {
            kept = at + 1;
            break;
        }
    }
    if let Some(constrained) = &mut state.constrained {
        let stops = matches!(reason, Some(FinishReason::Stop(_)));
        let (taken, end) = constrained.accept(&tokens[..kept], stops);
        state.tokens.truncate(before + taken);
        kept = taken;
        reason = end.or(reason);
        if constrained.is_over() {
            state.constrained = None;
        }
    }
    if reason.is_some() {
        // KV past the end may belong to drafts that no longer count.
        state.computed = state.computed.min(state.tokens.len() as u32);
    }
    (kept, reason)
}
