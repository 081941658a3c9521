//! `frizzen serve`: the HTTP server on tokio's threads, the engine and its torch worker on a thread of their own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Parser;
use frizzen_core::{Error, PoolingTask, SystemClock};
use frizzen_engine::remote::replica::ReplicaOptions;
use frizzen_engine::{Engine, EngineHandle, EngineOptions, EngineSeat, Health, Worker, WorkerInfo, seat};
use frizzen_metrics::Metrics;
use frizzen_server::defaults::SamplingDefaults;
use frizzen_server::replicas::{Program, Replicas, read_constraint, refresh_metrics, serve_headless};
use frizzen_server::serve::bind;
use frizzen_server::{
    AppState, Outcome, ServerConfig, SharedState, ShutdownRequests, TextModel, logging, runtime,
};
use frizzen_text::Tokenizer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde_json::Value;

use crate::engine::resolve;
use crate::gil::{attached, detached};
use crate::stacks;
use crate::worker::{PyWorker, worker_error};

/// Serves a model over HTTP, with the APIs of OpenAI and vLLM
#[derive(Parser)]
#[command(name = "frizzen serve", version)]
struct Cli {
    #[command(flatten)]
    config: ServerConfig,
}

/// How often the engines are looked at while they load.
const LOOK: Duration = Duration::from_millis(50);
/// How long the process may take to end when the engine's thread cannot be joined.
const LAST_RESORT: Duration = Duration::from_secs(3);

/// Runs the HTTP server until it is told to stop, or the engine fails. Returns the exit code.
#[pyfunction]
pub(crate) fn serve(py: Python<'_>, argv: Vec<String>) -> PyResult<u8> {
    crate::plugins::prepare(py, &argv)?;
    let line = std::iter::once("frizzen serve".to_owned()).chain(argv.iter().cloned());
    let config = match Cli::try_parse_from(line) {
        Ok(cli) => cli.config,
        Err(error) => {
            // Help and version go to standard output and are no failure. A closed pipe is nobody's problem.
            let _ = error.print();
            return Ok(error.exit_code() as u8);
        }
    };
    logging::init(config.http.log_format);
    if let Err(refusal) = config.speculation.resolve() {
        tracing::error!("{refusal}");
        return Ok(2);
    }
    let ran = if config.replicas.headless {
        run_headless(py, &config)
    } else if config.replicas.is_front_end() {
        let program = program(py, argv)?;
        detached(py, || {
            run(&config, |seat, handle, state, url| front_end(&config, seat, handle, state, url, program))
        })
    } else {
        detached(py, || {
            run(&config, |seat, handle, state, url| in_process(&config, seat, handle, state, url))
        })
    };
    ran.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Serves HTTP over what `start` puts into the engine's seat: a thread that ends after the handle was told to.
fn run(
    config: &ServerConfig,
    start: impl FnOnce(EngineSeat, EngineHandle, SharedState, String) -> std::io::Result<JoinHandle<()>>,
) -> std::io::Result<u8> {
    let runtime = runtime()?;
    let listener = match runtime.block_on(bind(&config.http)) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("{error}");
            return Ok(1);
        }
    };
    let url = listener.url()?;
    // From here on a signal drains; before the listener exists the default action is the right one.
    let requests = runtime.block_on(async { ShutdownRequests::from_signals() })?;
    let (handle, seat) = seat(Arc::new(SystemClock::new()), config.scheduling.max_queue);
    let metrics = Arc::new(Metrics::new(&config.metrics_options()));
    let state = AppState::new(config, handle.clone(), metrics);
    let engine = start(seat, handle, Arc::clone(&state), url)?;
    let outcome = runtime.block_on(frizzen_server::serve::serve(listener, state, requests))?;
    if let Outcome::Stuck(_) = outcome {
        leave();
    }
    if engine.join().is_err() {
        tracing::error!("the engine's thread panicked");
        return Ok(1);
    }
    Ok(outcome.exit_code())
}

