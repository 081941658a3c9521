//! A compiled grammar, and one output on its way through it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use frizzen_core::{Constraint, Error, Result, TokenId, TokenMatcher};

use crate::spec::{GrammarError, GrammarSpec};

/// A compiled grammar. Immutable; shared by every request that asks for it.
pub struct Grammar {
    /// Before the first token. Matchers are deep copies of it, so that no request's lexer grows by another's text.
    start: Mutex<llguidance::Matcher>,
    dropped: Vec<String>,
    end: Arc<[TokenId]>,
    spec: GrammarSpec,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Grammar").field("dropped", &self.dropped).finish_non_exhaustive()
    }
}

/// Why a grammar that is neither satisfied nor has a next token stops.
const DEAD_END: &str = "no token can follow";

/// What a message of the grammar library says, in one line: it appends its state, backtraces and drawings.
pub(crate) fn reason(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with('<'));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let first = lines.first().copied().unwrap_or("the grammar engine gave no reason");
    // The parser of regular expressions repeats its input, points at a place in it, and then says what is wrong.
    let fault = lines.iter().find_map(|line| line.strip_prefix("error: "));
    let line = match (fault, lines.get(1)) {
        (Some(fault), Some(input)) if first == "regex parse error:" => {
            format!("invalid regex {:?}: {fault}", input.chars().take(80).collect::<String>())
        }
        (Some(fault), _) => {
            format!("{}: {fault}", first.trim_end_matches(" (in regex): regex parse error:"))
        }
        (None, _) if first.starts_with("oneOf constraints are not supported") => {
            "oneOf cannot be enforced unless its alternatives exclude each other by type or by a required constant"
                .to_owned()
        }
        (None, _) if first == "NoExtensionBias" => DEAD_END.to_owned(),
        (None, _) => first.to_owned(),
    };
    line.chars().take(300).collect()
}

impl Grammar {
    /// Wraps a matcher before its first token. `end` are the ids that the library takes for ends of text; `dropped`
    /// what a lenient compilation left out.
    ///
    /// # Errors
    /// A grammar that allows no first token, or is too complex to say which.
    pub(crate) fn new(
        mut start: llguidance::Matcher,
        end: Arc<[TokenId]>,
        dropped: Vec<String>,
        spec: GrammarSpec,
    ) -> std::result::Result<Self, GrammarError> {
        let mask = start.compute_mask().map_err(|error| match reason(&error) {
            reason if reason == DEAD_END => GrammarError::new("nothing satisfies it"),
            reason => GrammarError::new(reason),
        })?;
        if !mask.iter().any(|token| !end.contains(&token)) {
            return Err(GrammarError::new("only the empty text satisfies it"));
        }
        Ok(Self { start: Mutex::new(start), dropped, end, spec })
    }

    /// What it was compiled from.
    pub const fn spec(&self) -> &GrammarSpec {
        &self.spec
    }

    /// What a lenient compilation left out; empty if every part of the specification is enforced.
    pub fn dropped(&self) -> &[String] {
        &self.dropped
    }

    /// A matcher before the first token.
    pub fn start(&self) -> Matcher {
        let inner = self.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Matcher { inner, end: Arc::clone(&self.end), accepted: 0 }
    }
}

impl Constraint for Grammar {
    fn matcher(&self) -> Box<dyn TokenMatcher> {
        Box::new(self.start())
    }
}

/// One output on its way through a grammar.
pub struct Matcher {
    inner: llguidance::Matcher,
    end: Arc<[TokenId]>,
    accepted: usize,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Matcher").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

fn failed(error: &impl fmt::Display) -> Error {
    Error::Request { message: format!("the grammar cannot go on: {}", reason(error)) }
}

impl TokenMatcher for Matcher {
    fn fill(&mut self, mask: &mut [u32]) -> Result<()> {
        mask.fill(0);
        if self.is_complete() {
            return Ok(());
        }
        let allowed = self.inner.compute_mask().map_err(|error| failed(&error))?;
        for (word, allowed) in mask.iter_mut().zip(allowed.as_slice()) {
            *word = *allowed;
        }
        // The caller decides about ends: which ids end this request, and when.
        for id in &*self.end {
            if let Some(word) = mask.get_mut(*id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<()> {
        let taken = !self.end.contains(&token)
            && self.inner.try_consume_tokens(&[token]).map_err(|error| failed(&error))? == 1;
        if !taken {
            let at = self.accepted;
            return Err(Error::Request {
                message: format!("the grammar forbids token {token} at position {at} of the output"),
            });
        }
        self.accepted += 1;
        Ok(())
    }

    fn validate(&mut self, tokens: &[TokenId]) -> usize {
        let before_end = tokens.iter().position(|token| self.end.contains(token)).unwrap_or(tokens.len());
        if self.is_complete() {
            return 0;
        }
        // A matcher that failed allows nothing.
        self.inner.validate_tokens(&tokens[..before_end]).unwrap_or(0)
    }

    fn rollback(&mut self, count: usize) -> Result<()> {
        if count > self.accepted {
            let accepted = self.accepted;
            return Err(Error::Request {
                message: format!("{count} tokens cannot be taken back, {accepted} were accepted"),
            });
        }
        self.inner.rollback(count).map_err(|error| failed(&error))?;
        self.accepted -= count;
        Ok(())
    }

    fn can_end(&mut self) -> bool {
        self.is_complete() || self.inner.is_accepting().unwrap_or(false)
    }

    fn is_complete(&self) -> bool {
        !self.inner.is_error() && self.inner.is_stopped()
    }

    fn fork(&self) -> Box<dyn TokenMatcher> {
        Box::new(Self { inner: self.inner.deep_clone(), end: Arc::clone(&self.end), accepted: self.accepted })
    }
}
