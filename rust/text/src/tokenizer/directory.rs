//! A model directory: `tokenizer.json` and the small files around it.

use std::path::{Path, PathBuf};

use frizzen_core::TokenId;
use serde_json::{Map, Value};

use super::byte_level::ByteLevelBpe;
use super::{Encoder, NamedTemplate, SpecialTokens, Tokenizer};
use crate::LoadError;

const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

pub(super) fn load(dir: &Path) -> Result<Tokenizer, LoadError> {
    let path = dir.join("tokenizer.json");
    if !path.exists() {
        return Err(LoadError::format(
            dir,
            "it has no tokenizer.json (sentencepiece and tiktoken files are not read)",
        ));
    }
    let json = read(&path)?;
    let tokenizer = parse(&json, &path)?;
    let byte_level = ByteLevelBpe::of_json(&tokenizer, &json);
    let config = read_object(&dir.join("tokenizer_config.json"))?;
    let map = read_object(&dir.join("special_tokens_map.json"))?;
    let generation = read_object(&dir.join("generation_config.json"))?;
    let model = read_object(&dir.join("config.json"))?;

    let mut special = SpecialTokens::default();
    for role in ROLES {
        if let Some(text) = token_text(config.get(role)).or_else(|| token_text(map.get(role))) {
            special.names.insert(role.to_owned(), text.to_owned());
        }
    }
    let id_of = |role: &str| special.names.get(role).and_then(|text| tokenizer.token_to_id(text));
    special.bos = id_of("bos_token");
    special.eos.extend(id_of("eos_token"));
    let (source, at) = if generation.contains_key("eos_token_id") {
        (generation, "generation_config.json")
    } else {
        (model, "config.json")
    };
    for id in
        token_ids(source.get("eos_token_id")).map_err(|reason| LoadError::format(&dir.join(at), reason))?
    {
        if !special.eos.contains(&id) {
            special.eos.push(id);
        }
    }
    let encoder = Encoder::Standard(Box::new(tokenizer));
    Ok(Tokenizer::new(encoder, special, chat_templates(dir, &config)?)?.with_byte_level(byte_level))
}

/// The tokenizer that `json`, the contents of `path`, describes.
pub(super) fn parse(json: &[u8], path: &Path) -> Result<tokenizers::Tokenizer, LoadError> {
    let fault = |e: tokenizers::Error| LoadError::format(path, e.to_string());
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(fault)?;
    // Both are habits of a training set-up that were saved with the tokenizer; a prompt is never cut in silence.
    tokenizer.with_truncation(None).map_err(fault)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn read(path: &PathBuf) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|e| LoadError::io(path, e))
}

/// The JSON object in `path`; empty if there is no such file.
fn read_object(path: &PathBuf) -> Result<Map<String, Value>, LoadError> {
    if !path.exists() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&read(path)?) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(LoadError::format(path, "it is not a JSON object")),
        Err(e) => Err(LoadError::format(path, e.to_string())),
    }
}

/// A token is written as its text or as an object with the text in `content`.
fn token_text(value: Option<&Value>) -> Option<&str> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// `eos_token_id` is absent, null, an id, or a list of ids.
fn token_ids(value: Option<&Value>) -> Result<Vec<TokenId>, String> {
    let items = match value {
        None | Some(Value::Null) => &[],
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let ids = items.iter().map(|item| item.as_u64().and_then(|id| TokenId::try_from(id).ok()));
    ids.collect::<Option<_>>().ok_or_else(|| {
        let value = value.unwrap_or(&Value::Null);
        format!("eos_token_id must be a token id or a list of them, got {value}")
    })
}

/// `chat_template.jinja` wins over `tokenizer_config.json`, as newer checkpoints keep a stale copy there.
fn chat_templates(dir: &Path, config: &Map<String, Value>) -> Result<Vec<NamedTemplate>, LoadError> {
    let named = |name: &str, source: &str| NamedTemplate { name: name.to_owned(), source: source.to_owned() };
    let mut templates: Vec<NamedTemplate> = match config.get("chat_template") {
        Some(Value::String(source)) => vec![named("default", source)],
        Some(Value::Array(items)) => {
            let pairs = items.iter().filter_map(|t| Some((t["name"].as_str()?, t["template"].as_str()?)));
            pairs.map(|(name, source)| named(name, source)).collect()
        }
        _ => Vec::new(),
    };
    let mut files = vec![("default".to_owned(), dir.join("chat_template.jinja"))];
    if let Ok(entries) = std::fs::read_dir(dir.join("additional_chat_templates")) {
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let jinja = paths.filter(|path| path.extension().is_some_and(|ext| ext == "jinja"));
        files.extend(jinja.filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path))));
        files[1..].sort();
    }
    for (name, path) in files {
        if path.exists() {
            let source = std::fs::read_to_string(&path).map_err(|e| LoadError::io(&path, e))?;
            templates.retain(|template| template.name != name);
            templates.push(NamedTemplate { name, source });
        }
    }
    Ok(templates)
}
