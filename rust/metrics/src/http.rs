//! What the HTTP server reports.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use crate::families::{Counters, Families, Histograms};
use crate::label::labels;

/// The instruments of the HTTP server. Cheap to clone; clones share the values.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    requests: Counters,
    duration: Histograms,
    duration_high_resolution: Histogram,
    unknown_fields: Counter,
}

/// A method from the wire as one of a closed set: a client must not be able to add series.
fn method_label(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

const fn status_label(status: u16) -> &'static str {
    match status {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

impl HttpMetrics {
    pub(crate) fn new(families: &Families) -> Self {
        Self {
            requests: families.http_requests.clone(),
            duration: families.http_duration.clone(),
            duration_high_resolution: families.http_duration_high_resolution.clone(),
            unknown_fields: families.unknown_fields.clone(),
        }
    }

    /// A request was answered. `handler` is the path template of the route, never the path of the request.
    pub fn answered(&self, method: &str, handler: &'static str, status: u16, seconds: f64) {
        let method = method_label(method);
        let route = [("method", method), ("handler", handler)];
        self.duration.get_or_create(&labels(route)).observe(seconds);
        self.duration_high_resolution.observe(seconds);
        let counted = [("method", method), ("status", status_label(status)), ("handler", handler)];
        self.requests.get_or_create(&labels(counted)).inc();
    }

    /// A body had `n` fields that nobody knows.
    pub fn unknown_fields(&self, n: u64) {
        self.unknown_fields.inc_by(n);
    }
}
