//! Lowering: a typed request becomes what the engine schedules. The engine sees one canonical form, whatever the
//! dialect; everything that depends on the model's sizes is decided here.

use std::sync::Arc;
use std::time::SystemTime;

use frizzen_core::{Constraint, ParamLimits, Request, SamplingParams, TokenId};
use frizzen_engine::EngineHandle;
use frizzen_text::parse::{Format, Setup};
use frizzen_text::{StreamOptions, TextStream, Tokenizer};

use crate::error::ApiError;
use crate::output::generation::{Ending, Held, Sample, Watch};
use crate::output::{Echo, Generation, Waterfall, Writer};
use crate::request::{Common, TruncationSide};
use crate::state::TextModel;
use crate::traces::record::{Asked, epoch};

/// A prompt in tokens.
#[derive(Clone, Debug)]
pub struct TokenPrompt {
    /// Its ids, truncated as asked for.
    pub tokens: Arc<[TokenId]>,
    /// The prompt again, if each output is to begin with it.
    pub echo: Option<Echo>,
}

/// What the dialect knows about its prompts.
#[derive(Clone, Copy, Debug)]
pub struct PromptKind {
    /// The field that brings them.
    pub field: &'static str,
    /// Each output begins with its prompt.
    pub echo: bool,
    /// Outputs continue the text of the prompt, rather than begin one of their own.
    pub continues_text: bool,
    /// Streams have a place for the log-probabilities of the prompt.
    pub streams_scores: bool,
}

/// How the text of an output is read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// What is read out of it.
    pub format: Format,
    /// What is known beside the text.
    pub setup: Setup,
    /// Stop strings are looked for in reasoning too.
    pub stop_in_reasoning: bool,
}

/// A request whose parameters are checked, before its prompts are tokens.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    common: &'a Common,
    /// Canonical; `max_tokens` does not know the prompt yet.
    params: SamplingParams,
    ending: Ending,
    limits: ParamLimits,
    kind: PromptKind,
    reading: Reading,
}

