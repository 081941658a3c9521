//! What can go wrong while a tokenizer or a chat template is loaded.

use std::path::{Path, PathBuf};

use thiserror::Error as ThisError;

/// A model file that cannot be used. Errors of a request are [`frizzen_core::Error`] instead.
#[derive(Debug, ThisError)]
pub enum LoadError {
    /// The file system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file that was opened.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is truncated, corrupt, or of another format.
    #[error("{} is not usable: {reason}", path.display())]
    Format {
        /// The file at fault.
        path: PathBuf,
        /// Lower-case sentence with the offending value and what was expected.
        reason: String,
    },
    /// The file is sound but asks for something that cannot be done exactly.
    #[error("unsupported tokenizer: {0}")]
    Unsupported(String),
    /// A chat template that does not parse.
    #[error("chat template does not parse: {0}")]
    Template(String),
}

impl LoadError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn format(path: &Path, reason: impl Into<String>) -> Self {
        Self::Format { path: path.to_owned(), reason: reason.into() }
    }
}

impl From<LoadError> for frizzen_core::Error {
    fn from(error: LoadError) -> Self {
        Self::invalid("model", error.to_string())
    }
}
