//! What followed the longest suffix of the text, in the request's own text or in recent outputs of others.
//!
//! The latest places with the longest match (up to a depth) vote on each token; a draft goes on as long as its
//! probability under these votes stays above a threshold, and no longer than the match.

use frizzen_core::{RequestId, TokenId};
use rustc_hash::FxHashMap;

use super::corpus::{Corpus, Place, SEPARATOR};
use super::{Drafter, Evidence};

/// Places that are looked at per search: bounds the time of a proposal.
const MOST_PLACES: usize = 32;
/// A request's own text may grow to this many tokens.
const OWN_LIMIT: usize = 1 << 24;

/// How far the `suffix` drafter looks and how sure it must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuffixConfig {
    /// Longest match that is told apart, in tokens.
    pub depth: usize,
    /// A draft's length over that of its match.
    pub factor: f64,
    /// Least probability of a draft, from its first token on, under the votes of the matches.
    pub min_probability: f64,
    /// Tokens of finished outputs that are kept for all requests; a power of two of at least 256. Each takes 16 bytes.
    pub shared_tokens: usize,
}

impl Default for SuffixConfig {
    fn default() -> Self {
        Self { depth: 24, factor: 1.0, min_probability: 0.1, shared_tokens: 1 << 20 }
    }
}

impl SuffixConfig {
    /// Refuses what cannot work.
    pub fn validate(&self) -> Result<(), String> {
        if !(2..=64).contains(&self.depth) {
            return Err(format!("the suffix depth must be from 2 to 64, got {}", self.depth));
        }
        if !(self.factor.is_finite() && self.factor > 0.0) {
            return Err(format!("the suffix length factor must be greater than 0, got {}", self.factor));
        }
        if !(0.0..=1.0).contains(&self.min_probability) {
            return Err(format!("the least probability must be in [0, 1], got {}", self.min_probability));
        }
        if !self.shared_tokens.is_power_of_two() || self.shared_tokens < 256 {
            let got = self.shared_tokens;
            return Err(format!("the shared tokens must be a power of two of at least 256, got {got}"));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Text {
    own: Corpus,
    outputs: Vec<TokenId>,
    shared: bool,
}

/// The `suffix` drafter.
#[derive(Debug)]
pub struct Suffix {
    config: SuffixConfig,
    texts: FxHashMap<RequestId, Text>,
    shared: Corpus,
    searched: Vec<TokenId>,
    places: Vec<Place>,
    others: Vec<Place>,
}

impl Suffix {
    /// A drafter that follows nobody yet.
    ///
    /// # Errors
    /// A sentence that names the value and its limit.
    pub fn new(config: SuffixConfig) -> Result<Self, String> {
        config.validate()?;
        Ok(Self {
            config,
            texts: FxHashMap::default(),
            shared: Corpus::new(config.shared_tokens),
            searched: Vec::with_capacity(config.depth),
            places: Vec::with_capacity(MOST_PLACES),
            others: Vec::with_capacity(MOST_PLACES),
        })
    }

    /// Bytes of what is kept for all requests; at most 16 per token of `shared_tokens`.
    pub fn shared_bytes(&self) -> usize {
        self.shared.bytes()
    }
}

/// Keeps the longest matches; returns their length.
fn keep_longest(places: &mut Vec<Place>) -> usize {
    let length = places.iter().map(|place| place.length).max().unwrap_or(0);
    places.retain(|place| place.length == length);
    length
}

/// The token that most places have at `offset`, and the share of them; the latest place wins a tie. Places that
/// disagree are dropped.
fn vote(corpus: &Corpus, places: &mut Vec<Place>, offset: u64) -> Option<(TokenId, f64)> {
    places.retain(|place| corpus.get(place.next + offset).is_some());
    let tokens = || places.iter().filter_map(|place| corpus.get(place.next + offset));
    let voters = places.len();
    let mut best = (0, tokens().next()?);
    for token in tokens() {
        let count = tokens().filter(|other| *other == token).count();
        if count > best.0 {
            best = (count, token);
        }
        // Nobody can have more than what is left.
        if 2 * best.0 >= voters {
            break;
        }
    }
    let (count, token) = best;
    places.retain(|place| corpus.get(place.next + offset) == Some(token));
    Some((token, count as f64 / voters as f64))
}

impl Drafter for Suffix {
    fn name(&self) -> &'static str {
        "suffix"
    }

    fn start(&mut self, request: RequestId, prompt: &[TokenId], shared: bool) {
        let mut own = Corpus::new(OWN_LIMIT);
        own.extend(prompt);
        self.texts.insert(request, Text { own, outputs: Vec::new(), shared });
    }

    fn observe(&mut self, request: RequestId, tokens: &[TokenId]) {
        if let Some(text) = self.texts.get_mut(&request) {
            text.own.extend(tokens);
            text.outputs.extend_from_slice(tokens);
        }
    }

    fn propose(&mut self, request: RequestId, k: usize, drafts: &mut Vec<TokenId>) -> Evidence {
        drafts.clear();
        let Some(text) = self.texts.get(&request) else { return Evidence::Match(0) };
        text.own.suffix(self.config.depth, &mut self.searched);
        text.own.find(&self.searched, MOST_PLACES, &mut self.places);
        let mut length = keep_longest(&mut self.places);
        let mut corpus = &text.own;
        if text.shared && length < self.config.depth {
            self.shared.find(&self.searched, MOST_PLACES, &mut self.others);
            let other = keep_longest(&mut self.others);
            if other > length {
                length = other;
                corpus = &self.shared;
                std::mem::swap(&mut self.places, &mut self.others);
            }
        }
        let most = k.min((self.config.factor * length as f64) as usize);
        let mut probability = 1.0;
        for offset in 0..most as u64 {
            let Some((token, share)) = vote(corpus, &mut self.places, offset) else { break };
            probability *= share;
            if probability < self.config.min_probability {
                break;
            }
            drafts.push(token);
        }
        Evidence::Match(length as u32)
    }

    fn finish(&mut self, request: RequestId) {
        let Some(text) = self.texts.remove(&request) else { return };
        if text.shared && !text.outputs.is_empty() {
            self.shared.extend(&text.outputs);
            self.shared.extend(&[SEPARATOR]);
        }
    }
}
