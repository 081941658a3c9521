//! One request's constraint on its way: masks for the positions of a step, and the tokens that came back.

use frizzen_core::{Constraint, Error, FinishReason, StopReason, TokenId, TokenMatcher};

use crate::plan::LAST_SAMPLED;
use crate::window::ConstraintScope;

/// A matcher, how far it has come, and what part of the output it binds.
#[derive(Debug)]
pub(crate) struct Constrained {
    matcher: Box<dyn TokenMatcher>,
    scope: ConstraintScope,
    /// Why the step in flight cannot count: no mask could be made for it.
    failure: Option<Error>,
}

impl Constrained {
    pub fn new(constraint: &dyn Constraint, scope: ConstraintScope) -> Self {
        Self { matcher: constraint.matcher(), scope, failure: None }
    }

    /// How many of `drafts`, from the front, the constraint may let through. `stops` end the request: no draft after one.
    pub fn validate(&mut self, drafts: &[TokenId]) -> usize {
        let start = self.scope.start(drafts);
        if start.leaves_drafts_unvalidated(drafts.len()) {
            return drafts.len();
        }
        start.index() + self.matcher.validate(&drafts[start.index()..])
    }

    /// Appends one mask of `words` words per token of `window`, and one more: row `i` is for the token after `i` tokens
    /// of the window. Rows that nothing binds are all ones.
    ///
    /// `stops` end the request; they are allowed where the output may end, and nowhere else. A window ends at its first
    /// [`LAST_SAMPLED`], which is padding: the row before it is the last that is bound. A token that the constraint
    /// forbids is no error here: verification refuses it, and later rows repeat the last one that is known.
    pub fn fill(&mut self, window: &[i32], stops: &[TokenId], words: usize, masks: &mut Vec<u32>) {
        let known: Vec<TokenId> = window
            .iter()
            .take_while(|token| **token != LAST_SAMPLED)
            .map(|token| *token as TokenId)
            .collect();
        let start = self.scope.start(&known);
        let end = masks.len() + (window.len() + 1) * words;
        let mut walk = Walk { advanced: 0, ended: false, refused_after: None };
        for row in 0..=window.len() {
            let at = masks.len();
            masks.resize(at + words, u32::MAX);
            if row > known.len() || !start.binds_row_after(row) || walk.ended {
                continue;
            }
            if let Some(last) = walk.refused_after {
                masks.copy_within(last..last + words, at);
                continue;
            }
            let can_end = match self.fill_row(stops, &mut masks[at..]) {
                Ok(can_end) => can_end,
                Err(error) => {
                    // The worker needs some token to choose; what it chooses does not count.
                    masks[at..].fill(u32::MAX);
                    self.failure = Some(error);
                    break;
                }
            };
            if let Some(token) = known.get(row) {
                self.step_over(*token, stops, can_end, at, &mut walk);
            }
        }
        masks.resize(end, u32::MAX);
        if self.failure.is_none()
            && let Err(error) = self.matcher.rollback(walk.advanced)
        {
            self.failure = Some(error);
        }
    }

    /// Writes the mask of the current state; returns whether the output may end here.
    fn fill_row(&mut self, stops: &[TokenId], mask: &mut [u32]) -> Result<bool, Error> {
        self.matcher.fill(mask)?;
        let can_end = self.matcher.can_end();
        for stop in stops {
            if let Some(word) = mask.get_mut(*stop as usize / 32) {
                let bit = 1 << (stop % 32);
                *word = if can_end { *word | bit } else { *word & !bit };
            }
        }
        if mask.iter().all(|word| *word == 0) {
            if can_end {
                // The output is complete and no token says so: what this row chooses is dropped.
                mask.fill(u32::MAX);
                return Ok(true);
            }
            return Err(Error::Request {
                message: "no token can follow that both the grammar and the request's stop tokens allow"
                    .to_owned(),
            });
        }
        Ok(can_end)
    }

    fn step_over(&mut self, token: TokenId, stops: &[TokenId], can_end: bool, row: usize, walk: &mut Walk) {
        if stops.contains(&token) {
            walk.ended = can_end;
        } else if self.matcher.accept(token).is_ok() {
            walk.advanced += 1;
            return;
        }
        if !walk.ended {
            walk.refused_after = Some(row);
        }
    }

    /// Takes over tokens that were sampled, the last of which may be a stop. Returns how many of them count, and the end
    /// of the request if this is it.
    pub fn accept(&mut self, tokens: &[TokenId], ends_in_stop: bool) -> (usize, Option<FinishReason>) {
        if let Some(error) = self.failure.take() {
            return (0, Some(FinishReason::Error(error)));
        }
        let bound = self.scope.accept(tokens);
        let first = tokens.len() - bound.len();
        for (at, token) in bound.iter().enumerate() {
            let at = first + at;
            if ends_in_stop && at + 1 == tokens.len() {
                if self.matcher.can_end() {
                    break;
                }
                let message = format!("the grammar forbids the end of the output at token {token}");
                return (at, Some(FinishReason::Error(Error::Request { message })));
            }
            if let Err(error) = self.matcher.accept(*token) {
                return (at, Some(FinishReason::Error(error)));
            }
            if self.matcher.is_complete() {
                return (at + 1, Some(FinishReason::Stop(StopReason::Complete)));
            }
        }
        (tokens.len(), None)
    }
}

/// A walk over the tokens of a window.
struct Walk {
    /// Tokens that the matcher took, to be taken back.
    advanced: usize,
    /// A stop was stepped over: the rows after it are free, because nothing that they choose can count.
    ended: bool,
    /// Where the mask begins that forbade a token of the window.
    refused_after: Option<usize>,
}

#[cfg(test)]
#[path = "tests/constrained.rs"]
mod tests;
