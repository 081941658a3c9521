//! Stop strings over decoded text, across token borders.
//!
//! Invariants (each is a property test):
//!
//! * a match is a property of the text alone, however it is cut into tokens: the first place where some stop string
//!   *ends*; of several that end there, the longest;
//! * text is held back only while it could still become part of a match: the held text starts, up to a token border,
//!   at the longest suffix of the text that is a prefix of a stop string;
//! * text is released in whole tokens: at every moment the released text is that of exactly the released tokens, so
//!   ids and log-probabilities can be sent with the text they belong to;
//! * the token that completes a match is the last one released; what follows it never was.

use std::collections::VecDeque;

use frizzen_core::{Error, Result};

use crate::parse::StopScope;

/// Matching costs one comparison per byte and stop string, so there is a limit to both.
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;

/// Text that may be shown now, and the tokens it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextDelta {
    /// New text.
    pub text: String,
    /// How many more tokens are accounted for: the oldest that were not released before.
    pub tokens_released: usize,
    /// The stop string that was matched; nothing follows.
    pub stop: Option<String>,
}

impl TextDelta {
    /// Appends what came later.
    pub fn append(&mut self, later: Self) {
        self.text.push_str(&later.text);
        self.tokens_released += later.tokens_released;
        self.stop = self.stop.take().or(later.stop);
    }
}

