//! The fields that both dialects share.

use frizzen_core::{ParamLimits, SamplingParams, Speculation};
use frizzen_text::parse::Format;
use serde_json::Value;

use crate::defaults::SamplingDefaults;
use crate::error::{ApiError, quoted, shortened};
use crate::request::constraint::{self, RequestedGrammar};
use crate::request::fields::Fields;

/// Most samples of one prompt.
pub const MAX_N: u32 = 128;
/// Most stop strings.
pub const MAX_STOP: usize = 64;
/// Most entries of `logit_bias`; each is a rule that the worker keeps for the request's row.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most entries of `bad_words`.
pub const MAX_BAD_WORDS: usize = 512;
/// Most bytes of all entries of `bad_words` together: each sample keeps a machine of about a hundred bytes for each.
pub const MAX_BAD_BYTES: usize = 8192;
/// Most characters of `cache_salt`.
pub const MAX_SALT: usize = 128;

/// Which end of a prompt that is too long is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TruncationSide {
    /// The beginning: the end of a conversation matters most.
    #[default]
    Left,
    /// The end.
    Right,
}

/// What the server, besides the model, allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The model's limits.
    pub params: ParamLimits,
    /// Whether requests are served by priority.
    pub by_priority: bool,
    /// What is read out of the model's text.
    pub format: Format,
    /// What requests get that do not say.
    pub defaults: SamplingDefaults,
}

/// How outputs are to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// As a stream of events.
    pub stream: bool,
    /// A last event with the usage.
    pub include_usage: bool,
    /// The usage so far in every event.
    pub continuous_usage: bool,
    /// Where the time went.
    pub timings: bool,
    /// The ids of prompt and output.
    pub token_ids: bool,
    /// The text of the prompt.
    pub prompt_text: bool,
    /// The characters of each token of the prompt.
    pub token_offsets: bool,
    /// Tokens in log-probabilities as `token_id:N`.
    pub tokens_as_ids: bool,
}

/// What both dialects ask for.
#[derive(Clone, Debug)]
pub struct Common {
    /// The model's name, if it was given.
    pub model: Option<String>,
    /// Sampling and stopping; `max_tokens` and `logprobs` are the dialect's to fill in.
    pub params: SamplingParams,
    /// Samples per prompt.
    pub n: u32,
    /// What the output must satisfy, if anything.
    pub grammar: Option<RequestedGrammar>,
    /// Stop strings, none of them empty.
    pub stop: Vec<String>,
    /// Texts that the output may not hold, none of them empty.
    pub bad_words: Vec<String>,
    /// Keep the stop string that ended the output.
    pub include_stop: bool,
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// Let the tokenizer add its special tokens to the prompt; the dialect has the default.
    pub add_special: Option<bool>,
    /// Cut the prompt to this many tokens.
    pub truncate: Option<u32>,
    /// At which end.
    pub truncation_side: TruncationSide,
    /// Smaller is served first.
    pub priority: i32,
    /// Separates the prefix cache.
    pub cache_salt: Option<String>,
    /// The caller's name for the request.
    pub request_id: Option<String>,
    /// How outputs are to be shown.
    pub shown: Shown,
}

impl Common {
    /// Reads and checks the shared fields.
    pub fn read(fields: &mut Fields, limits: &Limits) -> Result<Self, ApiError> {
        let vocab = limits.params.vocab_size;
        let max_len = limits.params.max_model_len;
        let stop = fields.strings("stop", MAX_STOP)?;
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::invalid("stop", "stop must not contain an empty string"));
        }
        Ok(Self {
            model: fields.string("model")?,
            n: fields.integer("n", 1..=MAX_N)?.unwrap_or(1),
            grammar: constraint::requested(fields)?,
            stop,
            bad_words: bad_words(fields)?,
            include_stop: fields.flag("include_stop_str_in_output")? | fields.flag("no_stop_trim")?,
            skip_special: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            add_special: fields.boolean("add_special_tokens")?,
            truncate: truncate(fields, max_len)?,
            truncation_side: truncation_side(fields)?,
            priority: priority(fields, limits.by_priority)?,
            cache_salt: cache_salt(fields)?,
            request_id: request_id(fields)?,
            shown: shown(fields)?,
            params: sampling(fields, vocab, &limits.defaults)?,
        })
    }
}

/// Two names of the peers for one thing.
fn request_id(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let (first, second) = (fields.string("request_id")?, fields.string("rid")?);
    Ok(first.or(second))
}

fn bad_words(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let words = fields.strings("bad_words", MAX_BAD_WORDS)?;
    if words.iter().any(String::is_empty) {
        return Err(ApiError::invalid("bad_words", "bad_words must not contain an empty string"));
    }
    let bytes: usize = words.iter().map(String::len).sum();
    if bytes > MAX_BAD_BYTES {
        let message = format!("bad_words must have at most {MAX_BAD_BYTES} bytes in all, got {bytes}");
        return Err(ApiError::invalid("bad_words", message));
    }
    Ok(words)
}