/// The engine on a thread of this process.
fn in_process(
    config: &ServerConfig,
    seat: EngineSeat,
    handle: EngineHandle,
    state: SharedState,
    url: String,
) -> std::io::Result<JoinHandle<()>> {
    let config = config.clone();
    thread::Builder::new().name("engine".to_owned()).spawn(move || {
        let ran = attached(|py| {
            let text = begin(py, &config, &handle)?;
            let built = build(py, &config)?;
            show_stacks(py, &handle);
            state.set_text(joined(text)?);
            detached(py, || {
                let mut engine = built.seated(seat, &state.metrics, 0)?;
                announce(&state, &url);
                engine.run()
            })
        });
        if let Err(error) = ran {
            handle.fail(error);
        }
    })
}

/// How a headless engine of this very server is started.
fn program(py: Python<'_>, argv: Vec<String>) -> PyResult<Program> {
    let program: PathBuf = py.import("sys")?.getattr("executable")?.extract()?;
    let arguments = ["-m", "frizzen", "serve"].map(str::to_owned).into_iter().chain(argv);
    Ok(Program { program, arguments: arguments.map(Into::into).collect() })
}

/// The engines in processes of their own: this one reads the tokenizer, and never imports torch.
fn front_end(
    config: &ServerConfig,
    seat: EngineSeat,
    handle: EngineHandle,
    state: SharedState,
    url: String,
    program: Program,
) -> std::io::Result<JoinHandle<()>> {
    let size = config.replicas.data_parallel_size as usize;
    let threads = config
        .engine
        .num_threads
        .is_none()
        .then(|| thread::available_parallelism().map_or(1, |cpus| (cpus.get() / size).max(1)));
    let engines = Replicas::start(&config.replicas, seat, program, threads)?;
    let config = config.clone();
    thread::Builder::new().name("engines".to_owned()).spawn(move || {
        let text = attached(|py| begin(py, &config, &handle)).and_then(joined);
        match text {
            Ok(text) => {
                state.set_text(text);
                announce_when_ready(&state, &url);
            }
            Err(error) => handle.fail(error),
        }
        // Waits until the handle is told to end, and for the processes.
        drop(engines);
    })
}

/// Waits until the engines are ready, or never will be.
fn announce_when_ready(state: &SharedState, url: &str) {
    while matches!(state.engine.health(), Health::Loading(_)) && !state.engine.is_stopping() {
        thread::sleep(LOOK);
    }
    if state.engine.health() == Health::Ready {
        announce(state, url);
    }
}

/// An engine without HTTP, on a thread of its own, and its front end's requests on this one.
fn run_headless(py: Python<'_>, config: &ServerConfig) -> std::io::Result<u8> {
    let clock = Arc::new(SystemClock::new());
    let metrics = Arc::new(Metrics::new(&config.metrics_options()));
    let (handle, seat) = seat(clock.clone(), usize::MAX);
    let tokenizer: Arc<OnceLock<PathBuf>> = Arc::default();
    let options = {
        let (tokenizer, template) = (Arc::clone(&tokenizer), config.http.chat_template.clone());
        let load = move || {
            let path = tokenizer.get().map_or(Path::new(""), PathBuf::as_path);
            load_text(path, template.as_deref())
        };
        ReplicaOptions {
            report: Box::new(frizzen_server::speculation::report),
            clock,
            metrics: Arc::clone(&metrics),
            refresh_metrics: refresh_metrics(&metrics, config.replicas.rank()),
            read_constraint: read_constraint(&config.http, handle.clone(), load),
            step_timeout: config.http.step_timeout,
        }
    };
    let engine = {
        let (config, handle, rank) = (config.clone(), handle.clone(), config.replicas.rank());
        thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let ran = attached(|py| {
                handle.set_loading("importing torch and loading the weights");
                let path = tokenizer_path(py, &config)?;
                // Set once: this thread runs once.
                let _ = tokenizer.set(path);
                let built = build(py, &config)?;
                show_stacks(py, &handle);
                detached(py, || built.seated(seat, &metrics, rank)?.run())
            });
            if let Err(error) = ran {
                handle.fail(error);
            }
        })?
    };
    detached(py, || {
        let Some(code) = serve_headless(config, &handle, options)? else { leave() };
        if engine.join().is_err() {
            tracing::error!("the engine's thread panicked");
            return Ok(1);
        }
        Ok(code)
    })
}

