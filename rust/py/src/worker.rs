//! The torch worker behind the engine's trait.

use frizzen_engine::arena::{Arena, ArenaLayout, ArenaLimits};
use frizzen_engine::{Worker, WorkerError, WorkerInfo};
use frizzen_sched::{StepOutput, StepPlan};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::arena::{ArenaMemory, PyArenaLayout};
use crate::gil::attached;

/// Steps that may be in flight: the one that runs and the one that is being prepared.
const NUM_ARENAS: usize = 2;

/// A `frizzen.worker.Worker`, driven through two arenas in turn.
///
/// Built, called and shut down on one thread: torch keeps its inference mode, device and graph state per thread.
pub(crate) struct PyWorker {
    object: Py<PyAny>,
    submit: Py<PyAny>,
    sample: Py<PyAny>,
    collect: Py<PyAny>,
    info: WorkerInfo,
    layout: ArenaLayout,
    arenas: [ArenaMemory; NUM_ARENAS],
    submitted: usize,
    collected: usize,
    /// The exception behind the last error, for callers that can raise it.
    raised: Option<PyErr>,
}

impl PyWorker {
    /// Builds a worker by `frizzen.worker.start.build(config_json)`.
    pub(crate) fn build(py: Python<'_>, config_json: &str) -> PyResult<Self> {
        let object = py.import("frizzen.worker.start")?.call_method1("build", (config_json,))?;
        let info_json: String =
            py.import("json")?.call_method1("dumps", (object.getattr("info")?,))?.extract()?;
        let info: WorkerInfo = serde_json::from_str(&info_json)
            .map_err(|error| PyRuntimeError::new_err(format!("worker info: {error}")))?;
        let layout = ArenaLayout::new(ArenaLimits::for_worker(&info));
        let bound = object.call_method1("bind", (PyArenaLayout(layout.clone()),))?;
        let memory: [(usize, usize); NUM_ARENAS] = bound.extract()?;
        let wrap = |(address, bytes)| {
            ArenaMemory::new(address, bytes)
                .ok_or_else(|| PyRuntimeError::new_err("Worker.bind returned a null address"))
        };
        let [first, second] = memory;
        let arenas = [wrap(first)?, wrap(second)?];
        Ok(Self {
            submit: object.getattr("submit")?.unbind(),
            sample: object.getattr("sample")?.unbind(),
            collect: object.getattr("collect")?.unbind(),
            object: object.unbind(),
            info,
            layout,
            arenas,
            submitted: 0,
            collected: 0,
            raised: None,
        })
    }

    /// The exception behind the last error.
    pub(crate) const fn take_raised(&mut self) -> Option<PyErr> {
        self.raised.take()
    }

    fn call(&mut self, method: fn(&Self) -> &Py<PyAny>, arena: usize) -> Result<(), WorkerError> {
        let result = attached(|py| match method(self).call1(py, (arena,)) {
            Ok(_) => Ok(()),
            Err(error) => Err((worker_error(py, &error), error)),
        });
        result.map_err(|(worker_error, raised)| {
            self.raised = Some(raised);
            worker_error
        })
    }
}

/// What the worker's command `drafter` says of a failure, if it knows of one.
fn drafter_failure(py: Python<'_>, worker: &Py<PyAny>) -> Option<String> {
    let answer = worker.call_method1(py, "control", ("drafter", "null")).ok()?;
    let answer: serde_json::Value = serde_json::from_str(&answer.extract::<String>(py).ok()?).ok()?;
    answer["failed"].as_str().map(str::to_owned)
}

/// The text of an exception, made while attached: the exception itself must not travel to threads that never attach.
pub(crate) fn worker_error(py: Python<'_>, error: &PyErr) -> WorkerError {
    let kind = error.get_type(py).name().map_or_else(|_| "Exception".to_owned(), |name| name.to_string());
    let value = error.value(py).to_string();
    let first_line = value.lines().next().unwrap_or_default();
    let message = if first_line.is_empty() { kind.clone() } else { format!("{kind}: {first_line}") };
    let detail = traceback_of(py, error).unwrap_or_else(|_| value.clone());
    // torch.OutOfMemoryError; compared by name because torch need not be importable here.
    if kind == "OutOfMemoryError" {
        WorkerError::OutOfMemory { message, detail }
    } else {
        WorkerError::Fatal { message, detail }
    }
}

fn traceback_of(py: Python<'_>, error: &PyErr) -> PyResult<String> {
    let lines = py.import("traceback")?.call_method1("format_exception", (error.value(py),))?;
    Ok(lines.extract::<Vec<String>>()?.concat())
}

impl Worker for PyWorker {
    fn info(&self) -> &WorkerInfo {
        &self.info
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        let arena = self.submitted % NUM_ARENAS;
        Arena::new(&self.layout, self.arenas[arena].bytes())?.encode(plan)?;
        self.call(|worker| &worker.submit, arena)?;
        // A step that waits for its masks counts once it has them.
        self.submitted += usize::from(plan.mask_rows.is_empty());
        Ok(())
    }

    fn sample(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        let arena = self.submitted % NUM_ARENAS;
        Arena::new(&self.layout, self.arenas[arena].bytes())?.encode_masks(plan)?;
        self.call(|worker| &worker.sample, arena)?;
        self.submitted += 1;
        Ok(())
    }

    fn collect(&mut self, plan: &StepPlan, output: &mut StepOutput) -> Result<(), WorkerError> {
        let arena = self.collected % NUM_ARENAS;
        self.collected += 1;
        self.call(|worker| &worker.collect, arena)?;
        Arena::new(&self.layout, self.arenas[arena].bytes())?.decode(plan, self.info.vocab_size, output)?;
        if let Some(reason) = &mut output.proposals.failed {
            // What the arena can say is that it failed; the worker kept the exception's text.
            if let Some(told) = attached(|py| drafter_failure(py, &self.object)) {
                *reason = told;
            }
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<bool, WorkerError> {
        attached(|py| {
            let more = self.object.call_method0(py, "idle").and_then(|more| more.extract(py));
            more.map_err(|error| worker_error(py, &error))
        })
    }

    fn control(&mut self, name: &str, argument: &str) -> Result<String, String> {
        attached(|py| {
            let answer = self.object.call_method1(py, "control", (name, argument));
            answer.and_then(|answer| answer.extract(py)).map_err(|error| error.to_string())
        })
    }

    fn shutdown(&mut self) {
        attached(|py| {
            if let Err(error) = self.object.call_method0(py, "shutdown") {
                tracing::warn!(%error, "the worker did not shut down cleanly");
            }
        });
    }
}
