//! Names, help texts and buckets of every family.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::label::Labels;

pub(crate) type Counters = Family<Labels, Counter>;
pub(crate) type Gauges = Family<Labels, Gauge>;
pub(crate) type Ratios = Family<Labels, Gauge<f64, AtomicU64>>;
pub(crate) type Histograms = Family<Labels, Histogram, Buckets>;

/// Upper bounds of a histogram; `+Inf` is implied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

const ITERATION_TOKENS: Buckets =
    Buckets(&[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0]);
const REQUEST_LATENCY: Buckets = Buckets(&[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
]);
const TIME_TO_FIRST_TOKEN: Buckets = Buckets(&[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
]);
const INTER_TOKEN: Buckets = Buckets(&[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
]);
const REQUEST_TOKENS: Buckets = Buckets(&[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6,
]);
const PARAMS_N: Buckets = Buckets(&[1.0, 2.0, 5.0, 10.0, 20.0]);
const PREEMPTIONS: Buckets = Buckets(&[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0]);
const OPERATION: Buckets = Buckets(&[0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]);
const RESIDENCY: Buckets = Buckets(&[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 1200.0, 1800.0,
]);
/// Parts of a request's time that are small unless something is wrong.
const OVERHEAD: Buckets = Buckets(&[1e-4, 5e-4, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0]);
const HTTP: Buckets = Buckets(&[0.1, 0.5, 1.0]);
const HTTP_HIGH_RESOLUTION: Buckets = Buckets(&[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
]);

/// Under which names a family is registered.
#[derive(Clone, Copy)]
enum Scope {
    /// `frizzen:`, and `vllm:` if asked for.
    Shared,
    /// `frizzen:` only.
    Own,
    /// No prefix: names that dashboards of any web server know.
    Bare,
}

impl Scope {
    const fn prefixes(self, vllm_names: bool) -> &'static [&'static str] {
        match self {
            Self::Shared if vllm_names => &["frizzen:", "vllm:"],
            Self::Shared | Self::Own => &["frizzen:"],
            Self::Bare => &[""],
        }
    }
}

/// Registers clones of `metric`, which share its values, and returns it.
fn add<M: Metric + Clone>(
    registry: &mut Registry,
    prefixes: &[&str],
    name: &str,
    help: &str,
    metric: M,
) -> M {
    for prefix in prefixes {
        registry.register(format!("{prefix}{name}"), help, metric.clone());
    }
    metric
}

fn histograms(buckets: Buckets) -> Histograms {
    Histograms::new_with_constructor(buckets)
}

macro_rules! families {
    ($($field:ident: $type:ty = $metric:expr, $scope:ident $name:literal $help:literal;)*) => {
        /// Every family, before any label is resolved.
        #[derive(Debug)]
        pub(crate) struct Families {
            $(pub(crate) $field: $type,)*
        }

        /// The name and the help text of every family, in the order of the exposition.
        pub const FAMILIES: &[(&str, &str)] = &[$(($name, $help),)*];

        impl Families {
            pub(crate) fn register(registry: &mut Registry, vllm_names: bool) -> Self {
                Self {
                    $($field: add(registry, Scope::$scope.prefixes(vllm_names), $name, $help, $metric),)*
                }
            }
        }
    };
}

