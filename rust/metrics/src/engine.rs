//! What one engine reports.
//!
//! The engine thread calls these between steps, after the step's outputs went to their requests, so that an output
//! of a request that has left is never counted. No method takes a label.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use frizzen_core::{FinishReason, PrefillStats, Timing};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::families::{Counters, Families, Histograms};
use crate::label::{Label, Labels};
use crate::speculation::{SpeculationFamilies, SpeculationMetrics};

/// The shape of an engine's KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks, the null block included.
    pub num_blocks: u32,
    /// Element type of the cache.
    pub cache_dtype: String,
    /// Whether prefixes are shared between requests.
    pub enable_prefix_caching: bool,
}

/// A request that has ended, as far as metrics care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FinishedRequest {
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub generation_tokens: u32,
    /// What the request asked for, if it did.
    pub max_tokens: Option<u32>,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u32,
    /// When things happened to it.
    pub timing: Timing,
}

/// One counter per way to end; the fields are the labels of [`FinishReason::label`].
#[derive(Clone, Debug)]
struct Finished {
    stop: Counter,
    length: Counter,
    abort: Counter,
    error: Counter,
}

/// The instruments of one engine. Cheap to clone; clones share the values.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    running: Gauge,
    waiting: Gauge,
    waiting_capacity: Gauge,
    waiting_deferred: Gauge,
    kv_usage: Gauge<f64, AtomicU64>,
    prefix_cache_queries: Counter,
    prefix_cache_hits: Counter,
    preemptions: Counter,
    corrupted: Counter,
    prompt_tokens: Counter,
    prompt_computed: Counter,
    prompt_cache_hit: Counter,
    prompt_tokens_cached: Counter,
    prompt_cached_device: Counter,
    generation_tokens: Counter,
    finished: Finished,
    iteration_tokens: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_generation_tokens: Histogram,
    request_params_max_tokens: Histogram,
    request_prefill_computed_tokens: Histogram,
    request_params_n: Histogram,
    request_preemptions: Histogram,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    e2e_latency: Histogram,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
    lost_to_prefill: Histogram,
    block_lifetime: Histogram,
    block_idle: Histogram,
    block_reuse_gap: Histogram,
    front_end: FrontEndMetrics,
    speculation: SpeculationFamilies,
}

/// The instruments of what happens to outputs after the engine. Cheap to clone; clones share the values.
#[derive(Clone, Debug)]
pub struct FrontEndMetrics {
    detokenize: Histogram,
    backpressure: Histogram,
}

impl FrontEndMetrics {
    /// A request that got tokens is over.
    pub fn request(&self, detokenize: Duration, backpressure: Duration) {
        self.detokenize.observe(detokenize.as_secs_f64());
        self.backpressure.observe(backpressure.as_secs_f64());
    }
}

