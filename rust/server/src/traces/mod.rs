//! OpenTelemetry traces of requests, if `--otlp-traces-endpoint` asks for them.
//!
//! * [`context`]: what the client says of its own trace. * [`record`]: what is noted of a request while it runs.
//!   [`spans`]: the spans that are made of it, with the attributes of the conventions for generative models and vLLM's.
//!   [`export`]: how they reach a collector.
//!
//! Invariants: without an endpoint nothing is noted; a request never waits for its trace, and what the queue has no room
//! for is dropped and counted; a client that says that its trace is not sampled gets none.

pub mod context;
pub mod export;
pub mod record;
pub mod spans;

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::HeaderMap;
use frizzen_metrics::TraceMetrics;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::routes::Route;
use context::{Parent, TRACE_PARENT, TRACE_STATE, new_span_id, new_trace_id};
use export::{Endpoint, Exporter};
use record::Record;

/// Finished requests that may wait to be sent.
const QUEUE: usize = 4096;

/// Where the records of finished requests go.
#[derive(Debug)]
pub struct Tracer {
    finished: Sender<Record>,
    metrics: TraceMetrics,
    /// Taken by the task that sends.
    exporter: Mutex<Option<Exporter>>,
}

/// A request that is traced. Clones note into the same record; it goes out when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct RequestTrace(Arc<Noting>);

#[derive(Debug)]
struct Noting {
    /// Gone once it was sent.
    record: Mutex<Option<Record>>,
    finished: Sender<Record>,
    metrics: TraceMetrics,
}

impl Tracer {
    /// A tracer that sends to `endpoint`.
    pub fn new(endpoint: &Endpoint, service: String, metrics: TraceMetrics) -> Self {
        let (finished, queue): (Sender<Record>, Receiver<Record>) = channel(QUEUE);
        let exporter = Exporter::new(endpoint.clone(), service, queue, metrics.clone());
        Self { finished, metrics, exporter: Mutex::new(Some(exporter)) }
    }

    /// What sends; `None` the second time.
    pub fn exporter(&self) -> Option<Exporter> {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Begins the trace of a request, unless its client said that the trace is not sampled.
    pub fn begin(&self, headers: &HeaderMap, route: &Route) -> Option<RequestTrace> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let parent = text(TRACE_PARENT).and_then(Parent::parse);
        if parent.is_some_and(|parent| !parent.sampled) {
            return None;
        }
        // The state belongs to the parent: without one there is nothing that it could belong to.
        let state = parent.and_then(|_| text(TRACE_STATE)).filter(|state| state.len() <= context::MAX_STATE);
        let record = Record::new(
            parent.map_or_else(new_trace_id, |parent| parent.trace),
            new_span_id(),
            parent.map(|parent| parent.span),
            state.map(str::to_owned),
            route,
        );
        let (finished, metrics) = (self.finished.clone(), self.metrics.clone());
        Some(RequestTrace(Arc::new(Noting { record: Mutex::new(Some(record)), finished, metrics })))
    }
}

impl RequestTrace {
    /// Notes something.
    pub fn note(&self, what: impl FnOnce(&mut Record)) {
        if let Some(record) = self.0.record.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            what(record);
        }
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        let record = self.record.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut record) = record else { return };
        record.end();
        if self.finished.try_send(record).is_err() {
            self.metrics.dropped(1);
        }
    }
}
