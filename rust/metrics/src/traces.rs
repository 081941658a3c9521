//! What became of traces.

use prometheus_client::metrics::counter::Counter;

use crate::families::Families;
use crate::label::labels;

/// The instruments of the exporter of traces. Cheap to clone; clones share the values.
#[derive(Clone, Debug)]
pub struct TraceMetrics {
    exported: Counter,
    failed: Counter,
    dropped: Counter,
}

impl TraceMetrics {
    pub(crate) fn new(families: &Families) -> Self {
        let outcome = |name| families.traces.get_or_create_owned(&labels([("outcome", name)]));
        Self { exported: outcome("exported"), failed: outcome("failed"), dropped: outcome("dropped") }
    }

    /// The collector took `n` traces.
    pub fn exported(&self, n: u64) {
        self.exported.inc_by(n);
    }

    /// The collector did not take `n` traces.
    pub fn failed(&self, n: u64) {
        self.failed.inc_by(n);
    }

    /// `n` traces found no room in the queue.
    pub fn dropped(&self, n: u64) {
        self.dropped.inc_by(n);
    }
}
