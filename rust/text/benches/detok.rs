//! Cost per token of detokenisation and stop strings, and of a chat template.
//!
//! `cargo bench -p frizzen-text`. Set `FRIZZEN_TEST_GGUF` to a model file for its vocabulary and template; without it a
//! vocabulary of bytes is used, where each token is one byte.
#![expect(clippy::unwrap_used, reason = "a benchmark has no caller to report to")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use frizzen_core::TokenId;
use frizzen_text::{
    ChatTemplate, Detokenizer, RenderRequest, SpecialTokens, StreamOptions, TextStream, Tokenizer,
};
use serde_json::{Value, json};

const TEXT: &str = "The water cycle describes how water moves on, above and below the surface of the Earth.\n\
    1. Evaporation: 2,120 litres — “naïve” 😀 ไทย 你好世界.\n\n```python\ndef f(n):\n    return n * 2\n```\n";

fn main() {
    divan::main();
}

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(load()));

#[divan::bench(sample_count = 3)]
fn load() -> Tokenizer {
    match std::env::var_os("FRIZZEN_TEST_GGUF") {
        Some(path) => Tokenizer::load(Path::new(&path)).unwrap(),
        None => {
            Tokenizer::from_json(byte_vocabulary().as_bytes(), SpecialTokens::default(), Vec::new()).unwrap()
        }
    }
}

/// A `tokenizer.json` without merges.
fn byte_vocabulary() -> String {
    let mut extra = 0x100;
    let alphabet = (0..=255u8).map(|byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            extra += 1;
            char::from_u32(extra - 1).unwrap()
        }
    });
    let vocab: serde_json::Map<String, Value> =
        alphabet.zip(0..).map(|(c, id)| (c.to_string(), json!(id))).collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []},
           "pre_tokenizer": byte_level, "decoder": byte_level})
    .to_string()
}

fn tokens() -> Vec<TokenId> {
    TOKENIZER.encode(&TEXT.repeat(20), false).unwrap()
}

#[divan::bench]
fn detokenize(bencher: Bencher) {
    let ids = tokens();
    bencher
        .counter(ItemsCount::new(ids.len()))
        .with_inputs(|| Detokenizer::new(TOKENIZER.clone(), true))
        .bench_values(|mut detokenizer| {
            for id in &ids {
                black_box(detokenizer.push(*id));
            }
        });
}

/// One token per step, as in plain decoding; stop strings that begin often and never end.
#[divan::bench(args = [0, 1, 4])]
fn stream(bencher: Bencher, stops: usize) {
    let ids = tokens();
    let all = ["\n\nUser:", "the end", " water wheel", "```json"];
    let stop = all.into_iter().take(stops).map(str::to_owned).collect();
    let options = StreamOptions { stop, ..StreamOptions::default() };
    bencher
        .counter(ItemsCount::new(ids.len()))
        .with_inputs(|| TextStream::new(TOKENIZER.clone(), &options).unwrap())
        .bench_values(|mut stream| {
            for id in &ids {
                black_box(stream.push(&[*id]));
            }
        });
}

#[divan::bench]
fn encode(bencher: Bencher) {
    let text = TEXT.repeat(20);
    bencher.counter(ItemsCount::new(tokens().len())).bench(|| TOKENIZER.encode(&text, false).unwrap());
}

#[divan::bench]
fn render_chat(bencher: Bencher) {
    let source = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}";
    let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
    let messages: Vec<Value> = (0..8).map(|_| json!({"role": "user", "content": TEXT})).collect();
    let request =
        RenderRequest { messages: &messages, add_generation_prompt: true, ..RenderRequest::default() };
    bencher.bench(|| template.render(black_box(&request)).unwrap());
}

/// What a template costs that never ends.
#[divan::bench(sample_count = 3)]
fn endless_template(bencher: Bencher) {
    let source = "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
    let messages = [json!({"role": "user", "content": "x"})];
    let request = RenderRequest { messages: &messages, ..RenderRequest::default() };
    bencher.bench(|| template.render(black_box(&request)).unwrap_err());
}
