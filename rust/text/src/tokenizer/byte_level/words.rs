//! Cutting text into words, by automata that read each byte once.
//!
//! A stage of a pre-tokenizer isolates the matches of an expression within the pieces that the stage before it left. The
//! expressions are written for an engine that goes back, and two differences matter: `\s+(?!\S)` needs a look ahead, and
//! marks such as `?+` mean other things elsewhere. So an expression is taken only if it is one of those of
//! [`expressions`](super::super::expressions), and its tail of white space is a pattern of its own, the last character of
//! whose matches is given back where a word follows.
//!
//! Invariant (a property test): the pieces are those of the `tokenizers` crate, for any text.

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::{Anchored, Input};

use super::super::expressions as known;

/// How the expressions end that leave the last white space before a word to it. With the shorter one it is no match, and
/// a piece all the same: with the expression that ends so, whatever follows white space is a match.
const TAILS: [&str; 2] = [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)"];
/// Runs of white space, after everything else.
const SPACES: &str = r"\s+";
/// The number of that pattern.
const SPACES_ID: usize = 1;

/// Expressions that are taken as they are.
const WORDS: [&str; 8] = [
    known::GPT2,
    known::BYTE_LEVEL,
    known::LLAMA3,
    known::QWEN2,
    known::QWEN35,
    known::TEKKEN,
    known::O200K,
    known::DEEPSEEK3_WORDS,
];
/// Classes whose matches are isolated, and the runs between them: an expression that matches everywhere needs no search for
/// the next match.
const CLASSES: [(&str, &str); 3] = [
    (known::DIGITS, r"\p{N}|\P{N}+"),
    (known::DIGITS_1_TO_3, r"\p{N}{1,3}|\P{N}+"),
    (
        known::DEEPSEEK3_CJK,
        r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+|[^\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    ),
];

/// One stage of a pre-tokenizer.
#[derive(Debug)]
pub(super) enum Stage {
    /// Isolates the matches of an expression.
    Expression(Box<DFA>),
    /// Isolates every numeric character, by the standard library's version of Unicode.
    Digits,
}

impl Stage {
    /// The stage that isolates the matches of `expression`; `None` for an expression that is not known here.
    pub(super) fn new(expression: &str) -> Option<Self> {
        if let Some((_, covering)) = CLASSES.iter().find(|(class, _)| *class == expression) {
            return Some(Self::Expression(DFA::new(covering).ok()?.into()));
        }
        let known = WORDS.iter().find(|known| **known == expression)?;
        let head = TAILS.iter().find_map(|tail| known.strip_suffix(tail))?;
        Some(Self::Expression(DFA::new_many(&[head, SPACES]).ok()?.into()))
    }

    /// Room for its states, if it has any.
    pub(super) fn cache(&self) -> Option<Cache> {
        match self {
            Self::Expression(dfa) => Some(dfa.create_cache()),
            Self::Digits => None,
        }
    }

    fn split(&self, cache: Option<&mut Cache>, text: &str, emit: &mut dyn FnMut(&str)) {
        match (self, cache) {
            (Self::Expression(dfa), Some(cache)) => split_by(dfa, cache, text, emit),
            _ => split_digits(text, emit),
        }
    }
}

fn split_digits(text: &str, emit: &mut dyn FnMut(&str)) {
    for piece in text.split_inclusive(char::is_numeric) {
        let last = piece.char_indices().next_back().filter(|(_, c)| c.is_numeric());
        let (before, digit) = piece.split_at(last.map_or(piece.len(), |(at, _)| at));
        [before, digit].into_iter().filter(|part| !part.is_empty()).for_each(&mut *emit);
    }
}

/// Calls `emit` with each match and with what lies between matches.
fn split_by(dfa: &DFA, cache: &mut Cache, text: &str, emit: &mut dyn FnMut(&str)) {
    let (mut start, mut at) = (0, 0);
    while at < text.len() {
        let Some(end) = match_at(dfa, cache, text, at) else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        };
        if start < at {
            emit(&text[start..at]);
        }
        emit(&text[at..end]);
        (start, at) = (end, end);
    }
    if start < at {
        emit(&text[start..]);
    }
}

/// Where the match that begins at `at` ends.
fn match_at(dfa: &DFA, cache: &mut Cache, text: &str, at: usize) -> Option<usize> {
    let input = Input::new(text).range(at..).anchored(Anchored::Yes);
    let found = dfa.try_search_fwd(cache, &input);
    let found = found.expect("an automaton without limits and without bytes to quit at does not give up")?;
    let end = found.offset();
    if found.pattern().as_usize() == SPACES_ID && end < text.len() {
        let spaces = &text[at..end];
        let last = spaces.chars().next_back().map_or(0, char::len_utf8);
        if last < spaces.len() {
            return Some(end - last);
        }
    }
    Some(end)
}

/// Cuts `text` by all stages, each within the pieces of the one before; `caches` are theirs.
pub(super) fn split(stages: &[Stage], caches: &mut [Option<Cache>], text: &str, emit: &mut dyn FnMut(&str)) {
    match (stages.split_first(), caches.split_first_mut()) {
        (Some((stage, stages)), Some((cache, caches))) => {
            stage.split(cache.as_mut(), text, &mut |piece| split(stages, caches, piece, emit));
        }
        _ => emit(text),
    }
}
