//! The answers, as bytes.

use std::fmt::Write as _;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::edge;
use crate::error::ApiError;
use crate::json;
use crate::pooling::encode::{Encoding, Format, Matrix};

/// Most bytes of the header `metadata`: clients refuse longer ones.
const MAX_METADATA: usize = 32 * 1024;

/// What every answer begins and ends with.
#[derive(Clone, Debug)]
pub struct Head {
    /// With the prefix of its endpoint.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The name under which the model answers.
    pub model: String,
    /// Of all prompts.
    pub prompt_tokens: u64,
}

impl Head {
    /// What was read.
    pub fn usage(&self) -> Value {
        json!({"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens})
    }

    /// A list of entries, each written by `entry`.
    pub fn list<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        entry: impl FnMut(&mut Vec<u8>, T),
    ) -> Response {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"{\"id\":");
        json::string(&mut out, &self.id);
        out.extend_from_slice(b",\"object\":\"list\",\"created\":");
        json::integer(&mut out, self.created);
        out.extend_from_slice(b",\"model\":");
        json::string(&mut out, &self.model);
        out.extend_from_slice(b",\"data\":");
        json::list(&mut out, items, entry);
        out.extend_from_slice(b",\"usage\":");
        out.extend_from_slice(self.usage().to_string().as_bytes());
        out.push(b'}');
        edge::json(out)
    }

    /// Vectors in the encoding that was asked for; JSON entries are `object`s with the vector under `key`.
    pub fn vectors(
        &self,
        vectors: &[Matrix],
        encoding: &Encoding,
        object: &str,
        key: &str,
    ) -> Result<Response, ApiError> {
        if matches!(encoding.format, Format::Bytes | Format::BytesOnly) {
            return self.bytes(vectors, encoding);
        }
        Ok(self.list(vectors.iter().enumerate(), |out, (index, vector)| {
            out.extend_from_slice(
                format!("{{\"index\":{index},\"object\":\"{object}\",\"{key}\":").as_bytes(),
            );
            if encoding.format == Format::Base64 {
                json::string(out, &encoding.base64(&vector.values));
            } else {
                numbers(out, vector);
            }
            out.push(b'}');
        }))
    }

    fn bytes(&self, vectors: &[Matrix], encoding: &Encoding) -> Result<Response, ApiError> {
        let (body, places) = encoding.bytes(vectors);
        let mut response = body.into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if encoding.format == Format::Bytes {
            let metadata = json!({"id": self.id, "created": self.created, "model": self.model, "data": places,
                "usage": self.usage()});
            let metadata = ascii(&metadata.to_string());
            if metadata.len() > MAX_METADATA {
                let message = format!(
                    "the header that says where {} vectors are would have {} bytes, over the limit of {MAX_METADATA}; \
                     bytes_only has no such header",
                    vectors.len(),
                    metadata.len()
                );
                return Err(ApiError::invalid("encoding_format", message));
            }
            let value = HeaderValue::from_str(&metadata).expect("printable ASCII is a header value");
            headers.insert(HeaderName::from_static("metadata"), value);
        }
        Ok(response)
    }

    /// `/rerank`: the documents by their scores, best first, those that came first before their equals.
    pub fn ranking(
        &self,
        scores: &[f32],
        documents: &[String],
        top: usize,
        with_documents: bool,
    ) -> Response {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let results: Vec<Value> = order
            .into_iter()
            .take(top)
            .map(|index| {
                let mut entry = json!({"index": index, "relevance_score": scores[index]});
                if with_documents {
                    entry["document"] = json!({"text": documents[index]});
                }
                entry
            })
            .collect();
        let answer = json!({"id": self.id, "model": self.model, "usage": self.usage(), "results": results});
        edge::json(answer.to_string().into_bytes())
    }
}

/// Appends a vector as a list, or a matrix as a list of lists.
fn numbers(out: &mut Vec<u8>, vector: &Matrix) {
    let row = |out: &mut Vec<u8>, row: &[f32]| json::list(out, row, |out, value| float(out, *value));
    match vector.width {
        Some(width) => json::list(out, vector.values.chunks(width), row),
        None => row(out, &vector.values),
    }
}

/// Appends a number; a row whose numbers are not finite has failed before this.
pub fn float(out: &mut Vec<u8>, value: f32) {
    serde_json::to_writer(out, &value).expect("a finite number is always JSON, and a Vec takes every write");
}

/// JSON with every character outside ASCII escaped: headers hold no others.
fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                write!(out, "\\u{unit:04x}").expect("writing to a String does not fail");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_ascii_whatever_the_model_is_called() {
        let text = json!({"model": "é😀"}).to_string();
        let header = ascii(&text);
        assert!(header.is_ascii());
        assert_eq!(serde_json::from_str::<Value>(&header).unwrap()["model"], "é😀");
    }
}
