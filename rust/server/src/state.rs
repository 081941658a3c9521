//! What handlers share.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use frizzen_core::{Error, ParamLimits, ReasoningMarkers};
use frizzen_engine::{EngineHandle, Health, WorkerInfo};
use frizzen_grammar::{Grammar, GrammarCompiler, GrammarError, GrammarLimits};
use frizzen_metrics::{EngineMetrics, HttpMetrics, Metrics};
use frizzen_text::parse::Format;
use frizzen_text::{ChatTemplate, LoadError, RenderRequest, Tokenizer};
use serde_json::{Map, Value};

use crate::administration;
use crate::auth::ApiKeys;
use crate::config::{HttpArgs, SchedulingPolicy, ServerConfig};
use crate::defaults::SamplingDefaults;
use crate::error::{ApiError, quoted};
use crate::ids::IdSource;
use crate::request::chat::Conversation;
use crate::request::constraint::refused;
use crate::request::{Limits, RequestedGrammar, Unused};
use crate::store::ResponseStore;
use crate::traces::Tracer;
use crate::worker_report::WorkerReport;

/// How handlers hold the state.
pub type SharedState = Arc<AppState>;

/// Most names of ignored fields that are remembered so that each is warned about once.
const MAX_WARNED: usize = 1024;
/// The environment variable that adds an API key: a command line is visible to every user of the machine.
const KEY_VARIABLE: &str = "FRIZZEN_API_KEY";
/// The environment variable of OpenTelemetry that names a service in traces.
const SERVICE_VARIABLE: &str = "OTEL_SERVICE_NAME";

/// The model's text side.
#[derive(Debug)]
pub struct TextModel {
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, if it has one.
    pub template: Option<ChatTemplate>,
    /// What is read out of its text.
    pub format: Format,
    /// What requests get that do not say.
    pub defaults: SamplingDefaults,
    /// Variables of the template for conversations that do not say.
    pub template_kwargs: Map<String, Value>,
    /// Where its reasoning begins and ends, in tokens; `None` if it has none between tags.
    pub reasoning_markers: Option<Arc<ReasoningMarkers>>,
    /// Bytes of its longest token: a text has at least its own bytes over this many tokens.
    longest_token: usize,
}

impl TextModel {
    /// The text side of a model.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Option<ChatTemplate>) -> Self {
        let longest = (0..tokenizer.vocab_size()).map(|id| tokenizer.token_bytes(id).len()).max();
        Self {
            tokenizer,
            template,
            format: Format::default(),
            defaults: SamplingDefaults::default(),
            template_kwargs: Map::new(),
            reasoning_markers: None,
            longest_token: longest.unwrap_or(0).max(1),
        }
    }

    /// The text side of a model, with the template in `file` if there is one.
    pub fn load(tokenizer: Arc<Tokenizer>, file: Option<&Path>) -> Result<Self, LoadError> {
        let template = match file {
            Some(path) => {
                let source = std::fs::read_to_string(path)
                    .map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
                Some(ChatTemplate::new(&source, tokenizer.special_tokens().names.clone())?)
            }
            None => ChatTemplate::of_tokenizer(&tokenizer)?,
        };
        Ok(Self::new(tokenizer, template))
    }

    /// How its text is read, by the server's flags.
    pub fn read_as(&mut self, http: &HttpArgs) {
        self.format = http.parsing.format(self.template.as_ref());
        self.template_kwargs.clone_from(&http.default_chat_template_kwargs);
        self.reasoning_markers = self.format.reasoning_markers(&self.tokenizer);
    }

    /// The prompt of a conversation, as text.
    pub fn render(&self, conversation: &Conversation) -> Result<String, ApiError> {
        let template = self.template.as_ref().ok_or_else(|| {
            ApiError::invalid("messages", "the model has no chat template; --chat-template can give it one")
        })?;
        let mut kwargs = Cow::Borrowed(&conversation.template_kwargs);
        if !self.template_kwargs.is_empty() {
            let mut all = self.template_kwargs.clone();
            all.extend(kwargs.into_owned());
            kwargs = Cow::Owned(all);
        }
        let request = RenderRequest {
            messages: &conversation.messages,
            tools: conversation.tools.as_deref(),
            documents: conversation.documents.as_deref(),
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            kwargs: Some(&kwargs),
            local_time: unix_time() as i64,
        };
        Ok(template.render(&request)?)
    }

    /// The fewest tokens that a text can have.
    pub const fn fewest_tokens(&self, text: &str) -> usize {
        text.len() / self.longest_token
    }
}