families! {
    running: Gauges = Gauges::default(),
        Shared "num_requests_running" "Requests in the worker's batch";
    waiting: Gauges = Gauges::default(),
        Shared "num_requests_waiting" "Requests that wait for a row or for KV blocks";
    waiting_by_reason: Gauges = Gauges::default(),
        Shared "num_requests_waiting_by_reason" "Waiting requests: for a row or blocks (capacity), or held back by a pause (deferred)";
    kv_usage: Ratios = Ratios::default(),
        Shared "kv_cache_usage_perc" "KV blocks in use, 1 means all";
    prefix_cache_queries: Counters = Counters::default(),
        Shared "prefix_cache_queries" "Prompt tokens looked up in the prefix cache";
    prefix_cache_hits: Counters = Counters::default(),
        Shared "prefix_cache_hits" "Prompt tokens found in the prefix cache";
    preemptions: Counters = Counters::default(),
        Shared "num_preemptions" "Times that a running request lost its blocks";
    prompt_tokens: Counters = Counters::default(),
        Shared "prompt_tokens" "Prompt tokens processed, cached ones included";
    prompt_tokens_by_source: Counters = Counters::default(),
        Shared "prompt_tokens_by_source" "Prompt tokens by where their KV came from";
    prompt_tokens_cached: Counters = Counters::default(),
        Shared "prompt_tokens_cached" "Prompt tokens taken from a cache";
    prompt_tokens_cached_by_source: Counters = Counters::default(),
        Shared "prompt_tokens_cached_by_source" "Prompt tokens taken from a cache, by where it lies";
    generation_tokens: Counters = Counters::default(),
        Shared "generation_tokens" "Tokens generated";
    spec_drafts: Counters = Counters::default(),
        Shared "spec_decode_num_drafts" "Times that a request's drafts were verified";
    spec_draft_tokens: Counters = Counters::default(),
        Shared "spec_decode_num_draft_tokens" "Drafts that were verified";
    spec_accepted_tokens: Counters = Counters::default(),
        Shared "spec_decode_num_accepted_tokens" "Drafts that were right";
    spec_accepted_per_position: Counters = Counters::default(),
        Shared "spec_decode_num_accepted_tokens_per_pos" "Drafts that were right, by their place in the request's drafts";
    spec_on: Gauges = Gauges::default(),
        Own "speculation_on" "1 while requests that leave it to the server get drafts";
    spec_saved: Ratios = Ratios::default(),
        Own "speculation_saved_seconds" "Estimated time saved by drafts since the start, lost if negative";
    corrupted_requests: Counters = Counters::default(),
        Shared "corrupted_requests" "Requests that failed because their logits were not finite";
    expert_tokens: Counters = Counters::default(),
        Own "expert_tokens" "Tokens routed to an expert, by layer";
    expert_balance: Ratios = Ratios::default(),
        Own "expert_balance" "Mean over maximum of the tokens of a layer's experts since the start, 1 means all alike";
    graph_steps: Counters = Counters::default(),
        Own "graph_steps" "Steps that ran as one CUDA graph";
    eager_steps: Counters = Counters::default(),
        Own "eager_steps" "Steps that were launched kernel by kernel, by shape";
    late_compiles: Counters = Counters::default(),
        Own "late_compiles" "Kernels compiled after the start, by kernel";
    memory: Gauges = Gauges::default(),
        Own "memory_bytes" "Memory of the model's device by owner: weights, KV cache, CUDA graphs, what steps need besides";
    worker_events: Counters = Counters::default(),
        Own "worker_events" "Other counters of the worker, by name";
    request_success: Counters = Counters::default(),
        Shared "request_success" "Requests that ended, by reason";
    iteration_tokens: Histograms = histograms(ITERATION_TOKENS),
        Shared "iteration_tokens_total" "Tokens of an engine step: computed prompt tokens and generated ones";
    request_prompt_tokens: Histograms = histograms(REQUEST_TOKENS),
        Shared "request_prompt_tokens" "Prompt tokens of a request";
    request_generation_tokens: Histograms = histograms(REQUEST_TOKENS),
        Shared "request_generation_tokens" "Tokens that a request generated";
    request_max_generation_tokens: Histograms = histograms(REQUEST_TOKENS),
        Shared "request_max_num_generation_tokens" "Tokens of the longest sample of a request";
    request_params_max_tokens: Histograms = histograms(REQUEST_TOKENS),
        Shared "request_params_max_tokens" "The max_tokens that a request asked for";
    request_prefill_computed_tokens: Histograms = histograms(REQUEST_TOKENS),
        Shared "request_prefill_kv_computed_tokens" "Prompt tokens computed in prefill, cached ones excluded";
    request_params_n: Histograms = histograms(PARAMS_N),
        Shared "request_params_n" "The n that a request asked for";
    request_preemptions: Histograms = histograms(PREEMPTIONS),
        Shared "request_num_preemptions" "Times that a request was preempted";
    time_to_first_token: Histograms = histograms(TIME_TO_FIRST_TOKEN),
        Shared "time_to_first_token_seconds" "From the arrival of a request to its first token";
    inter_token_latency: Histograms = histograms(INTER_TOKEN),
        Shared "inter_token_latency_seconds" "Time between two tokens of a request";
    time_per_output_token: Histograms = histograms(INTER_TOKEN),
        Shared "request_time_per_output_token_seconds" "Decode time of a request over its tokens after the first";
    e2e_latency: Histograms = histograms(REQUEST_LATENCY),
        Shared "e2e_request_latency_seconds" "From queueing to the last token";
    queue_time: Histograms = histograms(REQUEST_LATENCY),
        Shared "request_queue_time_seconds" "From queueing to the first scheduling";
    prefill_time: Histograms = histograms(REQUEST_LATENCY),
        Shared "request_prefill_time_seconds" "From the first scheduling to the first token";
    decode_time: Histograms = histograms(REQUEST_LATENCY),
        Shared "request_decode_time_seconds" "From the first token to the last";
    inference_time: Histograms = histograms(REQUEST_LATENCY),
        Shared "request_inference_time_seconds" "From the first scheduling to the last token";
    block_lifetime: Histograms = histograms(RESIDENCY),
        Shared "kv_block_lifetime_seconds" "Life of a sampled KV block's content, from handing the block out to giving the content up";
    block_idle: Histograms = histograms(RESIDENCY),
        Shared "kv_block_idle_before_evict_seconds" "Time from the last use of a sampled KV block to giving its content up";
    block_reuse_gap: Histograms = histograms(RESIDENCY),
        Shared "kv_block_reuse_gap_seconds" "Time from the last use of a sampled KV block until its content was found again";
    lost_to_prefill: Histograms = histograms(OVERHEAD),
        Own "request_lost_to_prefill_seconds" "Decode time of a request lost to the prefill of others";
    detokenize: Histograms = histograms(OVERHEAD),
        Own "request_detokenize_seconds" "Time to turn a request's tokens into text, stop strings included";
    backpressure: Histograms = histograms(OVERHEAD),
        Own "request_backpressure_seconds" "Time that a stream waited for its client to take what was sent";
    cache_config_info: Gauges = Gauges::default(),
        Shared "cache_config_info" "The shape of the KV cache, as labels";
    kernel_info: Gauges = Gauges::default(),
        Own "kernel_info" "Which implementation serves an operation, as labels";
    kernel_rejected_info: Gauges = Gauges::default(),
        Own "kernel_rejected_info" "Implementations passed over and why, as labels";
    start: Ratios = Ratios::default(),
        Own "start_seconds" "What the phases of the start took; the first one began with the process";
    sleep_duration: Histograms = histograms(OPERATION),
        Shared "sleep_mode_operation_duration_seconds" "Duration of going to sleep and of waking up";
    sleep_in_flight: Gauges = Gauges::default(),
        Shared "sleep_mode_operations_in_flight" "Such operations that run now";
    unknown_fields: Counter = Counter::default(),
        Own "request_unknown_fields" "Request fields accepted without knowing them";
    traces: Counters = Counters::default(),
        Own "traces" "Traces of requests: taken by the collector (exported), refused by it (failed), or without room in the queue (dropped)";
    http_requests: Counters = Counters::default(),
        Bare "http_requests" "HTTP requests by method, status class and route";
    http_duration: Histograms = histograms(HTTP),
        Bare "http_request_duration_seconds" "Duration of HTTP requests by method and route";
    http_duration_high_resolution: Histogram = HTTP_HIGH_RESOLUTION.new_metric(),
        Bare "http_request_duration_highr_seconds" "Duration of HTTP requests in fine buckets";
}
