//! One request's constraint on its way: masks for the positions of a step, and the tokens that came back.

use frizzen_core::{
    BannedSequences, Constraint, Error, FinishReason, FreeText, Request, StopReason, TokenId, TokenMatcher,
};

use crate::plan::LAST_SAMPLED;
use crate::window::{Allowed, ConstraintScope};

/// A matcher, how far it has come, and what part of the output it binds.
#[derive(Debug)]
pub(crate) struct Constrained {
    matcher: Box<dyn TokenMatcher>,
    scope: ConstraintScope,
    /// What the output may not hold, reasoning included; only a marker that is forced is not held to it.
    banned: BannedSequences,
    /// How much of that the output ends in.
    tail: u32,
    /// The first row of the step in flight for which no mask could be made, and why: what it chose cannot count. Drafts
    /// may lead there where the tokens that come do not.
    failure: Option<(usize, Error)>,
    /// What follows the window of the step in flight, where one token only is allowed, again and again.
    foreseen: Vec<TokenId>,
    /// Tokens of that window.
    window: usize,
    /// A mask that no worker sees.
    scratch: Vec<u32>,
}

/// Most tokens that are appended without a step of their own.
const MAX_FORESEEN: usize = 32;

impl Constrained {
    /// What holds the output of a request; `None` if nothing does.
    pub fn of(request: &Request) -> Option<Self> {
        let banned = BannedSequences::new(request.params.banned_sequences.iter().map(Vec::as_slice));
        match request.constraint.as_deref() {
            Some(constraint) => Some(Self::new(constraint, banned)),
            None if banned.is_empty() => None,
            None => Some(Self::with(Box::new(FreeText), ConstraintScope::default(), banned)),
        }
    }

    fn new(constraint: &dyn Constraint, banned: BannedSequences) -> Self {
        let mut matcher = constraint.matcher();
        let scope = constraint.reasoning().map_or_else(ConstraintScope::default, |reasoning| {
            let bound = !matcher.is_free();
            ConstraintScope::of(reasoning, bound.then_some(|token| matcher.validate(&[token]) == 1))
        });
        Self::with(matcher, scope, banned)
    }

    fn with(matcher: Box<dyn TokenMatcher>, scope: ConstraintScope, banned: BannedSequences) -> Self {
        let (foreseen, scratch) = (Vec::new(), Vec::new());
        Self { matcher, scope, banned, tail: 0, failure: None, foreseen, window: 0, scratch }
    }

    #[cfg(test)]
    fn with_scope(constraint: &dyn Constraint, scope: ConstraintScope) -> Self {
        Self::with(constraint.matcher(), scope, BannedSequences::default())
    }

    /// True if nothing is constrained any more: reasoning was all that there was to watch, and it has ended.
    pub fn is_over(&self) -> bool {
        self.banned.is_empty() && self.matcher.is_free() && self.scope.is_bound_for_good()
    }

    /// How many of `drafts`, from the front, the constraint may let through. `stops` end the request: no draft after one.
    ///
    /// The token that completes the text is none of them: the row before it samples it anyway, and the row after it, where
    /// only stop tokens may follow, could fail the request for nothing if other rules forbid these (`min_tokens`).
    pub fn validate(&mut self, drafts: &[TokenId], stops: &[TokenId]) -> usize {
        let mut walk = self.walk();
        let mut kept = 0;
        for token in drafts {
            let stop = stops.contains(token);
            if stop && !self.matcher.can_end() || self.step_over(*token, stop, &mut walk).is_err() {
                break;
            }
            if walk.advanced > 0 && self.matcher.is_complete() {
                break;
            }
            kept += 1;
            if stop {
                break;
            }
        }
        self.take_back(&walk);
        kept
    }

