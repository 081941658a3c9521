//! What a request may say about speculation, and what it is told afterwards.

use serde::{Deserialize, Serialize};

/// How a request's tokens may be drafted. Never changes which tokens come, only when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speculation {
    /// No drafts.
    #[default]
    Off,
    /// As many drafts per step as measured times say pay off.
    Auto,
    /// Whatever the drafter finds, up to this many drafts per step, at any price.
    MaxTokens(u32),
}

/// Why a step had the draft length it had, or why drafts were switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpeculationReason {
    /// The request has this length by its own wish or the server's default.
    Fixed,
    /// Drafts are expected to gain time.
    Gain,
    /// The time of a step without drafts is not known yet.
    WarmUp,
    /// The drafter found nothing to propose.
    NoMatch,
    /// Drafts are expected to cost more time than they gain.
    BelowBreakEven,
    /// Drafts cost time although a gain was expected.
    MeasuredLoss,
    /// A step without drafts, to know what it takes.
    ProbeOff,
    /// A step with drafts, to know what they take.
    ProbeOn,
    /// The request is about to reach its length, or the step was full or had been planned already.
    NoRoom,
    /// The drafter failed; there are no drafts until the engine starts anew.
    DrafterFailed,
}

impl SpeculationReason {
    /// Every reason, in the order of their indexes.
    pub const ALL: [Self; 10] = [
        Self::Fixed,
        Self::Gain,
        Self::WarmUp,
        Self::NoMatch,
        Self::BelowBreakEven,
        Self::MeasuredLoss,
        Self::ProbeOff,
        Self::ProbeOn,
        Self::NoRoom,
        Self::DrafterFailed,
    ];

    /// The code that APIs and logs show.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Gain => "gain",
            Self::WarmUp => "warm_up",
            Self::NoMatch => "no_match",
            Self::BelowBreakEven => "below_break_even",
            Self::MeasuredLoss => "measured_loss",
            Self::ProbeOff => "probe_off",
            Self::ProbeOn => "probe_on",
            Self::NoRoom => "no_room",
            Self::DrafterFailed => "drafter_failed",
        }
    }
}

/// What speculation did for one request so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeculationUsage {
    /// Drafts that were verified.
    pub drafts: u32,
    /// How many of them were right.
    pub accepted: u32,
    /// Seconds saved (lost, if negative) against the estimate of the same tokens without drafts; only of steps without
    /// prefill, whose times can be compared.
    pub saved: f64,
    /// Steps by their draft length, index 0 is none.
    pub lengths: Vec<u32>,
    /// Steps by [`SpeculationReason`].
    pub reasons: [u32; SpeculationReason::ALL.len()],
}

impl SpeculationUsage {
    /// Adds what it did for another request.
    pub fn add(&mut self, other: &Self) {
        self.drafts += other.drafts;
        self.accepted += other.accepted;
        self.saved += other.saved;
        self.lengths.resize(self.lengths.len().max(other.lengths.len()), 0);
        for (sum, steps) in self.lengths.iter_mut().zip(&other.lengths) {
            *sum += steps;
        }
        for (sum, steps) in self.reasons.iter_mut().zip(&other.reasons) {
            *sum += steps;
        }
    }

    /// Reasons that occurred, with their steps.
    pub fn reasons(&self) -> impl Iterator<Item = (SpeculationReason, u32)> {
        SpeculationReason::ALL.into_iter().zip(self.reasons).filter(|(_, steps)| *steps > 0)
    }

    /// Draft lengths that occurred, with their steps.
    pub fn lengths(&self) -> impl Iterator<Item = (usize, u32)> {
        self.lengths.iter().copied().enumerate().filter(|(_, steps)| *steps > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_indexes_and_have_codes_of_their_own() {
        for (index, reason) in SpeculationReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            assert!(SpeculationReason::ALL[..index].iter().all(|other| other.code() != reason.code()));
        }
    }
}
