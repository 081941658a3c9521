//! The one error enum of the Rust side.

use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a request or with the engine. Transports map it (HTTP status, Python exception).
///
/// Between processes `param` is left behind: requests are checked before they leave the front end.
#[derive(Clone, Debug, ThisError, PartialEq, Eq, Serialize, Deserialize)]
pub enum Error {
    /// The request is wrong: `message` names the value and the limit, `param` the field.
    #[error("{message}")]
    Invalid {
        /// Field of the request that is at fault, in the API's spelling.
        #[serde(skip)]
        param: &'static str,
        /// Lower-case sentence with the offending value and the limit.
        message: String,
    },
    /// The thing asked for does not exist (a model name, a route, a response id).
    #[error("{message}")]
    NotFound {
        /// Field of the request that named it.
        #[serde(skip)]
        param: &'static str,
        /// Lower-case sentence with the name that was not found.
        message: String,
    },
    /// Known, and not supported by this build or model.
    #[error("{message}")]
    Unsupported {
        /// Field of the request that asked for it.
        #[serde(skip)]
        param: &'static str,
        /// Lower-case sentence saying what is not supported and what is.
        message: String,
    },
    /// Not now: loading, draining, or the queue is full. The caller may retry.
    #[error("{message}")]
    Busy {
        /// Lower-case sentence with the reason.
        message: String,
    },
    /// This one request failed inside the engine; the others go on.
    #[error("{message}")]
    Request {
        /// Lower-case sentence with the reason.
        message: String,
    },
    /// The engine is dead; every request fails with this first error.
    #[error("engine failed: {message}")]
    Engine {
        /// What the worker or the loop reported first.
        message: String,
    },
}

impl Error {
    /// An [`Error::Invalid`] for `param`.
    pub fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { param, message: message.into() }
    }

    /// An [`Error::Unsupported`] for `param`.
    pub fn unsupported(param: &'static str, message: impl Into<String>) -> Self {
        Self::Unsupported { param, message: message.into() }
    }
}
