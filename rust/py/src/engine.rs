//! The engine as a Python object: the same loop as the server's, on the caller's thread.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use frizzen_core::{
    Constraint, Error, FinishReason, ParamLimits, Request, SamplingParams, SystemClock, TokenId,
};
use frizzen_engine::{
    Engine, EngineHandle, EngineOptions, OutputStream, ResolvedSpeculation, SpeculationOptions, Turn, Worker,
    WorkerInfo, seat,
};
use frizzen_grammar::{GrammarCompiler, GrammarError, GrammarLimits, GrammarSpec};
use frizzen_metrics::{Metrics, MetricsOptions};
use frizzen_text::{ChatTemplate, Cut, RenderRequest, StreamOptions, TextStream, Tokenizer};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::error::{config_error, refused, to_py};
use crate::gil::detached;
use crate::output::{Collected, RequestOutput};
use crate::worker::PyWorker;

/// How long the loop may run before Python's signal handlers get their turn.
const SLICE: Duration = Duration::from_millis(50);

/// The fields of `EngineConfig` that the Rust side reads.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct EngineSettings {
    pub model: String,
    pub tokenizer: Option<String>,
    pub enable_prefix_caching: bool,
    pub overlap: Option<bool>,
    pub seed: Option<u64>,
    #[serde(flatten)]
    pub speculation: SpeculationOptions,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            model: String::new(),
            tokenizer: None,
            enable_prefix_caching: true,
            overlap: None,
            seed: None,
            speculation: SpeculationOptions::default(),
        }
    }
}

/// What `SamplingParams.to_json` gives.
#[derive(Debug, Deserialize)]
struct GenerateParams {
    #[serde(flatten)]
    sampling: SamplingParams,
    #[serde(default)]
    stop: Vec<String>,
    #[serde(default)]
    bad_words: Vec<String>,
    #[serde(default)]
    include_stop_str_in_output: bool,
    #[serde(default = "yes")]
    skip_special_tokens: bool,
    structured_outputs: Option<serde_json::Map<String, serde_json::Value>>,
}

const fn yes() -> bool {
    true
}

#[derive(FromPyObject)]
enum Prompt {
    Text(String),
    Ids(Vec<TokenId>),
}

/// What `LLM.chat` passes along with the messages.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatOptions {
    add_generation_prompt: bool,
    continue_final_message: bool,
    chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
    tools: Option<Vec<serde_json::Value>>,
}

/// One prompt on its way.
pub(crate) struct Pending {
    pub(crate) stream: Option<OutputStream>,
    pub(crate) text: Option<TextStream>,
    /// The stop token belongs to the text.
    pub(crate) include_stop: bool,
    pub(crate) collected: Collected,
    pub(crate) done: bool,
}

/// A model with its scheduler, driven by the thread that made it.
#[pyclass(name = "Engine", module = "frizzen._core", unsendable)]
pub(crate) struct PyEngine {
    pub(crate) engine: Option<Engine<PyWorker>>,
    pub(crate) handle: EngineHandle,
    tokenizer: Result<Arc<Tokenizer>, String>,
    template: Result<ChatTemplate, String>,
    /// Made by the first request that has a grammar.
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
}

/// The local path of a model: `frizzen.catalog.resolve(name)`.
pub(crate) fn resolve(py: Python<'_>, model: &str) -> PyResult<String> {
    let path = py.import("frizzen.catalog")?.call_method1("resolve", (model,))?;
    path.str()?.extract()
}

/// The worker's configuration with what its options about speculation amount to.
fn with_drafts(config_json: &str, speculation: Option<&ResolvedSpeculation>) -> PyResult<String> {
    let Some(speculation) = speculation else { return Ok(config_json.to_owned()) };
    let mut config: serde_json::Value = serde_json::from_str(config_json)
        .map_err(|error| PyValueError::new_err(format!("engine config: {error}")))?;
    let resolved = serde_json::to_value(&speculation.worker)
        .map_err(|error| PyValueError::new_err(format!("speculation: {error}")))?;
    for (name, value) in resolved.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    Ok(config.to_string())
}

