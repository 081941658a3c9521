//! The byte string of every token, computed once from the tokenizer's decoder.

use std::collections::HashMap;

use frizzen_core::TokenId;
use serde_json::Value;
use tokenizers::Decoder as _;
use tokenizers::tokenizer::DecoderWrapper;

use super::Encoder;
use crate::LoadError;

/// Far above any real vocabulary; a table is allocated up to the largest id.
const MAX_VOCAB: usize = 1 << 24;

/// What a decoder does to the beginning of a text, and only there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// Nothing.
    Keep,
    /// Drops up to `count` leading `content` characters.
    Strip {
        /// The character dropped.
        content: char,
        /// At most so many.
        count: usize,
    },
    /// The first token has other bytes than it has elsewhere ([`TokenTable::first_bytes`]).
    FirstToken,
}

/// One stage of a decoder that works on each token alone.
enum Step {
    /// The byte-level alphabet: each character stands for a byte.
    ByteLevel,
    /// A literal replacement.
    Replace { from: String, to: String },
    /// `<0xXX>` is the byte XX.
    ByteFallback,
    /// A decoder of the crate whose result depends on the token and on whether it is the first, on nothing else.
    Local(Box<DecoderWrapper>),
    /// No decoder at all: tokens are joined by spaces.
    Spaced,
}

/// How a decoder turns tokens into bytes.
struct Recipe {
    steps: Vec<Step>,
    lead: Lead,
    byte_of: HashMap<char, u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No token has this id.
    Absent,
    Normal,
    Special,
}

/// Bytes of all tokens, back to back.
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end, and those of `id + 1` begin.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    lead: Lead,
    /// Bytes as the first token of a text, where they differ; only for [`Lead::FirstToken`].
    first: HashMap<TokenId, Vec<u8>>,
}

impl TokenTable {
    pub(super) fn build(encoder: &Encoder) -> Result<Self, LoadError> {
        let (decoder, mut tokens) = match encoder {
            Encoder::Standard(t) => (t.get_decoder(), t.get_vocab(true)),
            Encoder::Spm(t) => (t.get_decoder(), t.get_vocab(true)),
        };
        let added = match encoder {
            Encoder::Standard(t) => t.get_added_tokens_decoder(),
            Encoder::Spm(t) => t.get_added_tokens_decoder(),
        };
        let recipe = Recipe::of(decoder)?;
        let mut spelled: Vec<(TokenId, String)> = tokens.drain().map(|(token, id)| (id, token)).collect();
        // An added token wins over a vocabulary entry with the same id, as it does in the crate's decode.
        spelled.retain(|(id, token)| added.get(id).is_none_or(|a| a.content == *token));
        spelled.sort_unstable();
        spelled.dedup_by_key(|(id, _)| *id);

        let len = spelled.last().map_or(0, |(id, _)| *id as usize + 1);
        if len > MAX_VOCAB {
            return Err(LoadError::Unsupported(format!(
                "token id {}, over the limit of {MAX_VOCAB}",
                len - 1
            )));
        }
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(len),
            kinds: vec![Kind::Absent; len],
            lead: recipe.lead,
            first: HashMap::new(),
        };
        for (id, token) in spelled {
            // Ids that no token has get no bytes.
            table.ends.resize(id as usize, table.bytes.len() as u32);
            let bytes = recipe.bytes(&token, false)?;
            if recipe.lead == Lead::FirstToken {
                let first = recipe.bytes(&token, true)?;
                if first != bytes {
                    table.first.insert(id, first);
                }
            }
            table.bytes.extend_from_slice(&bytes);
            table.ends.push(table.bytes.len() as u32);
            let special = added.get(&id).is_some_and(|a| a.special);
            table.kinds[id as usize] = if special { Kind::Special } else { Kind::Normal };
        }
        Ok(table)
    }

    pub(crate) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    pub(crate) fn lead(&self) -> Lead {
        self.lead
    }

    pub(crate) fn is_special(&self, id: TokenId) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Special)
    }

    pub(crate) fn has_token(&self, id: TokenId) -> bool {
        self.kinds.get(id as usize).is_some_and(|kind| *kind != Kind::Absent)
    }

    pub(crate) fn bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Bytes of `id` as the first token of a text.
    pub(crate) fn first_bytes(&self, id: TokenId) -> &[u8] {
        self.first.get(&id).map_or_else(|| self.bytes(id), Vec::as_slice)
    }
}

