//! Lowering: a typed request becomes what the engine schedules. The engine sees one canonical form, whatever the
//! dialect; everything that depends on the model's sizes is decided here.

use std::sync::Arc;

use frizzen_core::{ParamLimits, Request, SamplingParams, TokenId};
use frizzen_engine::EngineHandle;
use frizzen_text::TextStream;

use crate::error::ApiError;
use crate::output::generation::{Ending, Held, Sample};
use crate::output::{Dialect as Writer, Echo, Generation};
use crate::request::{Common, TruncationSide};
use crate::state::TextModel;

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

/// A prompt in tokens.
#[derive(Clone, Debug)]
pub struct TokenPrompt {
    /// Its ids, truncated as asked for.
    pub tokens: Arc<[TokenId]>,
    /// The prompt again, if each output is to begin with it.
    pub echo: Option<Echo>,
}

/// The shared fields, as the engine wants them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Checked; `max_tokens` does not know the prompt yet.
    params: SamplingParams,
    ending: Ending,
    limits: ParamLimits,
    /// The field that brought the prompt.
    field: &'static str,
}

impl Plan {
    /// Checks the parameters. `echo` says that outputs begin with their prompt.
    pub fn new(
        common: &Common,
        limits: ParamLimits,
        field: &'static str,
        echo: bool,
    ) -> Result<Self, ApiError> {
        let mut params = common.params.clone();
        // The engine always generates: where nothing beyond the prompt is wanted, its one token is dropped.
        let prompt_only = params.max_tokens == Some(0) && (echo || params.prompt_logprobs.is_some());
        if prompt_only {
            params.max_tokens = Some(1);
            params.min_tokens = 0;
        }
        if echo && params.logprobs.is_some() {
            params.prompt_logprobs = params.prompt_logprobs.max(params.logprobs);
        }
        if common.params.prompt_logprobs.is_some() && common.shown.stream {
            return Err(ApiError::invalid(
                "prompt_logprobs",
                "prompt_logprobs is not available when stream is true",
            ));
        }
        params.validate(&limits)?;
        let params = params.canonical();
        Ok(Self { params, ending: Ending { include_stop: common.include_stop, prompt_only }, limits, field })
    }

    /// Parameters for a prompt of this length: a limit beyond the context is the context.
    fn params_for(&self, prompt_len: usize) -> Result<SamplingParams, ApiError> {
        let limit = self.limits.max_model_len as usize;
        let Some(room) = limit.checked_sub(prompt_len).filter(|room| *room > 0) else {
            return Err(too_long(self.field, &format!("{prompt_len}"), self.params.max_tokens, limit));
        };
        let mut params = self.params.clone();
        let max_tokens = params.max_tokens.map_or(room, |asked| room.min(asked as usize)) as u32;
        params.max_tokens = Some(max_tokens);
        params.min_tokens = params.min_tokens.min(max_tokens);
        Ok(params)
    }
}

fn too_long(field: &'static str, tokens: &str, asked: Option<u32>, limit: usize) -> ApiError {
    let asked = asked.map_or_else(String::new, |asked| format!(" and {asked} more were asked for"));
    let message = format!(
        "the prompt has {tokens} tokens{asked}, but prompt and output together may have {limit} tokens, at least one \
         of them output"
    );
    ApiError::invalid(field, message)
}

/// Tokenises a text and truncates it as asked for.
///
/// A text that is certainly too long is refused before the work.
pub fn tokenise(
    text: &str,
    add_special: bool,
    common: &Common,
    model: &TextModel,
    plan: &Plan,
) -> Result<Vec<TokenId>, ApiError> {
    let limit = plan.limits.max_model_len as usize;
    let fewest = model.fewest_tokens(text);
    if fewest >= limit && common.truncate.is_none() {
        return Err(too_long(plan.field, &format!("at least {fewest}"), plan.params.max_tokens, limit));
    }
    let tokens = model.tokenizer.encode(text, add_special)?;
    if tokens.is_empty() {
        return Err(ApiError::invalid(plan.field, format!("{} has no tokens", plan.field)));
    }
    Ok(truncate(tokens, common))
}

/// Cuts ids as asked for.
pub fn truncate(mut tokens: Vec<TokenId>, common: &Common) -> Vec<TokenId> {
    let Some(keep) = common.truncate.map(|keep| keep as usize).filter(|keep| *keep < tokens.len()) else {
        return tokens;
    };
    match common.truncation_side {
        TruncationSide::Left => tokens.split_off(tokens.len() - keep),
        TruncationSide::Right => {
            tokens.truncate(keep);
            tokens
        }
    }
}

impl Lowered {
    /// Spreads the prompts into samples: choice `prompt * n + i` is sample `i` of a prompt, with the seed `seed + i`.
    pub fn new(
        common: &Common,
        plan: &Plan,
        prompts: &[TokenPrompt],
        external_id: &Arc<str>,
        text: impl Fn() -> Result<TextStream, ApiError>,
        writer: Box<dyn Writer>,
    ) -> Result<Self, ApiError> {
        let salt: Option<Arc<str>> = common.cache_salt.as_deref().map(Into::into);
        let mut samples = Vec::with_capacity(prompts.len() * common.n as usize);
        for (index, prompt) in prompts.iter().enumerate() {
            let params = plan.params_for(prompt.tokens.len())?;
            for sample in 0..common.n {
                let seed = params.seed.map(|seed| seed.wrapping_add(u64::from(sample)));
                let request = Request {
                    prompt: Arc::clone(&prompt.tokens),
                    params: SamplingParams { seed, ..params.clone() },
                    priority: common.priority,
                    cache_salt: salt.clone(),
                    external_id: Arc::clone(external_id),
                };
                samples.push(LoweredSample {
                    request,
                    text: text()?,
                    prompt: index,
                    echo: prompt.echo.clone(),
                });
            }
        }
        Ok(Self {
            samples,
            ending: plan.ending,
            prompt_tokens: prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum(),
            n: common.n,
            writer,
            stream: common.shown.stream,
        })
    }

    /// Hands all samples to the engine: all of them or, if one is refused, none.
    pub fn submit(self, engine: &EngineHandle) -> Result<(Generation, Box<dyn Writer>), ApiError> {
        let mut samples = Vec::with_capacity(self.samples.len());
        for lowered in self.samples {
            let LoweredSample { request, text, prompt, echo } = lowered;
            // The samples submitted so far are aborted when they are dropped.
            let stream = Some(engine.submit(request)?);
            samples.push(Sample { stream, text, prompt, echo, held: Held::default() });
        }
        Ok((Generation::new(samples, self.ending, self.prompt_tokens), self.writer))
    }
}
