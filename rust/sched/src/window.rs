//! Where a grammar begins to bind in a window of tokens.
//!
//! A *window* is the tokens under consideration: drafts that are to be verified, or tokens that were just accepted. While
//! a model reasons, the grammar does not bind; it binds from the token after the marker that ends the reasoning. The
//! marker may stand anywhere in a window, so every consumer asks the same question and gets one integer.

use std::sync::Arc;

use frizzen_core::TokenId;

/// Index of the first token of a window of `n` tokens that the grammar binds. `n` is the token after the window;
/// `n + 1` is no token so far, not even that one.
///
/// One integer keeps every comparison total. The three consumers compare differently, on purpose: hence three methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConstraintStart(usize);

impl ConstraintStart {
    /// The whole window is bound.
    pub const BEGINNING: Self = Self(0);

    /// The first bound token of the window.
    pub const fn index(self) -> usize {
        self.0
    }

    /// Draft validation: no token of the window is bound, so the grammar has nothing to say about any of them.
    pub const fn leaves_drafts_unvalidated(self, window_len: usize) -> bool {
        self.0 >= window_len
    }

    /// Acceptance: the reasoning has not ended by the end of the window. With a start of exactly `window_len` it has, and
    /// that must be remembered although there is nothing to feed.
    pub const fn is_beyond_accepted(self, window_len: usize) -> bool {
        self.0 > window_len
    }

    /// Mask rows: the row that chooses the token after `tokens` tokens of the window is bound.
    pub const fn binds_row_after(self, tokens: usize) -> bool {
        self.0 <= tokens
    }
}

/// The token sequences that begin and end reasoning. The sequence that was completed last decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Begins reasoning again; `None` if it cannot be reopened, so that the first end is final.
    pub begin: Option<Arc<[TokenId]>>,
    /// Ends reasoning; not empty.
    pub end: Arc<[TokenId]>,
}

/// A state machine over tokens that knows whether reasoning has ended. Its state is a function of the tokens alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningBoundary {
    markers: ReasoningMarkers,
    ended: bool,
    /// The last tokens, as many as a marker that is not complete yet can have.
    tail: Vec<TokenId>,
}

impl ReasoningBoundary {
    /// The state after `prompt`: a template may have opened the reasoning already, or closed it. Without any marker,
    /// reasoning has not ended.
    pub fn after(markers: ReasoningMarkers, prompt: &[TokenId]) -> Self {
        let mut boundary = Self { markers, ended: false, tail: Vec::new() };
        boundary.advance(prompt);
        boundary
    }

    /// True if reasoning has ended.
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Moves past tokens.
    pub fn advance(&mut self, tokens: &[TokenId]) {
        let begin = self.markers.begin.as_deref().unwrap_or_default();
        let kept = begin.len().max(self.markers.end.len());
        for token in tokens {
            self.tail.push(*token);
            let ends = self.tail.ends_with(&self.markers.end);
            let begins = !begin.is_empty() && self.tail.ends_with(begin);
            // If one marker ends in the other, the longer one was meant.
            self.ended = match (begins, ends) {
                (true, true) => self.markers.end.len() > begin.len(),
                (true, false) => false,
                (false, true) => true,
                (false, false) => self.ended,
            };
            if self.tail.len() >= kept.max(1) {
                self.tail.remove(0);
            }
        }
    }
}

/// What part of an output a grammar binds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConstraintScope {
    /// `None` if everything from here on is bound: there is no reasoning, it is bound too, or it has ended for good.
    boundary: Option<ReasoningBoundary>,
}

impl ConstraintScope {
    /// Binds what follows the reasoning of an output to this prompt.
    pub fn after_reasoning(markers: ReasoningMarkers, prompt: &[TokenId]) -> Self {
        let boundary = ReasoningBoundary::after(markers, prompt);
        Self { boundary: (!boundary.is_ended()).then_some(boundary) }
    }

