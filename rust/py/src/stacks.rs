//! The Python stacks of all threads, although one of them may hold the interpreter for ever.
//!
//! `frizzen.stacks` lets a signal write them to a file; the watchdog raises it on its own thread, so that the file is
//! complete when raising returns.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::{Mutex, PoisonError};

use frizzen_engine::watchdog::ShowStacks;
use nix::sys::signal::{Signal, raise};
use pyo3::prelude::*;

/// Free for programs, and not used by torch or CUDA.
const SIGNAL: Signal = Signal::SIGUSR1;

/// Installs the signal's handler; what it returns shows the stacks. `None` if the program has a handler of its own.
pub(crate) fn source(py: Python<'_>) -> PyResult<Option<ShowStacks>> {
    let module = py.import("frizzen.stacks")?;
    let descriptor: Option<i32> = module.call_method1("write_on_signal", (SIGNAL as i32,))?.extract()?;
    let Some(descriptor) = descriptor else { return Ok(None) };
    // Opened again: what is read here moves no place at which the handler writes.
    let file = Mutex::new(File::open(format!("/dev/fd/{descriptor}"))?);
    Ok(Some(Box::new(move || show(&mut file.lock().unwrap_or_else(PoisonError::into_inner)))))
}

/// What the handler writes now: everything from where the last look ended.
fn show(file: &mut File) -> io::Result<String> {
    raise(SIGNAL)?;
    let mut written = Vec::new();
    file.read_to_end(&mut written)?;
    Ok(String::from_utf8_lossy(&written).into_owned())
}
