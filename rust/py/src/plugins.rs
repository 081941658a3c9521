//! Plug-ins: imported before any flag is read; their functions are called on one thread of their own.
//!
//! That thread attaches for each call. Whoever waits for it (a thread that writes an answer) never does, and lets its
//! runtime go on meanwhile, for [`PATIENCE`] at most: a text whose function has not returned by then is content. While a
//! function has not returned at all, later texts are content at once, so that it holds up nobody else.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use frizzen_server::runtime_goes_on;
use frizzen_text::parse::plugin::{Plugins, ReadCalls, ToolPlugin, plug};
use pyo3::prelude::*;

use crate::error::config_error;
use crate::gil::attached;

/// How long a function may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Since when a function runs that has not returned.
type Running = Arc<Mutex<Option<Instant>>>;

type Calls = Result<Vec<(String, String)>, String>;

/// A function's index, its argument, and where the answer goes.
type Job = (usize, String, Sender<Calls>);

/// The value of `--flag VALUE` or `--flag=VALUE`. Before clap, which already looks parsers up by name.
fn value_of<'a>(argv: &'a [String], flag: &str) -> Option<&'a str> {
    argv.iter().enumerate().find_map(|(at, argument)| match argument.strip_prefix(flag)? {
        "" => argv.get(at + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    })
}

/// Imports the plug-ins that a command line names and adds their parsers to the registry.
pub(crate) fn prepare(py: Python<'_>, argv: &[String]) -> PyResult<()> {
    let reasoning = value_of(argv, "--reasoning-parser-plugin");
    let tools = value_of(argv, "--tool-parser-plugin");
    if reasoning.is_none() && tools.is_none() {
        return Ok(());
    }
    let found = py.import("frizzen.plugins")?.call_method1("prepare_plugins", (reasoning, tools))?;
    let mut plugins = Plugins::default();
    for parser in found.getattr("reasoning")?.try_iter()? {
        let parser = parser?;
        let text = |name: &str| parser.getattr(name)?.extract::<String>();
        let assumed_open = parser.getattr("assumed_open")?.extract()?;
        plugins.reasoning.push((text("name")?, text("open")?, text("close")?, assumed_open));
    }
    let (jobs, received) = channel::<Job>();
    let running = Running::default();
    let mut functions: Vec<Py<PyAny>> = Vec::new();
    for parser in found.getattr("tools")?.try_iter()? {
        let parser = parser?;
        let opens = parser.getattr("opens")?.extract()?;
        let read = reader(functions.len(), jobs.clone(), Arc::clone(&running));
        functions.push(parser.getattr("read")?.unbind());
        let (name, close) = (parser.getattr("name")?.extract()?, parser.getattr("close")?.extract()?);
        plugins.tools.push((name, ToolPlugin { opens, close, read }));
    }
    plug(plugins).map_err(|reason| config_error(py, &reason))?;
    if !functions.is_empty() {
        thread::Builder::new().name("plug-ins".to_owned()).spawn(move || {
            for (function, body, answer) in received {
                note(&running, Some(Instant::now()));
                let calls = attached(|py| call(py, &functions[function], &body));
                note(&running, None);
                // Whoever asked may have gone.
                let _ = answer.send(calls);
            }
        })?;
    }
    Ok(())
}

fn call(py: Python<'_>, function: &Py<PyAny>, body: &str) -> Calls {
    let calls = function.call1(py, (body,)).and_then(|calls| calls.extract(py));
    calls.map_err(|error| {
        let reason = error.to_string();
        tracing::warn!(reason, "a tool parser of a plug-in reads no call in a text");
        reason
    })
}

fn note(running: &Running, since: Option<Instant>) {
    *running.lock().unwrap_or_else(PoisonError::into_inner) = since;
}

/// A function that lets the plug-ins' thread call this one.
fn reader(function: usize, jobs: Sender<Job>, running: Running) -> Box<ReadCalls> {
    let jobs = Mutex::new(jobs);
    Box::new(move |body| {
        let since = *running.lock().unwrap_or_else(PoisonError::into_inner);
        if since.is_some_and(|since| since.elapsed() > PATIENCE) {
            return Err("a tool parser of a plug-in has not returned yet".to_owned());
        }
        let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        runtime_goes_on(move || {
            let (answer, answered) = channel();
            jobs.send((function, body.to_owned(), answer)).map_err(|error| error.to_string())?;
            answered.recv_timeout(PATIENCE).map_err(|error| match error {
                RecvTimeoutError::Timeout => {
                    let reason =
                        format!("a tool parser of a plug-in takes more than {} s", PATIENCE.as_secs());
                    tracing::warn!("{reason}: its text is content");
                    reason
                }
                RecvTimeoutError::Disconnected => error.to_string(),
            })?
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_in_both_spellings() {
        let argv = ["m", "--tool-parser-plugin=a.b", "--reasoning-parser-plugin", "c.py"].map(str::to_owned);
        assert_eq!(value_of(&argv, "--tool-parser-plugin"), Some("a.b"));
        assert_eq!(value_of(&argv, "--reasoning-parser-plugin"), Some("c.py"));
        assert_eq!(value_of(&argv, "--reasoning-parser"), None);
        assert_eq!(value_of(&argv[..3], "--reasoning-parser-plugin"), None);
    }
}
