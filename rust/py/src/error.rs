//! Our errors as Python exceptions.

use frizzen_core::Error;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// The exception for an error: `frizzen.errors.RequestError` for what the caller can mend, else `RuntimeError`.
pub(crate) fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Invalid { .. } | Error::NotFound { .. } | Error::Unsupported { .. } => refused(py, &text),
        Error::Busy { .. } | Error::Request { .. } | Error::Engine { .. } => PyRuntimeError::new_err(text),
    }
}

/// A `frizzen.errors.RequestError`.
pub(crate) fn refused(py: Python<'_>, text: &str) -> PyErr {
    ours(py, "RequestError", text)
}

/// A `frizzen.errors.ConfigError`.
pub(crate) fn config_error(py: Python<'_>, text: &str) -> PyErr {
    ours(py, "ConfigError", text)
}

fn ours(py: Python<'_>, class: &str, text: &str) -> PyErr {
    let class = py.import("frizzen.errors").and_then(|module| module.getattr(class));
    match class.and_then(|class| class.call1((text,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyValueError::new_err(text.to_owned()),
    }
}
