//! Byte pair encoding of one word.
//!
//! The rule: while any two neighbours are a merge, merge those of the lowest rank, the leftmost of equals first. A word of
//! `n` bytes takes `n` log `n` steps at most, so a long word without borders costs no more than others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use frizzen_core::TokenId;
use rustc_hash::FxHashMap;

/// Words up to this length are merged in place: shifting a few numbers is faster than keeping a queue.
const SHORT: usize = 32;
/// Symbols for which there is always room.
const KEPT: usize = 1 << 12;
/// No merge. Ranks are indexes of a list, so no merge has it.
const NONE: u64 = u64::MAX;
/// No neighbour.
const END: u32 = u32::MAX;
/// No token.
const ABSENT: TokenId = TokenId::MAX;

/// What two neighbours become: the rank above, the token below. Ordered by rank, as no two merges share one.
type Step = u64;

const fn token_of(step: Step) -> TokenId {
    step as TokenId
}

/// A vocabulary of tokens over bytes, and how they grow out of them.
#[derive(Debug)]
pub(super) struct Merges {
    /// [`ABSENT`] where there is none.
    bytes: [TokenId; 256],
    steps: FxHashMap<u64, Step>,
}

/// Room for long words, used again.
#[derive(Debug, Default)]
pub(super) struct Room {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(Step, u32)>>,
}

impl Room {
    /// Gives back what only an uncommonly long word needed.
    pub(super) fn trim(&mut self) {
        self.symbols.clear();
        self.symbols.shrink_to(KEPT);
        self.queue.clear();
        self.queue.shrink_to(KEPT);
    }
}

/// A token within a word. One that was merged into its left neighbour is not linked any more.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    token: TokenId,
    prev: u32,
    next: u32,
    /// What it becomes with its right neighbour. A queued step that differs is stale.
    step: Step,
}

const fn key(left: TokenId, right: TokenId) -> u64 {
    (left as u64) << 32 | right as u64
}

impl Merges {
    /// `bytes` are the tokens of the bytes, and those without one are no part of a word; `merges` are (left, right, merged),
    /// best first. The last of equal pairs counts.
    pub(super) fn new(
        bytes: &[Option<TokenId>; 256],
        merges: impl IntoIterator<Item = (TokenId, TokenId, TokenId)>,
    ) -> Self {
        let steps = merges
            .into_iter()
            .zip(0u64..)
            .map(|((left, right, merged), rank)| (key(left, right), rank << 32 | u64::from(merged)));
        Self { bytes: bytes.map(|token| token.unwrap_or(ABSENT)), steps: steps.collect() }
    }

    /// The tokens of the bytes of a word.
    fn tokens(&self, word: &[u8]) -> impl Iterator<Item = TokenId> {
        word.iter().map(|byte| self.bytes[usize::from(*byte)]).filter(|token| *token != ABSENT)
    }

    fn step(&self, left: TokenId, right: TokenId) -> Step {
        self.steps.get(&key(left, right)).copied().unwrap_or(NONE)
    }

    /// Appends the tokens of a word.
    pub(super) fn encode(&self, word: &[u8], room: &mut Room, out: &mut Vec<TokenId>) {
        if word.len() <= SHORT { self.encode_short(word, out) } else { self.encode_long(word, room, out) }
    }

    fn encode_short(&self, word: &[u8], out: &mut Vec<TokenId>) {
        let mut tokens = [0; SHORT];
        let mut steps = [NONE; SHORT];
        let mut len = 0;
        for token in self.tokens(word) {
            tokens[len] = token;
            len += 1;
        }
        for i in 1..len {
            steps[i - 1] = self.step(tokens[i - 1], tokens[i]);
        }
        while len > 1 {
            let (mut at, mut best) = (0, NONE);
            for (i, step) in steps[..len - 1].iter().enumerate() {
                if *step < best {
                    (at, best) = (i, *step);
                }
            }
            if best == NONE {
                break;
            }
            tokens[at] = token_of(best);
            tokens.copy_within(at + 2..len, at + 1);
            steps.copy_within(at + 1..len, at);
            len -= 1;
            if at + 1 < len {
                steps[at] = self.step(tokens[at], tokens[at + 1]);
            }
            if at > 0 {
                steps[at - 1] = self.step(tokens[at - 1], tokens[at]);
            }
        }
        out.extend_from_slice(&tokens[..len]);
    }

    fn encode_long(&self, word: &[u8], room: &mut Room, out: &mut Vec<TokenId>) {
        let Room { symbols, queue } = room;
        symbols.clear();
        queue.clear();
        // The symbol before the first one is END.
        symbols.extend(self.tokens(word).zip(0u32..).map(|(token, at)| Symbol {
            token,
            prev: at.wrapping_sub(1),
            next: at + 1,
            step: NONE,
        }));
        let Some(last) = symbols.last_mut() else { return };
        last.next = END;
        for at in 0..symbols.len() as u32 {
            self.queue_step(at, symbols, queue);
        }
        while let Some(Reverse((step, at))) = queue.pop() {
            let Symbol { next: gone, step: current, .. } = symbols[at as usize];
            if step != current {
                continue;
            }
            let next = symbols[gone as usize].next;
            symbols[gone as usize].step = NONE;
            symbols[at as usize].token = token_of(step);
            symbols[at as usize].next = next;
            if next != END {
                symbols[next as usize].prev = at;
            }
            self.queue_step(at, symbols, queue);
            let prev = symbols[at as usize].prev;
            if prev != END {
                self.queue_step(prev, symbols, queue);
            }
        }
        let mut at = 0;
        while at != END {
            let symbol = symbols[at as usize];
            out.push(symbol.token);
            at = symbol.next;
        }
    }

    /// Looks up what the symbol becomes with its right neighbour, and queues it.
    fn queue_step(&self, at: u32, symbols: &mut [Symbol], queue: &mut BinaryHeap<Reverse<(Step, u32)>>) {
        let Symbol { token, next, .. } = symbols[at as usize];
        let step = if next == END { NONE } else { self.step(token, symbols[next as usize].token) };
        symbols[at as usize].step = step;
        if step != NONE {
            queue.push(Reverse((step, at)));
        }
    }
}
