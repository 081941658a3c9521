//! Prompts of a wanted length.
//!
//! Token ids are exact on every server that takes them. A chat needs text: letters, each with a space before it, are one
//! token in the vocabularies of today's models, and two in one of bytes; two probes tell which, and what the template
//! adds. So no tokenizer is needed, and the count that is reported is the server's.

use std::ops::Range;

use crate::draw::Draw;

/// What a model is asked to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids.
    Ids(Vec<u32>),
    /// Text.
    Text(String),
}

impl Prompt {
    /// Its tokens, as well as the client can tell: a token of text is about four bytes.
    pub fn tokens(&self) -> u64 {
        match self {
            Self::Ids(ids) => ids.len() as u64,
            Self::Text(text) => text.len().div_ceil(4) as u64,
        }
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        match self {
            Self::Ids(ids) => ids.as_slice().into(),
            Self::Text(text) => text.as_str().into(),
        }
    }
}

/// A stretch of random tokens. Parts of one seed begin alike: that is how prompts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its length.
    pub tokens: u32,
    /// What it is a function of.
    pub seed: u64,
}

/// Makes random prompts.
#[derive(Clone, Debug, PartialEq)]
pub enum Maker {
    /// Of ids in this range.
    Ids(Range<u32>),
    /// Of letters.
    Letters(Letters),
}

/// How letters become tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letters {
    /// Tokens of a letter and the space before it.
    pub tokens_per_letter: f64,
    /// Tokens that the server adds to a prompt.
    pub added: f64,
}

impl Letters {
    /// From the server's counts for two prompts of letters.
    pub fn measured((few, few_tokens): (u32, u64), (many, many_tokens): (u32, u64)) -> Result<Self, String> {
        let tokens_per_letter = (many_tokens as f64 - few_tokens as f64) / f64::from(many - few);
        if tokens_per_letter <= 0.0 {
            return Err(format!(
                "the server counts {few_tokens} tokens for {few} letters and {many_tokens} for {many}: \
                 the length of prompts cannot be set by its count"
            ));
        }
        Ok(Self { tokens_per_letter, added: few_tokens as f64 - f64::from(few) * tokens_per_letter })
    }

    /// By the character, not by the letter: where a letter and its space are two tokens, a prompt may end between them.
    fn characters(self, part: &Part) -> impl Iterator<Item = char> {
        let count = (2.0 * f64::from(part.tokens) / self.tokens_per_letter).round() as u32;
        let mut draw = Draw::new(part.seed);
        (0..count).map(move |at| if at % 2 == 0 { ' ' } else { (b'a' + draw.within(&(0..26)) as u8) as char })
    }
}

impl Maker {
    /// A prompt of these parts, in this order.
    pub fn make(&self, parts: &[Part]) -> Prompt {
        match self {
            Self::Ids(range) => {
                let ids = |part: &Part| {
                    let mut draw = Draw::new(part.seed);
                    (0..part.tokens).map(move |_| draw.within(range))
                };
                Prompt::Ids(parts.iter().flat_map(ids).collect())
            }
            Self::Letters(letters) => {
                Prompt::Text(parts.iter().flat_map(|part| letters.characters(part)).collect())
            }
        }
    }

    /// What is left of a prompt of `tokens` for its own words.
    pub fn own(&self, tokens: u32) -> u32 {
        match self {
            Self::Ids(_) => tokens,
            Self::Letters(letters) => (f64::from(tokens) - letters.added).round().max(1.0) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_reach_the_length_that_the_server_counts() {
        let text = |letters: Letters| {
            let maker = Maker::Letters(letters);
            let Prompt::Text(text) = maker.make(&[Part { tokens: maker.own(256), seed: 1 }]) else {
                panic!("ids")
            };
            text
        };
        // A vocabulary of bytes: two tokens per letter, and a template of 31.
        let bytes = Letters::measured((10, 51), (110, 251)).unwrap();
        assert_eq!(bytes, Letters { tokens_per_letter: 2.0, added: 31.0 });
        assert_eq!(text(bytes).len() + 31, 256);
        // One of words: a letter and its space are one token.
        let words = Letters::measured((10, 25), (110, 125)).unwrap();
        assert_eq!(text(words).split(' ').skip(1).filter(|letter| letter.len() == 1).count() + 15, 256);
        Letters::measured((10, 50), (110, 50)).unwrap_err();
    }

    #[test]
    fn ids_stay_in_their_range_and_differ_by_seed() {
        let maker = Maker::Ids(100..103);
        let made = |seed| match maker.make(&[Part { tokens: maker.own(200), seed }]) {
            Prompt::Ids(ids) => ids,
            Prompt::Text(_) => panic!(),
        };
        assert_eq!(made(1).len(), 200);
        assert!(made(1).iter().all(|id| (100..103).contains(id)));
        assert!((100..103).all(|id| made(1).contains(&id)));
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }
}
