//! `/generate`: SGLang's own words, in those of a completion.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, quoted};
use crate::request::common::Limits;
use crate::request::completion::{self, CompletionRequest};
use crate::request::fields::{Fields, Unused};

/// What `sampling_params` calls otherwise, and a completion's name for it.
const PARAMS: [(&str, &str); 6] = [
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("sampling_seed", "seed"),
    ("stream_interval", ""),
    ("stop_regex_max_len", ""),
    ("stop_str_max_len", ""),
];
/// Its names for grammars, and those in `structured_outputs`.
const GRAMMARS: [(&str, &str); 4] =
    [("json_schema", "json"), ("regex", "regex"), ("ebnf", "grammar"), ("structural_tag", "structural_tag")];
/// What SGLang generates if it is not told.
const DEFAULT_MAX_TOKENS: u32 = 128;

/// A body of `/generate`.
#[derive(Clone, Debug)]
pub struct NativeRequest {
    /// The same as a completion.
    pub completion: CompletionRequest,
    /// The answer is a list, since several prompts or samples were asked for.
    pub is_list: bool,
    /// Log-probabilities of the prompt from this token on.
    pub logprob_start: Option<usize>,
    /// Tokens have their text in log-probabilities.
    pub text_in_logprobs: bool,
}

/// Reads and checks a body; also what had no effect in `sampling_params`.
pub fn read(mut fields: Fields, limits: &Limits) -> Result<(NativeRequest, Unused), ApiError> {
    let (text, ids) = (fields.take("text"), fields.take("input_ids"));
    let (name, prompt) = match (text, ids) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("input_ids", "input_ids and text exclude each other"));
        }
        (None, None) => return Err(ApiError::invalid("text", "text or input_ids must be given")),
        (Some(text @ (Value::String(_) | Value::Array(_))), None) => ("text", text),
        (Some(_), None) => {
            return Err(ApiError::invalid("text", "text must be a string or a list of strings"));
        }
        (None, Some(ids @ Value::Array(_))) => ("input_ids", ids),
        (None, Some(_)) => {
            return Err(ApiError::invalid("input_ids", "input_ids must be a list of token ids"));
        }
    };
    let of_strings = |items: &Vec<Value>| items.iter().all(Value::is_string);
    if name == "text" && prompt.as_array().is_some_and(|items| !of_strings(items)) {
        return Err(ApiError::invalid("text", "text must be a string or a list of strings"));
    }
    if name == "input_ids" && prompt.as_array().is_some_and(|items| items.iter().any(Value::is_string)) {
        return Err(ApiError::invalid(
            "input_ids",
            "input_ids must be a list of token ids, or of such lists",
        ));
    }
    let is_batch = prompt.as_array().is_some_and(|items| !items.iter().all(Value::is_number));
    let named = |error: ApiError| error.renamed(&[("prompt", name)]);
    // Its errors name the field that was sent.
    completion::prompts(Some(prompt.clone()), limits.params.vocab_size).map_err(named)?;

    let wants = fields.flag("return_logprob")?;
    let top = fields.integer::<u32>("top_logprobs_num", 0..=limits.params.max_logprobs)?.unwrap_or(0);
    let start = fields.integer::<i64>("logprob_start_len", -1..=i64::from(u32::MAX))?.unwrap_or(-1);
    let text_in_logprobs = fields.flag("return_text_in_logprobs")?;
    let mut params = params(&mut fields)?;
    let logprob_start = usize::try_from(start).ok().filter(|_| wants);
    if wants {
        params.insert("logprobs".to_owned(), top.into());
    }
    if logprob_start.is_some() {
        params.insert("prompt_logprobs".to_owned(), top.into());
    }
    params.insert("prompt".to_owned(), prompt);
    // The ids are always in the answer.
    params.insert("return_token_ids".to_owned(), true.into());
    let (fields, unused) = fields.into_completion(params)?;
    let completion = CompletionRequest::read(fields, limits).map_err(|error| error.renamed(&names()))?;
    let is_list = is_batch || completion.common.n > 1;
    Ok((NativeRequest { completion, is_list, logprob_start, text_in_logprobs }, unused))
}

/// A completion's names, and those of this dialect.
fn names() -> [(&'static str, &'static str); 4] {
    [
        ("max_tokens", "max_new_tokens"),
        ("min_tokens", "min_new_tokens"),
        ("logprobs", "top_logprobs_num"),
        ("prompt_logprobs", "logprob_start_len"),
    ]
}

/// `sampling_params` in a completion's words.
fn params(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut params = match fields.take("sampling_params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(Value::Array(_)) => {
            let message =
                "sampling_params must be one object, which counts for every prompt; a list is not supported";
            return Err(ApiError::unsupported("sampling_params", message));
        }
        Some(_) => return Err(ApiError::invalid("sampling_params", "sampling_params must be an object")),
    };
    params.retain(|_, value| !value.is_null());
    for name in
        ["prompt", "echo", "suffix", "stream", "stream_options", "model", "logprobs", "prompt_logprobs"]
    {
        if params.contains_key(name) {
            let message = format!("sampling_params: {name} is no sampling parameter");
            return Err(ApiError::invalid("sampling_params", message));
        }
    }
    for (own, theirs) in PARAMS {
        if let Some(value) = params.swap_remove(own)
            && !theirs.is_empty()
        {
            params.insert(theirs.to_owned(), value);
        }
    }
    params.entry("max_tokens").or_insert_with(|| DEFAULT_MAX_TOKENS.into());
    let grammars =
        GRAMMARS.iter().filter_map(|(own, theirs)| Some((*own, *theirs, params.swap_remove(*own)?)));
    let mut grammars: Vec<(&str, &str, Value)> = grammars.collect();
    if grammars.len() > 1 {
        let (first, second) = (grammars[0].0, grammars[1].0);
        let message =
            format!("sampling_params: {} and {} exclude each other", quoted(first, 32), quoted(second, 32));
        return Err(ApiError::invalid("sampling_params", message));
    }
    if let Some((_, theirs, value)) = grammars.pop() {
        params.insert("structured_outputs".to_owned(), json!({ theirs: value }));
    }
    Ok(params)
}
