//! What only the worker knows (the load of its experts, its counters), brought into the metrics when they are read.
//!
//! A scrape asks the engine's thread, which answers between two steps. It waits for [`PATIENCE`] at most and shows what
//! it has; an answer that comes later is taken in by the next scrape. The worker is asked at most once per [`INTERVAL`]:
//! counting costs it a wait for the device.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use frizzen_engine::{ControlAnswer, EngineHandle, Health};
use frizzen_metrics::WorkerMetrics;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The least time between two questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a scrape waits.
const PATIENCE: Duration = Duration::from_millis(100);

/// The answer to `experts`.
#[derive(Debug, Deserialize)]
struct ExpertLoad {
    layers: Vec<u32>,
    /// By layer and expert.
    tokens: Vec<Vec<u64>>,
}

#[derive(Debug, Default)]
struct Questions {
    asked: Option<Instant>,
    open: Vec<(&'static str, Receiver<ControlAnswer>)>,
}

/// The questions to one worker, and where its answers go.
#[derive(Debug)]
pub struct WorkerReport {
    metrics: WorkerMetrics,
    questions: Mutex<Questions>,
}

impl WorkerReport {
    /// Nothing is asked yet.
    pub fn new(metrics: WorkerMetrics) -> Self {
        Self { metrics, questions: Mutex::default() }
    }

    /// Brings the metrics up to date. Blocks the thread for [`PATIENCE`] at most.
    pub fn refresh(&self, engine: &EngineHandle) {
        if !matches!(engine.health(), Health::Ready | Health::Draining) {
            return;
        }
        // Engines in processes of their own ask their workers themselves.
        if !engine.replicas().is_empty() {
            return;
        }
        let deadline = Instant::now() + PATIENCE;
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        if questions.open.is_empty() && questions.asked.is_none_or(|asked| asked.elapsed() >= INTERVAL) {
            questions.asked = Some(Instant::now());
            questions.open = ["experts", "counters"].map(|name| (name, engine.control(name, "null"))).into();
        }
        questions.open.retain(|(name, answered)| {
            let left = deadline.saturating_duration_since(Instant::now());
            match answered.recv_timeout(left) {
                Ok(answer) => {
                    self.take_in(name, &answer);
                    false
                }
                Err(RecvTimeoutError::Timeout) => true,
                // The loop has ended.
                Err(RecvTimeoutError::Disconnected) => false,
            }
        });
    }

    /// A worker need not know a question.
    fn take_in(&self, name: &str, answer: &ControlAnswer) {
        let Ok(json) = answer else { return };
        let taken = match name {
            "experts" => serde_json::from_str(json).map(|load| self.experts(load)),
            _ => serde_json::from_str(json)
                .map(|counters: Option<_>| self.counters(&counters.unwrap_or_default())),
        };
        if let Err(error) = taken {
            tracing::warn!(%error, "the worker's answer to {name} is not understood");
        }
    }

    fn experts(&self, load: Option<ExpertLoad>) {
        let Some(load) = load else { return };
        for (layer, tokens) in load.layers.iter().zip(&load.tokens) {
            self.metrics.experts(*layer, tokens);
        }
    }

    /// Numbers, and objects of numbers: a counter, and one with parts. `memory` is no counter but what is held now.
    fn counters(&self, counters: &Map<String, Value>) {
        for (name, value) in counters {
            if name == "memory" {
                for (owner, bytes) in value.as_object().into_iter().flatten() {
                    self.metrics.memory(owner, bytes.as_u64().unwrap_or(0));
                }
                continue;
            }
            if let Some(total) = value.as_u64() {
                self.metrics.counter(name, None, total);
            }
            for (detail, total) in value.as_object().into_iter().flatten() {
                if let Some(total) = total.as_u64() {
                    self.metrics.counter(name, Some(detail), total);
                }
            }
        }
    }
}
