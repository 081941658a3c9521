//! `SentencePiece` BPE (`tokenizer.ggml.model = "llama"`) from a GGUF header.
//!
//! Pieces have scores instead of a merge list: of all neighbours whose concatenation is a piece, the one with the best
//! score is merged, the leftmost among equals. The `tokenizers` crate has no such model (its BPE ranks *pairs*, which
//! can differ when one piece has several splits), so the model is ours and the rest is the crate's.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::BpeTrainer;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::{Prepend, Sequence as NormalizerSequence};
use tokenizers::tokenizer::{DecoderWrapper, NormalizerWrapper};
use tokenizers::{Model, Token};

use super::bytes::fallback_byte;
use super::vocabulary::{TokenType, Vocabulary, unsupported};
use super::{Encoder, SpmTokenizer, Tokenizer};
use crate::LoadError;
use crate::gguf::{Array, Gguf};

/// The piece that stands for a space.
const SPACE: &str = "\u{2581}";

/// Pieces with scores, and the byte pieces for what is not a piece.
pub(super) struct SpmModel {
    ids: HashMap<String, u32>,
    pieces: Vec<String>,
    scores: Vec<f32>,
    bytes: [u32; 256],
}

/// A span of the text; merged-away symbols have length 0.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose concatenation is a piece. Greater means merged earlier.
#[derive(PartialEq)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl SpmModel {
    fn new(vocabulary: &Vocabulary, scores: Vec<f32>) -> Result<Self, LoadError> {
        let ids: HashMap<String, u32> =
            vocabulary.tokens.iter().zip(0..).map(|(token, id)| (token.clone(), id)).collect();
        let mut bytes = [None; 256];
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            if vocabulary.types[id as usize] == TokenType::Byte {
                let byte = fallback_byte(token)
                    .ok_or_else(|| unsupported(format!("byte token {token:?}, expected the form <0xXX>")))?;
                bytes[usize::from(byte)] = Some(id);
            }
        }
        let mut byte_ids = [0; 256];
        for (byte, id) in bytes.into_iter().enumerate() {
            byte_ids[byte] = id.ok_or_else(|| {
                unsupported(format!("vocabulary without a token for the byte 0x{byte:02X}"))
            })?;
        }
        Ok(Self { ids, pieces: vocabulary.tokens.clone(), scores, bytes: byte_ids })
    }

    fn candidate(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Candidate> {
        let len = symbols[left].len + symbols[right].len;
        let id = *self.ids.get(&text[symbols[left].start..symbols[left].start + len])?;
        Some(Candidate { score: self.scores[id as usize], left, right, len })
    }

    fn merge(&self, text: &str) -> Vec<Symbol> {
        let count = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                prev: i.checked_sub(1),
                next: Some(i + 1).filter(|next| *next < count),
            })
            .collect();
        let mut queue: BinaryHeap<Candidate> =
            (1..count).filter_map(|right| self.candidate(text, &symbols, right - 1, right)).collect();
        while let Some(Candidate { left, right, len, .. }) = queue.pop() {
            // A candidate is stale once either side has been merged into something else.
            if symbols[left].len == 0
                || symbols[right].len == 0
                || symbols[left].len + symbols[right].len != len
            {
                continue;
            }
            symbols[left].len = len;
            symbols[right].len = 0;
            symbols[left].next = symbols[right].next;
            if let Some(next) = symbols[left].next {
                symbols[next].prev = Some(left);
                queue.extend(self.candidate(text, &symbols, left, next));
            }
            if let Some(prev) = symbols[left].prev {
                queue.extend(self.candidate(text, &symbols, prev, left));
            }
        }
        symbols.retain(|symbol| symbol.len > 0);
        symbols
    }
}

impl Model for SpmModel {
    type Trainer = BpeTrainer;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        let mut tokens = Vec::new();
        for symbol in self.merge(sequence) {
            let span = (symbol.start, symbol.start + symbol.len);
            let piece = &sequence[span.0..span.1];
            if let Some(id) = self.ids.get(piece) {
                tokens.push(Token::new(*id, piece.to_owned(), span));
            } else {
                // Only single characters can be left without a piece: merges always form one.
                for byte in piece.bytes() {
                    let id = self.bytes[usize::from(byte)];
                    tokens.push(Token::new(id, self.pieces[id as usize].clone(), span));
                }
            }
        }
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.pieces.get(id as usize).cloned()
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.ids.clone()
    }

    fn get_vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn save(&self, _folder: &Path, _prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a tokenizer read from a GGUF file is not written back".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

pub(super) fn build(gguf: &Gguf, vocabulary: Vocabulary) -> Result<Tokenizer, LoadError> {
    if gguf.bool("tokenizer.ggml.remove_extra_whitespaces") == Some(true) {
        return Err(unsupported("SentencePiece vocabulary that removes extra whitespace"));
    }
    let scores = match gguf.array("tokenizer.ggml.scores") {
        Some(Array::Floats(scores)) if scores.len() == vocabulary.tokens.len() => {
            scores.iter().map(|score| *score as f32).collect()
        }
        _ => return Err(unsupported("SentencePiece vocabulary without one score (float) for each token")),
    };
    let space_prefix = gguf.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let mut tokenizer = SpmTokenizer::new(SpmModel::new(&vocabulary, scores)?);

    let escape = Replace::new(" ", SPACE).map_err(|e| unsupported(e.to_string()))?;
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if space_prefix {
        normalizers.push(Prepend::new(SPACE.to_owned()).into());
    }
    normalizers.push(escape.into());
    let normalizer: NormalizerWrapper = NormalizerSequence::new(normalizers).into();
    tokenizer.with_normalizer(Some(normalizer)).map_err(|e| unsupported(e.to_string()))?;

    // The decoder is only read for its description; see `bytes.rs`.
    let strip = if space_prefix { r#",{"type":"Strip","content":" ","start":1,"stop":0}"# } else { "" };
    let decoder = format!(
        r#"{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"{SPACE}"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}}{strip}]}}"#
    );
    let decoder: DecoderWrapper = serde_json::from_str(&decoder).map_err(|e| unsupported(e.to_string()))?;
    tokenizer.with_decoder(Some(decoder));
    tokenizer.with_post_processor(vocabulary.post_processor(gguf, true)?);
    tokenizer.add_tokens(vocabulary.added_tokens()).map_err(|e| unsupported(e.to_string()))?;
    Tokenizer::new(Encoder::Spm(Box::new(tokenizer)), vocabulary.special_tokens, vocabulary.chat_templates)
}