/// Ends the process although a thread is stuck, possibly inside the interpreter.
#[expect(
    clippy::exit,
    clippy::disallowed_methods,
    reason = "the stuck thread may hold the GIL: main cannot return"
)]
fn leave() -> ! {
    // Exit handlers of libraries may wait for the stuck thread too.
    let _watch = thread::spawn(|| {
        thread::sleep(LAST_RESORT);
        std::process::abort();
    });
    std::process::exit(1)
}

/// Finds the model, and begins to read its text side while torch is imported and the weights are read.
fn begin(
    py: Python<'_>,
    config: &ServerConfig,
    handle: &EngineHandle,
) -> Result<JoinHandle<Result<TextModel, Error>>, Error> {
    handle.set_loading("finding the model");
    let path = tokenizer_path(py, config)?;
    // Defaults lie beside the weights, wherever the tokenizer is.
    let model = resolve(py, config.engine.model()).map_err(|error| start_error(py, &error))?;
    let http = config.http.clone();
    handle.set_loading("importing torch and loading the weights");
    Ok(thread::spawn(move || {
        let mut text = load_text(&path, http.chat_template.as_deref())?;
        text.defaults = SamplingDefaults::load(&http.generation_config, Path::new(&model))
            .map_err(|message| Error::Engine { message })?;
        Ok(text)
    }))
}

fn joined(text: JoinHandle<Result<TextModel, Error>>) -> Result<TextModel, Error> {
    let panicked = |_| Error::Engine { message: "loading the tokenizer panicked".to_owned() };
    text.join().map_err(panicked)?
}

fn tokenizer_path(py: Python<'_>, config: &ServerConfig) -> Result<PathBuf, Error> {
    let name = config.engine.tokenizer.as_deref().unwrap_or(config.engine.model());
    resolve(py, name).map(PathBuf::from).map_err(|error| start_error(py, &error))
}

/// Builds the worker on this thread, which stays attached to Python for as long as it calls it.
///
/// Python's collector looks for no garbage among what is imported and built, then or ever after: the process is ours, and
/// a look at all of it takes longer than many steps.
fn build(py: Python<'_>, config: &ServerConfig) -> Result<Built, Error> {
    let speculation = config.speculation.resolve().map_err(|message| Error::Engine { message })?;
    let collector = py.import("gc").map_err(|error| start_error(py, &error))?;
    let collect = |method| collector.call_method0(method).map_err(|error| start_error(py, &error));
    collect("disable")?;
    let built = PyWorker::build(py, &config.engine_json(speculation.as_ref()));
    let worker = built.map_err(|error| start_error(py, &error))?;
    collect("freeze")?;
    collect("enable")?;
    let options = config.engine_options(speculation.as_ref());
    Ok(Built { worker, options, costs: speculation.and_then(|resolved| resolved.cache) })
}

/// Lets the watchdog show the stacks of this process. Serving goes on without.
fn show_stacks(py: Python<'_>, handle: &EngineHandle) {
    match stacks::source(py) {
        Ok(Some(show)) => handle.show_stacks_by(show),
        Ok(None) => {
            tracing::info!("SIGUSR1 has a handler: the stacks of a step that hangs will not be shown");
        }
        Err(error) => tracing::warn!(%error, "the stacks of a step that hangs will not be shown"),
    }
}

/// A worker, and what the loop around it is to do.
struct Built {
    worker: PyWorker,
    options: EngineOptions,
    /// Where measured step times are kept.
    costs: Option<PathBuf>,
}

