//! Sleep and waking up: how long it takes, and how many such operations run.

use std::time::Instant;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::families::{Families, Histograms};
use crate::label::{Label, Labels};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepOperation {
    /// Going to sleep.
    Sleep,
    /// Waking up.
    WakeUp,
}

/// The instruments. Cheap to clone; clones share the values.
#[derive(Clone, Debug)]
pub struct SleepMetrics {
    duration: Histograms,
    in_flight: Family<Labels, Gauge>,
}

impl SleepMetrics {
    pub(crate) fn new(families: &Families) -> Self {
        let (duration, in_flight) = (families.sleep_duration.clone(), families.sleep_in_flight.clone());
        Self { duration, in_flight }
    }

    /// An operation begins. One that is dropped without an end counts as no observation.
    pub fn begin(&self, operation: SleepOperation) -> SleepTimer {
        let name = match operation {
            SleepOperation::Sleep => "sleep",
            SleepOperation::WakeUp => "wake_up",
        };
        let labels: Labels = vec![("operation", Label::new(name))];
        let in_flight = self.in_flight.get_or_create_owned(&labels);
        in_flight.inc();
        SleepTimer { metrics: self.clone(), labels, in_flight, started: Instant::now() }
    }
}

/// One running operation.
#[derive(Debug)]
pub struct SleepTimer {
    metrics: SleepMetrics,
    labels: Labels,
    in_flight: Gauge,
    started: Instant,
}

impl SleepTimer {
    /// It has ended.
    pub fn end(self) {
        self.metrics.duration.get_or_create(&self.labels).observe(self.started.elapsed().as_secs_f64());
    }
}

impl Drop for SleepTimer {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}
