//! Finished responses, for later requests that refer to them: in memory, bounded, the oldest forgotten first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::error::{ApiError, quoted};
use crate::output::blocks::{Block, Kind};

/// The responses that are kept. Both parts are JSON text, so that their size is known.
#[derive(Debug)]
pub struct ResponseStore {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<String, Entry>,
    /// Ids, oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    response: Bytes,
    /// The conversation up to and with this response, without instructions.
    messages: Bytes,
}

impl Entry {
    const fn size(&self) -> usize {
        self.response.len() + self.messages.len()
    }
}

impl ResponseStore {
    /// A store of at most `limit` bytes; 0 keeps nothing.
    pub fn new(limit: u64) -> Self {
        Self { limit: usize::try_from(limit).unwrap_or(usize::MAX), kept: Mutex::default() }
    }

    /// Whether anything is ever kept.
    pub const fn is_on(&self) -> bool {
        self.limit > 0
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, id: String, entry: Entry) {
        if entry.size() > self.limit {
            return;
        }
        let mut kept = self.kept();
        kept.bytes += entry.size();
        match kept.entries.insert(id.clone(), entry) {
            // A caller may name two requests alike: the later one counts.
            Some(old) => kept.bytes -= old.size(),
            None => kept.order.push_back(id),
        }
        while kept.bytes > self.limit {
            let Some(oldest) = kept.order.pop_front() else { return };
            if let Some(gone) = kept.entries.remove(&oldest) {
                kept.bytes -= gone.size();
            }
        }
    }

    fn find(&self, id: &str, param: &'static str) -> Result<Entry, ApiError> {
        self.kept().entries.get(id).cloned().ok_or_else(|| {
            let message = if self.is_on() {
                format!("there is no response {}: it was not stored, or is forgotten by now", quoted(id, 64))
            } else {
                "responses are not stored by this server (--response-store)".to_owned()
            };
            ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::NOT_FOUND, message) }
        })
    }

    /// The response object of an id.
    ///
    /// # Errors
    /// 404.
    pub fn response(&self, id: &str) -> Result<Bytes, ApiError> {
        self.find(id, "response_id").map(|entry| entry.response)
    }

    /// The conversation that ended in the response with this id.
    ///
    /// # Errors
    /// 404.
    pub fn conversation(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        let entry = self.find(id, "previous_response_id")?;
        Ok(serde_json::from_slice(&entry.messages).expect("messages were written as a list"))
    }
}

/// Takes one response to the store when it is finished.
pub struct Keep {
    /// The store.
    pub store: Arc<ResponseStore>,
    /// The messages that it answers, without instructions.
    pub messages: Vec<Value>,
}

impl Keep {
    /// Stores a finished response.
    pub fn save(mut self, response: &Value, blocks: &[Block]) {
        self.messages.push(as_message(blocks));
        let messages = Value::from(self.messages).to_string().into();
        let id = response["id"].as_str().unwrap_or_default().to_owned();
        self.store.insert(id, Entry { response: response.to_string().into(), messages });
    }
}

/// An answer as a message of the next request.
fn as_message(blocks: &[Block]) -> Value {
    let text = |kind: &Kind| -> String {
        blocks.iter().filter(|block| block.kind == *kind).map(|block| block.text.as_str()).collect()
    };
    let calls = blocks.iter().filter_map(|block| match &block.kind {
        Kind::Call { id, name } if block.complete => {
            Some(json!({"id": id, "type": "function", "function": {"name": name, "arguments": block.text}}))
        }
        _ => None,
    });
    let calls: Vec<Value> = calls.collect();
    let mut message = json!({"role": "assistant", "content": text(&Kind::Text)});
    let reasoning = text(&Kind::Reasoning);
    if !reasoning.is_empty() {
        message["reasoning"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &ResponseStore, id: &str, size: usize) {
        store.insert(id.to_owned(), Entry { response: vec![b'x'; size].into(), messages: Bytes::new() });
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_the_bound_holds() {
        let store = ResponseStore::new(100);
        for id in ["a", "b", "c"] {
            put(&store, id, 40);
        }
        assert_eq!(store.response("a").unwrap_err().status, 404);
        assert!(store.response("b").is_ok() && store.response("c").is_ok());
        put(&store, "huge", 101);
        assert!(store.response("huge").is_err());
        assert_eq!(store.kept().bytes, 80);
    }

    #[test]
    fn a_name_given_twice_is_counted_once() {
        let store = ResponseStore::new(100);
        put(&store, "a", 60);
        put(&store, "a", 50);
        let kept = store.kept();
        assert_eq!((kept.bytes, kept.order.len()), (50, 1));
    }

    #[test]
    fn a_store_of_nothing_says_so() {
        let store = ResponseStore::new(0);
        put(&store, "a", 1);
        assert!(store.response("a").unwrap_err().message.contains("--response-store"));
    }
}
