//! `frizzen mock-serve`: the real server over a worker that makes text up.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use frizzen_core::SystemClock;
use frizzen_engine::mock::{Content, Fault, MockWorker, TimingLaw, mock_drafter};
use frizzen_engine::{Worker as _, WorkerInfo, seat};
use frizzen_metrics::Metrics;
use frizzen_server::config::{EngineArgs, HttpArgs, SchedulingArgs, SpeculationArgs};
use frizzen_server::defaults::SamplingDefaults;
use frizzen_server::replicas::{Program, ReplicaArgs, Replicas};
use frizzen_server::{AppState, ServerConfig, ShutdownRequests, TextModel, mock, runtime, serve};
use frizzen_text::Tokenizer;

/// What the mock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Saying {
    /// Lower-case letters and spaces, a function of the prompt (and of the seed, unless greedy)
    Letters,
    /// Any token: broken characters, special tokens, early ends
    Anything,
    /// The prompt, over and over
    Echo,
    /// The text of --script, then the end
    Script,
}

/// `frizzen mock-serve`
#[derive(Args, Debug)]
pub struct MockServeArgs {
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    scheduling: SchedulingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    replicas: ReplicaArgs,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    behaviour: Behaviour,
}

/// Sizes of the mock.
#[derive(Args, Debug)]
#[command(next_help_heading = "Mock model")]
struct Shape {
    /// Prompt and output together, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    max_model_len: u32,
    /// Requests that run at the same time
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_num_seqs: u32,
    /// Tokens of one step
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    max_num_batched_tokens: u32,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    block_size: u32,
    /// KV blocks
    #[arg(long, value_name = "N", default_value_t = 65536)]
    num_blocks: u32,
    /// Return embeddings of this length instead of text
    #[arg(long, value_name = "N", conflicts_with = "classes")]
    embed_size: Option<u32>,
    /// Return the probabilities of so many classes instead of text; one class judges pairs
    #[arg(long, value_name = "N")]
    classes: Option<u32>,
    /// A directory with a tokenizer.json or a .gguf file, in place of one token per byte
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
}

/// What the mock says, how fast, and what goes wrong.
#[derive(Args, Debug)]
#[command(next_help_heading = "Mock behaviour")]
struct Behaviour {
    /// What it says
    #[arg(long, value_enum, default_value_t = Saying::Letters)]
    say: Saying,
    /// The text of --say script
    #[arg(long, value_name = "TEXT", required_if_eq("say", "script"))]
    script: Option<String>,
    /// Milliseconds of every step
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = parse_time)]
    step_ms: f64,
    /// Microseconds more per request that decodes
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = parse_time)]
    decode_us: f64,
    /// Microseconds more per prompt token
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = parse_time)]
    prefill_us: f64,
    /// What goes wrong at which step: raise@N, panic@N, oom@N, bad-row@N or hang@N
    #[arg(long, value_name = "FAULT@STEP", value_parser = parse_fault)]
    fault: Vec<Fault>,
}

fn parse_time(text: &str) -> Result<f64, String> {
    let time = text.parse().ok().filter(|time| (0.0..=1e9).contains(time));
    time.ok_or_else(|| format!("'{text}' is not a time from 0 to 1e9"))
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    let refusal = || format!("'{text}' is not raise@N, panic@N, oom@N, bad-row@N or hang@N");
    let (kind, step) = text.split_once('@').ok_or_else(refusal)?;
    let step = step.parse().map_err(|_| refusal())?;
    match kind {
        "raise" => Ok(Fault::Raise(step)),
        "panic" => Ok(Fault::Panic(step)),
        "oom" => Ok(Fault::OutOfMemory(step)),
        "bad-row" => Ok(Fault::BadRow(step)),
        "hang" => Ok(Fault::Hang(step)),
        _ => Err(refusal()),
    }
}

fn content(behaviour: &Behaviour, text: &TextModel) -> Result<Content, String> {
    let encode = |what: &str| text.tokenizer.encode(what, false).map_err(|error| error.to_string());
    Ok(match behaviour.say {
        Saying::Anything => Content::Chain,
        Saying::Echo => Content::Echo,
        Saying::Script => Content::Script(encode(behaviour.script.as_deref().unwrap_or_default())?.into()),
        Saying::Letters => {
            // One character at a time: together a tokenizer would merge them into words.
            let letters: Result<Vec<Vec<u32>>, String> =
                "abcdefghijklmnopqrstuvwxyz     ".chars().map(|letter| encode(&letter.to_string())).collect();
            Content::Alphabet(letters?.concat().into())
        }
    })
}

