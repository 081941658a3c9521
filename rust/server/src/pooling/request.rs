//! The bodies of the endpoints that return vectors.

use frizzen_core::TokenId;
use serde_json::Value;

use crate::error::{ApiError, quoted, shortened};
use crate::request::common::{cache_salt, priority};
use crate::request::fields;
use crate::request::{Fields, Limits};

/// Most texts of one body.
pub const MAX_INPUTS: usize = 4096;

/// A text as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// To be tokenised.
    Text(String),
    /// Checked against the vocabulary; not empty.
    Ids(Vec<TokenId>),
}

/// What all of these endpoints ask for.
#[derive(Clone, Debug)]
pub struct Common {
    /// The model's name, if it was given.
    pub model: Option<String>,
    /// Let the tokenizer add its special tokens.
    pub add_special: bool,
    /// Cut a prompt to this many tokens.
    pub truncate: Option<u32>,
    /// Drop its beginning, not its end.
    pub truncate_left: bool,
    /// Normalise embeddings, make probabilities; by default what the model was made for.
    pub activate: Option<bool>,
    /// Smaller is served first.
    pub priority: i32,
    /// Separates the prefix cache.
    pub cache_salt: Option<String>,
    /// The caller's name for the request.
    pub request_id: Option<String>,
}

impl Common {
    /// Reads and checks the shared fields.
    pub fn read(fields: &mut Fields, limits: &Limits) -> Result<Self, ApiError> {
        for (name, why) in [
            ("messages", "conversations are not embedded; send text or token ids as input"),
            ("mm_processor_kwargs", "only text goes in"),
        ] {
            let given =
                fields.take(name).filter(|value| !matches!(value, Value::Object(map) if map.is_empty()));
            if given.is_some() {
                return Err(ApiError::unsupported(name, format!("{name}: {why}")));
            }
        }
        // A label for the provider's own records.
        fields.take("user");
        Ok(Self {
            model: fields.string("model")?,
            add_special: fields.boolean("add_special_tokens")?.unwrap_or(true),
            truncate: truncate(fields, limits.params.max_model_len)?,
            truncate_left: truncate_left(fields)?,
            activate: activate(fields)?,
            priority: priority(fields, limits.by_priority)?,
            cache_salt: cache_salt(fields)?,
            request_id: fields.string("request_id")?,
        })
    }
}

fn truncate(fields: &mut Fields, max_len: u32) -> Result<Option<u32>, ApiError> {
    match fields.integer::<i64>("truncate_prompt_tokens", -1..=i64::from(max_len))? {
        None => Ok(None),
        Some(0) => Err(ApiError::invalid(
            "truncate_prompt_tokens",
            format!("truncate_prompt_tokens must be -1 or from 1 to {max_len}, got 0"),
        )),
        Some(-1) => Ok(Some(max_len)),
        Some(limit) => Ok(Some(limit as u32)),
    }
}

/// As tokenizers do it: the end is cut unless the request says otherwise.
fn truncate_left(fields: &mut Fields) -> Result<bool, ApiError> {
    match fields.string("truncation_side")?.as_deref() {
        None | Some("right") => Ok(false),
        Some("left") => Ok(true),
        Some(other) => {
            let message = format!("truncation_side must be 'left' or 'right', got {}", quoted(other, 32));
            Err(ApiError::invalid("truncation_side", message))
        }
    }
}

/// Three names of the peers for one wish.
fn activate(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    let given = ["use_activation", "normalize", "activation"].map(|name| fields.boolean(name));
    let [first, second, third] = given;
    Ok(first?.or(second?).or(third?))
}

/// Text, token ids, or a list of either.
pub fn inputs(fields: &mut Fields, vocab_size: u32) -> Result<Vec<Input>, ApiError> {
    let empty = || ApiError::invalid("input", "input must not be empty");
    match fields.take("input") {
        None => Err(empty()),
        Some(Value::Array(items)) if items.is_empty() => Err(empty()),
        Some(Value::Array(items)) if items.iter().all(Value::is_number) => {
            Ok(vec![Input::Ids(fields::token_ids("input", &items, vocab_size)?)])
        }
        Some(Value::Array(items)) => {
            check_count("input", items.len())?;
            items.into_iter().map(|item| input(item, vocab_size)).collect()
        }
        Some(item) => Ok(vec![input(item, vocab_size)?]),
    }
}

fn input(item: Value, vocab_size: u32) -> Result<Input, ApiError> {
    match item {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(ids) if ids.is_empty() => Err(ApiError::invalid("input", "input must not be empty")),
        Value::Array(ids) => Ok(Input::Ids(fields::token_ids("input", &ids, vocab_size)?)),
        other => {
            let text = other.to_string();
            let got = shortened(&text, 64);
            let message = format!("input must be text, token ids or a list of either, got {got}");
            Err(ApiError::invalid("input", message))
        }
    }
}

fn check_count(field: &'static str, count: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::invalid(field, format!("{field} must not be empty"))),
        1..=MAX_INPUTS => Ok(()),
        _ => {
            let message = format!("{field} must have at most {MAX_INPUTS} items, got {count}");
            Err(ApiError::invalid(field, message))
        }
    }
}

/// The texts under the first of these names that is given.
pub fn texts(fields: &mut Fields, names: &[&'static str]) -> Result<Vec<String>, ApiError> {
    let given = names.iter().find_map(|name| fields.take(name).map(|value| (*name, value)));
    let (name, value) = given.ok_or_else(|| {
        let first = names[0];
        ApiError::invalid(first, format!("{first} must be given"))
    })?;
    let items = match value {
        Value::Array(items) => items,
        one => vec![one],
    };
    check_count(name, items.len())?;
    items.into_iter().map(|item| text(name, item)).collect()
}

/// A string, or an object with the string in `text`.
fn text(name: &'static str, item: Value) -> Result<String, ApiError> {
    let text = match item {
        Value::Object(mut map) => map.remove("text").unwrap_or(Value::Null),
        other => other,
    };
    match text {
        Value::String(text) => Ok(text),
        other => {
            let text = other.to_string();
            let message = format!("{name} must be made of strings, got {}", shortened(&text, 64));
            Err(ApiError::invalid(name, message))
        }
    }
}
