//! Where a grammar begins to bind in a window of tokens.
//!
//! A *window* is the tokens under consideration: drafts that are to be verified, or tokens that were just accepted. While
//! a model reasons, the grammar does not bind; it binds from the token after the marker that ends the reasoning. The
//! marker may stand anywhere in a window, so every consumer asks the same question and gets one integer.

use std::sync::Arc;

use frizzen_core::{Reasoning, ReasoningMarkers, TokenId};

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

/// A state machine over tokens that knows whether reasoning has ended. Its state is a function of the tokens alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningBoundary {
    markers: Arc<ReasoningMarkers>,
    /// Reasoning can be begun, and begun again.
    opens: bool,
    ended: bool,
    /// How many tokens of the beginning marker the tokens so far end in.
    begun: usize,
    /// The end marker's state.
    end: u8,
}

impl ReasoningBoundary {
    /// The state inside reasoning or, if not `open`, before it.
    pub fn new(markers: Arc<ReasoningMarkers>, open: bool) -> Self {
        let opens = markers.begin.as_ref().is_some_and(|begin| !begin.is_empty());
        Self { markers, opens, ended: !open, begun: 0, end: 0 }
    }

    /// The state after `prompt`: a template may have opened the reasoning already, or closed it. Without any marker,
    /// reasoning has not ended.
    pub fn after(markers: Arc<ReasoningMarkers>, prompt: &[TokenId]) -> Self {
        let mut boundary = Self::new(markers, true);
        for token in prompt {
            boundary.advance(*token);
        }
        boundary
    }

    /// True if reasoning has ended, or has not begun.
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    fn begin(&self) -> &[TokenId] {
        if self.opens { self.markers.begin.as_deref().unwrap_or_default() } else { &[] }
    }

    /// The next token of the marker that begins reasoning, if it can be begun here.
    fn opening(&self) -> Option<TokenId> {
        self.begin().get(self.begun).copied().filter(|_| self.ended)
    }

    /// Within the marker that begins reasoning.
    const fn is_opening(&self) -> bool {
        self.ended && self.begun > 0
    }

    /// Moves past a token.
    pub fn advance(&mut self, token: TokenId) {
        let begin = self.begin();
        self.begun = follow(begin, self.begun, token);
        let begins = self.begun > 0 && self.begun == self.begin().len();
        self.end = self.markers.end.step(self.end, token);
        let ends = self.markers.end.is_complete(self.end);
        // If one marker ends in the other, the longer one was meant.
        self.ended = match (begins, ends) {
            (true, true) => self.markers.end.len() > self.begun,
            (true, false) => false,
            (false, true) => true,
            (false, false) => self.ended,
        };
    }
}

/// How many tokens of `marker` the tokens end in that ended in `matched` of them, after one more.
fn follow(marker: &[TokenId], matched: usize, token: TokenId) -> usize {
    let read = &marker[..matched];
    let ends_in = |len: &usize| marker[*len - 1] == token && read.ends_with(&marker[..*len - 1]);
    (1..=marker.len().min(matched + 1)).rev().find(ends_in).unwrap_or(0)
}

/// Which tokens may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// Reasoning goes on: any token but these.
    AllBut(&'a [TokenId]),
    /// This one: a marker is being spelled.
    Only(TokenId),
    /// What the grammar allows and, if there is one, this token, which begins reasoning.
    Bound(Option<TokenId>),
}

/// What part of an output a grammar binds, and what the part before it may be.
///
/// Reasoning may be begun where nothing else has come yet, and its end is final: what follows is bound, a marker that
/// would begin it again included. So the state after some tokens does not depend on the windows in which they came,
/// whatever markers stand in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConstraintScope {
    /// `None` if everything from here on is bound: there is no reasoning, it is bound too, or it has ended for good.
    boundary: Option<ReasoningBoundary>,
    /// Tokens of reasoning that are left before its end is forced.
    left: Option<u32>,
    /// How many tokens of the end marker were forced.
    forced: usize,
    /// Nothing is bound: reasoning is only counted, and may be begun again.
    free: bool,
}

impl ConstraintScope {
    /// Binds what follows the reasoning of an output to this prompt.
    pub fn after_reasoning(markers: ReasoningMarkers, prompt: &[TokenId]) -> Self {
        let boundary = ReasoningBoundary::after(Arc::new(markers), prompt);
        Self { boundary: (!boundary.is_ended()).then_some(boundary), ..Self::default() }
    }

    /// Binds what follows the reasoning of an output, or all of it if it does not reason.
    ///
    /// `bound_first` says whether the grammar allows a token as the first one. A marker of several tokens cannot begin
    /// reasoning if it does: nobody could tell one from the other. `None` if nothing is bound.
    pub fn of(reasoning: &Reasoning, bound_first: Option<impl FnOnce(TokenId) -> bool>) -> Self {
        let mut boundary = ReasoningBoundary::new(Arc::clone(&reasoning.markers), reasoning.open);
        boundary.opens &= reasoning.budget != Some(0);
        let free = bound_first.is_none();
        if let (Some(bound_first), [first, _, ..]) = (bound_first, boundary.begin())
            && bound_first(*first)
        {
            boundary.opens = false;
        }
        let can_reason = boundary.opens || reasoning.open;
        Self { boundary: can_reason.then_some(boundary), left: reasoning.budget, forced: 0, free }
    }

