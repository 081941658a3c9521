//! `frizzen serve`: the HTTP server on tokio's threads, the engine and its torch worker on a thread of their own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use frizzen_core::{Error, PoolingTask, SystemClock};
use frizzen_engine::{Engine, EngineHandle, EngineSeat, Worker, WorkerInfo, seat};
use frizzen_metrics::Metrics;
use frizzen_server::defaults::SamplingDefaults;
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
use crate::worker::{PyWorker, worker_error};

/// Serves a model over HTTP, with the APIs of OpenAI and vLLM
#[derive(Parser)]
#[command(name = "frizzen serve", version)]
struct Cli {
    #[command(flatten)]
    config: ServerConfig,
}

/// How long the process may take to end when the engine's thread cannot be joined.
const LAST_RESORT: Duration = Duration::from_secs(3);

/// Runs the HTTP server until it is told to stop, or the engine fails. Returns the exit code.
#[pyfunction]
pub(crate) fn serve(py: Python<'_>, argv: Vec<String>) -> PyResult<u8> {
    crate::plugins::prepare(py, &argv)?;
    let config = match Cli::try_parse_from(std::iter::once("frizzen serve".to_owned()).chain(argv)) {
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
    detached(py, || run(&config)).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

fn run(config: &ServerConfig) -> std::io::Result<u8> {
    let runtime = runtime()?;
    let listener = match runtime.block_on(bind(&config.http)) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("{error}");
            return Ok(1);
        }
    };
    let local = listener.local_addr()?;
    // From here on a signal drains; before the listener exists the default action is the right one.
    let requests = runtime.block_on(async { ShutdownRequests::from_signals() })?;
    let (handle, seat) = seat(Arc::new(SystemClock::new()), config.scheduling.max_queue);
    let metrics = Arc::new(Metrics::new(&config.metrics_options()));
    let state = AppState::new(config, handle.clone(), metrics);
    let engine = {
        let (config, state) = (config.clone(), Arc::clone(&state));
        thread::Builder::new().name("engine".to_owned()).spawn(move || {
            if let Err(error) = run_engine(&config, seat, &handle, &state, local) {
                handle.fail(error);
            }
        })?
    };
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

/// Builds the worker and runs the loop, on this thread, attached to Python once for the whole time.
fn run_engine(
    config: &ServerConfig,
    seat: EngineSeat,
    handle: &EngineHandle,
    state: &SharedState,
    address: std::net::SocketAddr,
) -> Result<(), Error> {
    attached(|py| {
        let fail = |error: PyErr| start_error(py, &error);
        handle.set_loading("finding the model");
        let name = config.engine.tokenizer.as_deref().unwrap_or(config.engine.model());
        let path = PathBuf::from(resolve(py, name).map_err(fail)?);
        // Parsed while torch is imported and the weights are read.
        let template = config.http.chat_template.clone();
        let text = thread::spawn(move || load_text(&path, template.as_deref()));
        handle.set_loading("importing torch and loading the weights");
        let speculation = config.speculation.resolve().map_err(|message| Error::Engine { message })?;
        let worker = PyWorker::build(py, &config.engine_json(speculation.as_ref())).map_err(fail)?;
        let text = text
            .join()
            .map_err(|_| Error::Engine { message: "loading the tokenizer panicked".to_owned() })?;
        let mut text = text?;
        // Beside the weights, wherever the tokenizer is.
        let source = PathBuf::from(resolve(py, config.engine.model()).map_err(fail)?);
        text.defaults = SamplingDefaults::load(&config.http.generation_config, &source)
            .map_err(|message| Error::Engine { message })?;
        state.set_text(text);
        publish_plan(&state.metrics, worker.info());
        let options = config.engine_options(speculation.as_ref());
        detached(py, || {
            let mut engine = Engine::new(seat, worker, options, state.engine_metrics.clone())?;
            if let Some(directory) = speculation.and_then(|resolved| resolved.cache) {
                engine.remember_costs(&directory);
            }
            state.metrics.cache_config(0, &engine.cache_config());
            announce(state, address);
            engine.run()
        })
    })
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
fn announce(state: &SharedState, address: std::net::SocketAddr) {
    let (url, model) = (format!("http://{address}"), &state.names[0]);
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
        "Ready at {url}: curl {url}{path} -H 'Content-Type: application/json' -d '{body}'"
    );
    let _ = std::io::stdout().flush();
}
