//! The flags of `serve`, in vLLM's spelling where vLLM has them.
//!
//! [`EngineArgs`] become the JSON from which the worker is built: only what was given is written, so every default
//! stands in one place, the worker's configuration. [`HttpArgs`] are the front end's own.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, Uri};
use clap::{Args, ValueEnum};
use frizzen_engine::speculation_options::{DraftSampling, RejectionSampling, WorkerSpeculation};
use frizzen_engine::{EngineOptions, ResolvedSpeculation, SpeculationOptions};
use frizzen_metrics::MetricsOptions;
use frizzen_sched::Policy;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::familiar::FamiliarArgs;
use crate::logging::LogFormat;
use crate::parsing::ParsingArgs;
use crate::replicas::ReplicaArgs;
use crate::tls::TlsArgs;
use crate::traces::export::Endpoint;

/// Everything that `frizzen serve` takes.
#[derive(Args, Clone, Debug)]
pub struct ServerConfig {
    /// What the engine is asked for.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How the engine schedules.
    #[command(flatten)]
    pub scheduling: SchedulingArgs,
    /// Drafts.
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// How many engines there are.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// How it is served.
    #[command(flatten)]
    pub http: HttpArgs,
}

/// Flags that the worker's configuration knows under the same name with underscores.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// A catalogue name, a directory, a file or a Hugging Face id
    #[arg(value_name = "MODEL", required_unless_present = "model_flag")]
    pub model: Option<String>,
    /// The same as the positional argument
    #[arg(long = "model", value_name = "MODEL", conflicts_with = "model", hide = true)]
    #[serde(skip)]
    pub model_flag: Option<String>,
    /// Where the tokenizer is, if not with the model
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Type of weights and activations: auto, float32, bfloat16 or float16
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// auto, cpu or cuda
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Format of the checkpoint: auto, safetensors, gguf or dummy
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_format: Option<String>,
    /// Generate text (generate) or return vectors (pooling); auto is what the checkpoint was made for
    #[arg(long, value_name = "auto|generate|pooling")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// How a model pools, as JSON: `pooling_type` (MEAN, CLS or LAST) and `normalize`
    #[arg(long, value_name = "JSON")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooler_config: Option<String>,
    /// Prompt and output together, in tokens
    #[arg(long, value_name = "TOKENS", value_parser = parse_count)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
    /// Requests that run at the same time
    #[arg(long, value_name = "N", value_parser = parse_count)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u64>,
    /// Tokens of one step; longer prompts are computed in chunks
    #[arg(long, value_name = "TOKENS", value_parser = parse_count)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u64>,
    /// Bytes for the KV cache, such as 4G or 512M
    #[arg(long, alias = "kv-cache-memory-bytes", value_name = "BYTES", value_parser = parse_size)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_memory: Option<u64>,
    /// Type of keys and values in the KV cache: auto (the model's) or `fp8_e4m3`
    #[arg(long, value_name = "TYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_dtype: Option<String>,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Most alternatives per token that a request may ask for
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_logprobs: Option<u32>,
    /// Seeds dummy weights
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Threads of the torch operators on a CPU
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_threads: Option<u32>,
    /// Launch every kernel of every step: no CUDA graphs
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enforce_eager: bool,
    /// Refuse to start with a kernel that is not the best one whose absence can be repaired
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Compare every kernel with the reference on the model's shapes first; one that differs is not used
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub self_test: bool,
}

impl EngineArgs {
    /// The model asked for, however it was given.
    pub fn model(&self) -> &str {
        self.model.as_deref().or(self.model_flag.as_deref()).unwrap_or_default()
    }
}

/// In which order waiting requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum SchedulingPolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Smaller `priority` first; ties first come, first served.
    Priority,
}