/// Seconds since 1970 on the wall clock of this machine's time zone, for templates that show the date.
fn local_time(py: Python<'_>) -> PyResult<i64> {
    let time = py.import("time")?;
    let now = time.call_method0("localtime")?;
    py.import("calendar")?.call_method1("timegm", (now,))?.extract()
}

fn load_text(path: &Path) -> (Result<Arc<Tokenizer>, String>, Result<ChatTemplate, String>) {
    match Tokenizer::load(path) {
        Ok(tokenizer) => {
            let template = match ChatTemplate::of_tokenizer(&tokenizer) {
                Ok(template) => template.ok_or_else(|| "this model has no chat template".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            (Ok(Arc::new(tokenizer)), template)
        }
        Err(error) => (Err(error.to_string()), Err(error.to_string())),
    }
}

#[pymethods]
#[expect(clippy::needless_pass_by_value, reason = "pyo3 extracts lists and callables into owned values")]
impl PyEngine {
    #[new]
    fn new(py: Python<'_>, config_json: &str) -> PyResult<Self> {
        let settings: EngineSettings = serde_json::from_str(config_json)
            .map_err(|error| PyValueError::new_err(format!("engine config: {error}")))?;
        let path = resolve(py, settings.tokenizer.as_deref().unwrap_or(&settings.model))?;
        // The tokenizer is parsed while torch is imported and the weights are read.
        let text = std::thread::spawn(move || load_text(Path::new(&path)));
        let speculation = settings.speculation.resolve().map_err(|message| config_error(py, &message))?;
        let worker = PyWorker::build(py, &with_drafts(config_json, speculation.as_ref())?)?;
        let (tokenizer, template) =
            text.join().map_err(|_| PyRuntimeError::new_err("loading the tokenizer panicked"))?;
        let (handle, seat) = seat(Arc::new(SystemClock::new()), usize::MAX);
        let metrics =
            Metrics::new(&MetricsOptions { model_name: worker.info().model.clone(), vllm_names: false });
        let options = EngineOptions {
            overlap: settings.overlap,
            prefix_caching: settings.enable_prefix_caching,
            seed: settings.seed,
            speculation: speculation.as_ref().map(|resolved| resolved.config),
            ..EngineOptions::default()
        };
        let mut engine =
            Engine::new(seat, worker, options, metrics.engine(0)).map_err(|error| to_py(py, &error))?;
        if let Some(directory) = speculation.and_then(|resolved| resolved.cache) {
            engine.remember_costs(&directory);
        }
        Ok(Self { engine: Some(engine), handle, tokenizer, template, grammars: OnceLock::new() })
    }

    /// What the worker says of itself, as JSON.
    #[getter]
    fn info_json(&self, py: Python<'_>) -> PyResult<String> {
        let info = self.engine(py)?.worker().info();
        serde_json::to_string(info).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// The kernel plan, as JSON.
    #[getter]
    fn plan_json(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.engine(py)?.worker().info().plan.to_string())
    }

    /// How drafts fare, as JSON, of the kind that `/v1/speculation` shows.
    #[getter]
    fn speculation_json(&self) -> String {
        frizzen_server::speculation::status(&self.handle).to_string()
    }

    /// Preemptions, prefix-cache queries and hits in tokens, since the start.
    #[getter]
    fn counters(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let counters = self.engine(py)?.scheduler().counters();
        Ok((counters.preemptions, counters.prefix_queries, counters.prefix_hits))
    }

    /// Token ids of a text.
    fn encode(&self, py: Python<'_>, text: &str, add_special: bool) -> PyResult<Vec<TokenId>> {
        self.tokenizer(py)?.encode(text, add_special).map_err(|error| to_py(py, &error))
    }

    /// Text of token ids.
    fn decode(&self, py: Python<'_>, ids: Vec<TokenId>, skip_special: bool) -> PyResult<String> {
        let tokenizer = self.tokenizer(py)?;
        let limit = self.engine(py)?.worker().info().vocab_size;
        if let Some(id) = ids.iter().find(|id| **id >= limit) {
            return Err(refused(py, &format!("token id {id} is not below the vocabulary size {limit}")));
        }
        Ok(tokenizer.decode(&ids, skip_special))
    }

    /// A conversation as the model's chat template writes it.
    fn render_chat(&self, py: Python<'_>, messages_json: &str, options_json: &str) -> PyResult<String> {
        let template = self.template.as_ref().map_err(|reason| refused(py, reason))?;
        let parsed = (|| -> serde_json::Result<(Vec<serde_json::Value>, ChatOptions)> {
            Ok((serde_json::from_str(messages_json)?, serde_json::from_str(options_json)?))
        })();
        let (messages, options) = parsed.map_err(|error| refused(py, &format!("messages: {error}")))?;
        let rendered = template.render(&RenderRequest {
            messages: &messages,
            tools: options.tools.as_deref(),
            documents: None,
            add_generation_prompt: options.add_generation_prompt,
            continue_final_message: options.continue_final_message,
            kwargs: Some(&options.chat_template_kwargs),
            local_time: local_time(py)?,
        });
        rendered.map_err(|error| to_py(py, &error))
    }

    /// Completes prompts; returns when all are done. `progress(done, total, tokens)` is called now and then.
    #[pyo3(signature = (prompts, params_json, progress = None))]
    fn generate(
        &mut self,
        py: Python<'_>,
        prompts: Vec<Prompt>,
        params_json: Vec<String>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<RequestOutput>> {
        if prompts.len() != params_json.len() {
            let (a, b) = (prompts.len(), params_json.len());
            return Err(PyValueError::new_err(format!("{a} prompts with {b} sets of parameters")));
        }
        let mut texts = Vec::with_capacity(prompts.len());
        let mut ids = Vec::with_capacity(prompts.len());
        let mut params = Vec::with_capacity(prompts.len());
        for (at, (prompt, json)) in prompts.into_iter().zip(&params_json).enumerate() {
            let (text, tokens) = match prompt {
                Prompt::Ids(tokens) => (None, tokens),
                Prompt::Text(text) => {
                    let tokens = self.encode(py, &text, true)?;
                    (Some(text), tokens)
                }
            };
            texts.push(text);
            ids.push(tokens);
            let one: GenerateParams =
                serde_json::from_str(json).map_err(|error| refused(py, &format!("params[{at}]: {error}")))?;
            params.push(one);
        }
        let mut pending = self.submit_all(py, &ids, &params)?;
        self.drive(py, &mut pending, progress.as_ref())?;
        let finished = pending.into_iter().zip(texts).zip(ids.iter().zip(&params));
        finished
            .map(|((pending, text), (ids, params))| {
                let wants =
                    (params.sampling.num_alternatives().is_some(), params.sampling.prompt_logprobs.is_some());
                RequestOutput::new(py, text, ids, wants, pending.collected)
            })
            .collect()
    }

    /// Ids of a text or of a pair, and the index of the second text's first token where the tokenizer marks it.
    #[pyo3(signature = (first, second = None))]
    fn encode_pair(
        &self,
        py: Python<'_>,
        first: &str,
        second: Option<&str>,
    ) -> PyResult<(Vec<TokenId>, Option<u32>)> {
        let encoded = self.tokenizer(py)?.encode_pair(first, second, true, Cut::default());
        encoded.map(|encoded| (encoded.ids, encoded.second_start)).map_err(|error| to_py(py, &error))
    }

    /// The vectors of prompts, each its ids and the index of its second text. `progress(done, total, tokens)` is called
    /// now and then.
    #[pyo3(signature = (prompts, options_json, progress = None))]
    fn pool(
        &mut self,
        py: Python<'_>,
        prompts: Vec<(Vec<TokenId>, Option<u32>)>,
        options_json: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Vec<f32>>> {
        self.vectors(py, &prompts, options_json, progress.as_ref())
    }

    /// Ends the worker. The object is unusable afterwards.
    fn close(&mut self) {
        if let Some(mut engine) = self.engine.take() {
            engine.shutdown();
        }
    }
}

impl PyEngine {
    fn engine(&self, _py: Python<'_>) -> PyResult<&Engine<PyWorker>> {
        self.engine.as_ref().ok_or_else(|| PyRuntimeError::new_err("this engine is closed"))
    }

    pub(crate) fn tokenizer(&self, py: Python<'_>) -> PyResult<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().map_err(|reason| {
            refused(py, &format!("this model has no tokenizer, so prompts are token ids: {reason}"))
        })
    }

    fn submit_all(
        &self,
        py: Python<'_>,
        ids: &[Vec<TokenId>],
        params: &[GenerateParams],
    ) -> PyResult<Vec<Pending>> {
        let info = self.engine(py)?.worker().info().clone();
        let limits = ParamLimits {
            vocab_size: info.vocab_size,
            max_model_len: info.max_model_len,
            max_logprobs: info.max_logprobs,
        };
        let (tokenizer, grammars) = (&self.tokenizer, &self.grammars);
        let mut pending = Vec::with_capacity(ids.len());
        for (ids, params) in ids.iter().zip(params) {
            let one = detached(py, || constraint_of(params, tokenizer, grammars, &info))
                .and_then(|constraint| self.submit_one(ids, params, constraint, &limits));
            // What was submitted already is dropped here, and so aborted.
            pending.push(one.map_err(|error| to_py(py, &error))?);
        }
        Ok(pending)
    }

    /// Every spelling of what the output may not hold.
    fn banned(&self, params: &GenerateParams) -> Result<Vec<Vec<TokenId>>, Error> {
        let mut banned = Vec::new();
        for word in &params.bad_words {
            let tokenizer = self.tokenizer.as_ref().map_err(|reason| {
                Error::invalid("bad_words", format!("bad_words need a tokenizer: {reason}"))
            })?;
            banned.extend(tokenizer.spellings(word)?);
        }
        Ok(banned)
    }

    fn submit_one(
        &self,
        ids: &[TokenId],
        params: &GenerateParams,
        constraint: Option<Arc<dyn Constraint>>,
        limits: &ParamLimits,
    ) -> Result<Pending, Error> {
        let sampling = SamplingParams { banned_sequences: self.banned(params)?, ..params.sampling.clone() };
        sampling.validate(limits)?;
        let sampling = sampling.canonical();
        let text = match &self.tokenizer {
            Ok(tokenizer) => {
                let options = StreamOptions {
                    stop: params.stop.clone(),
                    include_stop_in_output: params.include_stop_str_in_output,
                    skip_special_tokens: params.skip_special_tokens,
                    min_tokens: params.sampling.min_tokens,
                    ..StreamOptions::default()
                };
                Some(TextStream::new(Arc::clone(tokenizer), &options)?)
            }
            Err(reason) if params.stop.is_empty() => {
                tracing::debug!(%reason, "no tokenizer: outputs have no text");
                None
            }
            Err(reason) => {
                return Err(Error::invalid("stop", format!("stop strings need a tokenizer: {reason}")));
            }
        };
        let stream = self.handle.submit(Request {
            prompt: ids.into(),
            params: sampling,
            priority: 0,
            constraint,
            pooling: None,
            cache_salt: None,
            external_id: Arc::from("generate"),
        })?;
        Ok(Pending {
            stream: Some(stream),
            text,
            include_stop: params.include_stop_str_in_output,
            collected: Collected::default(),
            done: false,
        })
    }

    /// Runs the loop until every request is done, with a look at signals and progress between slices.
    pub(crate) fn drive(
        &mut self,
        py: Python<'_>,
        pending: &mut [Pending],
        progress: Option<&Py<PyAny>>,
    ) -> PyResult<()> {
        let handle = self.handle.clone();
        let engine = self.engine.as_mut().ok_or_else(|| PyRuntimeError::new_err("this engine is closed"))?;
        while pending.iter().any(|request| !request.done) {
            let outcome = detached(py, || -> Result<(), Error> {
                let started = Instant::now();
                while started.elapsed() < SLICE {
                    let turn = engine.step()?;
                    for request in pending.iter_mut() {
                        request.take()?;
                    }
                    if turn == Turn::Idle {
                        break;
                    }
                }
                Ok(())
            });
            if let Err(error) = outcome {
                if matches!(error, Error::Engine { .. }) {
                    handle.fail(error.clone());
                }
                // The original exception, with its traceback, is worth more than our summary of it.
                return Err(engine.worker_mut().take_raised().unwrap_or_else(|| to_py(py, &error)));
            }
            py.check_signals()?;
            if let Some(progress) = progress {
                let done = pending.iter().filter(|request| request.done).count();
                let tokens: usize = pending.iter().map(|request| request.collected.all.tokens.len()).sum();
                progress.call1(py, (done, pending.len(), tokens))?;
            }
        }
        Ok(())
    }
}

/// The grammar that a request asks for. May take seconds.
fn constraint_of(
    params: &GenerateParams,
    tokenizer: &Result<Arc<Tokenizer>, String>,
    grammars: &OnceLock<Result<GrammarCompiler, GrammarError>>,
    info: &WorkerInfo,
) -> Result<Option<Arc<dyn Constraint>>, Error> {
    let refused =
        |error: GrammarError| Error::invalid("structured_outputs", format!("structured_outputs: {error}"));
    let Some(fields) = &params.structured_outputs else { return Ok(None) };
    let Some(spec) = GrammarSpec::from_structured_outputs(fields).map_err(refused)? else { return Ok(None) };
    let tokenizer = tokenizer.as_ref().map_err(|reason| {
        Error::invalid("structured_outputs", format!("a grammar needs a tokenizer: {reason}"))
    })?;
    let compiler = grammars.get_or_init(|| {
        GrammarCompiler::new(tokenizer, info.vocab_size, &info.eos_token_ids, GrammarLimits::default())
    });
    let grammar = compiler.as_ref().map_err(Clone::clone).and_then(|compiler| compiler.compile(&spec));
    Ok(Some(grammar.map_err(refused)?))
}

impl Pending {
    /// Takes what has arrived; ends the request at a stop string.
    fn take(&mut self) -> Result<(), Error> {
        while let Some(delta) = self.stream.as_mut().and_then(OutputStream::try_next) {
            let finished = delta.finish.is_some();
            if let Some(FinishReason::Error(error)) = &delta.finish {
                return Err(error.clone());
            }
            let matched = self.extend_text(&delta.tokens, delta.finish.as_ref());
            self.collected.all.merge(delta);
            if matched {
                if let Some(stream) = self.stream.take() {
                    stream.stop();
                }
            } else if finished {
                self.stream = None;
            }
            self.done = self.stream.is_none();
        }
        Ok(())
    }

    /// Appends the text of new tokens. True if a stop string ended it.
    fn extend_text(&mut self, tokens: &[TokenId], finish: Option<&FinishReason>) -> bool {
        let Some(text) = &mut self.text else {
            self.collected.shown += tokens.len();
            return false;
        };
        // The token that ended the request is counted but not shown, unless it was asked for.
        let hidden = usize::from(finish.is_some_and(FinishReason::is_stop_token) && !self.include_stop);
        let mut delta = text.push(&tokens[..tokens.len() - hidden.min(tokens.len())]);
        if finish.is_some() {
            if hidden > 0 {
                delta.append(text.push_hidden());
            }
            delta.append(text.finish());
        }
        self.collected.text.push_str(&delta.text);
        self.collected.shown += delta.tokens_released;
        self.collected.stopped_by = delta.stop;
        self.collected.stopped_by.is_some()
    }
}
