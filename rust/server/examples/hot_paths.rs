//! The paths that every token or every request takes, one at a time, for counting instructions.
//!
//! `hot_paths NAME TIMES` runs one of them so often, on one thread, without a clock and without randomness: two runs
//! execute the same instructions, and the difference between two numbers of times is the cost of one. See
//! `tools/instructions.py`.
#![expect(clippy::unwrap_used, reason = "a measurement has no caller to report to")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{Request, RequestId, SamplingParams};
use frizzen_sched::{AdmissionLimits, Policy, Scheduler, SchedulerConfig, StepOutput, StepPlan};
use frizzen_server::mock;
use frizzen_server::output::chat::Chat;
use frizzen_server::output::message::{Reader, Shape};
use frizzen_server::output::writer::Header;
use frizzen_server::output::{ChoiceDelta, Envelope, Pieces, ShownPrompt, Usage, Writer as _};
use frizzen_server::request::{Dialect, Fields, Shown};
use frizzen_text::parse::{Format, Setup};
use frizzen_text::{SpecialTokens, StreamOptions, TextStream, Tokenizer};
use serde_json::{Map, Value, json};

/// Rows of the steps.
const ROWS: u32 = 64;

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(mock::tokenizer().unwrap())
}

/// A streamed token of a chat, from its delta to the bytes of its event.
fn write_chat_chunk(times: usize) {
    let header = Header {
        id: "chatcmpl-0123456789abcdef0123456789abcdef",
        created: 1_700_000_000,
        model: "model",
        request_id: None,
        grammar_enforced: None,
    };
    let shown = Shown { stream: true, ..Shown::default() };
    let envelope = Envelope::new(&header, "chat.completion.chunk", "chat.completion", shown);
    let readers = vec![Reader::new(Format::default(), &Setup::default(), Shape::default())];
    let prompt = ShownPrompt::new(&vec![1].into(), None, envelope.shown(), &tokenizer())
        .expect("nothing is shown of it");
    let pieces = Pieces::new(tokenizer(), true, false);
    let mut chat = Chat::new(envelope, pieces, prompt, None, None, readers, Shape::default());
    let (usage, mut out) = (Usage::default(), Vec::with_capacity(1024));
    for _ in 0..times {
        out.clear();
        let delta = ChoiceDelta { text: " water".to_owned(), tokens: vec![7], ..ChoiceDelta::default() };
        chat.events(black_box(&delta), &usage, &mut out);
        black_box(&out);
    }
}

/// A token on its way to text, with two stop strings looked for.
fn detokenise_and_match(times: usize) {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("The water cycle describes how water moves. ", false).unwrap();
    let stop = vec!["\n\nUser:".to_owned(), "the end".to_owned()];
    let mut stream = TextStream::new(tokenizer, &StreamOptions { stop, ..StreamOptions::default() }).unwrap();
    for token in ids.iter().cycle().take(times) {
        black_box(stream.push(&[*token]));
    }
}

/// A prompt of a sentence, from text to ids, in words as Llama 3 has them.
fn encode_sentence(times: usize) {
    const TEXT: &str = "The water cycle describes how water moves on, above and below the surface of the Earth: 505,000 \
        cubic kilometres a year fall as rain, and it's mostly over the sea.\n\n";
    let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let json = byte_pairs(&TEXT.replace(' ', "\u{120}").replace('\n', "\u{10a}"), words);
    let tokenizer = Tokenizer::from_json(json.as_bytes(), SpecialTokens::default(), Vec::new()).unwrap();
    for _ in 0..times {
        black_box(tokenizer.encode(black_box(TEXT), false).unwrap());
    }
}

/// A `tokenizer.json` whose merges are the pairs of neighbours in `text`, then those of the tokens that come of it, three
/// times; text and tokens are spelled in the byte-level alphabet.
fn byte_pairs(text: &str, words: &str) -> String {
    let mut tokens: Vec<String> = ('!'..='~').chain('\u{a1}'..='\u{143}').map(String::from).collect();
    let (mut merges, mut parts): (Vec<Value>, Vec<String>) =
        (Vec::new(), text.chars().map(String::from).collect());
    for _ in 0..3 {
        for pair in parts.chunks_exact(2) {
            let merged = pair.concat();
            if !tokens.contains(&merged) {
                merges.push(json!(pair));
                tokens.push(merged);
            }
        }
        parts = parts.chunks(2).map(<[String]>::concat).collect();
    }
    let vocab: Map<String, Value> =
        tokens.into_iter().zip(0..).map(|(token, id)| (token, id.into())).collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let split =
        json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false});
    json!({
        "version": "1.0", "added_tokens": [], "decoder": byte_level,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    })
    .to_string()
}

/// The body of a chat, from bytes to fields.
fn read_chat_body(times: usize) {
    let body = br#"{"model":"m","messages":[{"role":"system","content":"You are brief."},{"role":"user","content":
        "What is the water cycle, and why does it matter to people who live far from the sea?"}],"temperature":0.7,
        "max_tokens":256,"stream":true,"stream_options":{"include_usage":true},"stop":["\n\n"],"seed":7}"#;
    for _ in 0..times {
        black_box(Fields::parse(black_box(body), Dialect::Chat).unwrap());
    }
}

/// A row of a step in steady decode: planned and committed.
fn plan_and_commit_row(times: usize) {
    let config = SchedulerConfig {
        max_num_seqs: ROWS,
        max_num_batched_tokens: ROWS * 64,
        max_model_len: 1 << 20,
        block_size: 16,
        num_blocks: ROWS * 512 + (1 << 16) + 1,
        prefix_caching: true,
        whole_prompts: false,
        long_prefill_threshold: 0,
        policy: Policy::Fcfs,
        hash_seed: 1,
        admissions: AdmissionLimits::for_engine(ROWS, ROWS * 64, 1 << 20, 16, 1000),
    };
    let mut scheduler = Scheduler::new(config);
    for id in 0..u64::from(ROWS) {
        let params = SamplingParams { temperature: 0.0, max_tokens: Some(8000), ..SamplingParams::default() };
        let request = Request {
            prompt: (0..32).map(|i| i * 31 + id as u32).collect(),
            params,
            priority: 0,
            constraint: None,
            pooling: None,
            cache_salt: None,
            external_id: "".into(),
        };
        scheduler.add(RequestId(id), Arc::new(request), &[], 0, Duration::ZERO);
    }
    let (mut plan, mut output, mut events) = (StepPlan::default(), StepOutput::default(), Vec::new());
    for _ in 0..times.div_ceil(ROWS as usize) {
        scheduler.plan(&mut plan, Duration::ZERO);
        output.clear();
        for row in &plan.rows {
            output.num_sampled.push(u32::from(row.samples));
            output.tokens.extend(row.samples.then_some(7));
        }
        scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
    }
    black_box(&events);
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (name, times) = (words.next().unwrap_or_default(), words.next().and_then(|word| word.parse().ok()));
    let path: fn(usize) = match name.as_str() {
        "write_chat_chunk" => write_chat_chunk,
        "detokenise_and_match" => detokenise_and_match,
        "encode_sentence" => encode_sentence,
        "read_chat_body" => read_chat_body,
        "plan_and_commit_row" => plan_and_commit_row,
        _ => return ExitCode::FAILURE,
    };
    path(times.unwrap_or(1));
    ExitCode::SUCCESS
}