    /// Writes one mask of `words` words per token of `window`, and one more: row `i` is for the token after `i` tokens
    /// of the window. Rows that nothing binds are all ones.
    ///
    /// `stops` end the request; they are allowed where the output may end, and nowhere else, reasoning included. A window
    /// ends at its first [`LAST_SAMPLED`], which is padding: the row before it is the last that is bound. A token that
    /// the constraint forbids is no error here: verification refuses it, and later rows repeat the last one that is
    /// known.
    pub fn fill(&mut self, window: &[i32], stops: &[TokenId], words: usize, masks: &mut [u32]) {
        debug_assert_eq!(masks.len(), (window.len() + 1) * words, "a mask per sampled position");
        let padding = window.iter().position(|token| *token == LAST_SAMPLED);
        let known = &window[..padding.unwrap_or(window.len())];
        masks.fill(u32::MAX);
        // Where the drafts of a step led that did not happen (a preemption, no memory). The first row needs none.
        self.failure.take_if(|(row, _)| *row > 0);
        let mut walk = self.walk();
        self.foreseen.clear();
        for row in 0..=known.len() {
            let (at, end) = (row * words, (row + 1) * words);
            if let Err(error) = self.fill_row(&walk, stops, &mut masks[at..end]) {
                // The worker needs some token to choose; what it chooses does not count.
                masks[at..end].fill(u32::MAX);
                self.failure = Some((row, error));
                break;
            }
            let Some(token) = known.get(row).map(|token| *token as TokenId) else {
                self.window = known.len();
                self.foresee(only_token(&masks[at..end]), stops, words, &mut walk);
                break;
            };
            let stop = stops.contains(&token);
            if stop && self.matcher.can_end() {
                // Nothing that the rows after the end choose can count.
                break;
            }
            if stop || self.step_over(token, false, &mut walk).is_err() {
                for later in row + 1..=known.len() {
                    masks.copy_within(at..end, later * words);
                }
                break;
            }
        }
        self.take_back(&walk);
    }

    /// Goes on from a row that allows one token only, for as long as that is so. While the model runs this costs nothing,
    /// and the tokens after the first one need no sampling.
    fn foresee(&mut self, mut only: Option<TokenId>, stops: &[TokenId], words: usize, walk: &mut Walk) {
        let mut mask = std::mem::take(&mut self.scratch);
        while let Some(token) = only.filter(|token| !stops.contains(token))
            && self.foreseen.len() < MAX_FORESEEN
            && self.step_over(token, false, walk).is_ok()
        {
            self.foreseen.push(token);
            mask.clear();
            mask.resize(words, u32::MAX);
            let filled = !self.matcher.is_complete() && self.fill_row(walk, stops, &mut mask).is_ok();
            only = only_token(&mask).filter(|_| filled);
        }
        self.scratch = mask;
    }

    /// The tokens that follow `sampled`, those of the step in flight, because nothing else may. To be accepted like
    /// sampled ones.
    pub fn take_foreseen(&mut self, sampled: &[TokenId]) -> Vec<TokenId> {
        // If a draft was refused, the last token is not that of the last row.
        let last_row = sampled.len() == self.window + 1 && sampled.last() == self.foreseen.first();
        if last_row && self.foreseen.len() > 1 { self.foreseen.drain(1..).collect() } else { Vec::new() }
    }

    /// Moves past a token of a window. An error leaves everything as it was.
    fn step_over(&mut self, token: TokenId, stop: bool, walk: &mut Walk) -> Result<(), Error> {
        if stop {
            return if self.banned.forbids(walk.tail, token) { Err(completes(token)) } else { Ok(()) };
        }
        match walk.scope.allowed() {
            Allowed::Only(only) if only != token => return Err(forbidden(token)),
            Allowed::Only(_) => {}
            _ if self.banned.forbids(walk.tail, token) => return Err(completes(token)),
            Allowed::AllBut(some) if some.contains(&token) => return Err(forbidden(token)),
            Allowed::Bound(opening) if opening != Some(token) => {
                self.matcher.accept(token)?;
                walk.advanced += 1;
            }
            _ => {}
        }
        walk.scope.advance(token);
        walk.tail = self.banned.step(walk.tail, token);
        Ok(())
    }

    fn walk(&self) -> Walk {
        Walk { scope: self.scope.clone(), tail: self.tail, advanced: 0 }
    }

