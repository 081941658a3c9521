//! Reading a request body under a limit.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use crate::error::ApiError;

/// How long a body may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Reads a JSON body of at most `limit` bytes. A body that says it is longer is refused unread.
pub async fn read(request: Request, limit: u64) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    let declared =
        parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|declared| declared > limit) {
        return Err(too_large(limit));
    }
    collect(body, limit).await
}

async fn collect(body: Body, limit: u64) -> Result<Bytes, ApiError> {
    let body = Limited::new(body, usize::try_from(limit).unwrap_or(usize::MAX));
    // Whoever sends nothing more must not keep what was sent for ever.
    let Ok(collected) = timeout(PATIENCE, body.collect()).await else {
        let message = format!("the body was not complete within {} s", PATIENCE.as_secs());
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Err(_) => Err(ApiError::new(StatusCode::BAD_REQUEST, "the body ended before it was complete")),
    }
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body must have at most {limit} bytes"))
}

/// JSON, or nothing said about it: some clients set no type.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let unsupported = |what: &'static str| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return unsupported("a compressed body is not taken");
    }
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json") {
        return Ok(());
    }
    unsupported("the content type must be application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, value.parse().unwrap());
        check_type(&headers).is_ok()
    }

    #[test]
    fn json_in_all_its_spellings_is_taken() {
        assert!(typed("application/json"));
        assert!(typed("Application/JSON; charset=utf-8"));
        assert!(typed("application/vnd.api+json"));
        assert!(check_type(&HeaderMap::new()).is_ok());
        for bad in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
        {
            assert!(!typed(bad), "{bad}");
        }
    }

    #[test]
    fn a_compressed_body_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        assert_eq!(check_type(&headers).unwrap_err().status, 415);
    }
}
