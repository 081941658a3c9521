//! What every request passes on its way in and out: its id, the key check, the HTTP metrics.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;

use crate::error::ApiError;
use crate::ids::REQUEST_ID;
use crate::routes::{self, Auth};
use crate::state::SharedState;

/// The id of a request, for its handler.
#[derive(Clone, Debug)]
pub struct RequestName(pub std::sync::Arc<str>);

/// Label of requests that matched no route.
const NO_ROUTE: &str = "other";
/// Statuses with which requests are refused before their bodies are read.
const UNREAD: [u16; 7] = [401, 404, 405, 413, 415, 501, 503];
/// Probes and scrapers would drown the requests of users.
const UNCOUNTED: [&str; 5] = ["/metrics", "/health", "/load", "/ping", "/version"];

/// The outermost middleware.
pub async fn edge(State(state): State<SharedState>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let name: std::sync::Arc<str> = state.ids.of(request.headers()).into();
    request.extensions_mut().insert(RequestName(name.clone()));
    let template = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    // The table's own string: a label with the life of the program.
    let route = template.as_deref().and_then(|template| routes::find(template).next());
    let traced = route.filter(|route| route.operation().is_some());
    let trace =
        traced.zip(state.tracer.as_ref()).and_then(|(route, tracer)| tracer.begin(request.headers(), route));
    if let Some(trace) = &trace {
        request.extensions_mut().insert(trace.clone());
    }
    let is_open = route.is_some_and(|route| route.auth == Auth::Open);
    let method = request.method().clone();
    let has_body = !request.body().is_end_stream();
    let checked = if is_open { Ok(()) } else { state.keys.check(request.headers()) };
    let mut response = match checked {
        Ok(()) => unwound(next.run(request)).await,
        Err(error) => error.into_response(),
    };
    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(trace) = trace {
        trace.note(|record| {
            record.status = Some(response.status().as_u16());
            if let Some(error) = &error {
                record.failed(error);
            }
        });
    }
    if let Some(error) = error
        && route.is_some_and(routes::Route::is_anthropic)
    {
        let mut body = Vec::new();
        error.write_anthropic(Some(&name), &mut body);
        *response.body_mut() = body.into();
    }
    if let Ok(value) = HeaderValue::from_str(&name) {
        if route.is_some_and(routes::Route::is_anthropic) {
            response.headers_mut().insert("request-id", value.clone());
        }
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if has_body && UNREAD.contains(&response.status().as_u16()) {
        // A body that was not read ends the connection. A client that is not told would send its next request there.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let handler = route.map_or(NO_ROUTE, |route| route.path);
    if !UNCOUNTED.contains(&handler) {
        let (status, seconds) = (response.status().as_u16(), started.elapsed().as_secs_f64());
        state.http_metrics.answered(method.as_str(), handler, status, seconds);
        if status == 500 {
            tracing::warn!(request = %name, %method, handler, status, seconds, "answered");
        } else {
            tracing::debug!(request = %name, %method, handler, status, seconds, "answered");
        }
    }
    // The router takes the body from an answer to HEAD, after its length was noted.
    response
}

/// What the handler answers; a panic in it ends its request only.
async fn unwound(handler: impl Future<Output = Response>) -> Response {
    let mut handler = pin!(handler);
    poll_fn(|context| {
        // A handler that panicked is not polled again.
        catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context)))
            .unwrap_or_else(|panic| Poll::Ready(panicked(&*panic)))
    })
    .await
}

/// Turns a panic of a handler into that request's 500.
fn panicked(panic: &(dyn std::any::Any + Send)) -> Response {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("no message"), "a handler panicked");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed on this request").into_response()
}

/// A JSON answer.
pub fn json(body: Vec<u8>) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The headers of an event stream.
pub fn event_stream(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Tells nginx not to collect the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_500_that_says_nothing_of_itself() {
        let handler = async {
            tokio::task::yield_now().await;
            panic!("index 7 out of range")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(unwound(handler));
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    }
}
