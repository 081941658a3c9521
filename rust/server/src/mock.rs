//! The server over a worker without a model: for tests, for benchmarks, and for clients under development.
//!
//! Everything but the model is real: HTTP, tokenizer, scheduler, blocks, prefix cache. The tokenizer is one token per
//! byte (id = value), and a few special tokens above them.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use frizzen_core::{Activation, Error, PoolingInfo, PoolingTask, SystemClock};
use frizzen_engine::mock::{MockWorker, mock_info};
use frizzen_engine::remote::replica::ReplicaOptions;
use frizzen_engine::{Engine, EngineSeat, WorkerInfo, seat};
use frizzen_metrics::Metrics;
use frizzen_text::{LoadError, NamedTemplate, SpecialTokens, Tokenizer};
use serde_json::{Map, Value, json};

use crate::config::ServerConfig;
use crate::replicas::{read_constraint, refresh_metrics, serve_headless};
use crate::state::{AppState, SharedState, TextModel};

/// Begins a message.
pub const START: u32 = 256;
/// Ends a message, and the output.
pub const END: u32 = 257;
/// Begins a text.
pub const BOS: u32 = 258;
const SPECIAL: [&str; 3] = ["<|start|>", "<|end|>", "<|bos|>"];
/// Tokens of the mock's vocabulary.
pub const VOCAB_SIZE: u32 = 259;

const TEMPLATE: &str = "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

/// The shape of a mock with the byte tokenizer, to be adjusted with struct update syntax.
pub fn info() -> WorkerInfo {
    WorkerInfo { vocab_size: VOCAB_SIZE, eos_token_ids: vec![END], plan: json!({"ops": []}), ..mock_info() }
}

/// Embeddings of this length, of which each number is made of all tokens.
pub fn embeds(size: u32) -> PoolingInfo {
    PoolingInfo {
        task: PoolingTask::Embed,
        size,
        normalize: true,
        dimensions: None,
        activation: Activation::Identity,
        labels: Vec::new(),
        every_token: false,
        whole_prompts: false,
        per_token: false,
    }
}

/// A classifier of so many classes; with one class it judges pairs.
pub fn classifies(classes: u32) -> PoolingInfo {
    PoolingInfo {
        task: PoolingTask::Classify,
        normalize: false,
        activation: if classes == 1 { Activation::Sigmoid } else { Activation::Softmax },
        labels: (0..classes).map(|class| format!("LABEL_{class}")).collect(),
        ..embeds(classes)
    }
}

/// The byte tokenizer with its chat template, ready to serve.
pub fn text_model() -> Result<TextModel, LoadError> {
    TextModel::load(Arc::new(tokenizer()?), None)
}

/// One token per byte, a few special ones, and a chat template.
pub fn tokenizer() -> Result<Tokenizer, LoadError> {
    // The byte-level alphabet: printable Latin-1 stands for itself, the other bytes for what follows U+00FF.
    let mut next = 0x100;
    let mut stand_in = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).expect("U+0100 to U+0143 are characters")
        }
    };
    let vocab: Map<String, Value> =
        (0..=u8::MAX).map(|byte| (stand_in(byte).to_string(), Value::from(byte))).collect();
    let added: Vec<Value> = SPECIAL
        .iter()
        .zip(START..)
        .map(|(content, id)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let names = [("bos_token", SPECIAL[2]), ("eos_token", SPECIAL[1])];
    let special = SpecialTokens {
        names: names.into_iter().map(|(role, token)| (role.to_owned(), token.to_owned())).collect(),
        bos: Some(BOS),
        eos: vec![END],
    };
    let template = NamedTemplate { name: "default".to_owned(), source: TEMPLATE.to_owned() };
    Tokenizer::from_json(tokenizer.to_string().as_bytes(), special, vec![template])
}

/// A mock engine without HTTP, until its front end has gone; returns the exit code.
///
/// # Errors
/// There is no front end, or the connection broke.
pub fn headless(config: &ServerConfig, worker: MockWorker, text: TextModel) -> io::Result<u8> {
    let clock = Arc::new(SystemClock::new());
    let metrics = Arc::new(Metrics::new(&config.metrics_options()));
    let (handle, seat) = seat(clock.clone(), usize::MAX);
    let template = config.http.chat_template.clone();
    let options = ReplicaOptions {
        report: Box::new(crate::speculation::report),
        clock,
        metrics: Arc::clone(&metrics),
        refresh_metrics: refresh_metrics(&metrics, config.replicas.rank()),
        read_constraint: read_constraint(&config.http, handle.clone(), move || {
            TextModel::load(Arc::clone(&text.tokenizer), template.as_deref())
                .map_err(|error| Error::Request { message: error.to_string() })
        }),
        step_timeout: config.http.step_timeout,
    };
    let thread = run_engine(config, seat, worker, metrics, config.replicas.rank());
    let code = serve_headless(config, &handle, options)?;
    if code.is_some() {
        // Its error, if any, was logged where it happened.
        let _ = thread.join();
    }
    Ok(code.unwrap_or(1))
}

/// A mock engine on its own thread, and the state of a server over it. The thread ends when the handle is told to.
pub fn start(
    config: &ServerConfig,
    worker: MockWorker,
    text: TextModel,
) -> (SharedState, JoinHandle<frizzen_core::Result<()>>) {
    let metrics = Arc::new(Metrics::new(&config.metrics_options()));
    let (handle, seat) = seat(Arc::new(SystemClock::new()), config.scheduling.max_queue);
    let state = AppState::new(config, handle, Arc::clone(&metrics));
    state.set_text(text);
    (state, run_engine(config, seat, worker, metrics, 0))
}

fn run_engine(
    config: &ServerConfig,
    seat: EngineSeat,
    worker: MockWorker,
    metrics: Arc<Metrics>,
    rank: u32,
) -> JoinHandle<frizzen_core::Result<()>> {
    let speculation = config.speculation.resolve();
    let config = config.clone();
    std::thread::spawn(move || {
        let speculation = speculation.map_err(|message| Error::Engine { message })?;
        let options = config.engine_options(speculation.as_ref());
        let mut engine = Engine::new(seat, worker, options, metrics.engine(rank))?;
        metrics.cache_config(rank, &engine.cache_config());
        engine.run()
    })
}
