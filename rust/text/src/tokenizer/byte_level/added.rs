//! Tokens that are recognised in a text as they are.

use aho_corasick::{AhoCorasick, MatchKind};
use frizzen_core::TokenId;

/// A part of a text.
pub(super) enum Piece<'t> {
    /// An added token.
    Token(TokenId),
    /// What lies between them.
    Text(&'t str),
}

/// Tokens that are looked for in the same text: the leftmost first, the longest of those that begin together.
#[derive(Debug)]
pub(super) struct AddedTokens {
    /// `None` if there are none.
    automaton: Option<AhoCorasick>,
    ids: Vec<TokenId>,
}

impl AddedTokens {
    /// `None` if the spellings are too many for an automaton.
    pub(super) fn new<S: AsRef<[u8]>>(tokens: impl IntoIterator<Item = (S, TokenId)>) -> Option<Self> {
        let (spellings, ids): (Vec<S>, Vec<TokenId>) = tokens.into_iter().unzip();
        let automaton = if spellings.is_empty() {
            None
        } else {
            Some(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(spellings).ok()?)
        };
        Some(Self { automaton, ids })
    }

    /// Calls `emit` with the parts of `text`, none of them empty.
    pub(super) fn split(&self, text: &str, emit: &mut dyn FnMut(Piece<'_>)) {
        let mut at = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            if at < found.start() {
                emit(Piece::Text(&text[at..found.start()]));
            }
            emit(Piece::Token(self.ids[found.pattern().as_usize()]));
            at = found.end();
        }
        if at < text.len() {
            emit(Piece::Text(&text[at..]));
        }
    }
}
