//! The tokenizer's vocabulary as the trie that grammars walk.

use frizzen_core::TokenId;
use frizzen_text::Tokenizer;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::part::Special;

/// A trie over the bytes of the tokens.
struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    /// Every spelling of a text in tokens is allowed, so that the model chooses its own, and a draft is not refused for
    /// having another boundary.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// Tokens that stand for no text in grammars: only by name can a grammar ask for them.
pub(crate) fn special(tokenizer: &Tokenizer, vocab_size: u32, eos: &[TokenId]) -> Vec<Special> {
    let ids = 0..tokenizer.vocab_size().min(vocab_size);
    let special = ids.filter(|id| tokenizer.is_special(*id) || eos.contains(id));
    special.map(|id| (String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned(), id)).collect()
}

/// Some spelling of bytes that a grammar forces. Special tokens are their number in brackets behind the marker there.
pub(crate) fn tokens_of(trie: &TokTrie, forced: &[u8]) -> Vec<TokenId> {
    let mut parts = forced.split(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER);
    let mut tokens = trie.greedy_tokenize(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.iter().position(|byte| *byte == b']').unwrap_or(0);
        let number: Option<TokenId> =
            part.get(1..end).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        tokens.extend(number);
        tokens.extend(trie.greedy_tokenize(part.get(end + 1..).unwrap_or_default()));
    }
    tokens
}

/// The vocabulary of a model: `vocab_size` logits, of which `tokenizer` names the first, and `eos` end a text.
///
/// Special tokens stand for no text: a grammar cannot produce them, whatever it says. Ids without a token, such as the
/// padding of a model's table, are never allowed.
pub(crate) fn environment(tokenizer: &Tokenizer, vocab_size: u32, eos: &[TokenId]) -> TokEnv {
    let word = |id: TokenId| -> Vec<u8> {
        if id >= tokenizer.vocab_size() {
            return Vec::new();
        }
        let bytes = tokenizer.token_bytes(id);
        if tokenizer.is_special(id) || eos.contains(&id) {
            // The marker byte occurs in no valid text.
            return [&[TokTrie::SPECIAL_TOKEN_MARKER][..], bytes].concat();
        }
        bytes.to_vec()
    };
    let words: Vec<Vec<u8>> = (0..vocab_size).map(word).collect();
    let eos: Vec<TokenId> = eos.iter().copied().filter(|id| *id < vocab_size).collect();
    let info = TokRxInfo {
        vocab_size,
        tok_eos: eos.first().copied().unwrap_or(llguidance::toktrie::INVALID_TOKEN),
        tok_bos: None,
        tok_pad: None,
        tok_unk: None,
        tok_end_of_turn: None,
    };
    let trie = TokTrie::from(&info, &words);
    let trie = if eos.is_empty() { trie } else { trie.with_eos_tokens(&eos) };
    std::sync::Arc::new(Vocabulary { trie })
}