/// Flags of the scheduler and the engine loop.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Scheduling")]
pub struct SchedulingArgs {
    /// In which order waiting requests are served
    #[arg(long, value_enum, default_value_t)]
    pub scheduling_policy: SchedulingPolicy,
    /// Reuse the KV blocks of equal prompt prefixes (the default)
    #[arg(long, overrides_with = "no_enable_prefix_caching")]
    pub enable_prefix_caching: bool,
    /// Compute every prompt in full
    #[arg(long, overrides_with = "enable_prefix_caching")]
    pub no_enable_prefix_caching: bool,
    /// Plan the next step while one runs (the default on a GPU)
    #[arg(long, overrides_with = "no_overlap")]
    pub overlap: bool,
    /// Plan each step after the one before it (the default on a CPU)
    #[arg(long, overrides_with = "overlap")]
    pub no_overlap: bool,
    /// Requests that may be open at the same time, each of the n samples counted; more get 503
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_queue: usize,
}

impl SchedulingArgs {
    /// Whether equal prefixes share blocks.
    pub const fn prefix_caching(&self) -> bool {
        !self.no_enable_prefix_caching
    }

    /// Whether the next step is planned while one runs; `None` leaves it to the device.
    pub const fn overlap(&self) -> Option<bool> {
        match (self.overlap, self.no_overlap) {
            (false, false) => None,
            (overlap, _) => Some(overlap),
        }
    }
}

/// Flags of speculative decoding.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// Who proposes tokens ahead: ngram (what followed the same tokens in this text), suffix (also in recent outputs), or a
    /// model (another model, multi-token prediction, EAGLE-3, or `DSpark`), with the path of its weights if the model's own
    /// checkpoint has none
    #[arg(long, value_name = "ngram|suffix|draft_model|mtp|eagle3|dspark[=PATH]")]
    pub drafter: Option<String>,
    /// Most drafts per request and step; what the drafter was made for, if it is not given
    #[arg(long, value_name = "K")]
    pub num_speculative_tokens: Option<u64>,
    /// How a model drafts: greedy (the default) or probabilistic, at the temperature of each request
    #[arg(long, value_name = "METHOD", default_value = "greedy")]
    pub draft_sample_method: DraftSampling,
    /// How drafts are accepted: standard (the default), one after the other, or block, all of a request's together
    #[arg(long, value_name = "METHOD", default_value = "standard")]
    pub rejection_sample_method: RejectionSampling,
    /// Drafts of requests that do not say: off (the default), auto (as many as pay off by measured time), or a number
    #[arg(long, value_name = "off|auto|K")]
    pub speculation: Option<String>,
    /// The same as vLLM's JSON object
    #[arg(long, value_name = "JSON", conflicts_with = "drafter")]
    pub speculative_config: Option<String>,
    /// Force this many tokens per request and step, for studies of speed; the text means nothing
    #[arg(long, value_name = "TOKENS", value_parser = parse_acceptance)]
    pub spec_synthetic_acceptance: Option<f64>,
    /// Directory in which measured step times are kept for the next start, or off; the user's cache if it is not given
    #[arg(long, value_name = "PATH|off")]
    pub speculation_cache: Option<String>,
}

impl SpeculationArgs {
    /// What the flags amount to.
    ///
    /// # Errors
    /// A sentence that names the flag's field, the value and what is possible.
    pub fn resolve(&self) -> Result<Option<ResolvedSpeculation>, String> {
        let options = SpeculationOptions {
            drafter: self.drafter.clone(),
            drafter_model: None,
            num_speculative_tokens: self.num_speculative_tokens,
            draft_sample_method: self.draft_sample_method,
            rejection_sample_method: self.rejection_sample_method,
            speculation: self.speculation.clone().map(Into::into),
            speculative_config: self.speculative_config.clone(),
            spec_synthetic_acceptance: self.spec_synthetic_acceptance,
            speculation_cache: self.speculation_cache.clone(),
        };
        options.resolve()
    }
}

/// Names under which metrics are emitted besides `frizzen:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsCompat {
    /// The `vllm:` names.
    Vllm,
}

