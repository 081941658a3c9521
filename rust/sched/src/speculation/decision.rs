//! What the guard is asked, what it answers, and what it is told of the step that came of it.

use frizzen_core::SpeculationReason as Reason;

use super::choose::Offer;

/// Drafts were switched on or off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModeChange {
    /// On or off.
    pub on: bool,
    /// Why.
    pub reason: Reason,
    /// Rows of the step that decided it.
    pub rows: usize,
    /// Expected gain, 0.1 is a tenth more tokens per second.
    pub gain: f64,
}

/// Drafts that somebody fixed, which a step carries in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fixed {
    /// Their number.
    pub drafts: usize,
    /// How many of them are expected to be right.
    pub tokens: f64,
    /// The most of them that a row is to be proposed in this step, by a drafter in the worker.
    pub proposed: usize,
}

/// What a decision is about: the next step.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Rows of the step.
    pub rows: usize,
    /// Drafts that are not the guard's to choose.
    pub fixed: Fixed,
    /// The drafts at hand, of each row that leaves it to the guard.
    pub offers: &'a [Offer],
    /// What is expected of drafts that the worker would propose in this step; `None` if it has no drafter.
    pub outlook: Option<&'a [Offer]>,
    /// Steps since anything was learnt about the chances of drafts, where only drafts that are proposed or verified teach
    /// it; else 0.
    pub unlabelled: u32,
}

/// What was decided, besides the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// That of the rows with drafts, or of there being none.
    pub reason: Reason,
    /// Drafts per row that the worker is to propose in this step.
    pub propose: usize,
    /// A trial begins: what was learnt of the chances of drafts is to count for little.
    pub forget: bool,
}

impl From<Reason> for Decision {
    fn from(reason: Reason) -> Self {
        Self { reason, propose: 0, forget: false }
    }
}

/// A step that decoded something, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredStep {
    /// Rows that decoded.
    pub rows: usize,
    /// Drafts over all rows.
    pub drafts: usize,
    /// Drafts per row that the worker proposed in it.
    pub proposed: usize,
    /// Tokens of rows in prefill.
    pub prefill: usize,
    /// Tokens that came out of the rows that decoded.
    pub tokens: usize,
    /// From the end of the step before it to its own.
    pub seconds: f64,
    /// All drafts were the guard's choice.
    pub governed: bool,
    /// It was planned while the step before it ran, as steps with drafts cannot be.
    pub ahead: bool,
}

/// What decoding takes of a step, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoding {
    /// Of the step as it was.
    pub seconds: f64,
    /// Of the same step without drafts.
    pub plain: f64,
}
