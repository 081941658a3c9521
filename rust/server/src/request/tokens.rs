//! `/inference/v1/generate`: token ids and sampling parameters, in the words of a completion.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::request::common::Limits;
use crate::request::completion::CompletionRequest;
use crate::request::fields::{Fields, Unused};

/// What a completion calls otherwise.
const NAMES: [(&str, &str); 1] = [("prompt", "token_ids")];
/// What needs the text of the output, which this route has none of.
const NEEDS_TEXT: [&str; 3] = ["stop", "include_stop_str_in_output", "no_stop_trim"];

/// Reads and checks a body; also what had no effect in `sampling_params`.
pub fn read(mut fields: Fields, limits: &Limits) -> Result<(CompletionRequest, Unused), ApiError> {
    let ids = match fields.take("token_ids") {
        Some(Value::Array(ids)) if ids.iter().all(Value::is_number) && !ids.is_empty() => ids,
        _ => {
            let message = "token_ids must be a list of at least one token id";
            return Err(ApiError::invalid("token_ids", message));
        }
    };
    let mut params = fields.object("sampling_params")?.unwrap_or_default();
    refuse_text(&params)?;
    // They say what is done with the text.
    for name in ["detokenize", "output_kind", "skip_special_tokens", "spaces_between_special_tokens"] {
        params.swap_remove(name);
    }
    params.retain(|_, value| !value.is_null());
    for name in ["prompt", "echo", "suffix", "stream", "stream_options", "model"] {
        if params.contains_key(name) {
            let message = format!("sampling_params: {name} is no sampling parameter");
            return Err(ApiError::invalid("sampling_params", message));
        }
    }
    params.insert("prompt".to_owned(), ids.into());
    let (fields, unused) = fields.into_completion(params)?;
    let request = CompletionRequest::read(fields, limits).map_err(|error| error.renamed(&NAMES))?;
    Ok((request, unused))
}

/// Nothing would look for a stop string: generation would silently go on to its limit.
fn refuse_text(params: &Map<String, Value>) -> Result<(), ApiError> {
    let asked = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    match NEEDS_TEXT.into_iter().find(|name| params.get(*name).is_some_and(asked)) {
        Some(name) => {
            let message =
                format!("{name} needs text, and this route has token ids only; stop_token_ids works");
            Err(ApiError::invalid(name, message))
        }
        None => Ok(()),
    }
}
