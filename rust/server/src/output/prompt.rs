//! What an answer shows of its prompt: ids, text, and where in the text each token stands.

use std::sync::Arc;

use frizzen_core::TokenId;
use frizzen_text::Tokenizer;

use crate::error::ApiError;
use crate::json;
use crate::output::writer::write_ids;
use crate::request::Shown;

/// A prompt as far as it is shown.
#[derive(Clone, Debug)]
pub struct ShownPrompt {
    /// Its ids.
    pub tokens: Arc<[TokenId]>,
    ids: bool,
    text: Option<Arc<str>>,
    /// Of each token the first character and the one after its last.
    offsets: Option<Vec<(usize, usize)>>,
}

impl ShownPrompt {
    /// What `shown` asks for. `text` is what the tokens were made from; without it, it is what they say.
    ///
    /// # Errors
    /// `Unsupported` if offsets were asked for and the tokenizer changes the text, so that its tokens have none.
    pub fn new(
        tokens: &Arc<[TokenId]>,
        text: Option<&str>,
        shown: &Shown,
        tokenizer: &Tokenizer,
    ) -> Result<Self, ApiError> {
        let text = (shown.prompt_text || shown.token_offsets)
            .then(|| text.map_or_else(|| tokenizer.decode(tokens, false).into(), Arc::from));
        let offsets = text.as_deref().filter(|_| shown.token_offsets).map(|text: &str| {
            offsets(tokens, text, tokenizer).ok_or_else(|| {
                let message = "return_token_offsets: this model's tokenizer changes the text, so that its tokens are no \
                               parts of it";
                ApiError::unsupported("return_token_offsets", message)
            })
        });
        let offsets = offsets.transpose()?;
        Ok(Self {
            tokens: Arc::clone(tokens),
            ids: shown.token_ids,
            text: text.filter(|_| shown.prompt_text),
            offsets,
        })
    }

    /// True if there is anything to write.
    pub const fn is_shown(&self) -> bool {
        self.ids || self.text.is_some() || self.offsets.is_some()
    }

    /// Appends the members that were asked for, each behind a comma.
    pub fn write(&self, out: &mut Vec<u8>) {
        if self.ids {
            write_ids("prompt_token_ids", &self.tokens, out);
        }
        if let Some(text) = &self.text {
            out.extend_from_slice(b",\"prompt_text\":");
            json::string(out, text);
        }
        if let Some(offsets) = &self.offsets {
            out.extend_from_slice(b",\"prompt_token_offsets\":");
            json::list(out, offsets, |out, (start, end)| {
                json::list(out, [start, end], |out, at| json::integer(out, *at as u64));
            });
        }
    }
}

/// The characters of each token in `text`: one that is a part of a character has that one, and a special token that the
/// text does not spell has none. `None` if the tokens do not add up to the text.
fn offsets(tokens: &[TokenId], text: &str, tokenizer: &Tokenizer) -> Option<Vec<(usize, usize)>> {
    let bytes = text.as_bytes();
    let (mut at, mut characters) = (0, 0);
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        let own = tokenizer.token_bytes(*token);
        // What goes before the first word in some vocabularies, and in none of the text.
        let own = own.strip_prefix(b" ").filter(|_| at == 0 && !bytes.starts_with(own)).unwrap_or(own);
        let own = if bytes[at..].starts_with(own) {
            own
        } else if tokenizer.is_special(*token) {
            &[]
        } else {
            return None;
        };
        let begun = at + own.len();
        let firsts = |range: &[u8]| range.iter().filter(|byte| (**byte as i8) >= -0x40).count();
        let inside = own.first().is_some_and(|first| (*first as i8) < -0x40);
        let start = characters - usize::from(inside);
        characters += firsts(own);
        offsets.push((start, characters));
        at = begun;
    }
    (at == bytes.len()).then_some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock;

    #[test]
    fn offsets_count_characters_and_a_part_of_one_has_the_whole() {
        let tokenizer = mock::tokenizer().expect("it is built in");
        let text = "héé 語";
        let tokens = tokenizer.encode(text, false).expect("plain text");
        let found = offsets(&tokens, text, &tokenizer).expect("bytes add up");
        let characters: Vec<char> = text.chars().collect();
        assert_eq!(found.len(), tokens.len());
        assert_eq!(found.last().expect("not empty").1, characters.len());
        for (token, (start, end)) in tokens.iter().zip(found) {
            let covered: String = characters[start..end].iter().collect();
            let own = tokenizer.token_bytes(*token);
            assert!(covered.as_bytes().windows(own.len()).any(|window| window == own), "{covered} {own:?}");
        }
    }

    #[test]
    fn tokens_that_are_no_parts_of_the_text_have_no_offsets() {
        let tokenizer = mock::tokenizer().expect("it is built in");
        let tokens = tokenizer.encode("abc", false).expect("plain text");
        assert_eq!(offsets(&tokens, "ABC", &tokenizer), None);
        assert_eq!(offsets(&tokens, "abcd", &tokenizer), None);
    }
}