    /// Where the grammar begins to bind in `window`, the tokens that follow those that were accepted.
    ///
    /// The last boundary wins: a window that ends the reasoning, reopens it and ends it again is bound after the last
    /// end only.
    pub fn start(&self, window: &[TokenId]) -> ConstraintStart {
        let Some(boundary) = &self.boundary else { return ConstraintStart::BEGINNING };
        let mut boundary = boundary.clone();
        // The first token after the last marker that ended the reasoning, if nothing has reopened it since.
        let mut start = None;
        for (at, token) in window.iter().enumerate() {
            boundary.advance(std::slice::from_ref(token));
            start = if boundary.is_ended() { start.or(Some(at + 1)) } else { None };
        }
        ConstraintStart(start.unwrap_or(window.len() + 1))
    }

    /// Moves past accepted tokens; returns those that the grammar has to take.
    pub fn accept<'a>(&mut self, window: &'a [TokenId]) -> &'a [TokenId] {
        let start = self.start(window);
        if start.is_beyond_accepted(window.len()) {
            if let Some(boundary) = &mut self.boundary {
                boundary.advance(window);
            }
            return &[];
        }
        self.boundary = None;
        &window[start.index()..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const E: TokenId = 100;
    const S: TokenId = 101;

    fn scope(reopens: bool) -> ConstraintScope {
        let markers = ReasoningMarkers { begin: reopens.then(|| [S].into()), end: [E].into() };
        ConstraintScope::after_reasoning(markers, &[1, 2])
    }

    /// `specs` of the window: each row of its table, for a parser in which the last marker wins and for one that
    /// only looks for an end.
    #[test]
    fn the_start_of_every_window_of_the_table() {
        let (a, b, c, d) = (1, 2, 3, 4);
        let table: [(&[TokenId], usize, usize); 9] = [
            (&[], 1, 1),
            (&[a, b], 3, 3),
            (&[E], 1, 1),
            (&[a, E], 2, 2),
            (&[a, E, b], 2, 2),
            (&[a, E, b, S, c], 6, 2),
            (&[a, E, b, S, c, E], 6, 2),
            (&[a, E, b, S, c, E, d], 6, 2),
            (&[E, a, E], 1, 1),
        ];
        for (window, last_marker, contains_end) in table {
            assert_eq!(scope(true).start(window).index(), last_marker, "{window:?}, last marker wins");
            assert_eq!(scope(false).start(window).index(), contains_end, "{window:?}, contains an end");
        }
    }

    #[test]
    fn the_three_consumers_differ_at_n_and_at_n_plus_one() {
        let n = 3;
        let consumers = |start: usize| {
            let start = ConstraintStart(start);
            (start.leaves_drafts_unvalidated(n), start.is_beyond_accepted(n), start.binds_row_after(n))
        };
        assert_eq!(consumers(n - 1), (false, false, true));
        assert_eq!(
            consumers(n),
            (true, false, true),
            "nothing to validate; remembered; the next row is bound"
        );
        assert_eq!(
            consumers(n + 1),
            (true, true, false),
            "nothing to validate; not ended; the next row is free"
        );
    }

    #[test]
    fn everything_is_bound_without_reasoning_and_after_a_prompt_that_ended_it() {
        assert_eq!(ConstraintScope::default().start(&[1, E, S]), ConstraintStart::BEGINNING);
        let markers = ReasoningMarkers { begin: Some([S].into()), end: [E].into() };
        let ended = ConstraintScope::after_reasoning(markers.clone(), &[S, 5, E, 6]);
        assert_eq!(ended.start(&[S]), ConstraintStart::BEGINNING);
        let opened = ConstraintScope::after_reasoning(markers, &[E, S]);
        assert_eq!(opened.start(&[]).index(), 1);
    }

    #[test]
    fn an_end_that_is_the_last_accepted_token_is_remembered() {
        let mut scope = scope(true);
        assert_eq!(scope.accept(&[7, E]), &[] as &[TokenId]);
        assert_eq!(scope.start(&[S, 8]), ConstraintStart::BEGINNING);
        assert_eq!(scope.accept(&[S, 8]), &[S, 8]);
    }

    #[test]
    fn a_marker_of_several_tokens_is_found_across_windows() {
        let markers = ReasoningMarkers { begin: Some([1, 2].into()), end: [1, 2, 3].into() };
        let mut scope = ConstraintScope::after_reasoning(markers, &[1]);
        assert_eq!(scope.accept(&[2, 9, 1]), &[] as &[TokenId]);
        assert_eq!(scope.start(&[2]).index(), 2);
        assert_eq!(scope.accept(&[2]), &[] as &[TokenId]);
        assert_eq!(scope.start(&[3, 9]).index(), 1);
        assert_eq!(scope.accept(&[3, 9, 1]), &[9, 1]);
    }

    /// The state of reasoning after all of `tokens`, by looking at every place where a marker could end.
    fn ended(markers: &ReasoningMarkers, tokens: &[TokenId]) -> bool {
        let mut ended = false;
        for end in 1..=tokens.len() {
            let completed = |marker: &[TokenId]| !marker.is_empty() && tokens[..end].ends_with(marker);
            let begin = markers.begin.as_deref().unwrap_or_default();
            let (begins, ends) = (completed(begin), completed(&markers.end));
            if begins || ends {
                ended = ends && !(begins && begin.len() >= markers.end.len());
            }
        }
        ended
    }

    /// The definition: the last unbroken run of prefixes after which reasoning has ended, scanned from the end.
    fn oracle(markers: &ReasoningMarkers, history: &[TokenId], window: &[TokenId]) -> usize {
        if ended(markers, history) {
            return 0;
        }
        let n = window.len();
        let after = |tokens: usize| ended(markers, &[history, &window[..tokens]].concat());
        if n == 0 {
            return 1;
        }
        if !after(n) {
            return n + 1;
        }
        (1..n).rev().find(|prefix| !after(*prefix)).map_or(1, |prefix| prefix + 1)
    }

    proptest! {
        #[test]
        fn the_start_is_what_the_definition_says(
            begin in prop::option::of(prop::collection::vec(0..3_u32, 1..3)),
            end in prop::collection::vec(0..3_u32, 1..4),
            history in prop::collection::vec(0..4_u32, 0..6),
            window in prop::collection::vec(0..4_u32, 0..8),
        ) {
            let markers = ReasoningMarkers { begin: begin.map(Into::into), end: end.into() };
            let scope = ConstraintScope::after_reasoning(markers.clone(), &history);
            let start = scope.start(&window);
            prop_assert_eq!(start.index(), oracle(&markers, &history, &window));
            prop_assert_eq!(scope.start(&window), start, "asking changes nothing");
        }

        /// Accepting a window in any split binds the same tokens, unless the window closes and reopens the reasoning:
        /// then the grammar was not bound in between, because the whole window was chosen under one mask.
        #[test]
        fn accepting_agrees_with_the_start(
            end in prop::collection::vec(0..3_u32, 1..4),
            window in prop::collection::vec(0..4_u32, 0..8),
            cut in 0..8_usize,
        ) {
            let markers = ReasoningMarkers { begin: None, end: end.into() };
            let mut whole = ConstraintScope::after_reasoning(markers, &[]);
            let mut parts = whole.clone();
            let start = whole.start(&window);
            let bound = whole.accept(&window).to_vec();
            prop_assert_eq!(&bound, &window.get(start.index()..).unwrap_or_default().to_vec());
            let (first, second) = window.split_at(cut.min(window.len()));
            let mut joined = parts.accept(first).to_vec();
            joined.extend_from_slice(parts.accept(second));
            prop_assert_eq!(joined, bound);
            prop_assert_eq!(parts.start(&[]), whole.start(&[]));
        }
    }
}
