//! One request that may get drafts: what it asked for, what was proposed last, and its account.

use frizzen_core::{Speculation, SpeculationReason as Reason, SpeculationUsage, TokenId};

use super::acceptance::{Acceptance, Judged, OwnAcceptance, Warmth};
use crate::draft::Evidence;

/// A request that may get drafts.
#[derive(Debug)]
pub(super) struct Followed {
    pub asked: Speculation,
    /// It said something about speculation, so it is told what came of it.
    pub reports: bool,
    pub warmth: Warmth,
    pub usage: SpeculationUsage,
    pub own: OwnAcceptance,
    /// The proposal that is being compared with what the text becomes, and how far it was right.
    pub proposal: Vec<TokenId>,
    right: usize,
    /// How many of its drafts the step in flight verifies.
    pub verified: usize,
    /// What speaks for the proposal, and what its drafter says of each draft.
    pub evidence: Evidence,
    pub confidences: Vec<f32>,
    pub reason: Reason,
}

impl Followed {
    /// A request that nothing is known of; `max_drafts` bounds its draft lengths.
    pub fn new(asked: Speculation, warmth: Warmth, max_drafts: u32, reason: Reason) -> Self {
        Self {
            asked,
            reports: false,
            warmth,
            usage: SpeculationUsage {
                lengths: vec![0; max_drafts as usize + 1],
                ..SpeculationUsage::default()
            },
            own: OwnAcceptance::default(),
            proposal: Vec::new(),
            right: 0,
            verified: 0,
            evidence: Evidence::default(),
            confidences: Vec::new(),
            reason,
        }
    }

    /// The most drafts that it may get, of `most` that anybody may.
    pub fn limit(&self, most: u32) -> u32 {
        match self.asked {
            Speculation::MaxTokens(asked) => asked.min(most),
            Speculation::Auto => most,
            Speculation::Off => 0,
        }
    }

    /// Begins to compare a proposal with the text.
    pub fn begin(&mut self, proposal: &[TokenId]) {
        self.proposal.clear();
        self.proposal.extend_from_slice(proposal);
        self.right = 0;
    }

    pub const fn judged(&self) -> Judged<'_> {
        Judged { evidence: self.evidence, confidences: self.confidences.as_slice(), warmth: self.warmth }
    }

    /// Labels the proposal's drafts up to the first that was wrong; with `only_verified` no further than they were
    /// verified. Returns how many labels that gave.
    pub fn compare(&mut self, tokens: &[TokenId], acceptance: &mut Acceptance, only_verified: bool) -> usize {
        let mut labels = 0;
        for token in tokens {
            let Some(draft) = self.proposal.get(self.right) else { break };
            if only_verified && self.right >= self.verified {
                break;
            }
            let accepted = draft == token;
            let judged =
                Judged { evidence: self.evidence, confidences: &self.confidences, warmth: self.warmth };
            acceptance.label(&mut self.own, judged, self.right, accepted);
            self.right += 1;
            labels += 1;
            if !accepted {
                self.proposal.clear();
            }
        }
        labels
    }
}