impl Built {
    /// The loop of engine `rank`, with its metrics.
    fn seated(self, seat: EngineSeat, metrics: &Metrics, rank: u32) -> Result<Engine<PyWorker>, Error> {
        publish_plan(metrics, self.worker.info());
        for phase in self.worker.info().start.as_array().into_iter().flatten() {
            let seconds = phase["seconds"].as_f64().unwrap_or_default();
            metrics.start(rank, phase["phase"].as_str().unwrap_or_default(), seconds);
        }
        let mut engine = Engine::new(seat, self.worker, self.options, metrics.engine(rank))?;
        if let Some(directory) = &self.costs {
            engine.remember_costs(directory);
        }
        metrics.cache_config(rank, &engine.cache_config());
        Ok(engine)
    }
}

/// What the log says and what clients are told of a model that cannot be served.
fn start_error(py: Python<'_>, error: &PyErr) -> Error {
    let worker_error = worker_error(py, error);
    let ours = py.import("frizzen.errors").and_then(|module| module.getattr("FrizzenError"));
    // Our own errors are meant for the user and say what to do; a traceback would bury them.
    if ours.is_ok_and(|class| error.is_instance(py, &class)) {
        tracing::error!("{}", error.value(py));
    } else {
        let (frizzen_engine::WorkerError::Fatal { detail, .. }
        | frizzen_engine::WorkerError::OutOfMemory { detail, .. }) = &worker_error;
        tracing::error!("{detail}");
    }
    Error::Engine { message: format!("the model could not be loaded: {worker_error}") }
}

fn load_text(path: &Path, template: Option<&Path>) -> Result<TextModel, Error> {
    let text = Tokenizer::load(path).and_then(|tokenizer| TextModel::load(Arc::new(tokenizer), template));
    text.map_err(|error| {
        tracing::error!("{error}");
        Error::Engine { message: format!("the tokenizer could not be loaded: {error}") }
    })
}

/// The kernel plan as metrics.
fn publish_plan(metrics: &Metrics, info: &WorkerInfo) {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    for kernel in info.plan["kernels"].as_array().into_iter().flatten() {
        let ranges = kernel["layers"].as_array().into_iter().flatten();
        let ranges: Vec<String> = ranges.map(|range| format!("{}-{}", range[0], range[1])).collect();
        metrics.kernel(&text(kernel, "op"), &ranges.join(","), &text(kernel, "kernel"));
        for loser in kernel["rejected"].as_array().into_iter().flatten() {
            metrics.kernel_rejected(&text(kernel, "op"), &text(loser, "kernel"), &text(loser, "code"));
        }
    }
}

/// One line that can be pasted.
fn announce(state: &SharedState, url: &str) {
    let target = match url.split_once(':') {
        Some(("unix", path)) => format!("--unix-socket {path} http://localhost"),
        // The certificate is in the name of a host, and need not be known here.
        Some(("https", _)) => format!("--insecure {url}"),
        _ => url.to_owned(),
    };
    let model = &state.names[0];
    let pooling = state.engine.info().and_then(|info| info.pooling.as_ref()).map(|pooling| pooling.task);
    let (path, body) = match pooling {
        None => (
            "/v1/chat/completions",
            format!(
                r#"{{"model":"{model}","temperature":0,"messages":[{{"role":"user","content":"What is gravity?"}}]}}"#
            ),
        ),
        Some(PoolingTask::Embed) => {
            ("/v1/embeddings", format!(r#"{{"model":"{model}","input":"What is gravity?"}}"#))
        }
        Some(PoolingTask::Classify) => {
            ("/classify", format!(r#"{{"model":"{model}","input":"What is gravity?"}}"#))
        }
    };
    // Nobody reads it if standard output is closed.
    let _ = writeln!(
        std::io::stdout(),
        "Ready at {url}: curl {target}{path} -H 'Content-Type: application/json' -d '{body}'"
    );
    let _ = std::io::stdout().flush();
}
