//! What an engine with a drafter reports besides.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::families::{Counters, Families, Gauges, Ratios};
use crate::label::{Label, Labels};

/// The families of speculation with one engine's labels, before it is known how many positions there are.
#[derive(Clone, Debug)]
pub(crate) struct SpeculationFamilies {
    labels: Labels,
    drafts: Counters,
    draft_tokens: Counters,
    accepted: Counters,
    accepted_per_position: Counters,
    on: Gauges,
    saved: Ratios,
}

impl SpeculationFamilies {
    pub fn new(families: &Families, labels: &Labels) -> Self {
        Self {
            labels: labels.clone(),
            drafts: families.spec_drafts.clone(),
            draft_tokens: families.spec_draft_tokens.clone(),
            accepted: families.spec_accepted_tokens.clone(),
            accepted_per_position: families.spec_accepted_per_position.clone(),
            on: families.spec_on.clone(),
            saved: families.spec_saved.clone(),
        }
    }

    pub fn resolve(&self, positions: u32) -> SpeculationMetrics {
        let at = |position: u32| {
            let mut labels = self.labels.clone();
            labels.push(("position", Label::new(&position.to_string())));
            self.accepted_per_position.get_or_create_owned(&labels)
        };
        SpeculationMetrics {
            drafts: self.drafts.get_or_create_owned(&self.labels),
            draft_tokens: self.draft_tokens.get_or_create_owned(&self.labels),
            accepted: self.accepted.get_or_create_owned(&self.labels),
            accepted_per_position: (0..positions).map(at).collect(),
            on: self.on.get_or_create_owned(&self.labels),
            saved: self.saved.get_or_create_owned(&self.labels),
        }
    }
}

/// Instruments of speculation, their series created at zero.
#[derive(Clone, Debug)]
pub struct SpeculationMetrics {
    drafts: Counter,
    draft_tokens: Counter,
    accepted: Counter,
    accepted_per_position: Vec<Counter>,
    on: Gauge,
    saved: Gauge<f64, AtomicU64>,
}

impl SpeculationMetrics {
    /// `rows` rows were verified with `drafts` drafts, of which `accepted` were right. What the client is shown of them
    /// is counted elsewhere.
    pub fn verified(&self, rows: u64, drafts: u64, accepted: u64) {
        self.drafts.inc_by(rows);
        self.draft_tokens.inc_by(drafts);
        self.accepted.inc_by(accepted);
    }

    /// So many drafts at this position of their row were right.
    pub fn accepted_at(&self, position: usize, count: u64) {
        if let Some(counter) = self.accepted_per_position.get(position) {
            counter.inc_by(count);
        }
    }

    /// Whether the guard has drafts on, and the seconds saved since the start.
    pub fn state(&self, on: bool, saved: f64) {
        self.on.set(i64::from(on));
        self.saved.set(saved);
    }
}
