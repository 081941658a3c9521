//! Instruments of the engine and of the HTTP server, and their Prometheus text.
//!
//! * [`engine`]: what one engine reports. Its handles are resolved once, when the engine is made, which also creates
//!   every series at zero; nothing looks a label up while requests run.
//! * `speculation`: what an engine with a drafter reports besides.
//! * `sleeping`: how long it takes to sleep and to wake up.
//! * `traces`: what became of OpenTelemetry traces.
//! * `worker`: what only the worker can count, read now and then.
//! * [`http`]: one count and two histograms per route, with labels that a client cannot grow.
//! * [`families`]: the names, the help texts and the buckets. `vllm:` names are the same instruments registered twice.
//! * `absent`: families of the peers that are not here, with reasons; `docs/metrics.md` is made of both lists.
//! * [`text`]: the two text formats; `merge`: several processes in one.
//!
//! Invariants: a counter never falls; the number of series does not depend on what clients send; label values are
//! escaped where they enter.

mod absent;
pub mod engine;
mod families;
pub mod http;
mod label;
mod merge;
mod sleeping;
mod speculation;
pub mod text;
mod traces;
mod worker;

pub use absent::ABSENT;
pub use engine::{CacheConfig, EngineMetrics, FinishedRequest, FrontEndMetrics};
pub use families::FAMILIES;
pub use http::HttpMetrics;
pub use sleeping::{SleepMetrics, SleepOperation, SleepTimer};
pub use speculation::SpeculationMetrics;
pub use text::TextFormat;
pub use traces::TraceMetrics;
pub use worker::WorkerMetrics;

use prometheus_client::registry::Registry;

use crate::families::Families;
use crate::label::{Label, labels};

/// What the registry is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsOptions {
    /// The label `model_name` of every series of an engine.
    pub model_name: String,
    /// Also emit every family under its `vllm:` name.
    pub vllm_names: bool,
}

/// Every instrument of this process. Made once and shared; all methods take `&self`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Families,
    model_name: Label,
}

impl Metrics {
    /// Registers every family.
    pub fn new(options: &MetricsOptions) -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry, options.vllm_names);
        Self { registry, families, model_name: Label::new(&options.model_name) }
    }

    /// The instruments of engine `index`, its series created at zero.
    pub fn engine(&self, index: u32) -> EngineMetrics {
        EngineMetrics::new(&self.families, &self.engine_labels(index))
    }

    /// The instruments of the worker of engine `index`.
    pub fn worker(&self, index: u32) -> WorkerMetrics {
        WorkerMetrics::new(&self.families, self.engine_labels(index))
    }

    /// The instruments of the HTTP server.
    pub fn http(&self) -> HttpMetrics {
        HttpMetrics::new(&self.families)
    }

    /// The instruments of sleeping and waking up.
    pub fn sleeping(&self) -> SleepMetrics {
        SleepMetrics::new(&self.families)
    }

    /// The instruments of the exporter of traces, if there is one.
    pub fn traces(&self) -> TraceMetrics {
        TraceMetrics::new(&self.families)
    }

    /// Publishes the shape of an engine's KV cache as labels of a constant 1.
    pub fn cache_config(&self, index: u32, config: &CacheConfig) {
        let mut all = self.engine_labels(index);
        all.extend(labels([
            ("block_size", &config.block_size.to_string()),
            ("num_gpu_blocks", &config.num_blocks.to_string()),
            ("cache_dtype", &config.cache_dtype),
            ("enable_prefix_caching", if config.enable_prefix_caching { "True" } else { "False" }),
        ]));
        self.families.cache_config_info.get_or_create(&all).set(1);
    }

    /// Publishes which implementation serves `op` in the layers of `layer_range`.
    pub fn kernel(&self, op: &str, layer_range: &str, implementation: &str) {
        let all = labels([("op", op), ("layer_range", layer_range), ("impl", implementation)]);
        self.families.kernel_info.get_or_create(&all).set(1);
    }

    /// Publishes that an implementation was passed over, and the code of the reason.
    pub fn kernel_rejected(&self, op: &str, implementation: &str, reason: &str) {
        let all = labels([("op", op), ("impl", implementation), ("reason", reason)]);
        self.families.kernel_rejected_info.get_or_create(&all).set(1);
    }

    /// Publishes what a phase of the start of engine `index` took.
    pub fn start(&self, index: u32, phase: &str, seconds: f64) {
        let mut all = self.engine_labels(index);
        all.extend(labels([("phase", phase)]));
        self.families.start.get_or_create(&all).set(seconds);
    }

    /// The whole exposition.
    pub fn encode(&self, format: TextFormat) -> String {
        text::convert(text::encode(&self.registry), format)
    }

    /// The same with what other processes said of theirs, as OpenMetrics text.
    pub fn encode_with(&self, format: TextFormat, others: &[String]) -> String {
        let own = text::encode(&self.registry);
        text::convert(if others.is_empty() { own } else { merge::merge(&own, others) }, format)
    }

    fn engine_labels(&self, index: u32) -> label::Labels {
        vec![("model_name", self.model_name.clone()), ("engine", Label::new(&index.to_string()))]
    }
}