/// Flags of the HTTP server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct HttpArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Socket in the file system to listen on, in place of a port
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port", "ssl_certfile"])]
    pub uds: Option<PathBuf>,
    /// Where a reverse proxy has put this server, such as /models/a: paths may begin with it, and the description says so
    #[arg(long, value_name = "PATH", default_value = "", value_parser = parse_root_path)]
    pub root_path: String,
    /// Names under which the model answers; the first one is shown
    #[arg(long, num_args = 1.., value_name = "NAME")]
    pub served_model_name: Vec<String>,
    /// Keys of which every request must bring one; the environment variable `FRIZZEN_API_KEY` adds one
    #[arg(long, num_args = 1.., value_name = "KEY", value_parser = parse_key)]
    pub api_key: Vec<String>,
    /// Origins that browsers may call from; none by default, '*' is all
    #[arg(long, num_args = 1.., value_name = "ORIGIN", value_parser = parse_origin)]
    pub allowed_origins: Vec<String>,
    /// Methods that browsers may use; all by default
    #[arg(long, num_args = 1.., value_name = "METHOD", requires = "allowed_origins")]
    pub allowed_methods: Vec<Method>,
    /// Headers that browsers may send; all by default
    #[arg(long, num_args = 1.., value_name = "HEADER", requires = "allowed_origins")]
    pub allowed_headers: Vec<HeaderName>,
    /// Let browsers send cookies and keys of their own; the origins must be named then
    #[arg(long, requires = "allowed_origins")]
    pub allow_credentials: bool,
    /// A file with the chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Variables of the chat template for requests that do not say, such as `{"enable_thinking": false}`
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_object)]
    pub default_chat_template_kwargs: Map<String, Value>,
    /// Also emit metrics under another server's names
    #[arg(long, value_enum, value_name = "SERVER")]
    pub metrics_compat: Option<MetricsCompat>,
    /// Largest request body, such as 32M
    #[arg(long, value_name = "BYTES", default_value = "32M", value_parser = parse_size)]
    pub body_limit: u64,
    /// Defaults of sampling: the model's `generation_config.json` (auto), OpenAI's (vllm, none), or those of a directory
    #[arg(long, value_name = "auto|vllm|none|DIR", default_value = "auto")]
    pub generation_config: String,
    /// Bytes for finished responses that later ones may refer to (`previous_response_id`), such as 64M; 0 stores none
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub response_store: u64,
    /// Seconds that open requests get to end after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub drain_timeout: Duration,
    /// Seconds that one step may take before the engine counts as dead; a tenth of it is reported as slow
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = parse_step_timeout)]
    pub step_timeout: Duration,
    /// Seconds that a client may take for the head of a request, and a connection may idle; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub header_timeout: Duration,
    /// Form of the log: text, or one JSON object per line
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Seconds of silence in a stream after which a comment is sent; 0 never sends one
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = parse_seconds)]
    pub keep_alive: Duration,
    /// Where OpenTelemetry traces go, one per request, as OTLP over HTTP; none are made without it. `OTEL_SERVICE_NAME`
    /// names the server in them
    #[arg(long, value_name = "URL")]
    pub otlp_traces_endpoint: Option<Endpoint>,
    /// How it is encrypted.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// What the peers' command lines have.
    #[command(flatten)]
    pub familiar: FamiliarArgs,
    /// How the model's text is read. Last, since its heading would go on for what followed.
    #[command(flatten)]
    pub parsing: ParsingArgs,
}

impl ServerConfig {
    /// The names under which the model answers, at least one.
    pub fn model_names(&self) -> Vec<String> {
        if self.http.served_model_name.is_empty() {
            vec![self.engine.model().to_owned()]
        } else {
            self.http.served_model_name.clone()
        }
    }

    /// How the engine's loop runs; `speculation` is what its flags amount to.
    pub fn engine_options(&self, speculation: Option<&ResolvedSpeculation>) -> EngineOptions {
        EngineOptions {
            speculation: speculation.map(|resolved| resolved.config),
            overlap: self.scheduling.overlap(),
            prefix_caching: self.scheduling.prefix_caching(),
            policy: match self.scheduling.scheduling_policy {
                SchedulingPolicy::Fcfs => Policy::Fcfs,
                SchedulingPolicy::Priority => Policy::Priority,
            },
            seed: self.engine.seed,
            ..EngineOptions::default()
        }
    }