/// One string being searched for, byte by byte (Knuth, Morris and Pratt).
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Box<[u8]>,
    /// `border[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Box<[usize]>,
    /// How many bytes of the pattern the text ends with.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes: Box<[u8]> = text.as_bytes().into();
        let mut border = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            let mut k = border[i - 1];
            while k > 0 && bytes[i] != bytes[k] {
                k = border[k - 1];
            }
            border[i] = k + usize::from(bytes[i] == bytes[k]);
        }
        Self { bytes, border: border.into(), matched: 0 }
    }

    /// Forgets the text so far.
    fn restart(&mut self) {
        self.matched = 0;
    }

    /// True if the pattern ends with this byte.
    fn step(&mut self, byte: u8) -> bool {
        // A complete match ends the search, so `matched` is below the length here.
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

/// Finds stop strings in a text that arrives token by token, and decides what may be shown.
#[derive(Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    include_stop: bool,
    /// Where matches may lie; `None` is everywhere.
    scope: Option<StopScope>,
    /// Text of the tokens that are not released.
    held: String,
    /// Where in `held` a whole number of tokens ends, and how many that are since the border before.
    borders: VecDeque<(usize, usize)>,
    /// Tokens since the last border: their last character is incomplete, or they have no text.
    open_tokens: usize,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher for `stops`; an empty list never matches. With `include_stop_in_output` the matched string is part of
    /// the text. Refuses an empty string and lists over the limits, naming the field `stop`.
    pub fn new(stops: &[String], include_stop_in_output: bool) -> Result<Self> {
        if stops.len() > MAX_STOPS {
            let count = stops.len();
            return Err(Error::invalid(
                "stop",
                format!("stop must have at most {MAX_STOPS} strings, got {count}"),
            ));
        }
        for (i, stop) in stops.iter().enumerate() {
            if stop.is_empty() {
                return Err(Error::invalid(
                    "stop",
                    format!("stop string {i} is empty; use null for no stop strings"),
                ));
            }
            if stop.len() > MAX_STOP_BYTES {
                let len = stop.len();
                return Err(Error::invalid(
                    "stop",
                    format!("stop string {i} must have at most {MAX_STOP_BYTES} bytes, got {len}"),
                ));
            }
        }
        Ok(Self {
            patterns: stops.iter().map(|stop| Pattern::new(stop)).collect(),
            include_stop: include_stop_in_output,
            scope: None,
            held: String::new(),
            borders: VecDeque::new(),
            open_tokens: 0,
            stopped: false,
        })
    }

    /// Ignores stop strings outside `scope`, so that what the model thinks cannot end its answer.
    #[must_use]
    pub fn within(mut self, scope: StopScope) -> Self {
        // Without stop strings there is nothing to keep them out of.
        self.scope = Some(scope).filter(|_| !self.patterns.is_empty());
        self
    }

    /// True after a match.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Takes the text of one token and adds what may be shown to `delta`. Does nothing after a match.
    pub fn push(&mut self, token_text: &str, delta: &mut TextDelta) {
        self.feed(Piece { text: token_text, tokens: 1, aligned: true, searched: true }, delta);
    }

    /// Releases everything that is held: the text has ended.
    pub fn finish(&mut self, delta: &mut TextDelta) {
        self.borders.push_back((self.held.len(), std::mem::take(&mut self.open_tokens)));
        self.release(self.held.len(), delta);
    }

    pub(crate) fn feed(&mut self, piece: Piece<'_>, delta: &mut TextDelta) {
        if self.stopped {
            return;
        }
        if self.patterns.is_empty() && piece.aligned && self.held.is_empty() && self.open_tokens == 0 {
            // Nothing can be held back.
            delta.text.push_str(piece.text);
            delta.tokens_released += piece.tokens;
            return;
        }
        let searched_from = self.held.len();
        self.held.push_str(piece.text);
        self.open_tokens += piece.tokens;
        if let Some(found) = self.search(searched_from, piece.searched) {
            let cut = if self.include_stop {
                found.end
            } else {
                found.end - self.patterns[found.pattern].bytes.len()
            };
            delta.text.push_str(&self.held[..cut]);
            delta.tokens_released += self.borders.drain(..).map(|(_, tokens)| tokens).sum::<usize>();
            delta.tokens_released += std::mem::take(&mut self.open_tokens);
            delta.stop = Some(String::from_utf8_lossy(&self.patterns[found.pattern].bytes).into_owned());
            self.held.clear();
            self.stopped = true;
            return;
        }
        if piece.aligned {
            self.borders.push_back((self.held.len(), std::mem::take(&mut self.open_tokens)));
        }
        let possible = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        self.release(self.held.len() - possible, delta);
    }

    /// Advances all patterns over `held[from..]` up to the first match.
    fn search(&mut self, from: usize, searched: bool) -> Option<Match> {
        let mut admitted = true;
        for (i, byte) in (from..).zip(self.held.as_bytes()[from..].iter().copied()) {
            if let Some(scope) = &mut self.scope
                && let Some(c) = self.held.get(i..).and_then(|text| text.chars().next())
            {
                admitted = scope.admits(c);
                if !admitted {
                    self.patterns.iter_mut().for_each(Pattern::restart);
                }
            }
            if !searched || !admitted {
                continue;
            }
            let ended = self.patterns.iter_mut().enumerate().filter_map(|(index, pattern)| {
                // Every pattern takes the byte: the filter must not be cut short.
                pattern.step(byte).then_some((pattern.bytes.len(), index))
            });
            let longest = ended.max_by_key(|(len, index)| (*len, std::cmp::Reverse(*index)));
            if let Some((_, pattern)) = longest {
                return Some(Match { pattern, end: i + 1 });
            }
        }
        None
    }

    /// Releases the tokens whose text ends at or before `safe`.
    fn release(&mut self, safe: usize, delta: &mut TextDelta) {
        let mut end = 0;
        while let Some((border, tokens)) = self.borders.front().copied().filter(|(border, _)| *border <= safe)
        {
            end = border;
            delta.tokens_released += tokens;
            self.borders.pop_front();
        }
        delta.text.push_str(&self.held[..end]);
        self.held.drain(..end);
        for (border, _) in &mut self.borders {
            *border -= end;
        }
    }
}

struct Match {
    pattern: usize,
    end: usize,
}

/// Text that one or no token contributed.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    pub(crate) tokens: usize,
    /// The text so far is that of exactly the tokens so far: no character is incomplete.
    pub(crate) aligned: bool,
    /// Stop strings may match in this piece.
    pub(crate) searched: bool,
}
