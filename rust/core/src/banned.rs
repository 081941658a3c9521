//! Sequences of tokens that an output may not hold (`bad_words`): which tokens would complete one.
//!
//! The state is how much of the sequences the output ends in, so it is a function of its tokens alone, can be copied, and
//! can be asked about drafts any number of times. The prompt is no part of an output.

use std::collections::HashMap;

use crate::TokenId;

/// Sequences, as a state machine over tokens (Aho and Corasick, 1975): its states are the beginnings of sequences, their
/// last tokens left out. The beginning is state 0.
#[derive(Clone, Debug, Default)]
pub struct BannedSequences {
    /// The longer beginning, by a beginning and the token after it.
    longer: HashMap<(u32, TokenId), u32>,
    states: Vec<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// The longest other state in which this one ends.
    fallback: u32,
    /// What would complete a sequence, by this state or one in which it ends; ascending.
    forbidden: Vec<TokenId>,
}

impl BannedSequences {
    /// The machine of these sequences; empty ones forbid nothing.
    pub fn new<'a>(sequences: impl IntoIterator<Item = &'a [TokenId]>) -> Self {
        let mut machine = Self { longer: HashMap::new(), states: vec![State::default()] };
        // State after state, with what leads there; a state that is added later is never shorter than its own beginning.
        let mut added = Vec::new();
        for sequence in sequences {
            let Some((last, beginning)) = sequence.split_last() else { continue };
            let mut at = 0;
            for (depth, token) in beginning.iter().enumerate() {
                let fresh = machine.states.len() as u32;
                let next = *machine.longer.entry((at, *token)).or_insert(fresh);
                if next == fresh {
                    machine.states.push(State::default());
                    added.push((depth, at, *token, next));
                }
                at = next;
            }
            machine.states[at as usize].forbidden.push(*last);
        }
        added.sort_unstable();
        machine.link(&added);
        machine
    }

    /// Sets what each state falls back to, shorter states first, and lets it forbid what that one forbids.
    fn link(&mut self, added: &[(usize, u32, TokenId, u32)]) {
        for (depth, before, token, state) in added {
            let shorter = self.states[*before as usize].fallback;
            // One token ends in no other beginning of one token.
            let fallback = if *depth == 0 { 0 } else { self.step(shorter, *token) };
            let inherited = self.states[fallback as usize].forbidden.clone();
            let state = &mut self.states[*state as usize];
            state.fallback = fallback;
            state.forbidden.extend(inherited);
        }
        for state in &mut self.states {
            state.forbidden.sort_unstable();
            state.forbidden.dedup();
        }
    }

    /// True if nothing is forbidden, ever.
    pub fn is_empty(&self) -> bool {
        self.states.iter().all(|state| state.forbidden.is_empty())
    }

    /// The state after `token` in `state`.
    pub fn step(&self, mut state: u32, token: TokenId) -> u32 {
        loop {
            if let Some(longer) = self.longer.get(&(state, token)) {
                return *longer;
            }
            if state == 0 {
                return 0;
            }
            state = self.states[state as usize].fallback;
        }
    }

    /// True if `token` would complete a sequence in `state`.
    pub fn forbids(&self, state: u32, token: TokenId) -> bool {
        self.forbidden(state).binary_search(&token).is_ok()
    }

    /// The tokens that would complete a sequence in `state`.
    pub fn forbidden(&self, state: u32) -> &[TokenId] {
        self.states.get(state as usize).map_or(&[], |state| &state.forbidden)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn machine(sequences: &[Vec<TokenId>]) -> BannedSequences {
        BannedSequences::new(sequences.iter().map(Vec::as_slice))
    }

    /// The plain rule: a token is forbidden if it is the last one of a sequence whose others the output ends in.
    fn plainly_forbidden(sequences: &[Vec<TokenId>], output: &[TokenId]) -> Vec<TokenId> {
        let splits = sequences.iter().filter_map(|sequence| sequence.split_last());
        let mut all: Vec<_> =
            splits.filter(|(_, rest)| output.ends_with(rest)).map(|(last, _)| *last).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn a_sequence_that_ends_in_the_beginning_of_another_forbids_for_both() {
        let machine = machine(&[vec![1, 2, 3, 4], vec![2, 3, 9], vec![3, 5], vec![7]]);
        let after = |tokens: &[TokenId]| tokens.iter().fold(0, |state, token| machine.step(state, *token));
        assert_eq!(machine.forbidden(0), [7]);
        assert_eq!(machine.forbidden(after(&[1, 2, 3])), [4, 5, 7, 9]);
        assert_eq!(machine.forbidden(after(&[1, 2, 3, 1, 2])), [7]);
        assert_eq!(machine.forbidden(after(&[8, 3])), [5, 7]);
    }

    #[test]
    fn nothing_is_forbidden_without_sequences() {
        for machine in [BannedSequences::default(), machine(&[]), machine(&[vec![]])] {
            assert!(machine.is_empty());
            assert_eq!((machine.step(0, 5), machine.forbidden(0)), (0, &[][..]));
        }
    }

    proptest! {
        #[test]
        fn the_machine_forbids_what_the_plain_rule_forbids(
            sequences in prop::collection::vec(prop::collection::vec(0_u32..3, 1..5), 0..6),
            output in prop::collection::vec(0_u32..3, 0..24),
        ) {
            let machine = machine(&sequences);
            let mut state = 0;
            for at in 0..=output.len() {
                prop_assert_eq!(machine.forbidden(state), plainly_forbidden(&sequences, &output[..at]));
                if let Some(token) = output.get(at) {
                    state = machine.step(state, *token);
                }
            }
        }
    }
}