impl Recipe {
    fn of(decoder: Option<&DecoderWrapper>) -> Result<Self, LoadError> {
        let byte_of = byte_level_alphabet();
        let Some(decoder) = decoder else {
            return Ok(Self { steps: vec![Step::Spaced], lead: Lead::FirstToken, byte_of });
        };
        let json = serde_json::to_value(decoder)
            .map_err(|e| LoadError::Unsupported(format!("decoder that cannot be described: {e}")))?;
        let stages = match json["decoders"].as_array() {
            Some(stages) => stages.clone(),
            None => vec![json],
        };
        let mut recipe = Self { steps: Vec::new(), lead: Lead::Keep, byte_of };
        let mut fused = false;
        for stage in &stages {
            let kind = stage["type"].as_str().unwrap_or("without a type");
            let step = match kind {
                "Fuse" => {
                    fused = true;
                    continue;
                }
                "Strip" if fused && stage["stop"] == 0 => {
                    let count = stage["start"].as_u64().unwrap_or(0) as usize;
                    let content = stage["content"].as_str().and_then(|c| c.chars().next());
                    recipe.lead = Lead::Strip { content: content.unwrap_or(' '), count };
                    continue;
                }
                // What follows a Fuse sees the whole text: only a strip at its start is understood.
                _ if fused => None,
                "ByteLevel" => Some(Step::ByteLevel),
                "ByteFallback" => Some(Step::ByteFallback),
                "Replace" => replacement(stage),
                "Metaspace" | "WordPiece" if stages.len() == 1 => {
                    recipe.lead = Lead::FirstToken;
                    Some(Step::Local(Box::new(decoder.clone())))
                }
                _ => None,
            };
            let step = step.ok_or_else(|| LoadError::Unsupported(format!("decoder stage {stage}")))?;
            recipe.steps.push(step);
        }
        Ok(recipe)
    }

    fn bytes(&self, token: &str, first: bool) -> Result<Vec<u8>, LoadError> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                // A character outside the alphabet (in an added token) means that the token is plain text.
                Step::ByteLevel => {
                    let bytes: Option<Vec<u8>> =
                        text.chars().map(|c| self.byte_of.get(&c).copied()).collect();
                    return Ok(bytes.unwrap_or_else(|| text.into_bytes()));
                }
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return Ok(vec![byte]);
                    }
                }
                Step::Replace { from, to } => text = text.replace(from.as_str(), to),
                Step::Spaced if first => {}
                Step::Spaced => text.insert(0, ' '),
                Step::Local(decoder) => {
                    // An empty token before it makes this one a later token.
                    let chain = if first { vec![text] } else { vec![String::new(), text] };
                    let decoded = decoder.decode_chain(chain);
                    let mut decoded = decoded.map_err(|e| {
                        LoadError::Unsupported(format!("decoder that fails on {token:?}: {e}"))
                    })?;
                    text = decoded.pop().unwrap_or_default();
                }
            }
        }
        Ok(text.into_bytes())
    }
}

fn replacement(stage: &Value) -> Option<Step> {
    let from = stage["pattern"]["String"].as_str()?.to_owned();
    let to = stage["content"].as_str()?.to_owned();
    Some(Step::Replace { from, to })
}

/// The byte that a byte-fallback token such as `<0x0A>` stands for.
pub(super) fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// The byte-level alphabet: printable Latin-1 characters stand for themselves, the other bytes for the characters from
/// U+0100 on, in order.
pub(super) fn byte_level_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100u32;
    let mut alphabet = HashMap::with_capacity(256);
    for byte in 0..=u8::MAX {
        let stand_in = if printable(byte) {
            Some(char::from(byte))
        } else {
            next += 1;
            char::from_u32(next - 1)
        };
        alphabet.insert(stand_in.expect("U+0100..U+0144 are characters"), byte);
    }
    alphabet
}
