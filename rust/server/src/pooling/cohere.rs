//! `/v2/embed`: embeddings in Cohere's words, several encodings of them in one answer.

use std::sync::Arc;

use axum::extract::{Request, State};
use frizzen_core::PoolingTask;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, quoted, shortened};
use crate::handlers::to_json;
use crate::pooling::encode::{Encoding, Format};
use crate::pooling::request::{Common, Input, check_count, texts};
use crate::pooling::run::{Job, Piece, pooling_info, run};
use crate::pooling::{Answer, prepared};
use crate::request::common::priority;
use crate::request::{Dialect, Fields, Limits, Unused};
use crate::state::{AppState, SharedState};

/// How an embedding is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Numbers.
    Float,
    /// Little-endian single precision.
    Base64,
    /// The step of 1/127 that is nearest to each number, from -127 to 127. The range is that of any normalised vector, so
    /// that a vector is the same whatever else is embedded and vectors of different requests can be compared.
    Int8,
    /// The same, 128 more.
    Uint8,
    /// A bit per number, 1 if it is positive, eight to a signed byte.
    Binary,
    /// The same, eight to an unsigned byte.
    Ubinary,
}

/// What a text is for; models with an instruction for each would be given it by the client.
const PURPOSES: [&str; 5] = ["search_document", "search_query", "classification", "clustering", "image"];

impl Kind {
    const ALL: [(&'static str, Self); 6] = [
        ("float", Self::Float),
        ("base64", Self::Base64),
        ("int8", Self::Int8),
        ("uint8", Self::Uint8),
        ("binary", Self::Binary),
        ("ubinary", Self::Ubinary),
    ];

    fn of(name: &str) -> Result<Self, ApiError> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| kind).ok_or_else(|| {
            let known = Self::ALL.map(|(known, _)| known).join(", ");
            let message = format!("embedding_types must be of {known}, got {}", quoted(name, 32));
            ApiError::invalid("embedding_types", message)
        })
    }

    fn write(self, vector: &[f32]) -> Value {
        match self {
            Self::Float => json!(vector),
            Self::Base64 => Encoding::of(Format::Base64).base64(vector).into(),
            Self::Int8 => json!(vector.iter().map(|value| step(*value)).collect::<Vec<i8>>()),
            Self::Uint8 => {
                json!(vector.iter().map(|value| i16::from(step(*value)) + 128).collect::<Vec<i16>>())
            }
            Self::Ubinary => json!(packed(vector).collect::<Vec<u8>>()),
            // The middle of the unsigned range is the signed zero.
            Self::Binary => json!(packed(vector).map(|byte| i16::from(byte) - 128).collect::<Vec<i16>>()),
        }
    }
}

/// The nearest step of 1/127; one beyond the range is its end.
fn step(value: f32) -> i8 {
    // A cast saturates, and so would -1.1 be -128.
    (value.clamp(-1.0, 1.0) * 127.0).round() as i8
}

/// Signs, the first one in the highest bit; a last byte that is not full ends in zeros.
fn packed(vector: &[f32]) -> impl Iterator<Item = u8> {
    vector.chunks(8).map(|eight| {
        let bits = eight.iter().enumerate().filter(|(_, value)| **value > 0.0);
        bits.fold(0, |byte, (at, _)| byte | 0x80 >> at)
    })
}

/// A body of `/v2/embed`.
#[derive(Clone, Debug)]
pub struct CohereRequest {
    /// What all endpoints ask for.
    pub common: Common,
    /// At least one.
    pub texts: Vec<String>,
    /// In the order in which they were asked for; `float` if none were.
    pub kinds: Vec<Kind>,
    /// Length to which embeddings are cut.
    pub dimensions: Option<u32>,
}

