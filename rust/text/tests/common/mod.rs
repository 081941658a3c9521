//! Model files small enough to be made in a test.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use frizzen_text::Tokenizer;
use serde_json::{Value, json};

/// A path that no other test uses. The folder is cargo's own scratch folder, under `target`.
pub fn scratch(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let unique = format!("{}-{}-{name}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(unique)
}

/// Writes a file and loads a tokenizer from it.
pub fn load_gguf(bytes: &[u8]) -> Result<Tokenizer, frizzen_text::LoadError> {
    let path = scratch("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let loaded = Tokenizer::load(&path);
    std::fs::remove_file(path).unwrap();
    loaded
}

/// Writes a model directory, loads it, and removes it.
pub fn load_directory(files: &[(&str, &str)]) -> Result<Tokenizer, frizzen_text::LoadError> {
    let dir = scratch("model");
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let loaded = Tokenizer::load(&dir);
    std::fs::remove_dir_all(dir).unwrap();
    loaded
}

/// The byte-level alphabet, by byte.
pub fn byte_alphabet() -> Vec<char> {
    let mut extra = 0x100;
    let stand_in = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            extra += 1;
            char::from_u32(extra - 1).unwrap()
        }
    };
    (0..=255).map(stand_in).collect()
}

fn tokenizer_json(parts: &Value) -> String {
    let mut whole = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null, "added_tokens": []
    });
    whole.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    whole.to_string()
}

pub fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "special": special, "normalized": false,
           "single_word": false, "lstrip": false, "rstrip": false})
}

/// Ids 0 to 255 are the bytes; then `<s>`, `</s>` (special) and `<tool é>` (not special).
pub fn byte_tokenizer_json() -> String {
    let vocab: serde_json::Map<String, Value> =
        byte_alphabet().into_iter().zip(0..).map(|(c, id)| (c.to_string(), json!(id))).collect();
    tokenizer_json(&json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "added_tokens": [added(256, "<s>", true), added(257, "</s>", true), added(258, "<tool é>", false)],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}
        }
    }))
}

/// Where a byte is a token and nothing is merged: text and ids are the same thing.
pub fn byte_tokenizer() -> Arc<Tokenizer> {
    let config = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;
    let files = [("tokenizer.json", byte_tokenizer_json()), ("tokenizer_config.json", config.to_owned())];
    Arc::new(load_directory(&files.each_ref().map(|(name, text)| (*name, text.as_str()))).unwrap())
}

/// Pieces of a `SentencePiece` vocabulary in the form of `tokenizer.json`: ids 0 to 2 are `<unk>`, `<s>`, `</s>`, then
/// the 256 byte pieces, then words.
pub fn sentencepiece_json(decoder: &Value) -> String {
    let mut vocab = serde_json::Map::new();
    let bytes = (0..256).map(|b| format!("<0x{b:02X}>"));
    let words = ["▁", "▁Hello", "Hello", "▁world", "▁▁", "a", "é", "▁a▁b", "##x", "!", "<0x2G>"];
    let tokens =
        ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain(bytes).chain(words.map(str::to_owned));
    for (id, token) in tokens.enumerate() {
        vocab.insert(token, json!(id));
    }
    tokenizer_json(&json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>", "byte_fallback": true},
        "decoder": decoder,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
    }))
}

/// One more than the largest id of [`sentencepiece_json`].
pub const SENTENCEPIECE_VOCAB: u32 = 3 + 256 + 11;

pub fn llama_decoder() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
}

pub fn tokenizer_from_json(json: &str) -> Arc<Tokenizer> {
    Arc::new(load_directory(&[("tokenizer.json", json)]).unwrap())
}

/// Writes GGUF files, sound or not.
#[derive(Clone)]
pub struct GgufBuilder {
    version: u32,
    pairs: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: usize,
}

pub fn gguf_string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl GgufBuilder {
    pub fn new() -> Self {
        Self { version: 3, pairs: Vec::new(), tensors: Vec::new(), data: 0 }
    }

    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// A pair with the bytes of its value, type number first.
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs.push((key.to_owned(), [&kind.to_le_bytes()[..], value].concat()));
        self
    }

    pub fn string(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &gguf_string(value))
    }

    pub fn uint(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub fn array(self, key: &str, kind: u32, items: &[Vec<u8>]) -> Self {
        let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
        self.raw(key, 9, &[head, items.concat()].concat())
    }

    pub fn strings<S: AsRef<str>>(self, key: &str, items: &[S]) -> Self {
        let items: Vec<Vec<u8>> = items.iter().map(|item| gguf_string(item.as_ref())).collect();
        self.array(key, 8, &items)
    }

    pub fn ints(self, key: &str, items: &[i32]) -> Self {
        let items: Vec<Vec<u8>> = items.iter().map(|item| item.to_le_bytes().to_vec()).collect();
        self.array(key, 5, &items)
    }

    pub fn floats(self, key: &str, items: &[f32]) -> Self {
        let items: Vec<Vec<u8>> = items.iter().map(|item| item.to_le_bytes().to_vec()).collect();
        self.array(key, 6, &items)
    }

    /// A tensor description; `data` makes room for the data of all.
    pub fn tensor(mut self, name: &str, shape: &[u64], ggml_type: u32, offset: u64) -> Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), ggml_type, offset));
        self
    }

    pub fn data(mut self, bytes: usize) -> Self {
        self.data = bytes;
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            out.extend(gguf_string(key));
            out.extend(value);
        }
        for (name, shape, ggml_type, offset) in &self.tensors {
            out.extend(gguf_string(name));
            out.extend((shape.len() as u32).to_le_bytes());
            out.extend(shape.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(ggml_type.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32) + self.data, 0);
        out
    }
}

/// A byte-level BPE vocabulary: three special tokens, the 256 bytes, then the results of `merges`.
pub fn gguf_bpe(pre: &str, merges: &[&str]) -> GgufBuilder {
    let mut tokens: Vec<String> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned).to_vec();
    tokens.extend(byte_alphabet().iter().map(char::to_string));
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect();
    GgufBuilder::new()
        .string("general.architecture", "llama")
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .ints("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", merges)
        .uint("tokenizer.ggml.bos_token_id", 1)
        .uint("tokenizer.ggml.eos_token_id", 2)
}

/// A `SentencePiece` vocabulary: `<unk>`, `<s>`, `</s>`, the 256 byte pieces, then `pieces` with their scores.
pub fn gguf_spm(pieces: &[(&str, f32)]) -> GgufBuilder {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(pieces.iter().map(|(piece, _)| (*piece).to_owned()));
    let mut types = vec![2, 3, 3];
    types.extend(vec![6; 256]);
    types.extend(vec![1; pieces.len()]);
    let mut scores = vec![0.0; 259];
    scores.extend(pieces.iter().map(|(_, score)| score));
    GgufBuilder::new()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .ints("tokenizer.ggml.token_type", &types)
        .floats("tokenizer.ggml.scores", &scores)
        .uint("tokenizer.ggml.bos_token_id", 1)
        .uint("tokenizer.ggml.eos_token_id", 2)
}
