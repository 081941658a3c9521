//! One text or a pair of them, cut to a length without losing the tokens that a model expects around them.

use frizzen_core::{Error, Result, TokenId};
use tokenizers::tokenizer::{PostProcessor, TokenizerImpl};
use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};
use tokenizers::{
    Decoder, EncodeInput, Encoding, Model, Normalizer, PostProcessorWrapper, PreTokenizer,
    TruncationDirection,
};

use super::{Encoder, Tokenizer};

/// How a text that is too long is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Most tokens, those that the tokenizer adds included. Of a pair, the longer text loses its tokens first.
    pub to: Option<usize>,
    /// Drop the beginning instead of the end.
    pub left: bool,
    /// Most tokens of the last text itself, before all else.
    pub last_to: Option<usize>,
}

/// Ids of a text or a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, special tokens included.
    pub ids: Vec<TokenId>,
    /// Index of the first token that belongs to the second text, as the tokenizer's template says.
    pub second_start: Option<u32>,
}

impl Tokenizer {
    /// Ids of `first`, followed by `second` if there is one, as the tokenizer's template joins them.
    ///
    /// # Errors
    /// `Invalid` if a text cannot be tokenised, or the cut leaves no room for the special tokens.
    pub fn encode_pair(
        &self,
        first: &str,
        second: Option<&str>,
        add_special: bool,
        cut: Cut,
    ) -> Result<Encoded> {
        match &self.encoder {
            Encoder::Standard(tokenizer) => encode(tokenizer, first, second, add_special, cut),
            Encoder::Spm(tokenizer) => encode(tokenizer, first, second, add_special, cut),
        }
    }
}

fn fault(error: impl std::fmt::Display) -> Error {
    Error::invalid("input", format!("cannot tokenize: {error}"))
}

fn encode<M, N, PT, D>(
    tokenizer: &TokenizerImpl<M, N, PT, PostProcessorWrapper, D>,
    first: &str,
    second: Option<&str>,
    add_special: bool,
    cut: Cut,
) -> Result<Encoded>
where
    M: Model,
    N: Normalizer,
    PT: PreTokenizer,
    D: Decoder,
{
    let plain = |text: &str| tokenizer.encode(EncodeInput::Single(text.into()), false).map_err(fault);
    let mut texts = (plain(first)?, second.map(plain).transpose()?);
    let direction = if cut.left { TruncationDirection::Left } else { TruncationDirection::Right };
    if let Some(limit) = cut.last_to {
        texts.1.as_mut().unwrap_or(&mut texts.0).truncate(limit, 0, direction);
    }
    if let Some(to) = cut.to {
        let added = tokenizer.get_post_processor().filter(|_| add_special);
        let added = added.map_or(0, |processor| processor.added_tokens(second.is_some()));
        texts = shorten(texts, to, added, direction)?;
    }
    let encoding = tokenizer.post_process(texts.0, texts.1, add_special).map_err(fault)?;
    let second_start = second.and_then(|_| encoding.get_type_ids().iter().position(|kind| *kind == 1));
    Ok(Encoded { ids: encoding.get_ids().to_vec(), second_start: second_start.map(|at| at as u32) })
}

fn shorten(
    (first, second): (Encoding, Option<Encoding>),
    to: usize,
    added: usize,
    direction: TruncationDirection,
) -> Result<(Encoding, Option<Encoding>)> {
    let room = to.checked_sub(added).filter(|room| *room > 0).ok_or_else(|| {
        let message = format!("truncate_prompt_tokens is {to}, and {added} of them are special tokens");
        Error::invalid("truncate_prompt_tokens", message)
    })?;
    let strategy = TruncationStrategy::LongestFirst;
    let params = TruncationParams { max_length: room, strategy, stride: 0, direction };
    truncate_encodings(first, second, &params).map_err(fault)
}