impl<'a> Plan<'a> {
    /// Checks the parameters against the model.
    pub fn new(common: &'a Common, limits: ParamLimits, kind: PromptKind) -> Result<Self, ApiError> {
        let stop_strings = !common.stop.is_empty();
        let mut params = SamplingParams { stop_strings, ..common.params.clone() };
        if params.prompt_logprobs.is_some() && common.shown.stream && !kind.streams_scores {
            let message = "prompt_logprobs is not available when stream is true";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        // The engine always generates: where nothing beyond the prompt is wanted, its one token is dropped.
        let prompt_only = params.max_tokens == Some(0) && (kind.echo || params.prompt_logprobs.is_some());
        if prompt_only {
            params.max_tokens = Some(1);
            params.min_tokens = 0;
        }
        if kind.echo && params.num_alternatives().is_some() {
            params.prompt_logprobs = params.prompt_logprobs.max(params.logprobs.or(Some(0)));
        }
        params.validate(&limits)?;
        let ending = Ending { include_stop: common.include_stop, prompt_only };
        Ok(Self { common, params: params.canonical(), ending, limits, kind, reading: Reading::default() })
    }

    /// The outputs are read like this.
    #[must_use]
    pub fn reading(mut self, reading: Reading) -> Self {
        self.reading = reading;
        self
    }

    /// Tokenises a prompt and truncates it as asked for. A text that is certainly too long is refused before the work.
    pub fn tokenise(
        &self,
        text: &str,
        add_special: bool,
        model: &TextModel,
    ) -> Result<Vec<TokenId>, ApiError> {
        let fewest = model.fewest_tokens(text);
        if fewest >= self.limits.max_model_len as usize && self.common.truncate.is_none() {
            return Err(self.too_long(&format!("at least {fewest}")));
        }
        let tokens = model.tokenizer.encode(text, add_special)?;
        if tokens.is_empty() {
            let field = self.kind.field;
            return Err(ApiError::invalid(field, format!("{field} has no tokens")));
        }
        Ok(self.truncate(tokens))
    }

    /// Cuts a prompt as asked for.
    pub fn truncate(&self, mut tokens: Vec<TokenId>) -> Vec<TokenId> {
        let keep = self.common.truncate.map_or(tokens.len(), |keep| tokens.len().min(keep as usize));
        match self.common.truncation_side {
            TruncationSide::Left => tokens.split_off(tokens.len() - keep),
            TruncationSide::Right => {
                tokens.truncate(keep);
                tokens
            }
        }
    }

    /// Spreads the prompts into samples: choice `prompt * n + i` is sample `i` of a prompt, with the seed `seed + i`.
    pub fn lower(
        &self,
        prompts: &[TokenPrompt],
        constraint: Option<&Arc<dyn Constraint>>,
        external_id: &Arc<str>,
        tokenizer: &Arc<Tokenizer>,
        writer: Box<dyn Writer>,
    ) -> Result<Lowered, ApiError> {
        let common = self.common;
        let salt: Option<Arc<str>> = common.cache_salt.as_deref().map(Into::into);
        let options = self.text_options(tokenizer);
        let mut banned_sequences = Vec::with_capacity(2 * common.bad_words.len());
        for word in &common.bad_words {
            banned_sequences.extend(tokenizer.spellings(word)?);
        }
        let params = SamplingParams { banned_sequences, ..self.params.clone() };
        // The model may have fewer logits than its tokenizer has tokens.
        params.validate(&self.limits)?;
        let mut samples = Vec::with_capacity(prompts.len() * common.n as usize);
        for (index, prompt) in prompts.iter().enumerate() {
            let params = self.params_for(&params, prompt.tokens.len())?;
            for sample in 0..common.n {
                let seed = params.seed.map(|seed| seed.wrapping_add(u64::from(sample)));
                let request = Request {
                    prompt: Arc::clone(&prompt.tokens),
                    params: SamplingParams { seed, ..params.clone() },
                    priority: common.priority,
                    constraint: constraint.map(Arc::clone),
                    pooling: None,
                    cache_salt: salt.clone(),
                    external_id: Arc::clone(external_id),
                };
                let text = TextStream::new(Arc::clone(tokenizer), &options)?;
                samples.push(LoweredSample { request, text, prompt: index, echo: prompt.echo.clone() });
            }
        }
        Ok(Lowered {
            samples,
            ending: self.ending,
            prompt_tokens: prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum(),
            n: common.n,
            writer,
            stream: common.shown.stream,
            timings: common.shown.timings,
            model: common.model.clone(),
        })
    }

    /// Parameters for a prompt of this length: a limit beyond the context is the context.
    fn params_for(&self, params: &SamplingParams, prompt_len: usize) -> Result<SamplingParams, ApiError> {
        let room = (self.limits.max_model_len as usize).saturating_sub(prompt_len);
        if room == 0 {
            return Err(self.too_long(&prompt_len.to_string()));
        }
        let mut params = params.clone();
        let max_tokens = params.max_tokens.map_or(room, |asked| room.min(asked as usize)) as u32;
        params.max_tokens = Some(max_tokens);
        params.min_tokens = params.min_tokens.min(max_tokens);
        Ok(params)
    }

    fn text_options(&self, tokenizer: &Tokenizer) -> StreamOptions {
        let Reading { format, setup, stop_in_reasoning } = &self.reading;
        StreamOptions {
            stop: self.common.stop.clone(),
            include_stop_in_output: self.common.include_stop,
            skip_special_tokens: self.common.skip_special,
            min_tokens: self.params.min_tokens,
            continues_text: self.kind.continues_text,
            shown_special: format.marker_tokens(tokenizer),
            stop_outside: (!stop_in_reasoning).then(|| (*format, setup.clone())),
        }
    }

    fn too_long(&self, tokens: &str) -> ApiError {
        let asked = self.params.max_tokens;
        let asked = asked.map_or_else(String::new, |asked| format!(" and {asked} more were asked for"));
        let limit = self.limits.max_model_len;
        let message = format!(
            "the prompt has {tokens} tokens{asked}, but prompt and output together may have {limit} tokens, at least \
             one of them output"
        );
        ApiError::invalid(self.kind.field, message)
    }
}

/// A request that is ready for the engine.
pub struct Lowered {
    samples: Vec<LoweredSample>,
    ending: Ending,
    prompt_tokens: u64,
    /// Samples per prompt.
    pub n: u32,
    /// Writes the answer.
    pub writer: Box<dyn Writer>,
    /// As a stream of events.
    pub stream: bool,
    /// The answer says where the time went.
    pub timings: bool,
    /// The model's name, if the request said one.
    model: Option<String>,
}

struct LoweredSample {
    request: Request,
    text: TextStream,
    prompt: usize,
    echo: Option<Echo>,
}

impl std::fmt::Debug for Lowered {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Lowered").field("n", &self.n).finish_non_exhaustive()
    }
}

impl Lowered {
    /// What the engine is about to be asked for, for a trace.
    pub fn asked(&self, engine: &EngineHandle, prefix: &'static str, model: &str) -> Asked {
        let first = self.samples.first().map(|sample| &sample.request);
        Asked {
            at: SystemTime::now(),
            epoch: epoch(engine.now()),
            model: self.model.clone().unwrap_or_else(|| model.to_owned()),
            name: first.map_or_else(|| "".into(), |request| Arc::clone(&request.external_id)),
            prefix,
            params: first.map(|request| request.params.clone()).unwrap_or_default(),
            n: self.n,
            prompt_tokens: self.prompt_tokens,
            stream: self.stream,
        }
    }

    /// Hands all samples to the engine: all of them or, if one is refused, none.
    pub fn submit(
        self,
        engine: &EngineHandle,
        watch: Watch,
    ) -> Result<(Generation, Box<dyn Writer>), ApiError> {
        let mut samples = Vec::with_capacity(self.samples.len());
        for lowered in self.samples {
            let LoweredSample { request, text, prompt, echo } = lowered;
            // The samples submitted so far are aborted when they are dropped.
            let stream = Some(engine.submit(request)?);
            samples.push(Sample {
                stream,
                text,
                prompt,
                echo,
                scores: Vec::new(),
                held: Held::default(),
                waterfall: Waterfall::default(),
                finish: None,
            });
        }
        Ok((Generation::new(samples, self.ending, self.prompt_tokens, watch), self.writer))
    }
}
