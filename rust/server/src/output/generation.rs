//! The samples of one request, merged: the engine's deltas go in, choices with text come out.
//!
//! Invariants: a token is counted when it is shown, so what a stop string cut off is neither; a choice ends exactly
//! once; the first failure ends the whole request; dropping a generation aborts every sample that has not ended.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use frizzen_core::{FinishReason, OutputDelta, SpeculationUsage, StopReason, TokenId, TokenLogprobs};
use frizzen_engine::OutputStream;
use frizzen_metrics::FrontEndMetrics;
use frizzen_text::TextStream;

use crate::error::ApiError;
use crate::output::delta::{ChoiceDelta, Echo, Finish, StopDetail};
use crate::output::usage::Usage;
use crate::output::waterfall::Waterfall;
use crate::traces::RequestTrace;
use crate::traces::record::Choice;

/// One running sample.
#[derive(Debug)]
pub struct Sample {
    /// Its outputs; gone once it has ended.
    pub stream: Option<OutputStream>,
    /// Its text so far.
    pub text: TextStream,
    /// Which prompt it belongs to.
    pub prompt: usize,
    /// The prompt, if it is to be repeated; taken by the delta with the first token.
    pub echo: Option<Echo>,
    /// Log-probabilities of the prompt, which come in parts where it is computed in chunks; shown whole, with the first
    /// token.
    pub scores: Vec<TokenLogprobs>,
    /// Tokens whose text is held back, and their log-probabilities if they were asked for.
    pub held: Held,
    /// Where its time went.
    pub waterfall: Waterfall,
    /// Why it ended, once it has.
    pub finish: Option<&'static str>,
}

/// Tokens that are not shown yet, oldest first.
#[derive(Debug, Default)]
pub struct Held {
    tokens: VecDeque<TokenId>,
    logprobs: VecDeque<TokenLogprobs>,
}

impl Held {
    /// Takes what came, and moves the oldest `count` tokens into `choice`.
    fn pass(
        &mut self,
        tokens: Vec<TokenId>,
        logprobs: Vec<TokenLogprobs>,
        count: usize,
        choice: &mut ChoiceDelta,
    ) {
        if self.tokens.is_empty() && count == tokens.len() {
            // Nothing is held back, before or after: the usual case.
            (choice.tokens, choice.logprobs) = (tokens, logprobs);
            return;
        }
        self.tokens.extend(tokens);
        self.logprobs.extend(logprobs);
        choice.tokens.extend(self.tokens.drain(..count.min(self.tokens.len())));
        choice.logprobs.extend(self.logprobs.drain(..count.min(self.logprobs.len())));
    }
}

/// How all samples of a request treat their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The stop string or token belongs to the text.
    pub include_stop: bool,
    /// Nothing was asked for beyond the prompt: the one token that the engine generates is dropped.
    pub prompt_only: bool,
}

/// The samples of a request.
#[derive(Debug)]
pub struct Generation {
    samples: Vec<Sample>,
    ending: Ending,
    prompt_tokens: u64,
    completion_tokens: u64,
    /// Per prompt: the fewest tokens that any of its samples found cached. Samples share their prompt, so what the
    /// first one computed is no cache hit of the request.
    cached: Vec<Option<u32>>,
    /// Per sample, what speculation did so far.
    speculation: Vec<Option<Box<SpeculationUsage>>>,
    /// Where the next poll begins, so that no sample starves the others.
    next: usize,
    watch: Watch,
    backpressure: Duration,
}

/// Who is told where the time went: an operator always, the client if it asked.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The operator's histograms.
    pub metrics: FrontEndMetrics,
    /// The client asked.
    pub shown: bool,
    /// A collector of traces.
    pub trace: Option<RequestTrace>,
}

impl Generation {
    /// Merges `samples`; `prompt_tokens` counts each prompt once.
    pub fn new(samples: Vec<Sample>, ending: Ending, prompt_tokens: u64, watch: Watch) -> Self {
        let prompts = samples.iter().map(|sample| sample.prompt + 1).max().unwrap_or(0);
        let speculation = vec![None; samples.len()];
        let cached = vec![None; prompts];
        let backpressure = Duration::ZERO;
        Self {
            samples,
            ending,
            prompt_tokens,
            completion_tokens: 0,
            cached,
            speculation,
            next: 0,
            watch,
            backpressure,
        }
    }

    /// The connection asked for more, this long after it had been given something.
    pub fn waited(&mut self, time: Duration) {
        self.backpressure += time;
    }

    fn timings(&self) -> Vec<Waterfall> {
        let backpressure = self.backpressure;
        self.samples.iter().map(|sample| Waterfall { backpressure, ..sample.waterfall }).collect()
    }

    /// Number of choices.
    pub const fn choices(&self) -> usize {
        self.samples.len()
    }

