//! The step arena on Python's side: its layout as data, and its memory as a slice.

use std::ptr::NonNull;

use frizzen_engine::WorkerInfo;
use frizzen_engine::arena::{ArenaLayout, ArenaLimits};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Name, dtype name, shape (a tuple) and byte offset.
type SectionTuple<'py> = (&'static str, &'static str, Bound<'py, PyAny>, usize);

/// Where every array of a step lies; computed from a worker's sizes.
#[pyclass(name = "ArenaLayout", module = "frizzen._core", frozen)]
#[derive(Debug)]
pub(crate) struct PyArenaLayout(pub(crate) ArenaLayout);

#[pymethods]
impl PyArenaLayout {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    #[pyo3(signature = (*, max_rows, max_tokens, max_drafts, max_logprobs, max_block_deltas, max_history, max_rules, vocab_size, pooled_size = 0))]
    fn new(
        max_rows: usize,
        max_tokens: usize,
        max_drafts: usize,
        max_logprobs: usize,
        max_block_deltas: usize,
        max_history: usize,
        max_rules: usize,
        vocab_size: usize,
        pooled_size: usize,
    ) -> Self {
        Self(ArenaLayout::new(ArenaLimits {
            max_rows,
            max_tokens,
            max_drafts,
            max_logprobs,
            max_block_deltas,
            max_history,
            max_rules,
            vocab_size,
            pooled_size,
        }))
    }

    /// The layout for a worker whose `info` this is, as JSON.
    #[staticmethod]
    fn for_engine(info_json: &str) -> PyResult<Self> {
        let info: WorkerInfo = serde_json::from_str(info_json)
            .map_err(|error| PyValueError::new_err(format!("worker info: {error}")))?;
        Ok(Self(ArenaLayout::new(ArenaLimits::for_worker(&info))))
    }

    /// Size of one arena in bytes.
    #[getter]
    const fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    /// Name, dtype name, shape and byte offset of each array.
    #[getter]
    fn sections<'py>(&self, py: Python<'py>) -> PyResult<Vec<SectionTuple<'py>>> {
        let sections = self.0.sections().iter();
        sections
            .map(|section| {
                let shape = pyo3::types::PyTuple::new(py, &section.shape)?.into_any();
                Ok((section.name, section.dtype.name(), shape, section.offset))
            })
            .collect()
    }
}

/// The memory of one arena: a torch tensor's storage that the worker object keeps alive.
#[derive(Debug)]
pub(crate) struct ArenaMemory {
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the worker that is driven by the one thread that owns this value; moving the value to
// another thread moves that ownership with it.
#[expect(unsafe_code, reason = "the arena is one of the places where unsafe is allowed")]
unsafe impl Send for ArenaMemory {}

impl ArenaMemory {
    /// Takes over the address that `Worker.bind` returned.
    pub(crate) fn new(address: usize, bytes: usize) -> Option<Self> {
        Some(Self { pointer: NonNull::new(std::ptr::with_exposed_provenance_mut(address))?, bytes })
    }

    /// The memory as bytes.
    #[expect(unsafe_code, reason = "the arena is one of the places where unsafe is allowed")]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the worker allocated `bytes` bytes at this address and keeps them while it lives, which is as long
        // as this value's owner; Python touches them only inside `submit` and `collect`, which that owner calls and
        // waits for, and any copy to a device that `submit` started has ended before `collect` returned, after which
        // alone this arena is written again.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}
