//! The context that a client sends with a request: W3C Trace Context, level 1.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The header with the client's trace and span.
pub const TRACE_PARENT: &str = "traceparent";
/// The header with what vendors added to it.
pub const TRACE_STATE: &str = "tracestate";
/// Most characters of it that are passed on, as the specification asks for.
pub const MAX_STATE: usize = 512;

/// A trace.
pub type TraceId = [u8; 16];
/// A span.
pub type SpanId = [u8; 8];

/// The span of the client that made the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its trace.
    pub trace: TraceId,
    /// The span itself.
    pub span: SpanId,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl Parent {
    /// Reads `version-trace-span-flags`. What is not well-formed is no parent, and later versions may go on after the
    /// flags, both as the specification has it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(5, '-');
        let version: [u8; 1] = hex(parts.next()?)?;
        let trace: TraceId = hex(parts.next()?)?;
        let span: SpanId = hex(parts.next()?)?;
        let flags: [u8; 1] = hex(parts.next()?)?;
        let more = parts.next().is_some();
        let valid = version[0] != 0xff && (version[0] > 0 || !more) && trace != [0; 16] && span != [0; 8];
        valid.then_some(Self { trace, span, sampled: flags[0] & 1 == 1 })
    }
}

/// Lower-case hexadecimal digits of exactly `N` bytes.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Not zero, and not guessable: keyed by the operating system's randomness.
fn random() -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    KEYS.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)).max(1)
}

/// A new trace.
pub fn new_trace_id() -> TraceId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random().to_be_bytes());
    id[8..].copy_from_slice(&random().to_be_bytes());
    id
}

/// A new span.
pub fn new_span_id() -> SpanId {
    random().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn a_parent_is_read_with_its_flag() {
        let parent = Parent::parse(&format!("00-{TRACE}-00f067aa0ba902b7-01")).unwrap();
        assert_eq!((parent.trace[0], parent.span[7], parent.sampled), (0x4b, 0xb7, true));
        assert!(!Parent::parse(&format!("00-{TRACE}-00f067aa0ba902b7-02")).unwrap().sampled);
        assert!(Parent::parse(&format!("01-{TRACE}-00f067aa0ba902b7-01-more")).is_some(), "a later version");
    }

    #[test]
    fn what_is_not_well_formed_is_no_parent() {
        let bad = [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}é-00f067aa0ba902b7-01"),
            "é".repeat(40),
        ];
        for text in bad {
            assert_eq!(Parent::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn ids_do_not_repeat() {
        let ids: std::collections::HashSet<TraceId> = (0..1000).map(|_| new_trace_id()).collect();
        assert_eq!(ids.len(), 1000);
    }
}
