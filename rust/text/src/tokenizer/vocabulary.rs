//! What both GGUF tokenizer models share: tokens, their types, ids with a role, the chat template.

use std::collections::HashSet;

use frizzen_core::TokenId;
use tokenizers::AddedToken;
use tokenizers::processors::template::TemplateProcessing;

use super::{NamedTemplate, SpecialTokens};
use crate::LoadError;
use crate::gguf::{Array, Gguf};

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The `tokenizer.*` part of a GGUF header, checked.
pub(super) struct Vocabulary {
    pub(super) model: String,
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<TokenType>,
    pub(super) special_tokens: SpecialTokens,
    pub(super) chat_templates: Vec<NamedTemplate>,
}

impl Vocabulary {
    pub(super) fn read(gguf: &Gguf) -> Result<Self, LoadError> {
        let model = gguf.string("tokenizer.ggml.model");
        let model = model.ok_or_else(|| unsupported("GGUF file without tokenizer.ggml.model"))?.to_owned();
        let mut tokens = strings(gguf, "tokenizer.ggml.tokens")?.to_vec();
        // Converters fill gaps with empty tokens; a name of their own keeps the others' ids where they are.
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = format!("[EMPTY_{id}]");
        }
        let mut seen = HashSet::with_capacity(tokens.len());
        if let Some(token) = tokens.iter().find(|token| !seen.insert(token.as_str())) {
            return Err(unsupported(format!("GGUF vocabulary in which {token:?} occurs twice")));
        }
        let types = match gguf.array("tokenizer.ggml.token_type") {
            None => vec![TokenType::Normal; tokens.len()],
            Some(Array::Ints(types)) if types.len() == tokens.len() => {
                types.iter().map(|kind| token_type(*kind)).collect::<Result<_, _>>()?
            }
            Some(_) => {
                return Err(unsupported(format!(
                    "tokenizer.ggml.token_type that is not one integer for each of the {} tokens",
                    tokens.len()
                )));
            }
        };
        let special_tokens = special_tokens(gguf, &tokens)?;
        Ok(Self { model, tokens, types, special_tokens, chat_templates: chat_templates(gguf) })
    }

    /// Tokens that are recognised in a text as they are. Control tokens are special; user-defined ones are not.
    pub(super) fn added_tokens(&self) -> Vec<AddedToken> {
        let added = self.tokens.iter().zip(&self.types).filter_map(|(token, kind)| match kind {
            TokenType::Control | TokenType::Unknown => Some((token, true)),
            TokenType::UserDefined => Some((token, false)),
            TokenType::Normal | TokenType::Unused | TokenType::Byte => None,
        });
        added.map(|(token, special)| AddedToken::from(token.clone(), special).normalized(false)).collect()
    }

    /// Adds the beginning and end tokens that the file asks for, or else the defaults of its kind.
    pub(super) fn post_processor(
        &self,
        gguf: &Gguf,
        bos_by_default: bool,
    ) -> Result<Option<TemplateProcessing>, LoadError> {
        let add_bos = gguf.bool("tokenizer.ggml.add_bos_token").unwrap_or(bos_by_default);
        let add_eos = gguf.bool("tokenizer.ggml.add_eos_token").unwrap_or(false);
        let bos = required(add_bos, "bos_token", self.special_tokens.bos)?;
        let eos = required(add_eos, "eos_token", self.special_tokens.eos.first().copied())?;
        if bos.is_none() && eos.is_none() {
            return Ok(None);
        }
        // Tokens are named by letters here: the template language splits at spaces and colons.
        let template = format!(
            "{}$A{}",
            if bos.is_some() { "bos " } else { "" },
            if eos.is_some() { " eos" } else { "" }
        );
        let special: Vec<(&str, u32)> =
            [("bos", bos), ("eos", eos)].into_iter().filter_map(|(name, id)| Some((name, id?))).collect();
        let mut builder = TemplateProcessing::builder();
        builder.try_single(template).map_err(unsupported)?;
        builder.special_tokens(special);
        builder.build().map(Some).map_err(|e| unsupported(e.to_string()))
    }
}

/// `id` if it is wanted; it must then be there.
fn required(wanted: bool, name: &str, id: Option<TokenId>) -> Result<Option<TokenId>, LoadError> {
    if wanted && id.is_none() {
        return Err(unsupported(format!("GGUF file that adds a {name} and does not name one")));
    }
    Ok(id.filter(|_| wanted))
}

/// The strings at `key`, which must be there.
pub(super) fn strings<'g>(gguf: &'g Gguf, key: &str) -> Result<&'g [String], LoadError> {
    match gguf.array(key) {
        Some(Array::Strings(strings)) => Ok(strings),
        _ => Err(unsupported(format!("GGUF file without the string array {key}"))),
    }
}

pub(super) fn unsupported(reason: impl Into<String>) -> LoadError {
    LoadError::Unsupported(reason.into())
}

fn token_type(kind: i64) -> Result<TokenType, LoadError> {
    Ok(match kind {
        // 0 is "undefined": an older converter wrote it for ordinary tokens.
        0 | 1 => TokenType::Normal,
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        other => return Err(unsupported(format!("GGUF token type {other}, known are 0 to 6"))),
    })
}

fn special_tokens(gguf: &Gguf, tokens: &[String]) -> Result<SpecialTokens, LoadError> {
    let id_of = |key: &str| -> Result<Option<TokenId>, LoadError> {
        let Some(id) = gguf.uint(&format!("tokenizer.ggml.{key}_token_id")) else { return Ok(None) };
        if id < tokens.len() as u64 {
            Ok(Some(id as TokenId))
        } else {
            Err(unsupported(format!("{key}_token_id {id} is not below the vocabulary size {}", tokens.len())))
        }
    };
    let mut special = SpecialTokens { bos: id_of("bos")?, ..SpecialTokens::default() };
    for key in ["eos", "eot", "eom"] {
        if let Some(id) = id_of(key)?.filter(|id| !special.eos.contains(id)) {
            special.eos.push(id);
        }
    }
    let roles = [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
        ("sep_token", "seperator"), // the key is spelled so in the format
        ("mask_token", "mask"),
    ];
    for (name, key) in roles {
        if let Some(id) = id_of(key)? {
            special.names.insert(name.to_owned(), tokens[id as usize].clone());
        }
    }
    Ok(special)
}

fn chat_templates(gguf: &Gguf) -> Vec<NamedTemplate> {
    let named = |name: &str, key: &str| {
        let source = gguf.string(key)?.to_owned();
        Some(NamedTemplate { name: name.to_owned(), source })
    };
    let others = match gguf.array("tokenizer.chat_templates") {
        Some(Array::Strings(names)) => names.as_slice(),
        _ => &[],
    };
    let others = others.iter().filter_map(|name| named(name, &format!("tokenizer.chat_template.{name}")));
    named("default", "tokenizer.chat_template").into_iter().chain(others).collect()
}
