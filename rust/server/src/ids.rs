//! Ids of requests and answers.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderMap;

/// The header by which a caller names its request; it comes back in the answer.
pub const REQUEST_ID: &str = "x-request-id";
/// Most characters of a name that is taken over.
const MAX_NAME: usize = 128;

/// Makes ids that cannot be guessed and do not repeat within the process.
#[derive(Debug, Default)]
pub struct IdSource {
    // Keyed by the operating system's randomness, one key pair each.
    keys: (RandomState, RandomState),
    count: AtomicU64,
}

impl IdSource {
    /// 32 hexadecimal digits.
    pub fn next(&self) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(32);
        write!(id, "{:016x}{:016x}", self.keys.0.hash_one(count), self.keys.1.hash_one(count))
            .expect("writing to a String does not fail");
        id
    }

    /// 64 bits that cannot be guessed.
    pub fn seed(&self) -> u64 {
        self.keys.0.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// The caller's name for its request if it is a usable one, else a new id.
    pub fn of(&self, headers: &HeaderMap) -> String {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        given.filter(|name| is_name(name)).map_or_else(|| self.next(), str::to_owned)
    }
}

/// What stands before the name of a request in the id of its answer.
const PREFIXES: [&str; 4] = ["chatcmpl-", "cmpl-", "resp_", "msg_"];

/// The name of a request in the id of its answer, or the name itself.
pub fn without_prefix(id: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(id)
}

/// True if `name` can stand in logs, headers and answers as it is.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn ids_do_not_repeat() {
        let source = IdSource::default();
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| source.next()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32 && is_name(id)));
    }

    #[test]
    fn a_callers_name_is_kept_only_if_it_is_harmless() {
        let source = IdSource::default();
        let named = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(value).unwrap());
            source.of(&headers)
        };
        assert_eq!(named("job-7/3"), "job-7/3");
        for bad in ["", "a b", &"x".repeat(129)] {
            assert_ne!(named(bad), bad);
        }
    }
}
