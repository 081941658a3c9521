//! What only the worker can count: loads of experts, steps with and without graphs, late compilations.
//!
//! The worker gives totals, now and then; the series follow them. A worker that starts anew begins at zero: a counter
//! then stays where it is until it is overtaken.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;

use crate::families::{Counters, Families, Gauges, Ratios};
use crate::label::{Label, Labels};

/// Most series of one family: the details are the worker's words, and their number must not grow without bound.
const MOST_DETAILS: usize = 512;

/// A family whose series differ in one label of the worker's own.
#[derive(Debug)]
struct Detailed {
    family: Counters,
    label: &'static str,
    known: Mutex<Vec<String>>,
}

impl Detailed {
    fn new(family: &Counters, label: &'static str) -> Self {
        Self { family: family.clone(), label, known: Mutex::default() }
    }

    fn advance(&self, labels: &Labels, detail: &str, total: u64) {
        let detail = if self.is_known(detail) { detail } else { "other" };
        let mut all = labels.clone();
        all.push((self.label, Label::new(detail)));
        advance(&self.family.get_or_create_owned(&all), total);
    }

    /// Whether a series is, or may still become, one of its own.
    fn is_known(&self, detail: &str) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().any(|other| other == detail);
        if !found && known.len() < MOST_DETAILS {
            known.push(detail.to_owned());
            return true;
        }
        found
    }
}

fn advance(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// The instruments of one worker. Cheap to clone; clones share the values.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    labels: Labels,
    expert_tokens: Counters,
    expert_balance: Ratios,
    graph_steps: Counters,
    eager_steps: Arc<Detailed>,
    late_compiles: Arc<Detailed>,
    memory: Gauges,
    events: Arc<Detailed>,
}

impl WorkerMetrics {
    pub(crate) fn new(families: &Families, labels: Labels) -> Self {
        Self {
            labels,
            expert_tokens: families.expert_tokens.clone(),
            expert_balance: families.expert_balance.clone(),
            graph_steps: families.graph_steps.clone(),
            eager_steps: Arc::new(Detailed::new(&families.eager_steps, "shape")),
            late_compiles: Arc::new(Detailed::new(&families.late_compiles, "kernel")),
            memory: families.memory.clone(),
            events: Arc::new(Detailed::new(&families.worker_events, "name")),
        }
    }

    /// Tokens of each expert of a layer since the start.
    pub fn experts(&self, layer: u32, tokens: &[u64]) {
        let mut labels = self.labels.clone();
        labels.push(("layer", Label::new(&layer.to_string())));
        for (expert, total) in tokens.iter().enumerate() {
            let mut all = labels.clone();
            all.push(("expert", Label::new(&expert.to_string())));
            advance(&self.expert_tokens.get_or_create_owned(&all), *total);
        }
        let most = tokens.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let mean = tokens.iter().sum::<u64>() as f64 / tokens.len() as f64;
            self.expert_balance.get_or_create_owned(&labels).set(mean / most as f64);
        }
    }

    /// Memory that an owner holds now; owners are few and known to the worker.
    pub fn memory(&self, owner: &str, bytes: u64) {
        let mut labels = self.labels.clone();
        labels.push(("owner", Label::new(owner)));
        self.memory.get_or_create_owned(&labels).set(bytes as i64);
    }

    /// A counter of the worker, and what it counts of it if it has parts.
    pub fn counter(&self, name: &str, detail: Option<&str>, total: u64) {
        match (name, detail) {
            ("graph_steps", None) => advance(&self.graph_steps.get_or_create_owned(&self.labels), total),
            ("eager_steps", Some(shape)) => self.eager_steps.advance(&self.labels, shape, total),
            ("late_compiles", Some(kernel)) => self.late_compiles.advance(&self.labels, kernel, total),
            (name, None) => self.events.advance(&self.labels, name, total),
            (name, Some(detail)) => self.events.advance(&self.labels, &format!("{name}:{detail}"), total),
        }
    }
}
