//! What people and monitors are told.

use frizzen_core::{Speculation, SpeculationReason as Reason};

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeculationTotals {
    /// Rows that were verified with at least one draft.
    pub drafted_rows: u64,
    /// Drafts that were verified.
    pub drafts: u64,
    /// How many of them were right.
    pub accepted: u64,
    /// The same by the draft's place in its row.
    pub accepted_at: Vec<u64>,
    /// Seconds saved (lost, if negative) against the estimate without drafts, over steps without prefill.
    pub saved: f64,
}

/// A snapshot for people and monitors.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculationStatus {
    /// Name of the drafter.
    pub drafter: &'static str,
    /// What requests get that say nothing.
    pub default: Speculation,
    /// Whether requests that leave it to the server get drafts.
    pub on: bool,
    /// Why.
    pub reason: Reason,
    /// Expected gain of drafts: 0.1 is a tenth more tokens per second.
    pub expected_gain: f64,
    /// What the guard may still lose, in steps without drafts.
    pub account: f64,
    /// Rows of the last step.
    pub rows: usize,
    /// Seconds of a step of as many rows with 0, 1, 2, 4, 8 and 16 drafts per row, as fitted; empty before the first
    /// measurement.
    pub step_seconds: Vec<(usize, f64)>,
    /// Chance of a first draft after a match of 1, 2, 4, 8 and 16 tokens.
    pub first_draft_chance: Vec<(u32, f64)>,
    /// Counts since the start.
    pub totals: SpeculationTotals,
    /// Most drafts of a row.
    pub max_drafts: u32,
    /// Verification is forced to accept, for studies of speed.
    pub synthetic: bool,
    /// What the drafter failed of, if it did.
    pub failure: Option<String>,
}
