//! Tokenizers: text to ids and back.
//!
//! One view serves all families: **a token is a string of bytes, and text is the lossy UTF-8 of their concatenation**,
//! after a rule for the very first characters ([`Lead`]). [`Tokenizer::decode`], the incremental
//! [`Detokenizer`](crate::Detokenizer) and [`Tokenizer::token_bytes`] all read the same table, so they cannot disagree.
//!
//! For byte-level vocabularies this is what the `tokenizers` crate computes, byte for byte. For byte-fallback
//! vocabularies it is the same for valid UTF-8; where a run of byte tokens is invalid, that crate gives one U+FFFD per
//! byte of the whole run, and we give one per invalid sequence and keep the valid text around it.

mod byte_level;
mod bytes;
mod directory;
mod expressions;
mod gguf_bpe;
mod pair;
mod spm;
mod vocabulary;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use frizzen_core::{Error, Result, TokenId};
use tokenizers::tokenizer::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use crate::decode::Decoder;
use crate::{Gguf, LoadError};
use byte_level::ByteLevelBpe;

pub(crate) use bytes::{Lead, TokenTable};
pub use pair::{Cut, Encoded};
use spm::SpmModel;

type SpmTokenizer =
    TokenizerImpl<SpmModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The crate's tokenizer, over its own models or over ours.
enum Encoder {
    Standard(Box<tokenizers::Tokenizer>),
    Spm(Box<SpmTokenizer>),
}

/// A tokenizer with its special tokens and the chat templates that came with it. Immutable; share it in an `Arc`.
pub struct Tokenizer {
    encoder: Encoder,
    /// Gives the ids that `encoder` would, sooner; where it can.
    byte_level: Option<ByteLevelBpe>,
    table: TokenTable,
    special_tokens: SpecialTokens,
    chat_templates: Vec<NamedTemplate>,
}

/// The tokens with a role, as text (for chat templates) and as ids (for the engine).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// `bos_token`, `eos_token`, `unk_token`, `pad_token`, ... to the token's text.
    pub names: BTreeMap<String, String>,
    /// The beginning-of-sequence token.
    pub bos: Option<TokenId>,
    /// Every token that ends a sequence: the tokenizer's own first, then those of the generation configuration.
    pub eos: Vec<TokenId>,
}

/// A chat template as it came with a tokenizer. Most have only one, named `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTemplate {
    /// `default`, `tool_use`, `rag`, ...
    pub name: String,
    /// Jinja source.
    pub source: String,
}

