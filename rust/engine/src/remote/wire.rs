//! The messages between a front end and a replica, and how they are framed.
//!
//! A frame is its length in bytes (`u32`, little endian) and a message in postcard. Both ends are the same program, so
//! there is no negotiation: a different [`VERSION`] is refused.

use std::io::{self, Read, Write};
use std::time::Duration;

use frizzen_core::{OutputDelta, Pooling, RequestId, SamplingParams, TokenId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::handle::Load;
use crate::pause::PauseMode;

/// Goes up with every change of a message.
pub const VERSION: u32 = 4;
/// Longest frame: the vectors of a long step's tokens fit, four letters of a stray connection do not.
const LONGEST: u32 = 256 << 20;

/// A request on its way to a replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoteRequest {
    /// The front end's id.
    pub id: RequestId,
    /// Prompt ids.
    pub prompt: Vec<TokenId>,
    /// Sampling and stopping.
    pub params: SamplingParams,
    /// The source of its constraint, which the replica compiles.
    pub constraint: Option<String>,
    /// What a pooling request says besides.
    pub pooling: Option<Pooling>,
    /// Smaller is served first under the priority policy.
    pub priority: i32,
    /// Requests with different salts never share KV blocks.
    pub cache_salt: Option<String>,
    /// The caller's name for it.
    pub external_id: String,
}

/// Why the front end ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Its client went away.
    Abort,
    /// Its text holds a stop string.
    StopString,
}

/// What a front end says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToReplica {
    /// Compute this.
    Add(Box<RemoteRequest>),
    /// Forget this. Of a request that has ended by its length, this says whether its text ended by a stop string; one that
    /// is not known is ignored.
    End(RequestId, Ending),
    /// Forget the hashed prefixes; answered by [`FromReplica::PrefixCacheReset`].
    ResetPrefixCache,
    /// Hold new requests back; answered by [`FromReplica::Paused`].
    Pause(PauseMode),
    /// Take requests again.
    Resume,
    /// Ask the worker; answered by [`FromReplica::Answered`].
    Control {
        /// What is asked.
        name: String,
        /// JSON.
        argument: String,
    },
    /// Abort what is left and end.
    Shutdown,
}

/// What a replica says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromReplica {
    /// The first message.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Which of the replicas it is, from 0.
        rank: u32,
    },
    /// What the construction of its worker is doing.
    Loading(String),
    /// It takes requests; `info` is its `WorkerInfo` as JSON.
    Ready {
        /// JSON: the plan inside has no fixed type.
        info: String,
    },
    /// What its requests got.
    Deltas {
        /// The replica's clock when it sent this.
        now: Duration,
        /// By request, in any order; at most one of each.
        deltas: Vec<(RequestId, OutputDelta)>,
    },
    /// Its load, when that changed.
    Load(Load),
    /// Its metrics as OpenMetrics text, when they changed.
    Metrics(String),
    /// What it says of itself, when that changed.
    Report(String),
    /// What its worker answers to the oldest question that it has not answered.
    Answered(Result<String, String>),
    /// Whether the prefixes were forgotten.
    PrefixCacheReset(bool),
    /// Nothing moves any more.
    Paused,
    /// Its first fatal error; it ends after this.
    Failed(String),
}

/// Writes one frame. The caller flushes.
pub fn write<T: Serialize>(out: &mut impl Write, message: &T) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| {
        io::Error::other(format!("a message of {} bytes is over the limit of {LONGEST}", bytes.len()))
    })?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&bytes)
}

/// Reads one frame; `None` where the other end has closed the connection between two frames.
pub fn read<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a frame of {length} bytes is over the limit of {LONGEST}")));
    }
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use frizzen_core::{Error, FinishReason, TokenLogprobs};

    use super::*;

    #[test]
    fn deltas_arrive_as_they_were_sent_infinities_included() {
        let top = vec![(3, f32::NEG_INFINITY), (4, -0.1)];
        let delta = OutputDelta {
            tokens: vec![1, 70_000],
            logprobs: vec![TokenLogprobs { logprob: f32::NEG_INFINITY, rank: 9, top }],
            finish: Some(FinishReason::Error(Error::Request { message: "no".to_owned() })),
            ..OutputDelta::default()
        };
        let mut bytes = Vec::new();
        let sent = FromReplica::Deltas { now: Duration::from_nanos(7), deltas: vec![(RequestId(5), delta)] };
        write(&mut bytes, &sent).unwrap();
        let mut input = bytes.as_slice();
        let received: FromReplica = read(&mut input).unwrap().unwrap();
        assert_eq!(format!("{received:?}"), format!("{sent:?}"));
        assert!(read::<FromReplica>(&mut input).unwrap().is_none(), "nothing is left");
    }

    #[test]
    fn a_frame_that_is_cut_or_too_long_is_an_error() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ToReplica::Shutdown).unwrap();
        bytes.pop();
        assert!(read::<ToReplica>(&mut bytes.as_slice()).is_err());
        assert!(read::<ToReplica>(&mut u32::MAX.to_le_bytes().as_slice()).is_err());
    }
}
