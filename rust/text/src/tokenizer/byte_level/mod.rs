//! Byte-level BPE without what the `tokenizers` crate keeps for offsets.
//!
//! That crate copies every word with two numbers per byte, spells every token as a string, and looks up words in a cache of
//! its own; for ids alone none of it is needed. [`ByteLevelBpe::of`] reads a loaded tokenizer's description and takes it over if
//! it knows every part of it exactly; anything else stays with the crate. The choice is made once, at load.
//!
//! Invariant (property tests, and real vocabularies where there are some): the ids are the crate's, for any text.

mod added;
mod file;
mod merges;
#[cfg(test)]
mod tests;
mod words;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use frizzen_core::TokenId;
use regex_automata::hybrid::dfa::Cache;
use rustc_hash::FxHashMap;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::{Model as _, NormalizedString};

use super::bytes::byte_level_alphabet;
use super::expressions;
use added::{AddedTokens, Piece};
use merges::Merges;
use words::Stage;

/// A tokenizer of this kind. Immutable but for the room that encoding takes.
pub(super) struct ByteLevelBpe {
    /// Looked for before normalisation, and after it in what the first ones leave.
    added: [AddedTokens; 2],
    nfc: bool,
    stages: Vec<Stage>,
    /// Words that are taken whole, whatever the merges say.
    whole: FxHashMap<Box<[u8]>, TokenId>,
    merges: Merges,
    /// What the post-processor puts around a text.
    around: [Vec<TokenId>; 2],
    /// As many as texts were encoded at the same time: a few MB each where texts have characters of many kinds.
    rooms: Mutex<Vec<Room>>,
}

/// What encoding a text takes beside it, used again.
struct Room {
    caches: Vec<Option<Cache>>,
    merging: merges::Room,
}

impl ByteLevelBpe {
    /// [`ByteLevelBpe::of`] the tokenizer that the contents of a `tokenizer.json` describe.
    pub(super) fn of_json(tokenizer: &tokenizers::Tokenizer, json: &[u8]) -> Option<Self> {
        let ModelWrapper::BPE(_) = tokenizer.get_model() else { return None };
        let merges = file::merges(json)?;
        Self::of(tokenizer, merges.iter().map(file::Merge::parts))
    }

    /// Takes over what `tokenizer` does; `merges` are those of its model, left and right, best first. `None` if any part of
    /// it is not known here.
    pub(super) fn of<'a>(
        tokenizer: &tokenizers::Tokenizer,
        merges: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Option<Self> {
        let ModelWrapper::BPE(bpe) = tokenizer.get_model() else { return None };
        if !is_plain(bpe) || tokenizer.get_encode_special_tokens() {
            return None;
        }
        let nfc = is_nfc(&serde_json::to_value(tokenizer.get_normalizer()).ok()?)?;
        let stages = stages(&serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?)?;
        let alphabet = byte_level_alphabet();
        let mut whole = FxHashMap::default();
        if bpe.ignore_merges {
            let bytes_of =
                |token: &str| token.chars().map(|c| alphabet.get(&c).copied()).collect::<Option<Box<[u8]>>>();
            whole.extend(bpe.get_vocab().iter().filter_map(|(token, id)| Some((bytes_of(token)?, *id))));
        }
        Some(Self {
            added: added_tokens(tokenizer, nfc)?,
            nfc,
            stages,
            whole,
            merges: read_merges(bpe, &alphabet, merges)?,
            around: surroundings(tokenizer)?,
            rooms: Mutex::default(),
        })
    }

    /// Ids of `text`, as [`Tokenizer::encode`](super::Tokenizer::encode) says.
    pub(super) fn encode(&self, text: &str, add_special: bool) -> Vec<TokenId> {
        let room = self.rooms().pop();
        let mut room = room.unwrap_or_else(|| Room {
            caches: self.stages.iter().map(Stage::cache).collect(),
            merging: merges::Room::default(),
        });
        let [before, after] = &self.around;
        let mut ids = Vec::with_capacity(text.len() / 3 + before.len() + after.len());
        if add_special {
            ids.extend_from_slice(before);
        }
        let [exact, normalized] = &self.added;
        exact.split(text, &mut |piece| match piece {
            Piece::Token(id) => ids.push(id),
            Piece::Text(text) => normalized.split(&self.normalize(text), &mut |piece| match piece {
                Piece::Token(id) => ids.push(id),
                Piece::Text(text) => self.encode_piece(text, &mut room, &mut ids),
            }),
        });
        if add_special {
            ids.extend_from_slice(after);
        }
        room.merging.trim();
        self.rooms().push(room);
        ids
    }

    fn encode_piece(&self, text: &str, room: &mut Room, ids: &mut Vec<TokenId>) {
        let Room { caches, merging } = room;
        words::split(&self.stages, caches, text, &mut |word| {
            let word = word.as_bytes();
            match self.whole.get(word) {
                Some(id) => ids.push(*id),
                None => self.merges.encode(word, merging, ids),
            }
        });
    }

    fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.nfc { nfc(text) } else { Cow::Borrowed(text) }
    }

    fn rooms(&self) -> MutexGuard<'_, Vec<Room>> {
        // A room is whole whenever it is in the list.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Canonical composition as the crate does it.