fn sampling(
    fields: &mut Fields,
    vocab: u32,
    defaults: &SamplingDefaults,
) -> Result<SamplingParams, ApiError> {
    let base = defaults.apply(SamplingParams::default());
    Ok(SamplingParams {
        temperature: fields.float("temperature")?.unwrap_or(base.temperature),
        top_p: fields.float("top_p")?.unwrap_or(base.top_p),
        // -1 and 0 both mean "off" in the peers.
        top_k: fields.integer::<i32>("top_k", -1..=i32::MAX)?.map_or(base.top_k, |k| k.max(0) as u32),
        min_p: fields.float("min_p")?.unwrap_or(base.min_p),
        presence_penalty: fields.float("presence_penalty")?.unwrap_or(base.presence_penalty),
        frequency_penalty: fields.float("frequency_penalty")?.unwrap_or(base.frequency_penalty),
        repetition_penalty: fields.float("repetition_penalty")?.unwrap_or(base.repetition_penalty),
        // A negative seed is a seed like any other: the same bits, read without sign.
        seed: fields
            .integer::<i128>("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?
            .map(|seed| seed as u64),
        min_tokens: fields.integer("min_tokens", 0..=u32::MAX)?.unwrap_or(base.min_tokens),
        stop_token_ids: fields.token_ids("stop_token_ids", vocab)?.unwrap_or_default(),
        ignore_eos: fields.flag("ignore_eos")?,
        logprob_token_ids: fields.token_ids("logprob_token_ids", vocab)?.unwrap_or_default(),
        prompt_logprobs: fields.integer("prompt_logprobs", 0..=u32::MAX)?,
        logit_bias: logit_bias(fields, vocab)?,
        allowed_token_ids: fields.token_ids("allowed_token_ids", vocab)?,
        speculation: speculation(fields)?,
        ..base
    })
}

/// What the engine can do of it is checked where the request is submitted.
fn speculation(fields: &mut Fields) -> Result<Option<Speculation>, ApiError> {
    let Some(value) = fields.take("speculation") else { return Ok(None) };
    serde_json::from_value(value.clone()).map(Some).map_err(|_| {
        let text = value.to_string();
        let got = shortened(&text, 64);
        let message = format!("speculation must be \"off\", \"auto\" or {{\"max_tokens\": k}}, got {got}");
        ApiError::invalid("speculation", message)
    })
}

fn logit_bias(fields: &mut Fields, vocab: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MAX_LOGIT_BIAS {
        let message = format!("logit_bias must have at most {MAX_LOGIT_BIAS} entries, got {}", map.len());
        return Err(ApiError::invalid("logit_bias", message));
    }
    map.iter()
        .map(|(key, value)| {
            let id = key.parse().ok().filter(|id| *id < vocab).ok_or_else(|| {
                let key = quoted(key, 32);
                let message =
                    format!("logit_bias: {key} is not a token id below the vocabulary size {vocab}");
                ApiError::invalid("logit_bias", message)
            })?;
            let bias = value.as_f64().ok_or_else(|| {
                ApiError::invalid("logit_bias", format!("logit_bias of token {id} must be a number"))
            })?;
            Ok((id, bias as f32))
        })
        .collect()
}

fn truncate(fields: &mut Fields, max_len: u32) -> Result<Option<u32>, ApiError> {
    let limit = fields.integer::<i64>("truncate_prompt_tokens", -1..=i64::from(max_len))?;
    match limit {
        None => Ok(None),
        Some(0) => Err(ApiError::invalid(
            "truncate_prompt_tokens",
            format!("truncate_prompt_tokens must be -1 or from 1 to {max_len}, got 0"),
        )),
        // -1 cuts to what the model can take, which leaves room for one token of output.
        Some(-1) => Ok(Some(max_len.saturating_sub(1))),
        Some(limit) => Ok(Some(limit as u32)),
    }
}

fn truncation_side(fields: &mut Fields) -> Result<TruncationSide, ApiError> {
    match fields.string("truncation_side")?.as_deref() {
        None | Some("left") => Ok(TruncationSide::Left),
        Some("right") => Ok(TruncationSide::Right),
        Some(other) => {
            let other = quoted(other, 32);
            let message = format!("truncation_side must be 'left' or 'right', got {other}");
            Err(ApiError::invalid("truncation_side", message))
        }
    }
}

pub(crate) fn priority(fields: &mut Fields, by_priority: bool) -> Result<i32, ApiError> {
    let priority = fields.integer("priority", i32::MIN..=i32::MAX)?.unwrap_or(0);
    if priority != 0 && !by_priority {
        let message =
            format!("priority is {priority}, but the server runs without --scheduling-policy priority");
        return Err(ApiError::invalid("priority", message));
    }
    Ok(priority)
}

pub(crate) fn cache_salt(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let salt = fields.string("cache_salt")?;
    match salt.as_deref().map(|salt| salt.chars().count()) {
        Some(0) => Err(ApiError::invalid("cache_salt", "cache_salt must not be empty")),
        Some(length) if length > MAX_SALT => {
            let message = format!("cache_salt must have at most {MAX_SALT} characters, got {length}");
            Err(ApiError::invalid("cache_salt", message))
        }
        _ => Ok(salt),
    }
}

fn shown(fields: &mut Fields) -> Result<Shown, ApiError> {
    let stream = fields.flag("stream")?;
    let options = fields.object("stream_options")?;
    if options.is_some() && !stream {
        return Err(ApiError::invalid("stream_options", "stream_options needs stream to be true"));
    }
    let option = |name: &str| match options.as_ref().and_then(|options| options.get(name)) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => {
            Err(ApiError::invalid("stream_options", format!("stream_options.{name} must be true or false")))
        }
    };
    Ok(Shown {
        stream,
        include_usage: option("include_usage")?,
        continuous_usage: option("continuous_usage_stats")?,
        timings: fields.flag("timings")?,
        token_ids: fields.flag("return_token_ids")?,
        prompt_text: fields.flag("return_prompt_text")?,
        token_offsets: fields.flag("return_token_offsets")?,
        tokens_as_ids: fields.flag("return_tokens_as_token_ids")?,
    })
}
