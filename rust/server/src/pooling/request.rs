//! The bodies of the endpoints that return vectors.

use frizzen_core::{PoolingTask, TokenId};
use serde_json::Value;

use crate::error::{ApiError, quoted, shortened};
use crate::pooling::encode::Encoding;
use crate::request::chat::{Conversation, conversation_ending};
use crate::request::common::{cache_salt, priority};
use crate::request::fields;
use crate::request::{Dialect, Fields, Limits, Unused};

/// What means nothing without a conversation.
const OF_MESSAGES: [&str; 7] = [
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "enable_thinking",
    "reasoning_effort",
    "tools",
];

/// Most texts of one body.
pub const MAX_INPUTS: usize = 4096;

/// A text as it came.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// To be tokenised.
    Text(String),
    /// Checked against the vocabulary; not empty.
    Ids(Vec<TokenId>),
    /// To be rendered, then tokenised.
    Conversation(Box<Conversation>),
}

/// What all of these endpoints ask for.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// The model's name, if it was given.
    pub model: Option<String>,
    /// Let the tokenizer add its special tokens; if it is not given, to texts but not to conversations, whose template
    /// writes them.
    pub add_special: Option<bool>,
    /// Cut a prompt to this many tokens.
    pub truncate: Option<u32>,
    /// Drop its beginning, not its end.
    pub truncate_left: bool,
    /// Normalise embeddings, make probabilities; by default what the model was made for.
    pub activate: Option<bool>,
    /// A vector of every token.
    pub per_token: bool,
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
        let (first, second) = (fields.string("request_id")?, fields.string("rid")?);
        Ok(Self {
            model: fields.string("model")?,
            add_special: fields.boolean("add_special_tokens")?,
            truncate: truncate(fields, limits.params.max_model_len)?,
            truncate_left: truncate_left(fields)?,
            activate: activate(fields)?,
            per_token: false,
            priority: priority(fields, limits.by_priority)?,
            cache_salt: cache_salt(fields)?,
            request_id: first.or(second),
        })
    }
}

/// What a vector is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// An embedding or numbers of classes.
    pub kind: PoolingTask,
    /// One of every token.
    pub per_token: bool,
}

impl Task {
    const ALL: [(&'static str, Self); 4] = [
        ("embed", Self { kind: PoolingTask::Embed, per_token: false }),
        ("classify", Self { kind: PoolingTask::Classify, per_token: false }),
        ("token_embed", Self { kind: PoolingTask::Embed, per_token: true }),
        ("token_classify", Self { kind: PoolingTask::Classify, per_token: true }),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, task)| *task == self);
        found.expect("every task is in the list").0
    }

    fn read(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let Some(name) = fields.string("task")? else { return Ok(None) };
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, task)| Some(task)).ok_or_else(|| {
            let message = format!(
                "task must be embed, classify, token_embed or token_classify, got {}",
                quoted(&name, 32)
            );
            ApiError::invalid("task", message)
        })
    }
}

/// A body of `/v1/embeddings`, `/pooling` or `/classify`.
#[derive(Clone, Debug)]
pub struct VectorsRequest {
    /// What all ask for.
    pub common: Common,
    /// At least one.
    pub inputs: Vec<Input>,
    /// How the vectors are written.
    pub encoding: Encoding,
    /// Length to which embeddings are cut.
    pub dimensions: Option<u32>,
    /// What the vectors are asked to be.
    pub task: Option<Task>,
}

impl VectorsRequest {
    /// Reads and checks a body; also the fields that meant nothing beside the others.
    pub fn read(mut fields: Fields, dialect: Dialect, limits: &Limits) -> Result<(Self, Unused), ApiError> {
        let inputs = if fields.has("messages") {
            if fields.has("input") {
                return Err(ApiError::invalid("input", "input and messages exclude each other"));
            }
            vec![Input::Conversation(Box::new(conversation_ending(&mut fields, false)?))]
        } else {
            if let Some(name) = OF_MESSAGES.into_iter().find(|name| fields.has(name)) {
                return Err(ApiError::invalid(
                    name,
                    format!("{name} belongs to messages, and input is given"),
                ));
            }
            inputs(&mut fields, limits.params.vocab_size)?
        };
        let encoding = match dialect {
            Dialect::Classify => Encoding::default(),
            _ => Encoding::read(&mut fields)?,
        };
        let dimensions = match dialect {
            Dialect::Embeddings => fields.integer::<u32>("dimensions", 1..=u32::MAX)?,
            _ => None,
        };
        let task = if dialect == Dialect::Pooling { Task::read(&mut fields)? } else { None };
        let common = Common::read(&mut fields, limits)?;
        Ok((Self { common, inputs, encoding, dimensions, task }, fields.finish()))
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

/// Names of the peers for one wish.
fn activate(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    let mut wish = None;
    for name in ["use_activation", "normalize", "activation", "softmax"] {
        if fields.knows(name) {
            wish = wish.or(fields.boolean(name)?);
        }
    }
    Ok(wish)
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

pub(super) fn check_count(field: &'static str, count: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::invalid(field, format!("{field} must not be empty"))),
        1..=MAX_INPUTS => Ok(()),
        _ => {
            let message = format!("{field} must have at most {MAX_INPUTS} items, got {count}");
            Err(ApiError::invalid(field, message))
        }
    }
}

/// The texts under the one of these names that is given.
pub fn texts(fields: &mut Fields, names: &[&'static str]) -> Result<Vec<String>, ApiError> {
    let mut given = None;
    for name in names.iter().copied() {
        let Some(value) = fields.take(name) else { continue };
        if let Some((first, _)) = given {
            let message = format!("{name} and {first} are two names of one field");
            return Err(ApiError::invalid(name, message));
        }
        given = Some((name, value));
    }
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
