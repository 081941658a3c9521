//! The fields of one JSON body, taken one by one. Every error names field, value and limit.
//!
//! `null` means "not given". Numbers are checked by value: `8.0` is the integer 8, `1.5`, `"8"` and `true` are not.

use std::ops::RangeInclusive;

use axum::http::StatusCode;
use frizzen_core::TokenId;
use serde_json::{Map, Value};

use crate::error::{ApiError, shortened};
use crate::request::dialects;
use crate::request::parity::{self, Dialect, Support};

/// Most characters of a value that an error message repeats.
const QUOTED: usize = 64;

/// The JSON object of a body.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    dialect: Option<Dialect>,
}

/// Fields that were accepted without effect.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// Known fields, and why ignoring them is harmless.
    pub ignored: Vec<(&'static str, &'static str)>,
    /// Fields that nobody knows.
    pub unknown: Vec<String>,
}

fn wrong(name: &'static str, wanted: &str, value: &Value) -> ApiError {
    let text = value.to_string();
    ApiError::invalid(name, format!("{name} must be {wanted}, got {}", shortened(&text, QUOTED)))
}

fn as_integer(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)).or_else(|| {
        let float = number.as_f64()?;
        // Beyond 2^53 a float no longer says which integer was meant.
        (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0).then_some(float as i128)
    })
}

impl Fields {
    /// Parses a body and checks its fields against the parity table.
    pub fn parse(body: &[u8], dialect: Dialect) -> Result<(Self, Unused), ApiError> {
        let fields = Self { dialect: Some(dialect), ..Self::parse_untabled(body)? };
        let unused = fields.check(dialect)?;
        Ok((fields, unused))
    }

    /// Parses a body of an endpoint that has no parity table.
    pub fn parse_untabled(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, dialect: None }),
            Ok(other) => {
                let text = other.to_string();
                let message = format!("the body must be a JSON object, got {}", shortened(&text, QUOTED));
                Err(ApiError::new(StatusCode::BAD_REQUEST, message))
            }
            Err(error) => {
                Err(ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not valid JSON: {error}")))
            }
        }
    }

    fn check(&self, dialect: Dialect) -> Result<Unused, ApiError> {
        let mut unused = Unused::default();
        for (name, value) in self.map.iter().filter(|(_, value)| !value.is_null()) {
            let Some((field, support)) = parity::entry(dialect, name) else {
                unused.unknown.push(name.clone());
                continue;
            };
            match support {
                Support::Yes => {}
                Support::Ignored(why) => unused.ignored.push((field, why)),
                Support::Unknown => unused.unknown.push(name.clone()),
                Support::Refused(_, off, _) if off.fits(value) => {}
                Support::Refused(status, _, why) => {
                    let message = format!("{name}: {why}");
                    return Err(ApiError { param: Some(field.into()), ..ApiError::new(status, message) });
                }
                Support::Renamed(successor) => {
                    return Err(ApiError::invalid(
                        field,
                        format!("{name} was removed; its successor is {successor}"),
                    ));
                }
            }
        }
        Ok(unused)
    }

    /// A body of another dialect in the words of a chat: `chat`, and the remaining fields that both have.
    #[must_use]
    pub fn into_chat(self, mut chat: Map<String, Value>) -> Self {
        let goes = |name: &str| {
            dialects::SHARED.contains(&name) && matches!(parity::support(Dialect::Chat, name), Support::Yes)
        };
        chat.extend(self.map.into_iter().filter(|(name, _)| goes(name)));
        Self { map: chat, dialect: Some(Dialect::Chat) }
    }

    /// The same for a completion, whose own fields are checked here: the remaining ones are called alike in both.
    pub fn into_completion(self, mut completion: Map<String, Value>) -> Result<(Self, Unused), ApiError> {
        let dialect = self.dialect.unwrap_or(Dialect::Completions);
        let goes = |name: &str| matches!(parity::support(dialect, name), Support::Yes);
        completion.extend(self.map.into_iter().filter(|(name, _)| goes(name)));
        let fields = Self { map: completion, dialect: Some(Dialect::Completions) };
        let unused = fields.check(Dialect::Completions)?;
        Ok((fields, unused))
    }

    /// Whether the dialect has a field of this name, which is read.
    pub fn knows(&self, name: &str) -> bool {
        self.dialect.is_none_or(|dialect| matches!(parity::support(dialect, name), Support::Yes))
    }

    /// Whether a field is there.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// The raw value; `None` for `null` too.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        debug_assert!(self.knows(name), "{name} is read, but the parity table does not say so");
        // `swap_remove` keeps no order, and no order is needed any more.
        self.map.swap_remove(name).filter(|value| !value.is_null())
    }

    /// The fields that nobody took.
    pub fn finish(self) -> Unused {
        let left = self.map.into_iter().filter(|(_, value)| !value.is_null());
        Unused { unknown: left.map(|(name, _)| name).collect(), ..Unused::default() }
    }

    /// A boolean.
    pub fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "true or false", &other)),
        }
    }

    /// A boolean that is false if it is not given.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.boolean(name)?.unwrap_or(false))
    }

    /// A string.
    pub fn string(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    /// A number that single precision can hold.
    pub fn float(&mut self, name: &'static str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().map(|value| value as f32) {
            Some(float) if float.is_finite() => Ok(Some(float)),
            _ => Err(wrong(name, "a finite number", &value)),
        }
    }

    /// An integer within `range`.
    pub fn integer<T: Copy + Into<i128> + TryFrom<i128>>(
        &mut self,
        name: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let (least, most): (i128, i128) = ((*range.start()).into(), (*range.end()).into());
        let fits = as_integer(&value).filter(|integer| (least..=most).contains(integer));
        match fits.and_then(|integer| T::try_from(integer).ok()) {
            Some(integer) => Ok(Some(integer)),
            None => Err(wrong(name, &format!("an integer from {least} to {most}"), &value)),
        }
    }

    /// A list of token ids, each below `vocab_size`.
    pub fn token_ids(
        &mut self,
        name: &'static str,
        vocab_size: u32,
    ) -> Result<Option<Vec<TokenId>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => token_ids(name, &items, vocab_size).map(Some),
            Some(other) => Err(wrong(name, "a list of token ids", &other)),
        }
    }

    /// A string or a list of at most `limit` strings.
    pub fn strings(&mut self, name: &'static str, limit: usize) -> Result<Vec<String>, ApiError> {
        let items = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(one)) => return Ok(vec![one]),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(wrong(name, "a string or a list of strings", &other)),
        };
        if items.len() > limit {
            let count = items.len();
            return Err(ApiError::invalid(
                name,
                format!("{name} must have at most {limit} items, got {count}"),
            ));
        }
        items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong(name, "a string or a list of strings", &other)),
            })
            .collect()
    }

    /// A JSON object.
    pub fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    /// A JSON list.
    pub fn list(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(name, "a list", &other)),
        }
    }
}

/// Checks a list of token ids.
pub fn token_ids(name: &'static str, items: &[Value], vocab_size: u32) -> Result<Vec<TokenId>, ApiError> {
    items.iter().map(|item| token_id(name, item, vocab_size)).collect()
}

fn token_id(name: &'static str, value: &Value, vocab_size: u32) -> Result<TokenId, ApiError> {
    let id = value.as_u64().or_else(|| as_integer(value).and_then(|id| u64::try_from(id).ok()));
    id.filter(|id| *id < u64::from(vocab_size)).map(|id| id as TokenId).ok_or_else(|| {
        let most = vocab_size.saturating_sub(1);
        wrong(name, &format!("made of token ids of the vocabulary (integers from 0 to {most})"), value)
    })
}