    fn take_back(&mut self, walk: &Walk) {
        if let Err(error) = self.matcher.rollback(walk.advanced)
            && self.failure.is_none()
        {
            self.failure = Some((0, error));
        }
    }

    /// Writes the mask of the state that the walk and the matcher are in.
    fn fill_row(&mut self, walk: &Walk, stops: &[TokenId], mask: &mut [u32]) -> Result<(), Error> {
        let can_end = self.matcher.can_end();
        match walk.scope.allowed() {
            Allowed::Only(token) => {
                mask.fill(0);
                set(mask, token, true);
                return Ok(());
            }
            Allowed::AllBut(some) => {
                if !can_end {
                    set_all(mask, stops, false);
                }
                set_all(mask, some, false);
            }
            Allowed::Bound(opening) => {
                self.matcher.fill(mask)?;
                set_all(mask, stops, can_end);
                if let Some(token) = opening {
                    set(mask, token, true);
                }
            }
        }
        set_all(mask, self.banned.forbidden(walk.tail), false);
        if mask.iter().any(|word| *word != 0) {
            return Ok(());
        }
        if can_end {
            // The output is complete and no token says so: what this row chooses is dropped.
            mask.fill(u32::MAX);
            return Ok(());
        }
        let message =
            "no token can follow that the grammar, the request's stop tokens and its bad_words all allow";
        Err(Error::invalid("structured_outputs", message))
    }

    /// Takes over tokens that were sampled, the last of which may be a stop. Returns how many of them count, and the end
    /// of the request if this is it.
    pub fn accept(&mut self, tokens: &[TokenId], ends_in_stop: bool) -> (usize, Option<FinishReason>) {
        if tokens.is_empty() {
            // A chunk of the prompt: masks that were filled since are those of a later step.
            return (0, None);
        }
        let mut failure = self.failure.take();
        for (at, token) in tokens.iter().enumerate() {
            if let Some((_, error)) = failure.take_if(|(row, _)| *row == at) {
                return (at, Some(FinishReason::Error(error)));
            }
            if ends_in_stop && at + 1 == tokens.len() {
                if self.matcher.can_end() {
                    break;
                }
                let message = format!("the grammar forbids the end of the output at token {token}");
                return (at, Some(FinishReason::Error(Error::Request { message })));
            }
            let mut walk = Walk { scope: std::mem::take(&mut self.scope), tail: self.tail, advanced: 0 };
            let taken = self.step_over(*token, false, &mut walk);
            (self.scope, self.tail) = (walk.scope, walk.tail);
            if let Err(error) = taken {
                return (at, Some(FinishReason::Error(error)));
            }
            if walk.advanced > 0 && self.matcher.is_complete() {
                return (at + 1, Some(FinishReason::Stop(StopReason::Complete)));
            }
        }
        (tokens.len(), None)
    }
}

fn completes(token: TokenId) -> Error {
    Error::Request {
        message: format!("token {token} cannot follow here: it would complete one of bad_words"),
    }
}

fn forbidden(token: TokenId) -> Error {
    Error::Request { message: format!("token {token} cannot follow here: a marker of reasoning is forced") }
}

/// The token of a mask that allows one.
fn only_token(mask: &[u32]) -> Option<TokenId> {
    let mut words = mask.iter().enumerate().filter(|(_, word)| **word != 0);
    let (at, word) = words.next()?;
    (word.is_power_of_two() && words.next().is_none()).then(|| at as u32 * 32 + word.trailing_zeros())
}

fn set_all(mask: &mut [u32], tokens: &[TokenId], allowed: bool) {
    for token in tokens {
        set(mask, *token, allowed);
    }
}

fn set(mask: &mut [u32], token: TokenId, allowed: bool) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        let bit = 1 << (token % 32);
        *word = if allowed { *word | bit } else { *word & !bit };
    }
}

/// A walk over the tokens of a window.
struct Walk {
    scope: ConstraintScope,
    /// How much of the banned sequences the tokens so far end in.
    tail: u32,
    /// Tokens that the matcher took, to be taken back.
    advanced: usize,
}

#[cfg(test)]
#[path = "tests/constrained.rs"]
mod tests;