    /// What was counted so far.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt: self.prompt_tokens,
            completion: self.completion_tokens,
            cached: self.cached.iter().flatten().map(|cached| u64::from(*cached)).sum(),
            speculation: self.speculation.iter().flatten().fold(None, |sum, usage| {
                let mut sum = sum.unwrap_or_else(SpeculationUsage::default);
                sum.add(usage);
                Some(sum)
            }),
            timings: self.watch.shown.then(|| self.timings()),
        }
    }

    /// The next delta of any choice; `None` when all have ended.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ChoiceDelta, ApiError>>> {
        let count = self.samples.len();
        let mut ended = 0;
        for _ in 0..count {
            let index = self.next;
            self.next = (index + 1) % count;
            let Some(stream) = self.samples[index].stream.as_mut() else {
                ended += 1;
                continue;
            };
            let Poll::Ready(delta) = stream.poll_next(context) else { continue };
            // A stream that ends without a last delta was ended by the engine's own end.
            let delta = delta
                .unwrap_or_else(|| OutputDelta { finish: Some(FinishReason::Abort), ..Default::default() });
            return Poll::Ready(Some(self.take(index, delta)));
        }
        if ended == count { Poll::Ready(None) } else { Poll::Pending }
    }

    fn take(&mut self, index: usize, mut delta: OutputDelta) -> Result<ChoiceDelta, ApiError> {
        if delta.speculation.is_some() {
            self.speculation[index] = delta.speculation.take();
        }
        let sample = &mut self.samples[index];
        if let Some(FinishReason::Error(error)) = delta.finish {
            let error = ApiError::from(error);
            if let Some(trace) = &self.watch.trace {
                trace.note(|record| record.failed(&error));
            }
            return Err(error);
        }
        if let Some(prefill) = delta.prefill {
            let cached = &mut self.cached[sample.prompt];
            *cached = Some(cached.map_or(prefill.cached_tokens, |fewest| fewest.min(prefill.cached_tokens)));
        }
        let mut choice = sample.absorb(delta, self.ending);
        if self.ending.prompt_only {
            choice.text.clear();
            choice.tokens.clear();
            choice.logprobs.clear();
        }
        choice.index = index;
        self.completion_tokens += choice.tokens.len() as u64;
        Ok(choice)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.samples.iter().any(|sample| sample.waterfall.tokens > 0) {
            let detokenize = self.samples.iter().map(|sample| sample.waterfall.detokenize).sum();
            self.watch.metrics.request(detokenize, self.backpressure);
        }
        if let Some(trace) = self.watch.trace.take() {
            let finishes = self.samples.iter().map(|sample| sample.finish.unwrap_or("abort"));
            let choices = self.timings().into_iter().zip(finishes);
            let choices = choices.map(|(waterfall, finish)| Choice { waterfall, finish }).collect();
            trace.note(|record| record.choices = choices);
        }
    }
}

impl Sample {
    fn absorb(&mut self, delta: OutputDelta, ending: Ending) -> ChoiceDelta {
        let begun = Instant::now();
        self.waterfall.timing = delta.timing.or(self.waterfall.timing);
        self.waterfall.prefill = delta.prefill.unwrap_or(self.waterfall.prefill);
        self.waterfall.tokens += delta.tokens.len() as u64;
        let OutputDelta { tokens, logprobs, prompt_logprobs, finish, .. } = delta;
        self.scores.extend(prompt_logprobs);
        let mut choice = ChoiceDelta::default();
        if !tokens.is_empty() || finish.is_some() {
            (choice.echo, choice.prompt_logprobs) = (self.echo.take(), std::mem::take(&mut self.scores));
        }
        // A stop token ends the text without being part of it.
        let stops = finish.as_ref().is_some_and(FinishReason::is_stop_token);
        let hides = usize::from(stops && !ending.include_stop && !tokens.is_empty());
        let mut shown = self.text.push(&tokens[..tokens.len() - hides]);
        if finish.is_some() {
            // Neither has an effect once a stop string was found.
            if hides > 0 && shown.stop.is_none() {
                shown.append(self.text.push_hidden());
                choice.silent_end = true;
            }
            shown.append(self.text.finish());
        }
        self.waterfall.detokenize += begun.elapsed();
        self.held.pass(tokens, logprobs, shown.tokens_released, &mut choice);
        choice.text = shown.text;
        if let Some(stop) = shown.stop {
            choice.silent_end = false;
            choice.finish = Some(Finish { reason: "stop", stop: StopDetail::Text(stop) });
            if let Some(stream) = self.stream.take() {
                stream.stop();
            }
        } else if let Some(reason) = finish {
            choice.finish = Some(finish_of(&reason));
            self.stream = None;
        }
        if let Some(finish) = &choice.finish {
            self.finish = Some(finish.reason);
        }
        choice
    }
}

fn finish_of(reason: &FinishReason) -> Finish {
    let stop = match reason {
        FinishReason::Stop(StopReason::Token(id)) => StopDetail::Token(*id),
        _ => StopDetail::None,
    };
    Finish { reason: reason.label(), stop }
}

/// Waits for every choice to end; the merged deltas, in the order of their indexes.
pub async fn collect(generation: &mut Generation) -> Result<Vec<ChoiceDelta>, ApiError> {
    let empty = |index| ChoiceDelta { index, ..ChoiceDelta::default() };
    let mut choices: Vec<ChoiceDelta> = (0..generation.choices()).map(empty).collect();
    while let Some(delta) = std::future::poll_fn(|context| generation.poll_next(context)).await {
        let delta = delta?;
        choices[delta.index].merge(delta);
    }
    Ok(choices)
}
