//! What an output may hold before the part that a constraint binds: reasoning between two markers.
//!
//! Whether reasoning has ended is a function of the token ids alone, so that it can be asked of drafts any number of
//! times. A marker is a text that tokens may spell in many ways; [`Marker`] is the machine that finds it in all of them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::TokenId;

/// A sequence of symbols as a state machine over tokens: the state is how many of its symbols the tokens so far end in.
///
/// Symbols are token ids ([`Marker::of_tokens`]) or the bytes of a text ([`Marker::of_text`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    len: u8,
    /// The next state by state, for the tokens that can lead anywhere but to 0.
    steps: HashMap<TokenId, Box<[u8]>>,
    /// By state: tokens that complete the marker and go on with another text than line breaks.
    crossing: Box<[Box<[TokenId]>]>,
}

/// The state after `symbol`: the longest beginning of `pattern` in which what was read ends.
fn follow<T: PartialEq + Copy>(pattern: &[T], mut state: usize, symbol: T) -> usize {
    loop {
        if pattern.get(state) == Some(&symbol) {
            return state + 1;
        }
        if state == 0 {
            return 0;
        }
        // The longest proper border of what matched so far.
        let matched = &pattern[..state];
        state = (1..state).rev().find(|border| matched.ends_with(&pattern[..*border])).unwrap_or(0);
    }
}

impl Marker {
    /// This sequence of tokens, of 1 to 254, and no other spelling.
    pub fn of_tokens(tokens: &[TokenId]) -> Self {
        debug_assert!((1..255).contains(&tokens.len()), "a marker has 1 to 254 tokens");
        let states = 0..=tokens.len();
        let step = |token: TokenId| states.clone().map(|state| follow(tokens, state, token) as u8).collect();
        Self {
            len: tokens.len() as u8,
            steps: tokens.iter().map(|token| (*token, step(*token))).collect(),
            crossing: states.map(|_| Box::default()).collect(),
        }
    }

    /// A text of 1 to 254 bytes, spelled by the tokens of a `vocabulary` of ids and bytes in any way.
    pub fn of_text<'a>(text: &str, vocabulary: impl Iterator<Item = (TokenId, &'a [u8])>) -> Self {
        let text = text.as_bytes();
        debug_assert!((1..255).contains(&text.len()), "a marker has 1 to 254 bytes");
        let mut steps = HashMap::new();
        let mut crossing = vec![Vec::new(); text.len() + 1];
        for (id, bytes) in vocabulary {
            if !bytes.iter().any(|byte| text.contains(byte)) {
                continue;
            }
            let row: Box<[u8]> = (0..=text.len())
                .map(|start| {
                    let mut state = start;
                    for (at, byte) in bytes.iter().enumerate() {
                        state = follow(text, state, *byte);
                        if state == text.len() {
                            // Line breaks after the marker are its own; anything else would escape the constraint.
                            if bytes[at + 1..].iter().any(|byte| *byte != b'\n') {
                                crossing[start].push(id);
                            }
                            break;
                        }
                    }
                    state as u8
                })
                .collect();
            if row.iter().any(|state| *state != 0) {
                steps.insert(id, row);
            }
        }
        let crossing = crossing.into_iter().map(Vec::into_boxed_slice).collect();
        Self { len: text.len() as u8, steps, crossing }
    }

    /// The state after `token`; from [`Self::is_complete`] on, the next occurrence is looked for.
    pub fn step(&self, state: u8, token: TokenId) -> u8 {
        self.steps.get(&token).map_or(0, |row| row[state as usize])
    }

    /// True in the state in which the tokens so far end in the marker.
    pub const fn is_complete(&self, state: u8) -> bool {
        state == self.len
    }

    /// Symbols of the marker.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// A marker has at least one symbol.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens that complete the marker from `state` and bring other text behind it: nobody could say what of them is
    /// bound, so they are not to be sampled.
    pub fn crossing(&self, state: u8) -> &[TokenId] {
        &self.crossing[state as usize]
    }
}

/// The markers around reasoning. The one that was completed last decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Tokens that begin reasoning; `None` if an output cannot begin it, so that an end is final.
    pub begin: Option<Arc<[TokenId]>>,
    /// Ends reasoning.
    pub end: Marker,
    /// The tokens that spell the end, for where it is forced; not empty.
    pub close: Arc<[TokenId]>,
}

impl ReasoningMarkers {
    /// Markers that are these very tokens.
    pub fn of_tokens(begin: Option<&[TokenId]>, end: &[TokenId]) -> Self {
        Self { begin: begin.map(Into::into), end: Marker::of_tokens(end), close: end.into() }
    }
}

/// The reasoning of one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// What it stands between.
    pub markers: Arc<ReasoningMarkers>,
    /// The prompt has begun it. Otherwise the output may, before anything that is bound.
    pub open: bool,
    /// Most tokens of it; then its end is forced.
    pub budget: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of a small vocabulary of texts.
    const WORDS: [&str; 11] =
        ["<", "/", "think", ">", "</", "</think>", ">\n", ">{", ".</", "a", "think></think>x"];

    fn marker() -> Marker {
        Marker::of_text("</think>", (0..).zip(WORDS.iter().map(|word| word.as_bytes())))
    }

    fn states(marker: &Marker, words: &[&str]) -> Vec<u8> {
        let ids =
            words.iter().map(|word| WORDS.iter().position(|known| known == word).expect("a word") as u32);
        ids.scan(0, |state, id| {
            *state = marker.step(*state, id);
            Some(*state)
        })
        .collect()
    }

    #[test]
    fn a_text_is_found_however_tokens_spell_it() {
        let marker = marker();
        for words in [
            &["a", "</think>"][..],
            &["<", "/", "think", ">"],
            &["a", ".</", "think", ">\n"],
            &["<", "</", "think", ">"],
            &["</", "think", ">"],
        ] {
            let states = states(&marker, words);
            assert!(marker.is_complete(*states.last().expect("some words")), "{words:?}: {states:?}");
            assert!(!states[..states.len() - 1].iter().any(|state| marker.is_complete(*state)));
        }
        for words in [&["<", "think", ">"][..], &["</", "a", "think", ">"], &["/", "think", ">"]] {
            assert!(!states(&marker, words).iter().any(|state| marker.is_complete(*state)), "{words:?}");
        }
    }

    #[test]
    fn a_token_that_goes_on_behind_the_marker_is_named() {
        let marker = marker();
        let at = marker.step(marker.step(0, 4), 2);
        assert_eq!(*marker.crossing(at), [7, 10], "`>` and a line break is no more than the marker");
        assert_eq!(*marker.crossing(0), [10]);
    }

    #[test]
    fn tokens_are_found_with_their_borders() {
        let marker = Marker::of_tokens(&[1, 2, 1, 3]);
        let ends = |tokens: &[u32]| {
            let state = tokens.iter().fold(0, |state, token| marker.step(state, *token));
            marker.is_complete(state)
        };
        assert!(ends(&[1, 2, 1, 2, 1, 3]));
        assert!(ends(&[1, 2, 1, 3, 1, 2, 1, 3]));
        assert!(!ends(&[1, 2, 1, 3, 9]));
    }
}
