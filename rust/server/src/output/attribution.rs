//! Which tokens the text of a message was made of, where a parser reads it out of what the model wrote.
//!
//! A part of a message is a piece of the raw text, in its order, or (calls) made from one. So a part is found where the last
//! one ended; where markup was left out before it, at its last occurrence, since a parser shows what it has read as soon
//! as that can be nothing else. What lies before a part belongs to none.

use std::collections::VecDeque;

use frizzen_core::{TokenId, TokenLogprobs};

use crate::output::delta::ChoiceDelta;
use crate::output::logprobs::write_entries;
use crate::output::pieces::Pieces;

/// The tokens that no part was made of yet, and what they say.
#[derive(Debug)]
pub struct Attribution {
    pieces: Pieces,
    /// Alternatives per token.
    top: usize,
    raw: String,
    tokens: VecDeque<Scored>,
}

/// A token whose text is a range of the raw one, empty if it has none.
#[derive(Debug)]
struct Scored {
    start: usize,
    end: usize,
    id: TokenId,
    logprobs: TokenLogprobs,
}

impl Attribution {
    /// Entries name tokens by `pieces` and have `top` alternatives.
    pub const fn new(pieces: Pieces, top: usize) -> Self {
        Self { pieces, top, raw: String::new(), tokens: VecDeque::new() }
    }

    /// The next of what the model wrote.
    pub fn push(&mut self, delta: &ChoiceDelta) {
        let base = self.raw.len();
        self.raw.push_str(&delta.text);
        let text = delta.text.as_bytes();
        let mut at = 0;
        for (id, logprobs) in delta.tokens.iter().zip(&delta.logprobs) {
            let start = at;
            let bytes = self.pieces.spelled(*id);
            // What is no part of the text: a token that is not shown, a broken character.
            at += if text[at..].starts_with(bytes) { bytes.len() } else { 0 };
            let (start, end) = (base + start, base + at);
            self.tokens.push_back(Scored { start, end, id: *id, logprobs: logprobs.clone() });
        }
    }

    /// A part of the message says `text`: appends the entries of its tokens, each behind a comma but for the first one in
    /// `out`.
    pub fn take(&mut self, text: &str, out: &mut Vec<u8>) {
        self.cut(text, |scored, pieces, top| {
            if !out.is_empty() {
                out.push(b',');
            }
            write_entries(pieces, (scored.id, &scored.logprobs), top, false, out);
        });
    }

    /// A part of the message whose tokens are not shown says `text`.
    pub fn skip(&mut self, text: &str) {
        self.cut(text, |_, _, _| {});
    }

    fn cut(&mut self, text: &str, mut each: impl FnMut(&Scored, &Pieces, usize)) {
        let found = if self.raw.starts_with(text) { Some(0) } else { self.raw.rfind(text) };
        let Some(from) = found.filter(|_| !text.is_empty()) else { return };
        let to = from + text.len();
        while let Some(scored) = self.tokens.pop_front_if(|scored| scored.start < to) {
            if scored.end > from || scored.start >= from {
                each(&scored, &self.pieces, self.top);
            }
        }
        self.raw.drain(..to);
        for scored in &mut self.tokens {
            scored.start -= to;
            scored.end -= to;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::mock;

    /// Writes `texts` as one delta each, and returns what tokens each of `parts` has after how many deltas.
    fn attributed(texts: &[&str], parts: &[(usize, &str)]) -> Vec<Vec<String>> {
        let tokenizer = Arc::new(mock::tokenizer().expect("it is built in"));
        let mut attribution = Attribution::new(Pieces::new(Arc::clone(&tokenizer), true, false), 0);
        let mut parts = parts.iter().peekable();
        let mut found = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            let tokens = tokenizer.encode(text, false).expect("plain text");
            let one = TokenLogprobs { logprob: -1.0, rank: 1, top: Vec::new() };
            let logprobs = vec![one; tokens.len()];
            attribution.push(&ChoiceDelta {
                text: (*text).to_owned(),
                tokens,
                logprobs,
                ..ChoiceDelta::default()
            });
            while let Some((_, part)) = parts.next_if(|(after, _)| *after == number) {
                let mut out = Vec::new();
                attribution.take(part, &mut out);
                let list = [b"[", out.as_slice(), b"]"].concat();
                let entries: Vec<Value> = serde_json::from_slice(&list).expect("entries are JSON");
                let name = |entry: &Value| entry["token"].as_str().unwrap_or_default().to_owned();
                found.push(entries.iter().map(name).collect());
            }
        }
        found
    }

    #[test]
    fn the_tokens_of_a_part_spell_it() {
        let found = attributed(&["héé", " 語x"], &[(0, "héé"), (1, " 語x")]);
        assert_eq!(
            found.iter().map(Vec::len).collect::<Vec<_>>(),
            [5, 5],
            "bytes are tokens here: {found:?}"
        );
    }

    #[test]
    fn markup_belongs_to_no_part_and_what_is_held_back_to_the_part_that_shows_it() {
        let found = attributed(
            &["hm", "</think>", "\n\n", "an", "s<", "b", "</tool", ">"],
            &[(0, "hm"), (3, "an"), (4, "s"), (5, "<b"), (7, "</tool>")],
        );
        let joined: Vec<String> = found.iter().map(|part| part.concat()).collect();
        assert_eq!(joined, ["hm", "an", "s", "<b", "</tool>"]);
    }

    #[test]
    fn a_part_that_the_model_did_not_write_has_no_tokens() {
        assert_eq!(attributed(&["abc"], &[(0, "xyz"), (0, "")]), [Vec::<String>::new(), Vec::new()]);
        assert_eq!(attributed(&["abc"], &[(0, "xyz"), (0, "abc")])[1].concat(), "abc");
    }
}
