//! Text with an index of where any two tokens stood before: hash chains, as compressors use them.
//!
//! Grows to a limit and then overwrites its oldest tokens, so that forgetting is first in, first out and the memory
//! is bounded by construction. A search looks at a bounded number of the latest places.

use frizzen_core::TokenId;

use crate::draw::mix;

/// Stands between texts. No model has a token of this id, so no match crosses it.
pub(super) const SEPARATOR: TokenId = TokenId::MAX;

/// Tokens that the index goes by, and so the shortest match.
const ANCHOR: usize = 2;
/// Size of a new corpus, in tokens.
const SMALLEST: usize = 256;

/// A place where the searched suffix stood before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Position of the token that followed.
    pub next: u64,
    /// Tokens before it that match.
    pub length: usize,
}

/// Tokens at ever growing positions, of which the last `limit` are kept.
#[derive(Debug)]
pub(super) struct Corpus {
    limit: usize,
    /// A ring of a power of two of tokens.
    tokens: Vec<TokenId>,
    /// For each token, how far back the same anchor was followed last; 0 if nowhere.
    back: Vec<u32>,
    /// By hash of an anchor: position of the token after its last occurrence, plus 1. Hashes may collide.
    head: Vec<u64>,
    end: u64,
}

impl Corpus {
    /// An empty corpus of at most `limit` tokens, a power of two of at least 256.
    pub fn new(limit: usize) -> Self {
        debug_assert!(limit.is_power_of_two() && limit >= SMALLEST, "the ring is addressed by masks");
        Self {
            limit,
            tokens: vec![SEPARATOR; SMALLEST],
            back: vec![0; SMALLEST],
            head: vec![0; SMALLEST],
            end: 0,
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.tokens.capacity() * size_of::<TokenId>()
            + self.back.capacity() * size_of::<u32>()
            + self.head.capacity() * size_of::<u64>()
    }

    const fn index(&self, position: u64) -> usize {
        position as usize & (self.tokens.len() - 1)
    }

    /// The token at `position`, if it is there and no separator.
    pub fn get(&self, position: u64) -> Option<TokenId> {
        let kept = position < self.end && position + self.tokens.len() as u64 >= self.end;
        kept.then(|| self.tokens[self.index(position)]).filter(|token| *token != SEPARATOR)
    }

    /// The last tokens, oldest first, up to `count` of them and not beyond a separator.
    pub fn suffix(&self, count: usize, suffix: &mut Vec<TokenId>) {
        suffix.clear();
        suffix.extend((1..=count as u64).map_while(|back| self.get(self.end.checked_sub(back)?)));
        suffix.reverse();
    }

    pub fn extend(&mut self, tokens: &[TokenId]) {
        for token in tokens {
            self.push(*token);
        }
    }

    fn push(&mut self, token: TokenId) {
        if self.end == self.tokens.len() as u64 && self.tokens.len() < self.limit {
            self.grow();
        }
        let at = self.index(self.end);
        self.tokens[at] = token;
        self.link(self.end);
        self.end += 1;
    }

    /// Enters the token at `position` as the last follower of its anchor.
    fn link(&mut self, position: u64) {
        let at = self.index(position);
        self.back[at] = 0;
        let Some(first) = position.checked_sub(ANCHOR as u64) else { return };
        let slot = self.slot(self.tokens[self.index(first)], self.tokens[self.index(first + 1)]);
        let last = std::mem::replace(&mut self.head[slot], position + 1);
        if let Some(last) = last.checked_sub(1) {
            self.back[at] = u32::try_from(position - last).unwrap_or(0);
        }
    }

    fn slot(&self, first: TokenId, second: TokenId) -> usize {
        mix((u64::from(first) << 32) | u64::from(second)) as usize & (self.head.len() - 1)
    }

    /// Doubles the ring, which has not wrapped yet: positions are indexes before and after.
    fn grow(&mut self) {
        let size = self.tokens.len() * 2;
        self.tokens.resize(size, SEPARATOR);
        self.back.resize(size, 0);
        self.head.clear();
        self.head.resize(size, 0);
        for position in 0..self.end {
            self.link(position);
        }
    }

    /// The latest places, at most `most` of them are looked at, where the end of `suffix` stood before; matches are
    /// counted to `suffix.len()`. Latest first.
    pub fn find(&self, suffix: &[TokenId], most: usize, places: &mut Vec<Place>) {
        places.clear();
        let [.., first, second] = suffix else { return };
        let mut next = self.head[self.slot(*first, *second)].checked_sub(1);
        for _ in 0..most {
            let Some(position) = next else { break };
            // Its token was overwritten, and so are all earlier ones.
            if position + self.tokens.len() as u64 <= self.end {
                break;
            }
            let before = |back: u64| position.checked_sub(back).and_then(|at| self.get(at));
            let length =
                (1..).zip(suffix.iter().rev()).take_while(|(back, token)| before(*back) == Some(**token));
            let length = length.count();
            // Less is another anchor with the same hash.
            if length >= ANCHOR {
                places.push(Place { next: position, length });
            }
            let back = u64::from(self.back[self.index(position)]);
            next = if back == 0 { None } else { position.checked_sub(back) };
        }
    }
}
