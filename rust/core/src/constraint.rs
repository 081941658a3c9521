//! What the engine needs of a constraint on a request's tokens. Grammars implement it; the scheduler drives it.
//!
//! The two traits keep grammar engines out of the scheduler, and a mask is all that a worker ever sees.

use std::fmt::Debug;

use crate::{Reasoning, Result, TokenId};

/// A compiled constraint, shared by every request that asks for it.
pub trait Constraint: Debug + Send + Sync {
    /// A matcher before the first token.
    fn matcher(&self) -> Box<dyn TokenMatcher>;

    /// What an engine in another process compiles this constraint from again; `None` if that is not possible.
    fn source(&self) -> Option<String> {
        None
    }

    /// What an output may hold before the part that the matcher sees; `None` if it sees everything.
    fn reasoning(&self) -> Option<&Reasoning> {
        None
    }
}

/// One output on its way through a constraint.
///
/// Tokens that end a request (the model's end-of-sequence ids and the request's stop ids) are the caller's: it never
/// hands them to [`Self::accept`], and allows them where [`Self::can_end`] is true. A matcher that has returned an
/// error stays unusable.
pub trait TokenMatcher: Debug + Send {
    /// Writes which tokens may come next: bit `id % 32` of word `id / 32`; bits past the vocabulary are 0.
    ///
    /// # Errors
    /// `Request` if the constraint became too complex to go on.
    fn fill(&mut self, mask: &mut [u32]) -> Result<()>;

    /// Moves past a token.
    ///
    /// # Errors
    /// `Request` if the constraint forbids it.
    fn accept(&mut self, token: TokenId) -> Result<()>;

    /// How many of `tokens`, from the front, could be accepted one after the other. Changes nothing.
    fn validate(&mut self, tokens: &[TokenId]) -> usize;

    /// Takes the last `count` accepted tokens back.
    ///
    /// # Errors
    /// `Request` if fewer were accepted.
    fn rollback(&mut self, count: usize) -> Result<()>;

    /// True if the text so far satisfies the constraint.
    fn can_end(&mut self) -> bool;

    /// True if the text so far satisfies the constraint and nothing may follow it.
    fn is_complete(&self) -> bool;

    /// True if every token may follow, now and later: nothing has to be asked any more.
    fn is_free(&self) -> bool {
        false
    }

    /// An independent matcher in the same state.
    fn fork(&self) -> Box<dyn TokenMatcher>;
}

/// The matcher that allows everything, for constraints that are only about what comes before.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreeText;

impl TokenMatcher for FreeText {
    fn fill(&mut self, mask: &mut [u32]) -> Result<()> {
        mask.fill(u32::MAX);
        Ok(())
    }

    fn accept(&mut self, _: TokenId) -> Result<()> {
        Ok(())
    }

    fn validate(&mut self, tokens: &[TokenId]) -> usize {
        tokens.len()
    }

    fn rollback(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn can_end(&mut self) -> bool {
        true
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn is_free(&self) -> bool {
        true
    }

    fn fork(&self) -> Box<dyn TokenMatcher> {
        Box::new(*self)
    }
}