    /// True if everything from here on is bound.
    pub const fn is_bound_for_good(&self) -> bool {
        self.boundary.is_none()
    }

    /// Which tokens may come next.
    pub fn allowed(&self) -> Allowed<'_> {
        let Some(boundary) = &self.boundary else { return Allowed::Bound(None) };
        if self.start(&[]).binds_row_after(0) {
            return match boundary.opening() {
                Some(token) if boundary.is_opening() && !self.free => Allowed::Only(token),
                opening => Allowed::Bound(opening),
            };
        }
        let close = boundary.markers.close.get(self.forced);
        match close.filter(|_| self.left == Some(0)) {
            Some(token) => Allowed::Only(*token),
            None => Allowed::AllBut(boundary.markers.end.crossing(boundary.end)),
        }
    }

    /// Moves past a token that may come next, whatever the grammar says of it; true if the grammar has to take it.
    pub fn advance(&mut self, token: TokenId) -> bool {
        let start = self.start(&[token]);
        let Some(boundary) = &mut self.boundary else { return true };
        if boundary.opening() != Some(token) && !start.leaves_drafts_unvalidated(1) {
            // Reasoning cannot come back.
            self.boundary = None;
            return true;
        }
        let within = !boundary.ended;
        boundary.advance(token);
        if within && let Some(left) = &mut self.left {
            self.forced += usize::from(*left == 0);
            *left = left.saturating_sub(1);
        }
        if within && !start.is_beyond_accepted(1) {
            (boundary.begun, self.forced) = (0, 0);
            boundary.opens &= self.free && self.left != Some(0);
            if !boundary.opens {
                self.boundary = None;
            }
        }
        false
    }

    /// Where the grammar begins to bind in `window`, the tokens that follow those that were accepted.
    ///
    /// The last boundary wins: a window that ends the reasoning, reopens it and ends it again is bound after the last
    /// end only. Within such a window a token may be bound that stands before the reopening, so what may follow a token
    /// is never asked of a window that goes beyond it: [`Self::advance`] takes one token at a time.
    pub fn start(&self, window: &[TokenId]) -> ConstraintStart {
        let Some(boundary) = &self.boundary else { return ConstraintStart::BEGINNING };
        let mut boundary = boundary.clone();
        // The first token after the last marker that ended the reasoning, if nothing has reopened it since.
        let mut start = boundary.is_ended().then_some(0);
        for (at, token) in window.iter().enumerate() {
            boundary.advance(*token);
            start = if boundary.is_ended() { start.or(Some(at + 1)) } else { None };
        }
        ConstraintStart(start.unwrap_or(window.len() + 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const E: TokenId = 100;
    const S: TokenId = 101;

    fn scope(reopens: bool) -> ConstraintScope {
        let begin: Option<&[TokenId]> = if reopens { Some(&[S]) } else { None };
        let markers = ReasoningMarkers::of_tokens(begin, &[E]);
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
        let markers = ReasoningMarkers::of_tokens(Some(&[S]), &[E]);
        let ended = ConstraintScope::after_reasoning(markers.clone(), &[S, 5, E, 6]);
        assert_eq!(ended.start(&[S]), ConstraintStart::BEGINNING);
        let opened = ConstraintScope::after_reasoning(markers, &[E, S]);
        assert_eq!(opened.start(&[]).index(), 1);
    }

    /// The tokens of a window that the grammar has to take.
    fn fed(scope: &mut ConstraintScope, window: &[TokenId]) -> Vec<TokenId> {
        window.iter().copied().filter(|token| scope.advance(*token)).collect()
    }

    #[test]
    fn an_end_that_is_the_last_accepted_token_is_remembered() {
        let mut scope = scope(false);
        assert_eq!(fed(&mut scope, &[7, E]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::Bound(None));
        assert_eq!(scope.start(&[S, 8]), ConstraintStart::BEGINNING);
        assert_eq!(fed(&mut scope, &[S, 8]), [S, 8]);
    }

    #[test]
    fn a_close_and_a_reopening_in_one_window_are_decided_in_their_order() {
        for window in [&[7, E, S, 9, E, 8][..], &[E, 8, S, 5, E, 6]] {
            let mut reopened = scope(true);
            let at = window.iter().position(|token| *token == E).expect("it ends");
            assert_eq!(fed(&mut reopened, window), window[at + 1..], "the grammar refuses the S after the E");
            assert!(reopened.is_bound_for_good());
        }
    }

    #[test]
    fn a_marker_of_several_tokens_is_found_across_windows() {
        let markers = ReasoningMarkers::of_tokens(Some(&[1, 2]), &[1, 2, 3]);
        let mut scope = ConstraintScope::after_reasoning(markers, &[1]);
        assert_eq!(fed(&mut scope, &[2, 9, 1]), [0; 0]);
        assert_eq!(scope.start(&[2]).index(), 2);
        assert_eq!(fed(&mut scope, &[2]), [0; 0]);
        assert_eq!(scope.start(&[3, 9]).index(), 1);
        assert_eq!(fed(&mut scope, &[3, 9, 1]), [9, 1]);
    }

    #[test]
    fn an_output_may_begin_reasoning_with_a_marker_of_several_tokens() {
        let markers = Arc::new(ReasoningMarkers::of_tokens(Some(&[60, 61]), &[62, 63]));
        let reasoning = Reasoning { markers, open: false, budget: None };
        let mut scope = ConstraintScope::of(&reasoning, Some(|_| false));
        assert_eq!(scope.allowed(), Allowed::Bound(Some(60)));
        assert_eq!(fed(&mut scope.clone(), &[5, 60]), [5, 60]);
        assert_eq!(fed(&mut scope, &[60]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::Only(61), "half a marker is neither reasoning nor bound");
        assert_eq!(fed(&mut scope, &[61, 5, 62, 62, 63]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::Bound(None));
        let ambiguous = ConstraintScope::of(&reasoning, Some(|first| first == 60));
        assert_eq!(ambiguous.allowed(), Allowed::Bound(None), "the grammar may begin like the marker");
    }

    #[test]
    fn a_budget_forces_the_end_and_closes_reasoning_for_good() {
        let markers = Arc::new(ReasoningMarkers::of_tokens(Some(&[S]), &[E, 50]));
        let spend = |open: bool, budget: u32| {
            let reasoning = Reasoning { markers: Arc::clone(&markers), open, budget: Some(budget) };
            ConstraintScope::of(&reasoning, None::<fn(TokenId) -> bool>)
        };
        let mut scope = spend(true, 3);
        assert_eq!(fed(&mut scope, &[1, 2]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::AllBut(&[]));
        assert_eq!(fed(&mut scope, &[3]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::Only(E));
        assert_eq!(fed(&mut scope, &[E]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::Only(50));
        assert_eq!(fed(&mut scope, &[50]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::Bound(None), "nothing is left to think with");
        // What is left counts through all of it.
        let mut scope = spend(false, 4);
        assert_eq!(fed(&mut scope, &[S, 1, E, 50, S]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::AllBut(&[]), "one, and the two of the marker, are spent");
        assert_eq!(fed(&mut scope, &[2]), [0; 0]);
        assert_eq!(scope.allowed(), Allowed::Only(E));
        assert_eq!(spend(false, 0).allowed(), Allowed::Bound(None));
        assert_eq!(spend(true, 0).allowed(), Allowed::Only(E));
    }

    /// The state of reasoning after all of `tokens`, by looking at every place where a marker could end.
    fn ended(markers: &ReasoningMarkers, tokens: &[TokenId]) -> bool {
        let mut ended = false;
        for end in 1..=tokens.len() {
            let completed = |marker: &[TokenId]| !marker.is_empty() && tokens[..end].ends_with(marker);
            let begin = markers.begin.as_deref().unwrap_or_default();
            let (begins, ends) = (completed(begin), completed(&markers.close));
            if begins || ends {
                ended = ends && !(begins && begin.len() >= markers.close.len());
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
            let markers = ReasoningMarkers::of_tokens(begin.as_deref(), &end);
            let scope = ConstraintScope::after_reasoning(markers.clone(), &history);
            let start = scope.start(&window);
            prop_assert_eq!(start.index(), oracle(&markers, &history, &window));
            prop_assert_eq!(scope.start(&window), start, "asking changes nothing");
        }

        /// Asked token by token, the machine binds what the definition binds in the tokens up to there, and everything
        /// after it: an end is final.
        #[test]
        fn one_token_at_a_time_agrees_with_the_start(
            begin in prop::option::of(0..3_u32),
            end in prop::collection::vec(0..3_u32, 1..4),
            window in prop::collection::vec(0..4_u32, 0..8),
        ) {
            prop_assume!(begin.is_none_or(|begin| !end.contains(&begin)));
            let begin = begin.map(|begin| vec![begin]);
            let markers = ReasoningMarkers::of_tokens(begin.as_deref(), &end);
            let scope = ConstraintScope::after_reasoning(markers.clone(), &[]);
            let mut walk = scope.clone();
            let mut latched = false;
            for (at, token) in window.iter().enumerate() {
                let bound = matches!(walk.allowed(), Allowed::Bound(_));
                let row = scope.start(&window[..at]).binds_row_after(at);
                prop_assert_eq!(bound, latched || row, "row {}", at);
                let fed = walk.advance(*token);
                prop_assert_eq!(fed, latched || row);
                // The end is final.
                latched |= scope.start(&window[..=at]).binds_row_after(at + 1);
            }
        }
    }
}
