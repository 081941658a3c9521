//! What a model in the worker proposed, kept until the next plan.

use frizzen_core::{RequestId, TokenId};
use rustc_hash::FxHashMap;

use super::{Drafter, Evidence};
use crate::plan::{Proposals, StepPlan};

/// The drafter of a worker, seen from the scheduler. Proposes for a request once per step that proposed for it.
#[derive(Debug)]
pub struct Proposed {
    name: &'static str,
    rows: FxHashMap<RequestId, Row>,
}

#[derive(Debug, Default)]
struct Row {
    drafts: Vec<TokenId>,
    confidences: Vec<f32>,
}

impl Proposed {
    /// Nothing is proposed yet.
    pub fn new(name: &'static str) -> Self {
        Self { name, rows: FxHashMap::default() }
    }
}

impl Drafter for Proposed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self, request: RequestId, _prompt: &[TokenId], _shared: bool) {
        self.rows.entry(request).or_default();
    }

    fn observe(&mut self, _request: RequestId, _tokens: &[TokenId]) {}

    fn propose(&mut self, request: RequestId, k: usize, drafts: &mut Vec<TokenId>) -> Evidence {
        drafts.clear();
        if let Some(row) = self.rows.get_mut(&request) {
            drafts.extend(row.drafts.drain(..).take(k));
        }
        Evidence::Model
    }

    fn confidences(&self, request: RequestId) -> &[f32] {
        self.rows.get(&request).map_or(&[], |row| &row.confidences)
    }

    fn receive(&mut self, plan: &StepPlan, proposals: &Proposals) {
        let mut rest = (&proposals.tokens[..], &proposals.confidences[..]);
        for (at, planned) in plan.rows.iter().enumerate() {
            let count = proposals.counts.get(at).map_or(0, |count| *count as usize);
            let (tokens, confidences) = (rest.0.split_at(count), rest.1.split_at(count));
            rest = (tokens.1, confidences.1);
            if let Some(row) = self.rows.get_mut(&planned.request) {
                row.drafts.clear();
                row.drafts.extend_from_slice(tokens.0);
                row.confidences.clear();
                if !confidences.0.iter().any(|chance| chance.is_nan()) {
                    row.confidences.extend_from_slice(confidences.0);
                }
            }
        }
    }

    fn finish(&mut self, request: RequestId) {
        self.rows.remove(&request);
    }
}