fn nfc(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_composed) {
        return Cow::Borrowed(text);
    }
    let mut normalized = NormalizedString::from(text);
    normalized.nfc();
    Cow::Owned(normalized.get().to_owned())
}

/// True for the usual characters that composition neither changes nor joins with one before them.
const fn is_composed(c: char) -> bool {
    matches!(
        c,
        '\0'..='\u{2FF}' // Latin
            | '\u{400}'..='\u{482}' // Cyrillic
            | '\u{2010}'..='\u{2027}' // punctuation
            | '\u{3001}'..='\u{3020}'
            | '\u{3041}'..='\u{3096}' // Hiragana
            | '\u{30A1}'..='\u{30FA}' // Katakana
            | '\u{4E00}'..='\u{9FFF}' // ideographs
            | '\u{AC00}'..='\u{D7A3}' // Hangul
            | '\u{FF01}'..='\u{FF60}' // wide forms
    )
}

/// True for a model of bytes and merges alone.
fn is_plain(bpe: &BPE) -> bool {
    let empty = |affix: &Option<String>| affix.as_ref().is_none_or(String::is_empty);
    bpe.dropout.is_none() && empty(&bpe.continuing_subword_prefix) && empty(&bpe.end_of_word_suffix)
}

/// Whether a normalizer composes (NFC) or does nothing; `None` for any other.
fn is_nfc(normalizer: &Value) -> Option<bool> {
    let parts = match normalizer["normalizers"].as_array() {
        Some(parts) => parts.as_slice(),
        None if normalizer.is_null() => &[],
        None => std::slice::from_ref(normalizer),
    };
    match parts {
        [] => Some(false),
        [part] if part["type"] == "NFC" => Some(true),
        _ => None,
    }
}

/// The stages of a pre-tokenizer that ends with the byte-level alphabet.
fn stages(pre_tokenizer: &Value) -> Option<Vec<Stage>> {
    let parts = match pre_tokenizer["pretokenizers"].as_array() {
        Some(parts) => parts.as_slice(),
        None => std::slice::from_ref(pre_tokenizer),
    };
    let (last, parts) = parts.split_last()?;
    if last["type"] != "ByteLevel" || last["add_prefix_space"] != false {
        return None;
    }
    let stage = |part: &Value| match part["type"].as_str()? {
        "Split" if part["behavior"] == "Isolated" && part["invert"] == false => {
            Stage::new(part["pattern"]["Regex"].as_str()?)
        }
        "Digits" if part["individual_digits"] == true => Some(Stage::Digits),
        _ => None,
    };
    let mut stages = parts.iter().map(stage).collect::<Option<Vec<Stage>>>()?;
    if last["use_regex"] != false {
        stages.push(Stage::new(expressions::BYTE_LEVEL)?);
    }
    Some(stages)
}

/// The added tokens that are looked for before and after normalisation. `None` if one of them has conditions.
fn added_tokens(tokenizer: &tokenizers::Tokenizer, composed: bool) -> Option<[AddedTokens; 2]> {
    let (mut exact, mut normalized) = (Vec::new(), Vec::new());
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        if token.single_word || token.lstrip || token.rstrip {
            return None;
        }
        if token.normalized {
            let spelling = if composed { nfc(&token.content).into_owned() } else { token.content };
            normalized.push((spelling, id));
        } else {
            exact.push((token.content, id));
        }
    }
    Some([AddedTokens::new(exact)?, AddedTokens::new(normalized)?])
}

/// The merges as ids. `None` if the vocabulary lacks a part of a merge, or a byte for which something else would stand.
fn read_merges<'a>(
    bpe: &BPE,
    alphabet: &HashMap<char, u8>,
    merges: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<Merges> {
    let drops = bpe.unk_token.is_none() && !bpe.byte_fallback;
    let mut bytes = [None; 256];
    for (character, byte) in alphabet.iter().map(|(character, byte)| (*character, *byte)) {
        bytes[usize::from(byte)] = bpe.token_to_id(character.encode_utf8(&mut [0; 4]));
    }
    let never_comes = |byte: usize| matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    if !drops && bytes.iter().enumerate().any(|(byte, token)| token.is_none() && !never_comes(byte)) {
        return None;
    }
    let mut merged = String::new();
    let ids = merges.into_iter().map(|(left, right)| {
        merged.clear();
        merged.push_str(left);
        merged.push_str(right);
        Some((bpe.token_to_id(left)?, bpe.token_to_id(right)?, bpe.token_to_id(&merged)?))
    });
    Some(Merges::new(&bytes, ids.collect::<Option<Vec<_>>>()?))
}

/// The tokens that the post-processor puts before and after a text. `None` if it does anything else to it.
fn surroundings(tokenizer: &tokenizers::Tokenizer) -> Option<[Vec<TokenId>; 2]> {
    const PROBE: &str = "a b";
    let ids = |add_special| Some(tokenizer.encode_fast(PROBE, add_special).ok()?.get_ids().to_vec());
    let (bare, whole) = (ids(false).filter(|bare| !bare.is_empty())?, ids(true)?);
    let mut places = whole.windows(bare.len()).enumerate().filter(|(_, window)| *window == bare);
    let (start, _) = places.next()?;
    if places.next().is_some() {
        return None;
    }
    Some([whole[..start].to_vec(), whole[start + bare.len()..].to_vec()])
}