impl EngineMetrics {
    pub(crate) fn new(families: &Families, labels: &Labels) -> Self {
        let counter = |family: &Counters| family.get_or_create_owned(labels);
        let histogram = |family: &Histograms| family.get_or_create_owned(labels);
        let labelled = |family: &Counters, name: &'static str, value: &str| {
            let mut all = labels.clone();
            all.push((name, Label::new(value)));
            family.get_or_create_owned(&all)
        };
        let waiting = |value: &str| {
            let mut all = labels.clone();
            all.push(("reason", Label::new(value)));
            families.waiting_by_reason.get_or_create_owned(&all)
        };
        let source = |value| labelled(&families.prompt_tokens_by_source, "source", value);
        let reason = |value| labelled(&families.request_success, "finished_reason", value);
        Self {
            running: families.running.get_or_create_owned(labels),
            waiting: families.waiting.get_or_create_owned(labels),
            waiting_capacity: waiting("capacity"),
            waiting_deferred: waiting("deferred"),
            kv_usage: families.kv_usage.get_or_create_owned(labels),
            prefix_cache_queries: counter(&families.prefix_cache_queries),
            prefix_cache_hits: counter(&families.prefix_cache_hits),
            preemptions: counter(&families.preemptions),
            corrupted: counter(&families.corrupted_requests),
            prompt_tokens: counter(&families.prompt_tokens),
            prompt_computed: source("local_compute"),
            prompt_cache_hit: source("local_cache_hit"),
            prompt_tokens_cached: counter(&families.prompt_tokens_cached),
            prompt_cached_device: labelled(&families.prompt_tokens_cached_by_source, "source", "device"),
            generation_tokens: counter(&families.generation_tokens),
            finished: Finished {
                stop: reason("stop"),
                length: reason("length"),
                abort: reason("abort"),
                error: reason("error"),
            },
            iteration_tokens: histogram(&families.iteration_tokens),
            request_prompt_tokens: histogram(&families.request_prompt_tokens),
            request_generation_tokens: histogram(&families.request_generation_tokens),
            request_max_generation_tokens: histogram(&families.request_max_generation_tokens),
            request_params_max_tokens: histogram(&families.request_params_max_tokens),
            request_prefill_computed_tokens: histogram(&families.request_prefill_computed_tokens),
            request_params_n: histogram(&families.request_params_n),
            request_preemptions: histogram(&families.request_preemptions),
            time_to_first_token: histogram(&families.time_to_first_token),
            inter_token_latency: histogram(&families.inter_token_latency),
            time_per_output_token: histogram(&families.time_per_output_token),
            e2e_latency: histogram(&families.e2e_latency),
            queue_time: histogram(&families.queue_time),
            prefill_time: histogram(&families.prefill_time),
            decode_time: histogram(&families.decode_time),
            inference_time: histogram(&families.inference_time),
            lost_to_prefill: histogram(&families.lost_to_prefill),
            block_lifetime: histogram(&families.block_lifetime),
            block_idle: histogram(&families.block_idle),
            block_reuse_gap: histogram(&families.block_reuse_gap),
            front_end: FrontEndMetrics {
                detokenize: histogram(&families.detokenize),
                backpressure: histogram(&families.backpressure),
            },
            speculation: SpeculationFamilies::new(families, labels),
        }
    }

    /// A step has ended: generated tokens plus computed prompt tokens of the outputs that reached a request. A step
    /// without tokens is no observation.
    pub fn step(&self, iteration_tokens: u64) {
        if iteration_tokens > 0 {
            self.iteration_tokens.observe(iteration_tokens as f64);
        }
    }

    /// The queues after a step: requests that run, wait for a row or blocks, and are held back by a pause; `kv_usage` in
    /// `[0, 1]`.
    pub fn queues(&self, running: u64, waiting: u64, deferred: u64, kv_usage: f64) {
        self.running.set(running as i64);
        self.waiting.set((waiting + deferred) as i64);
        self.waiting_capacity.set(waiting as i64);
        self.waiting_deferred.set(deferred as i64);
        self.kv_usage.set(kv_usage);
    }

    /// The content of a sampled KV block was given up, this long after it was handed out and after it was last used.
    pub fn block_evicted(&self, lifetime: Duration, idle: Duration) {
        self.block_lifetime.observe(lifetime.as_secs_f64());
        self.block_idle.observe(idle.as_secs_f64());
    }

    /// The content of a sampled KV block was found again, this long after it was last used.
    pub fn block_reused(&self, gap: Duration) {
        self.block_reuse_gap.observe(gap.as_secs_f64());
    }

    /// Prompt tokens looked up in the prefix cache, and how many of them were found.
    pub fn prefix_cache(&self, queries: u64, hits: u64) {
        self.prefix_cache_queries.inc_by(queries);
        self.prefix_cache_hits.inc_by(hits);
    }

    /// `n` running requests lost their blocks.
    pub fn preempted(&self, n: u64) {
        self.preemptions.inc_by(n);
    }

    /// A request ended because its logits were not finite.
    pub fn corrupted(&self) {
        self.corrupted.inc();
    }

    /// A prompt is done: its tokens by source.
    pub fn first_token(&self, prefill: PrefillStats) {
        let (cached, computed) = (u64::from(prefill.cached_tokens), u64::from(prefill.computed_tokens));
        self.prompt_tokens.inc_by(cached + computed);
        self.prompt_computed.inc_by(computed);
        self.prompt_cache_hit.inc_by(cached);
        self.prompt_tokens_cached.inc_by(cached);
        self.prompt_cached_device.inc_by(cached);
    }

    /// The instruments of speculation, for at most `max_drafts` drafts per row; made when the engine has a drafter.
    pub fn speculation(&self, max_drafts: u32) -> SpeculationMetrics {
        self.speculation.resolve(max_drafts)
    }

    /// Tokens generated.
    pub fn tokens(&self, n: u64) {
        self.generation_tokens.inc_by(n);
    }

    /// From the arrival of a request at the front end to its first token, in seconds.
    pub fn time_to_first_token(&self, seconds: f64) {
        self.time_to_first_token.observe(seconds);
    }

    /// Time between two tokens of a request, in seconds.
    pub fn inter_token(&self, seconds: f64) {
        self.inter_token_latency.observe(seconds);
    }

    /// What the front end measures of each request.
    pub fn front_end(&self) -> FrontEndMetrics {
        self.front_end.clone()
    }

    /// The number of samples that a request asked for.
    pub fn params_n(&self, n: u32) {
        self.request_params_n.observe(f64::from(n));
    }

    /// A request has ended. Latencies are observed only if it produced a token: without one they would be of a
    /// request that was never computed.
    pub fn finished(&self, reason: &FinishReason, request: &FinishedRequest) {
        match reason {
            FinishReason::Stop(_) => self.finished.stop.inc(),
            FinishReason::Length => self.finished.length.inc(),
            FinishReason::Abort => self.finished.abort.inc(),
            FinishReason::Error(_) => self.finished.error.inc(),
        };
        let generated = request.generation_tokens;
        self.request_prompt_tokens.observe(f64::from(request.prompt_tokens));
        self.request_generation_tokens.observe(f64::from(generated));
        self.request_max_generation_tokens.observe(f64::from(generated));
        self.request_preemptions.observe(f64::from(request.timing.preemptions));
        if let Some(max_tokens) = request.max_tokens {
            self.request_params_max_tokens.observe(f64::from(max_tokens));
        }
        if generated > 0 {
            let computed = request.prompt_tokens.saturating_sub(request.cached_tokens);
            self.request_prefill_computed_tokens.observe(f64::from(computed));
            self.latencies(&request.timing, generated);
        }
    }

    fn latencies(&self, timing: &Timing, generated: u32) {
        let between = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let decode = between(timing.first_token, timing.last_token);
        self.e2e_latency.observe(between(timing.queued, timing.last_token));
        self.queue_time.observe(between(timing.queued, timing.scheduled));
        self.prefill_time.observe(between(timing.scheduled, timing.first_token));
        self.decode_time.observe(decode);
        self.inference_time.observe(between(timing.scheduled, timing.last_token));
        self.lost_to_prefill.observe(timing.lost_to_prefill.as_secs_f64());
        // A single token has no time after the first; `decode` is 0 then.
        self.time_per_output_token.observe(decode / f64::from(generated.saturating_sub(1).max(1)));
    }
}