/// Everything that a request needs.
#[derive(Debug)]
pub struct AppState {
    /// The engine.
    pub engine: EngineHandle,
    /// Every instrument.
    pub metrics: Arc<Metrics>,
    /// Those of the engine that the front end observes.
    pub engine_metrics: EngineMetrics,
    /// Those of the server.
    pub http_metrics: HttpMetrics,
    /// Notes where requests spend their time, if somebody collects it.
    pub tracer: Option<Tracer>,
    /// Brings those of the worker up to date.
    pub worker_report: WorkerReport,
    /// Names under which the model answers.
    pub names: Vec<String>,
    /// The server's flags.
    pub http: HttpArgs,
    /// Makes ids.
    pub ids: IdSource,
    pub(crate) keys: ApiKeys,
    by_priority: bool,
    /// Samples that may be open at the same time.
    max_open: usize,
    /// When the server started, in seconds since 1970.
    pub created: u64,
    text: OnceLock<TextModel>,
    /// Made by the first request that needs it: most servers get none, and it takes a while.
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
    /// What the flags say.
    pub description: serde_json::Value,
    /// Finished responses.
    pub store: Arc<ResponseStore>,
    warned: Mutex<HashSet<String>>,
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl AppState {
    /// The state of a server whose model is still being loaded.
    pub fn new(config: &ServerConfig, engine: EngineHandle, metrics: Arc<Metrics>) -> SharedState {
        for (flag, why) in config.http.familiar.notes() {
            tracing::warn!(flag, "a flag has no effect: {why}");
        }
        let keys = config.http.api_key.iter().cloned().chain(std::env::var(KEY_VARIABLE));
        Arc::new(Self {
            engine,
            engine_metrics: metrics.engine(0),
            http_metrics: metrics.http(),
            tracer: config.http.otlp_traces_endpoint.as_ref().map(|endpoint| {
                let service = std::env::var(SERVICE_VARIABLE).ok().filter(|name| !name.is_empty());
                Tracer::new(endpoint, service.unwrap_or_else(|| "frizzen".to_owned()), metrics.traces())
            }),
            worker_report: WorkerReport::new(metrics.worker(0)),
            metrics,
            names: config.model_names(),
            http: config.http.clone(),
            ids: IdSource::default(),
            keys: ApiKeys::new(keys),
            by_priority: config.scheduling.scheduling_policy == SchedulingPolicy::Priority,
            max_open: config.scheduling.max_queue,
            created: unix_time(),
            text: OnceLock::new(),
            grammars: OnceLock::new(),
            description: administration::describe(config),
            store: Arc::new(ResponseStore::new(config.http.response_store)),
            warned: Mutex::default(),
        })
    }

    /// Brings the text side in, once it is loaded. The second call has no effect.
    pub fn set_text(&self, mut text: TextModel) {
        text.read_as(&self.http);
        // The first one is in use already.
        let _ = self.text.set(text);
    }

    /// The loaded model.
    ///
    /// # Errors
    /// 503 while it is loading or after the engine failed.
    pub fn model(&self) -> Result<(&WorkerInfo, &TextModel), ApiError> {
        match self.engine.health() {
            Health::Loading(what) => return Err(ApiError::busy(format!("loading: {what}"))),
            Health::Failed(error) => return Err(error.into()),
            Health::Ready | Health::Draining => {}
        }
        let loading = || ApiError::busy("loading: reading the tokenizer");
        Ok((self.engine.info().ok_or_else(loading)?, self.text.get().ok_or_else(loading)?))
    }

    /// The grammar that a request asks for. Takes up to seconds: not for the threads that serve everybody.
    ///
    /// # Errors
    /// 400 that names the field and the construct.
    pub fn grammar(&self, asked: Option<&RequestedGrammar>) -> Result<Option<Arc<Grammar>>, ApiError> {
        let Some(RequestedGrammar { spec, field }) = asked else { return Ok(None) };
        let (info, model) = self.model()?;
        let compiler = self.grammars.get_or_init(|| {
            let limits = GrammarLimits::default();
            GrammarCompiler::new(&model.tokenizer, info.vocab_size, &info.eos_token_ids, limits)
        });
        let grammar = compiler.as_ref().map_err(Clone::clone).and_then(|compiler| compiler.compile(spec));
        grammar.map(Some).map_err(|error| refused(field, &error))
    }

    /// What requests may ask for.
    pub fn limits(&self, info: &WorkerInfo, model: &TextModel) -> Limits {
        let params = ParamLimits {
            vocab_size: info.vocab_size,
            max_model_len: info.max_model_len,
            max_logprobs: info.max_logprobs,
        };
        Limits { params, by_priority: self.by_priority, format: model.format, defaults: model.defaults }
    }

    /// The name to answer under. An empty name is no name, as in the peers.
    ///
    /// # Errors
    /// 404 for a name that is not the model's.
    pub fn check_model(&self, asked: Option<&str>) -> Result<&str, ApiError> {
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(&self.names[0]) };
        self.names.iter().find(|name| *name == asked).map(String::as_str).ok_or_else(|| {
            let message =
                format!("there is no model {}; there is {}", quoted(asked, 128), self.names.join(", "));
            Error::NotFound { param: "model", message }.into()
        })
    }

    /// Refuses a body whose samples certainly find no room, before any work is done for them: with 503 if they may find it
    /// later, with 400 for `field` if they never can.
    pub fn check_samples(&self, field: &'static str, samples: usize) -> Result<(), ApiError> {
        let (open, limit) = (self.engine.open_streams(), self.max_open);
        if samples > limit.max(1) {
            let message = format!(
                "{field} asks for {samples} requests at once, and at most {limit} may be open (--max-queue)"
            );
            return Err(ApiError::invalid(field, message));
        }
        if samples > limit.saturating_sub(open) {
            let message =
                format!("{samples} more requests than the {open} open ones are over the limit of {limit}");
            return Err(ApiError::busy(message));
        }
        Ok(())
    }

    /// Counts and, once per name, logs fields that had no effect.
    pub fn note(&self, unused: &Unused) {
        if !unused.unknown.is_empty() {
            self.http_metrics.unknown_fields(unused.unknown.len() as u64);
        }
        for (name, why) in &unused.ignored {
            if self.is_news(name) {
                tracing::warn!(field = name, "a request field has no effect: {why}");
            }
        }
        for name in &unused.unknown {
            let name = quoted(name, 64);
            if self.is_news(&name) {
                tracing::warn!(field = name, "a request field is not known and has no effect");
            }
        }
    }

    fn is_news(&self, name: &str) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        warned.len() < MAX_WARNED && !warned.contains(name) && warned.insert(name.to_owned())
    }
}
