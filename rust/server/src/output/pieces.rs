//! Tokens as text and as bytes.

use std::sync::Arc;

use frizzen_core::TokenId;
use frizzen_text::Tokenizer;

use crate::json;

/// How the tokens of one request are named.
#[derive(Clone, Debug)]
pub struct Pieces {
    tokenizer: Arc<Tokenizer>,
    /// Special tokens add nothing to the text.
    skip_special: bool,
    /// Names are `token_id:N`.
    as_ids: bool,
}

impl Pieces {
    /// Names by this tokenizer.
    pub const fn new(tokenizer: Arc<Tokenizer>, skip_special: bool, as_ids: bool) -> Self {
        Self { tokenizer, skip_special, as_ids }
    }

    /// The bytes that a token adds to the text: real ones, never those of a tokenizer's internal alphabet.
    pub(crate) fn bytes(&self, id: TokenId) -> &[u8] {
        if self.skip_special && self.tokenizer.is_special(id) { &[] } else { self.tokenizer.token_bytes(id) }
    }

    /// The bytes of a token's own text, whether or not it is shown.
    pub(crate) fn spelled(&self, id: TokenId) -> &[u8] {
        self.tokenizer.token_bytes(id)
    }

    /// Appends a token's name: its text, with U+FFFD for what is not a character on its own.
    pub(crate) fn write_name(&self, id: TokenId, out: &mut Vec<u8>) {
        if self.as_ids {
            json::string(out, &format!("token_id:{id}"));
        } else {
            json::string(out, &self.tokenizer.token_str(id));
        }
    }

    /// Appends a token's name as a key: parts of characters are written as bytes, since U+FFFD would make two keys one.
    pub(crate) fn write_key(&self, id: TokenId, out: &mut Vec<u8>) {
        use std::fmt::Write as _;

        let bytes = self.tokenizer.token_bytes(id);
        if self.as_ids || std::str::from_utf8(bytes).is_ok() {
            return self.write_name(id, out);
        }
        let mut key = "bytes:".to_owned();
        for byte in bytes {
            write!(key, "\\x{byte:02x}").expect("writing to a String does not fail");
        }
        json::string(out, &key);
    }
}
