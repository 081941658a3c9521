//! Byte-level BPE (`tokenizer.ggml.model = "gpt2"`) from a GGUF header.
//!
//! The file has tokens and merges but only the *name* of the pre-tokenizer; the expressions behind each name are
//! facts about the model families. A name that is not in the table is an error: another expression would give other
//! ids, silently.

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::byte_level::ByteLevelBpe;
use super::expressions::{
    DEEPSEEK_CASED, DEEPSEEK_CJK, DEEPSEEK_PUNCTUATION, DEEPSEEK3_CJK, DEEPSEEK3_WORDS, DEFAULT_PUNCTUATION,
    DIGITS, DIGITS_1_TO_3, FALCON_PUNCTUATION, GPT2, LLAMA3, O200K, QWEN2, QWEN35, TEKKEN, THREE_DIGITS,
};
use super::vocabulary::{Vocabulary, strings, unsupported};
use super::{Encoder, Tokenizer};
use crate::{Gguf, LoadError};

/// How a family cuts text into words before BPE.
#[derive(Default)]
struct PreTokenizer {
    /// Each expression isolates its matches within the pieces left by the one before.
    splits: &'static [&'static str],
    /// GPT-2's own word expression, after `splits`.
    gpt2_words: bool,
    /// A word that is a token is taken whole, whatever the merges say.
    ignore_merges: bool,
    /// A beginning-of-sequence token is added unless the file says otherwise.
    add_bos: bool,
    /// Text is normalised to NFC first.
    nfc: bool,
}

impl PreTokenizer {
    fn named(name: &str) -> Option<Self> {
        let splits = |splits| Self { splits, ..Self::default() };
        let gpt2_after = |splits| Self { splits, gpt2_words: true, ..Self::default() };
        Some(match name {
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "gigachat"
            | "a.x-4.0" | "mellum" | "exaone4" | "modern-bert" => gpt2_after(&[]),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b"
            | "mellum2" => gpt2_after(&[DIGITS]),
            "falcon" => Self { splits: &[FALCON_PUNCTUATION, GPT2, THREE_DIGITS], ..Self::default() },
            "default" => {
                Self { splits: &[DEFAULT_PUNCTUATION, GPT2, r"\p{N}+", THREE_DIGITS], ..Self::default() }
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
            | "lfm2" => Self { ignore_merges: true, add_bos: true, ..splits(&[LLAMA3]) },
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => splits(&[LLAMA3]),
            "qwen2" => Self { nfc: true, ..splits(&[QWEN2]) },
            "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "megrez" | "grok-2" | "solar-open" | "kormo" => {
                splits(&[QWEN2])
            }
            "qwen35" => splits(&[QWEN35]),
            "tekken" => Self { ignore_merges: true, add_bos: true, ..splits(&[TEKKEN]) },
            "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => splits(&[O200K]),
            "deepseek-llm" => {
                splits(&[r"[\r\n]", DEEPSEEK_CASED, DEEPSEEK_PUNCTUATION, r"\s+$", DEEPSEEK_CJK, r"\p{N}+"])
            }
            "deepseek-coder" => splits(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, DIGITS]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
                splits(&[DIGITS_1_TO_3, DEEPSEEK3_CJK, DEEPSEEK3_WORDS])
            }
            _ => return None,
        })
    }

    fn build(&self) -> Result<PreTokenizerWrapper, LoadError> {
        let mut stages: Vec<PreTokenizerWrapper> = Vec::new();
        for expression in self.splits {
            let pattern = SplitPattern::Regex((*expression).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            stages.push(split.map_err(|e| unsupported(format!("pre-tokenizer expression: {e}")))?.into());
        }
        stages.push(ByteLevel::new(false, true, self.gpt2_words).into());
        Ok(Sequence::new(stages).into())
    }
}

pub(super) fn build(gguf: &Gguf, vocabulary: Vocabulary) -> Result<Tokenizer, LoadError> {
    let name = gguf.string("tokenizer.ggml.pre").unwrap_or("default");
    let pre = PreTokenizer::named(name).ok_or_else(|| {
        unsupported(format!("GGUF pre-tokenizer {name:?}: its word expression is not known here"))
    })?;

    let pairs = strings(gguf, "tokenizer.ggml.merges")?.iter().map(|merge| {
        // A merge is "left right"; the search starts at 1 because `left` may itself be a space-like character.
        let (left, right) = merge.split_once(' ').filter(|(left, _)| !left.is_empty()).ok_or_else(|| {
            unsupported(format!("GGUF merge {merge:?} that is not two tokens separated by a space"))
        })?;
        Ok((left, right))
    });
    let pairs = pairs.collect::<Result<Vec<_>, LoadError>>()?;
    let merges = pairs.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect();
    let tokens = vocabulary.tokens.iter().zip(0..).map(|(token, id)| (token.clone(), id));
    let model = BPE::builder()
        .vocab_and_merges(tokens.collect::<tokenizers::models::bpe::Vocab>(), merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|e| unsupported(format!("GGUF merges: {e}")))?;

    let mut tokenizer = tokenizers::Tokenizer::new(model);
    if pre.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(|e| unsupported(e.to_string()))?;
    }
    tokenizer.with_pre_tokenizer(Some(pre.build()?));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer.with_post_processor(vocabulary.post_processor(gguf, pre.add_bos)?);
    tokenizer.add_tokens(vocabulary.added_tokens()).map_err(|e| unsupported(e.to_string()))?;
    let byte_level = ByteLevelBpe::of(&tokenizer, pairs.iter().copied());
    let encoder = Encoder::Standard(Box::new(tokenizer));
    let tokenizer = Tokenizer::new(encoder, vocabulary.special_tokens, vocabulary.chat_templates)?;
    Ok(tokenizer.with_byte_level(byte_level))
}