impl CohereRequest {
    /// Reads and checks a body.
    pub fn read(mut fields: Fields, limits: &Limits) -> Result<(Self, Unused), ApiError> {
        let texts = if fields.has("inputs") {
            if fields.has("texts") {
                return Err(ApiError::invalid("inputs", "inputs and texts exclude each other"));
            }
            inputs(&mut fields)?
        } else {
            texts(&mut fields, &["texts"])?
        };
        if let Some(purpose) = fields.string("input_type")?
            && !PURPOSES.contains(&purpose.as_str())
        {
            let message =
                format!("input_type must be one of {}, got {}", PURPOSES.join(", "), quoted(&purpose, 32));
            return Err(ApiError::invalid("input_type", message));
        }
        let mut kinds: Vec<Kind> = Vec::new();
        for name in fields.strings("embedding_types", Kind::ALL.len())? {
            let kind = Kind::of(&name)?;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if kinds.is_empty() {
            kinds.push(Kind::Float);
        }
        let longest = limits.params.max_model_len;
        let limit = fields.integer::<u32>("max_tokens", 1..=u32::MAX)?;
        let limit = limit.map_or(longest, |limit| limit.min(longest));
        let (truncate, truncate_left) = match fields.string("truncate")?.as_deref() {
            None | Some("END") => (Some(limit), false),
            Some("START") => (Some(limit), true),
            Some("NONE") => (None, false),
            Some(other) => {
                let message = format!("truncate must be NONE, START or END, got {}", quoted(other, 32));
                return Err(ApiError::invalid("truncate", message));
            }
        };
        let common = Common {
            model: fields.string("model")?,
            truncate,
            truncate_left,
            priority: priority(&mut fields, limits.by_priority)?,
            request_id: fields.string("request_id")?,
            ..Common::default()
        };
        let dimensions = fields.integer::<u32>("output_dimension", 1..=u32::MAX)?;
        Ok((Self { common, texts, kinds, dimensions }, fields.finish()))
    }
}

/// The texts of `inputs`, each the parts of one.
fn inputs(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = fields.list("inputs")?.unwrap_or_default();
    check_count("inputs", items.len())?;
    let text = |item: &Value| {
        let parts = item.get("content").and_then(Value::as_array).filter(|parts| !parts.is_empty());
        let parts = parts.ok_or_else(|| {
            let message = format!(
                "inputs must have a list of parts as content, got {}",
                shortened(&item.to_string(), 64)
            );
            ApiError::invalid("inputs", message)
        })?;
        let part = |part: &Value| match (part.get("type").and_then(Value::as_str), part.get("text")) {
            (Some("text"), Some(Value::String(text))) => Ok(text.clone()),
            (Some("image_url" | "image"), _) => {
                Err(ApiError::unsupported("inputs", "inputs: images are not supported, only text is"))
            }
            _ => {
                let message =
                    format!("inputs: a part must be text, got {}", shortened(&part.to_string(), 64));
                Err(ApiError::invalid("inputs", message))
            }
        };
        parts.iter().map(part).collect::<Result<String, _>>()
    };
    items.iter().map(text).collect()
}

/// `POST /v2/embed`
pub async fn embed(State(state): State<SharedState>, request: Request) -> Answer {
    let read = |state: &AppState, fields: Fields, limits: &Limits| {
        let serves =
            |pooling: &frizzen_core::PoolingInfo| pooling.task == PoolingTask::Embed && !pooling.per_token;
        let pooling = pooling_info(state.model()?.0, "/v2/embed", serves)?;
        let (request, unused) = CohereRequest::read(fields, limits)?;
        state.note(&unused);
        let CohereRequest { common, texts, kinds, dimensions } = request;
        let names = [("dimensions", "output_dimension")];
        let checked = dimensions.map_or(Ok(()), |asked| pooling.check_dimensions(asked));
        checked.map_err(|error| ApiError::from(error).renamed(&names))?;
        let pieces = texts.iter().cloned().map(Input::Text).map(Piece::One).collect();
        let job = Job { common, field: "texts", pieces, last_to: None };
        Ok((job, (pooling.clone(), texts, kinds, dimensions)))
    };
    let (prepared, _, (pooling, texts, kinds, dimensions)) =
        prepared(&state, request, Dialect::Cohere, read).await?;
    let name = Arc::clone(&prepared.name);
    let found = run(&state, prepared).await?;
    let vectors = found.vectors.into_iter().map(|vector| pooling.embedding(vector, dimensions, None));
    let vectors: Vec<Vec<f32>> = vectors.collect();
    let embeddings: Map<String, Value> = Kind::ALL
        .into_iter()
        .filter(|(_, kind)| kinds.contains(kind))
        .map(|(name, kind)| (name.to_owned(), vectors.iter().map(|vector| kind.write(vector)).collect()))
        .collect();
    Ok(to_json(&json!({
        "id": format!("embd-{name}"),
        "embeddings": embeddings,
        "texts": texts,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": found.prompt_tokens},
        },
        "response_type": "embeddings_by_type",
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_packed_from_the_highest_bit_on() {
        let vector = [1.0, -1.0, 0.0, 0.5, -0.5, -2.0, -3.0, 4.0, 1.0];
        assert_eq!(packed(&vector).collect::<Vec<_>>(), [0b1001_0001, 0b1000_0000]);
        assert_eq!(Kind::Binary.write(&vector), json!([17, 0]));
        assert_eq!(Kind::Ubinary.write(&vector), json!([145, 128]));
    }

    #[test]
    fn bytes_are_the_nearest_steps_of_a_fixed_range() {
        let vector = [0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 0.003_9, 0.004];
        let steps = [0, 127, -127, 64, -64, 127, -127, 0, 1];
        assert_eq!(Kind::Int8.write(&vector), json!(steps));
        assert_eq!(Kind::Uint8.write(&vector), json!(steps.map(|step| step + 128)));
        for (value, step) in vector.iter().zip(steps).filter(|(value, _)| value.abs() <= 1.0) {
            assert!((value - step as f32 / 127.0).abs() <= 0.5 / 127.0 + f32::EPSILON, "{value}");
        }
    }
}
