//! Errors as clients see them: one JSON form, one table from [`Error`] to status and type.
//!
//! Messages of server errors pass [`redact`]: an answer holds no path and no address, the log has them.

use std::borrow::Cow;

use axum::extract::rejection::PathRejection;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use frizzen_core::Error;

use crate::json;

/// Seconds after which a refused client may come back.
const RETRY_SECONDS: u32 = 1;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status; also the `code` of the body.
    pub status: StatusCode,
    /// A lower-case sentence.
    pub message: Cow<'static, str>,
    /// The field of the request at fault.
    pub param: Option<Cow<'static, str>>,
    /// Methods of the route, for 405.
    pub allow: Option<&'static str>,
}

impl ApiError {
    /// An error with this status and no field.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into(), param: None, allow: None }
    }

    /// A 400 about `param`.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<Cow<'static, str>>) -> Self {
        // Between processes the field is left behind.
        let param = Some(param.into()).filter(|param| !param.is_empty());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A 501 about `param`.
    pub fn unsupported(param: impl Into<Cow<'static, str>>, message: impl Into<Cow<'static, str>>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::NOT_IMPLEMENTED, message) }
    }

    /// A 503 that says why.
    pub fn busy(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// The same error in a dialect with other names of fields: pairs of a chat's name and its own.
    #[must_use]
    pub fn renamed(mut self, names: &[(&'static str, &'static str)]) -> Self {
        let renamed = names.iter().find(|(chat, _)| self.param.as_deref() == Some(*chat));
        if let Some((chat, own)) = renamed {
            self.param = Some((*own).into());
            // Most messages begin with the field.
            if let Some(rest) = self.message.strip_prefix(chat) {
                self.message = format!("{own}{rest}").into();
            }
        }
        self
    }

    /// What a request ends with that the server ended, for dialects that have no word for that.
    pub fn aborted() -> Self {
        Self::busy("the request was aborted")
    }

    /// Appends Anthropic's form: `{"type":"error","error":{...},"request_id":...}`.
    pub fn write_anthropic(&self, request_id: Option<&str>, out: &mut Vec<u8>) {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        };
        let error = serde_json::json!({"type": kind, "message": self.message});
        let body = serde_json::json!({"type": "error", "error": error, "request_id": request_id});
        out.extend_from_slice(body.to_string().as_bytes());
    }

    /// The `type` of the body.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "AuthenticationError",
            404 => "NotFoundError",
            422 => "UnprocessableEntityError",
            429 => "RateLimitError",
            501 => "NotImplementedError",
            503 => "ServiceUnavailableError",
            400..=499 => "BadRequestError",
            _ => "InternalServerError",
        }
    }

    /// Appends `{"error":{...}}`.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":{\"message\":");
        json::string(out, &self.message);
        out.extend_from_slice(b",\"type\":");
        json::string(out, self.kind());
        out.extend_from_slice(b",\"param\":");
        match &self.param {
            Some(param) => json::string(out, param),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"code\":");
        json::integer(out, u64::from(self.status.as_u16()));
        out.extend_from_slice(b"}}");
    }
}

impl From<PathRejection> for ApiError {
    fn from(_: PathRejection) -> Self {
        // All that can be wrong with a segment, once its route was found.
        Self::invalid("id", "the id in the path is not UTF-8")
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { param, message } => Self::invalid(param, message),
            Error::NotFound { param, message } => {
                Self { param: Some(param.into()), ..Self::new(StatusCode::NOT_FOUND, message) }
            }
            Error::Unsupported { param, message } => Self::unsupported(param, message),
            Error::Busy { message } => Self::busy(message),
            Error::Request { message } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, redact(&message)),
            error @ Error::Engine { .. } => Self::busy(redact(&error.to_string())),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(160);
        self.write_json(&mut body);
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, RETRY_SECONDS.into());
        }
        if self.status == StatusCode::NOT_IMPLEMENTED {
            // OpenAI's clients retry every 5xx unless told otherwise, and this one will not change.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        // For the edge, which knows in whose words the route speaks.
        response.extensions_mut().insert(self);
        response
    }
}

/// Replaces absolute paths and addresses.
fn redact(message: &str) -> String {
    let mut clean = String::with_capacity(message.len());
    let is_border =
        |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`' | '(' | ')' | ',' | '=' | '<' | '>');
    for word in message.split_inclusive(is_border) {
        let body = word.trim_end_matches(is_border);
        let is_path =
            body.len() > 1 && body.starts_with('/') || body.starts_with("~/") || body.contains(":\\");
        let is_address = body.len() > 7 && body.starts_with("0x");
        if is_path || is_address {
            clean.push_str(if is_path { "[path]" } else { "[address]" });
            clean.push_str(&word[body.len()..]);
        } else {
            clean.push_str(word);
        }
    }
    clean
}

/// The first `limit` characters of `text`, for messages that repeat what a client sent.
pub(crate) fn shortened(text: &str, limit: usize) -> Cow<'_, str> {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

/// The same in quotes.
pub(crate) fn quoted(text: &str, limit: usize) -> String {
    format!("'{}'", shortened(text, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(error: &ApiError) -> serde_json::Value {
        let mut out = Vec::new();
        error.write_json(&mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn every_core_error_has_a_status_and_a_type() {
        let message = || "m".to_owned();
        for (error, status, kind) in [
            (Error::invalid("n", "m"), 400, "BadRequestError"),
            (Error::NotFound { param: "model", message: message() }, 404, "NotFoundError"),
            (Error::unsupported("tools", "m"), 501, "NotImplementedError"),
            (Error::Busy { message: message() }, 503, "ServiceUnavailableError"),
            (Error::Request { message: message() }, 500, "InternalServerError"),
            (Error::Engine { message: message() }, 503, "ServiceUnavailableError"),
        ] {
            let api = ApiError::from(error);
            assert_eq!(api.status.as_u16(), status);
            let body = body(&api);
            assert_eq!(body["error"]["type"], kind);
            assert_eq!(body["error"]["code"], status);
        }
    }

    #[test]
    fn the_body_names_the_field_and_is_json_whatever_the_message() {
        let body = body(&ApiError::invalid("stop", "a \"quoted\"\n\u{1} line"));
        assert_eq!(body["error"]["param"], "stop");
        assert_eq!(body["error"]["message"], "a \"quoted\"\n\u{1} line");
    }

    #[test]
    fn a_server_error_holds_no_path_and_no_address() {
        let error = Error::Engine {
            message: "OSError: cannot open '/srv/models/x.gguf' at 0x7f00deadbeef".to_owned(),
        };
        let message = ApiError::from(error).message;
        assert_eq!(message, "engine failed: OSError: cannot open '[path]' at [address]");
        assert_eq!(redact("12 tokens/s, 3 / 4 = 0x1f"), "12 tokens/s, 3 / 4 = 0x1f");
    }

    #[test]
    fn a_busy_server_says_when_to_come_back() {
        let response = ApiError::busy("full").into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }

    #[test]
    fn quoting_cuts_at_characters() {
        assert_eq!(quoted("añb", 2), "'añ...'");
        assert_eq!(quoted("añ", 2), "'añ'");
    }
}
