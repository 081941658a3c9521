//! Responses, for later requests that refer to them: in memory, bounded, the oldest forgotten first.
//!
//! A response that is made in the background is here from its beginning. What ends it first, its last token, a failure or
//! a cancellation, is how it has ended.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Notify;

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
    /// The items of its request.
    input: Bytes,
    /// It was made in the background.
    background: bool,
    /// Ends it, while it is being made there.
    running: Option<Arc<Notify>>,
}

impl Entry {
    const fn size(&self) -> usize {
        self.response.len() + self.messages.len() + self.input.len()
    }

    /// The same response, ended like this.
    fn ended(&self, status: &str, error: &Value) -> Self {
        let mut response: Value =
            serde_json::from_slice(&self.response).expect("the response was written as an object");
        response["status"] = status.into();
        response["error"] = error.clone();
        Self { response: response.to_string().into(), running: None, ..self.clone() }
    }
}

impl Kept {
    fn replace(&mut self, id: String, entry: Entry) {
        self.bytes += entry.size();
        match self.entries.insert(id.clone(), entry) {
            // A caller may name two requests alike: the later one counts.
            Some(old) => self.bytes -= old.size(),
            None => self.order.push_back(id),
        }
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
        // It has been cancelled.
        if entry.background
            && kept.entries.get(&id).is_some_and(|old| old.background && old.running.is_none())
        {
            return;
        }
        kept.replace(id, entry);
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

    /// The items of the request that a response answers.
    ///
    /// # Errors
    /// 404.
    pub fn input(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        let entry = self.find(id, "response_id")?;
        Ok(serde_json::from_slice(&entry.input).expect("items were written as a list"))
    }

    /// Forgets a response, and ends it if it is still being made.
    ///
    /// # Errors
    /// 404.
    pub fn delete(&self, id: &str) -> Result<(), ApiError> {
        self.find(id, "response_id")?;
        let mut kept = self.kept();
        if let Some(gone) = kept.entries.remove(id) {
            kept.bytes -= gone.size();
            kept.order.retain(|other| other != id);
            if let Some(running) = gone.running {
                running.notify_one();
            }
        }
        Ok(())
    }

    /// Ends a response that is being made in the background; of one that has ended already, how it did.
    ///
    /// # Errors
    /// 404; 400 for one that was not made there.
    pub fn cancel(&self, id: &str) -> Result<Bytes, ApiError> {
        let entry = self.find(id, "response_id")?;
        if !entry.background {
            let message = "only a response that is made in the background can be cancelled";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
        }
        Ok(self.end(id, "cancelled", &Value::Null).unwrap_or(entry.response))
    }

    /// The response object of one that was still being made and has now ended like this.
    pub fn end(&self, id: &str, status: &str, error: &Value) -> Option<Bytes> {
        let mut kept = self.kept();
        let entry = kept.entries.get(id).filter(|entry| entry.running.is_some())?;
        let running = entry.running.clone();
        let ended = entry.ended(status, error);
        let response = ended.response.clone();
        kept.replace(id.to_owned(), ended);
        if let Some(running) = running {
            running.notify_one();
        }
        Some(response)
    }

    /// The conversation that ended in the response with this id.
    ///
    /// # Errors
    /// 404.
    pub fn conversation(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        let entry = self.find(id, "previous_response_id")?;
        if entry.running.is_some() {
            let message = format!("the response {} is still being made", quoted(id, 64));
            return Err(ApiError::invalid("previous_response_id", message));
        }
        Ok(serde_json::from_slice(&entry.messages).expect("messages were written as a list"))
    }
}

/// Takes one response to the store.
#[derive(Clone)]
pub struct Keep {
    /// The store.
    pub store: Arc<ResponseStore>,
    /// The messages that it answers, without instructions.
    pub messages: Vec<Value>,
    /// The items of its request.
    pub input: Vec<Value>,
    /// It is made in the background.
    pub background: bool,
}

impl Keep {
    /// Stores one that is being made in the background; `running` is told when it is to end.
    pub fn begin(&self, response: &Value, running: Arc<Notify>) {
        let entry = self.entry(response, &[]);
        self.store.insert(id_of(response), Entry { running: Some(running), ..entry });
    }

    /// Stores a finished response.
    pub fn save(mut self, response: &Value, blocks: &[Block]) {
        self.messages.push(as_message(blocks));
        let entry = self.entry(response, &self.messages);
        self.store.insert(id_of(response), entry);
    }

    fn entry(&self, response: &Value, messages: &[Value]) -> Entry {
        Entry {
            response: response.to_string().into(),
            messages: Value::from(messages).to_string().into(),
            input: Value::from(self.input.as_slice()).to_string().into(),
            background: self.background,
            running: None,
        }
    }
}

fn id_of(response: &Value) -> String {
    response["id"].as_str().unwrap_or_default().to_owned()
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
        let entry = Entry {
            response: vec![b'x'; size].into(),
            messages: Bytes::new(),
            input: Bytes::new(),
            background: false,
            running: None,
        };
        store.insert(id.to_owned(), entry);
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
    fn what_was_cancelled_or_forgotten_stays_so_whatever_ends_later() {
        let store = Arc::new(ResponseStore::new(10_000));
        let keep =
            Keep { store: Arc::clone(&store), messages: Vec::new(), input: Vec::new(), background: true };
        let response = |status: &str| json!({"id": "a", "status": status, "error": null});
        let running = Arc::new(Notify::new());
        keep.begin(&response("in_progress"), Arc::clone(&running));
        assert!(store.conversation("a").unwrap_err().message.contains("still being made"));
        let status = |text: Bytes| serde_json::from_slice::<Value>(&text).unwrap()["status"].clone();
        assert_eq!(status(store.cancel("a").unwrap()), "cancelled");
        keep.clone().save(&response("completed"), &[]);
        assert_eq!(status(store.response("a").unwrap()), "cancelled");
        assert_eq!(status(store.cancel("a").unwrap()), "cancelled", "twice is no error");
        store.delete("a").unwrap();
        assert_eq!(store.delete("a").unwrap_err().status, 404);
        let kept = store.kept();
        assert_eq!((kept.bytes, kept.order.len()), (0, 0));
    }

    #[test]
    fn a_store_of_nothing_says_so() {
        let store = ResponseStore::new(0);
        put(&store, "a", 1);
        assert!(store.response("a").unwrap_err().message.contains("--response-store"));
    }
}
