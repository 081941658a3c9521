//! What the owner of an engine decides about its loop.

use frizzen_sched::Policy;
use frizzen_sched::speculation::SpeculationConfig;

/// How the loop runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineOptions {
    /// Plan the next step while this one runs; `None` does so where the worker's device computes on its own.
    pub overlap: Option<bool>,
    /// Share the blocks of equal prefixes.
    pub prefix_caching: bool,
    /// Admission and preemption order.
    pub policy: Policy,
    /// Most tokens of one prompt in a step while others wait; 0 is no limit.
    pub long_prefill_threshold: u32,
    /// Seed of requests that have none; `None` draws one.
    pub seed: Option<u64>,
    /// Drafts; the worker must take some.
    pub speculation: Option<SpeculationConfig>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            overlap: None,
            prefix_caching: true,
            policy: Policy::Fcfs,
            long_prefill_threshold: 0,
            seed: None,
            speculation: None,
        }
    }
}