fn worker(args: &MockServeArgs, text: &TextModel) -> Result<MockWorker, String> {
    let shape = &args.shape;
    let speculation = args.speculation.resolve()?;
    let drafts = speculation.as_ref().map_or(0, |resolved| resolved.worker.max_drafts);
    let model = speculation.filter(|resolved| resolved.config.is_worker());
    let drafter = model.map(|resolved| mock_drafter(resolved.worker.drafter, drafts));
    let info = WorkerInfo {
        max_model_len: shape.max_model_len,
        max_num_seqs: shape.max_num_seqs,
        max_num_batched_tokens: shape.max_num_batched_tokens,
        block_size: shape.block_size,
        num_blocks: shape.num_blocks,
        max_drafts: drafts,
        pooling: shape.embed_size.map(mock::embeds).or(shape.classes.map(mock::classifies)),
        drafter,
        vocab_size: text.tokenizer.vocab_size(),
        eos_token_ids: text.tokenizer.eos_token_ids().to_vec(),
        ..mock::info()
    };
    info.validate()?;
    let law = TimingLaw {
        base: (args.behaviour.step_ms * 1e6) as u64,
        per_decode_row: (args.behaviour.decode_us * 1e3) as u64,
        per_prefill_token: (args.behaviour.prefill_us * 1e3) as u64,
        per_context_token: 0,
        drafting: 0,
        per_proposed_draft: 0,
    };
    let worker = MockWorker::new(info).saying(content(&args.behaviour, text)?).taking(law);
    Ok(args.behaviour.fault.iter().fold(worker, |worker, fault| worker.failing(*fault)))
}

fn text(args: &MockServeArgs) -> Result<TextModel, String> {
    let tokenizer = match &args.shape.tokenizer {
        Some(path) => Tokenizer::load(path),
        None => mock::tokenizer(),
    };
    let loaded = tokenizer
        .and_then(|tokenizer| TextModel::load(Arc::new(tokenizer), args.http.chat_template.as_deref()));
    let mut text = loaded.map_err(|error| error.to_string())?;
    let nowhere = std::path::Path::new("");
    if args.http.generation_config != "auto" {
        text.defaults = SamplingDefaults::load(&args.http.generation_config, nowhere)?;
    }
    Ok(text)
}

/// How a headless engine of this very server is started.
fn this_program() -> Program {
    let mut line = std::env::args_os();
    let first = line.next().unwrap_or_default();
    Program { program: std::env::current_exe().unwrap_or_else(|_| first.into()), arguments: line.collect() }
}

/// Serves until a signal comes.
pub fn serve(args: MockServeArgs) -> Result<ExitCode, String> {
    frizzen_server::logging::init(args.http.log_format);
    if args.http.parsing.has_plugins() {
        return Err("plug-ins are Python, which mock-serve does without".to_owned());
    }
    let text = text(&args)?;
    let mut worker = worker(&args, &text)?;
    // A hang lasts as long as the process: the watchdog is what ends it.
    let _hang = worker.hang_guard();
    let config = ServerConfig {
        engine: EngineArgs { model: Some(worker.info().model.clone()), ..EngineArgs::default() },
        scheduling: args.scheduling,
        speculation: args.speculation,
        replicas: args.replicas,
        http: args.http,
    };
    if config.replicas.headless {
        return mock::headless(&config, worker, text).map(ExitCode::from).map_err(|error| error.to_string());
    }
    let runtime = runtime().map_err(|error| format!("cannot start threads: {error}"))?;
    let outcome = runtime.block_on(async {
        let listener = serve::bind(&config.http).await.map_err(|error| error.to_string())?;
        let requests =
            ShutdownRequests::from_signals().map_err(|error| format!("cannot take signals: {error}"))?;
        let serving = |state| async {
            serve::serve(listener, state, requests).await.map_err(|error| error.to_string())
        };
        if config.replicas.is_front_end() {
            let (handle, seat) = seat(Arc::new(SystemClock::new()), config.scheduling.max_queue);
            let metrics = Arc::new(Metrics::new(&config.metrics_options()));
            let state = AppState::new(&config, handle, metrics);
            state.set_text(text);
            let engines = Replicas::start(&config.replicas, seat, this_program(), None);
            let engines = engines.map_err(|error| error.to_string())?;
            let outcome = serving(state).await?;
            drop(engines);
            return Ok(outcome);
        }
        let (state, thread) = mock::start(&config, worker, text);
        let outcome = serving(state).await?;
        if !matches!(outcome, serve::Outcome::Stuck(_)) {
            // Its error, if any, is the outcome's, and was logged where it happened.
            let _ = thread.join();
        }
        Ok::<_, String>(outcome)
    })?;
    Ok(ExitCode::from(outcome.exit_code()))
}
