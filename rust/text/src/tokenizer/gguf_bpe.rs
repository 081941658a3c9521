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

use super::vocabulary::{Vocabulary, strings, unsupported};
use super::{Encoder, Tokenizer};
use crate::{Gguf, LoadError};

/// GPT-2's word expression, for families that go on splitting after it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const DIGITS: &str = r"\p{N}";
const DIGITS_1_TO_3: &str = r"\p{N}{1,3}";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const DEEPSEEK_CASED: &str = concat!(
    r"\s?[A-Za-z",
    r"\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}",
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}",
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}",
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}",
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}",
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}",
    r"\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}",
    r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}",
    r"\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}",
    r"\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}",
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}",
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    "]+"
);
const DEEPSEEK_PUNCTUATION: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const DEFAULT_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";

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

    let merges = strings(gguf, "tokenizer.ggml.merges")?.iter().map(|merge| {
        // A merge is "left right"; the search starts at 1 because `left` may itself be a space-like character.
        let (left, right) = merge.split_once(' ').filter(|(left, _)| !left.is_empty()).ok_or_else(|| {
            unsupported(format!("GGUF merge {merge:?} that is not two tokens separated by a space"))
        })?;
        Ok((left.to_owned(), right.to_owned()))
    });
    let merges = merges.collect::<Result<Vec<_>, LoadError>>()?;
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
    Tokenizer::new(
        Encoder::Standard(Box::new(tokenizer)),
        vocabulary.special_tokens,
        vocabulary.chat_templates,
    )
}