impl Tokenizer {
    /// Loads from a directory with `tokenizer.json`, or from a `.gguf` file.
    pub fn load(path: &Path) -> std::result::Result<Self, LoadError> {
        if path.is_dir() {
            return directory::load(path);
        }
        if path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf")) {
            return Self::from_gguf(&Gguf::open(path)?);
        }
        let reason =
            if path.exists() { "it is neither a directory nor a .gguf file" } else { "it does not exist" };
        Err(LoadError::format(path, reason))
    }

    /// Builds a tokenizer from the text of a `tokenizer.json`. What a directory has in other files is given: the tokens
    /// with a role, and the chat templates.
    pub fn from_json(
        json: &[u8],
        special_tokens: SpecialTokens,
        chat_templates: Vec<NamedTemplate>,
    ) -> std::result::Result<Self, LoadError> {
        let tokenizer = directory::parse(json, Path::new("tokenizer.json"))?;
        let byte_level = ByteLevelBpe::of_json(&tokenizer, json);
        let encoder = Encoder::Standard(Box::new(tokenizer));
        Ok(Self::new(encoder, special_tokens, chat_templates)?.with_byte_level(byte_level))
    }

    /// Builds the tokenizer that a GGUF header describes.
    pub fn from_gguf(gguf: &Gguf) -> std::result::Result<Self, LoadError> {
        let vocabulary = vocabulary::Vocabulary::read(gguf)?;
        match vocabulary.model.as_str() {
            "gpt2" => gguf_bpe::build(gguf, vocabulary),
            "llama" => spm::build(gguf, vocabulary),
            other => Err(LoadError::Unsupported(format!(
                "GGUF tokenizer model {other:?}; supported are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece BPE)"
            ))),
        }
    }

    fn new(
        encoder: Encoder,
        special_tokens: SpecialTokens,
        chat_templates: Vec<NamedTemplate>,
    ) -> std::result::Result<Self, LoadError> {
        let table = TokenTable::build(&encoder)?;
        for id in special_tokens.bos.iter().chain(&special_tokens.eos) {
            if *id >= table.len() {
                return Err(LoadError::Unsupported(format!(
                    "special token id {id} is not below the vocabulary size {}",
                    table.len()
                )));
            }
        }
        Ok(Self { encoder, byte_level: None, table, special_tokens, chat_templates })
    }

    fn with_byte_level(mut self, byte_level: Option<ByteLevelBpe>) -> Self {
        self.byte_level = byte_level;
        self
    }

    /// Ids of `text`. Special tokens that occur in the text become their ids. With `add_special`, the model's own
    /// beginning (and end) tokens are added as its post-processor says; chat templates write them themselves, so chats
    /// are encoded without.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
        match &self.byte_level {
            Some(byte_level) => Ok(byte_level.encode(text, add_special)),
            None => self.encode_by_crate(text, add_special),
        }
    }

    /// The same as the `tokenizers` crate computes it.
    fn encode_by_crate(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
        let encoding = match &self.encoder {
            Encoder::Standard(tokenizer) => tokenizer.encode_fast(text, add_special),
            Encoder::Spm(tokenizer) => tokenizer.encode_fast(text, add_special),
        };
        let encoding = encoding.map_err(|e| Error::invalid("prompt", format!("cannot tokenize: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of a word at the beginning of a text and after a space: a tokenizer spells both differently, and a word
    /// that must not come must not come either way. Spaces that the word begins with are no part of it, unless there is
    /// nothing else; a spelling that is the other one too comes once.
    pub fn spellings(&self, word: &str) -> Result<Vec<Vec<TokenId>>> {
        let bare = word.trim_start_matches(' ');
        if bare.is_empty() {
            return Ok(vec![self.encode(word, false)?]);
        }
        let mut spellings = vec![self.encode(bare, false)?, self.encode(&format!(" {bare}"), false)?];
        spellings.dedup();
        Ok(spellings)
    }

    /// Text of `ids`. Ids without a token (a model's table may be padded) give nothing; invalid UTF-8 gives U+FFFD.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> String {
        let mut decoder = Decoder::new(self.table.lead());
        let mut text = String::new();
        for id in ids {
            if !(skip_special && self.is_special(*id)) {
                decoder.push(&self.table, *id, &mut text);
            }
        }
        decoder.finish(&mut text);
        text
    }

    /// The bytes of one token, not necessarily UTF-8. Empty for ids without a token.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.table.bytes(id)
    }

    /// The text of one token on its own: its bytes with U+FFFD for what is not UTF-8.
    pub fn token_str(&self, id: TokenId) -> Cow<'_, str> {
        String::from_utf8_lossy(self.token_bytes(id))
    }

    /// The id of the token that is spelled `token` in the vocabulary (for special tokens: their text).
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        match &self.encoder {
            Encoder::Standard(tokenizer) => tokenizer.token_to_id(token),
            Encoder::Spm(tokenizer) => tokenizer.token_to_id(token),
        }
    }

    /// One more than the largest id, added tokens included. The model's own table may be larger.
    pub fn vocab_size(&self) -> u32 {
        self.table.len()
    }

    /// True for special tokens (control tokens): those that `skip_special` hides.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.table.is_special(id)
    }

    /// The tokens with a role.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// The beginning-of-sequence token.
    pub fn bos_id(&self) -> Option<TokenId> {
        self.special_tokens.bos
    }

    /// The tokenizer's own end-of-sequence token.
    pub fn eos_id(&self) -> Option<TokenId> {
        self.special_tokens.eos.first().copied()
    }

    /// Every token that ends a sequence, those of the generation configuration included.
    pub fn eos_token_ids(&self) -> &[TokenId] {
        &self.special_tokens.eos
    }

    /// Chat templates that came with the tokenizer.
    pub fn chat_templates(&self) -> &[NamedTemplate] {
        &self.chat_templates
    }

    pub(crate) fn table(&self) -> &TokenTable {
        &self.table
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("special_tokens", &self.special_tokens)
            .finish_non_exhaustive()
    }
}
