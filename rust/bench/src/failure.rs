//! What a request can fail of. A failure has a kind, to be counted by, and no latency.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection.
    Connect(String),
    /// The connection ended before a byte of the answer.
    Closed,
    /// The connection ended while the request was being sent.
    Send(String),
    /// A status other than 200, and what was said with it.
    Status(u16, String),
    /// The answer is not HTTP, or its content is not what was asked for.
    Malformed(String),
    /// The answer broke off.
    Truncated(String),
    /// The stream carried an error.
    ErrorEvent(String),
    /// The stream ended without saying that it was the end.
    NoEnd,
    /// It took longer than allowed.
    Timeout(Duration),
}

impl Failure {
    /// A word to count by.
    pub fn kind(&self) -> String {
        match self {
            Self::Connect(_) => "connect".to_owned(),
            Self::Closed => "closed_without_answer".to_owned(),
            Self::Send(_) => "send".to_owned(),
            Self::Status(status, _) => format!("http_{status}"),
            Self::Malformed(_) => "malformed_answer".to_owned(),
            Self::Truncated(_) => "truncated_body".to_owned(),
            Self::ErrorEvent(_) => "error_event".to_owned(),
            Self::NoEnd => "stream_without_end".to_owned(),
            Self::Timeout(_) => "timeout".to_owned(),
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(why) => write!(f, "cannot connect: {why}"),
            Self::Closed => f.write_str("the connection was closed without an answer"),
            Self::Send(why) => write!(f, "the connection broke while the request was being sent: {why}"),
            Self::Status(status, said) => write!(f, "status {status}: {said}"),
            Self::Malformed(why) => write!(f, "malformed answer: {why}"),
            Self::Truncated(place) => write!(f, "the answer broke off {place}"),
            Self::ErrorEvent(error) => write!(f, "the server failed in mid-stream: {error}"),
            Self::NoEnd => f.write_str("the stream ended without [DONE] and without a finish reason"),
            Self::Timeout(limit) => write!(f, "no complete answer within {} s", limit.as_secs_f64()),
        }
    }
}