    /// What the metrics are made for.
    pub fn metrics_options(&self) -> MetricsOptions {
        MetricsOptions {
            model_name: self.model_names().swap_remove(0),
            vllm_names: self.http.metrics_compat == Some(MetricsCompat::Vllm),
        }
    }

    /// The worker's configuration: a JSON object with the fields that were given.
    pub fn engine_json(&self, speculation: Option<&ResolvedSpeculation>) -> String {
        #[derive(Serialize)]
        struct Fields<'a> {
            #[serde(flatten)]
            engine: &'a EngineArgs,
            served_model_name: &'a str,
            enable_prefix_caching: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            overlap: Option<bool>,
            #[serde(flatten)]
            speculation: Option<&'a WorkerSpeculation>,
        }
        let engine = EngineArgs { model: Some(self.engine.model().to_owned()), ..self.engine.clone() };
        let names = self.model_names();
        serde_json::to_string(&Fields {
            engine: &engine,
            served_model_name: &names[0],
            enable_prefix_caching: self.scheduling.prefix_caching(),
            overlap: self.scheduling.overlap(),
            speculation: speculation.map(|resolved| &resolved.worker),
        })
        .expect("strings, numbers and booleans are always JSON")
    }
}

/// A number of bytes with an optional suffix: `K`, `M`, `G`, `T` are powers of 1024, as are `KiB` and so on.
///
/// # Errors
/// A sentence that names the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("'{text}' is not a number of bytes such as 512M or 4G")),
    };
    scaled(digits, (1_u64 << shift) as f64)
        .ok_or_else(|| format!("'{text}' is not a number of bytes such as 512M or 4G"))
}

/// A number of tokens or requests; `k` is 1000 and `K` is 1024, as in vLLM.
fn parse_count(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1000.0),
        Some(b'K') => (&text[..text.len() - 1], 1024.0),
        _ => (text, 1.0),
    };
    match scaled(digits, scale) {
        Some(count) if count > 0 => Ok(count),
        _ => Err(format!("'{text}' is not a positive number such as 4096 or 8k")),
    }
}

fn scaled(digits: &str, scale: f64) -> Option<u64> {
    let value: f64 = digits.trim().parse().ok()?;
    let scaled = value * scale;
    // Above 2^53 the product is no longer exact; nothing that is counted here comes near.
    (scaled.is_finite() && (0.0..9e15).contains(&scaled) && scaled.fract() == 0.0).then_some(scaled as u64)
}

fn parse_acceptance(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 1.0);
    value.ok_or_else(|| format!("'{text}' is not a number of at least 1"))
}

fn parse_origin(text: &str) -> Result<String, String> {
    let fits = text == "*" || (text.contains("://") && HeaderValue::from_str(text).is_ok());
    if fits {
        Ok(text.to_owned())
    } else {
        Err(format!("'{text}' is not an origin such as https://app.example"))
    }
}

/// A variable that is not set must not open a server that was told to ask for keys.
fn parse_key(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a key must not be empty; without --api-key none is asked for".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_step_timeout(text: &str) -> Result<Duration, String> {
    parse_seconds(text).and_then(|limit| {
        if limit.is_zero() { Err("every step takes longer than 0 seconds".to_owned()) } else { Ok(limit) }
    })
}

/// A trailing slash says nothing: `/` alone is no prefix.
fn parse_root_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let fits =
        path.is_empty() || path.starts_with('/') && path.parse::<Uri>().is_ok_and(|uri| uri.path() == path);
    if fits { Ok(path.to_owned()) } else { Err(format!("'{text}' is not a path such as /models/a")) }
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("'{text}' is not a JSON object: {error}"))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("'{text}' is not a number of seconds"))
}

#[cfg(test)]
mod tests;
