//! Responses, for later requests that refer to them: in memory, bounded, the oldest forgotten first.
//!
//! A response that is made in the background is here from its beginning. What ends it first, its last token, a failure or
//! a cancellation, is how it has ended. One that is forgotten before that ends too, since nobody could ask for it; those
//! that have ended are forgotten before those that are being made.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::error::{ApiError, quoted};
use crate::event_log::{EventLog, Follower};
use crate::output::blocks::{Block, Kind};
use crate::output::responses::event;

/// Why a response is gone.
const NO_ROOM: &str = "the response was forgotten: there is no room for all of them (--response-store)";

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
    /// The conversation up to and with this response, as far as it was made, without instructions.
    messages: Bytes,
    /// The items of its request.
    input: Bytes,
    /// Of one that was made in the background.
    work: Option<Arc<Work>>,
    /// It is being made there.
    running: bool,
}

/// The making of a response in the background.
#[derive(Debug, Default)]
pub struct Work {
    /// Told when it is to end.
    pub stop: Notify,
    /// Its events, if it was asked for as a stream.
    pub events: Option<EventLog>,
}

impl Work {
    /// Whose events, if they are wanted, are kept.
    pub fn new(streamed: bool) -> Self {
        Self { events: streamed.then(EventLog::default), ..Self::default() }
    }

    fn size(&self) -> usize {
        self.events.as_ref().map_or(0, EventLog::size)
    }

    /// Ends it, because nobody can ask for it any more.
    fn forget(&self, why: &str) {
        if let Some(events) = &self.events {
            let error = json!({"code": "server_error", "message": why, "param": null});
            events.forget(&event(events.next(), "error", &error));
        }
        self.stop.notify_one();
    }
}

impl Entry {
    fn size(&self) -> usize {
        let events = self.work.as_ref().map_or(0, |work| work.size());
        self.response.len() + self.messages.len() + self.input.len() + events
    }

    fn is_of(&self, work: &Arc<Work>) -> bool {
        self.work.as_ref().is_some_and(|own| Arc::ptr_eq(own, work))
    }

    fn forget(self, why: &str) {
        if let Some(work) = self.work {
            work.forget(why);
        }
    }

    /// The same response, ended like this.
    fn ended(&self, status: &str, error: &Value) -> Self {
        let mut response = parsed(&self.response);
        response["status"] = status.into();
        response["error"] = error.clone();
        Self { response: response.to_string().into(), running: false, ..self.clone() }
    }
}

impl Kept {
    fn replace(&mut self, id: &str, entry: Entry) {
        let old = self.entries.remove(id);
        match old {
            Some(old) => {
                self.bytes -= old.size();
                // A caller may name two requests alike: the later one counts.
                if !old.work.as_ref().is_some_and(|work| entry.is_of(work)) {
                    old.forget("another response was given the same name");
                }
            }
            None => self.order.push_back(id.to_owned()),
        }
        self.bytes += entry.size();
        self.entries.insert(id.to_owned(), entry);
    }

    /// Forgets what is over the limit after `grown` has grown: that one, if it alone is, or else the oldest.
    fn shrink(&mut self, grown: &str, limit: usize) {
        if self.entries.get(grown).is_some_and(|entry| entry.size() > limit) {
            self.forget(grown, NO_ROOM);
        }
        while self.bytes > limit {
            let has_ended = |id: &&String| !self.entries.get(*id).is_some_and(|entry| entry.running);
            let Some(oldest) = self.order.iter().find(has_ended).or(self.order.front()).cloned() else {
                return;
            };
            self.forget(&oldest, NO_ROOM);
        }
    }

    fn forget(&mut self, id: &str, why: &str) {
        if let Some(gone) = self.entries.remove(id) {
            self.bytes -= gone.size();
            self.order.retain(|other| other != id);
            gone.forget(why);
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

    /// False if there is no room for it.
    fn insert(&self, id: &str, entry: Entry) -> bool {
        if entry.size() > self.limit {
            return false;
        }
        let mut kept = self.kept();
        kept.replace(id, entry);
        kept.shrink(id, self.limit);
        true
    }

    /// Adds events of a response that is being made, or was just now.
    pub fn append(&self, id: &str, work: &Arc<Work>, text: &[u8]) {
        let mut kept = self.kept();
        // If it was forgotten, its events are.
        if kept.entries.get(id).is_some_and(|entry| entry.is_of(work)) {
            kept.bytes += work.events.as_ref().map_or(0, |events| events.push(text));
            kept.shrink(id, self.limit);
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

    /// The events of a response, from this number on, as they come; comments after every `patience` of silence.
    ///
    /// # Errors
    /// 404; 400 for one that was not asked for as a stream in the background.
    pub fn events(&self, id: &str, from: u64, patience: Duration) -> Result<Follower, ApiError> {
        let work = self.find(id, "response_id")?.work;
        let events = work.as_ref().and_then(|work| work.events.as_ref());
        events.map(|events| events.follow(from, patience)).ok_or_else(|| {
            let message =
                "only a response that was asked for with background and stream has events to read again";
            ApiError::invalid("stream", message)
        })
    }

    /// Forgets a response, and ends it if it is still being made.
    ///
    /// # Errors
    /// 404.
    pub fn delete(&self, id: &str) -> Result<(), ApiError> {
        self.find(id, "response_id")?;
        self.kept().forget(id, "the response was deleted");
        Ok(())
    }

    /// Ends a response that is being made in the background; of one that has ended already, how it did.
    ///
    /// # Errors
    /// 404; 400 for one that was not made there.
    pub fn cancel(&self, id: &str) -> Result<Bytes, ApiError> {
        let entry = self.find(id, "response_id")?;
        if entry.work.is_none() {
            let message = "only a response that is made in the background can be cancelled";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
        }
        // OpenAI has no event of its own for this end; without a last one, a client would try to resume.
        let ended = entry
            .work
            .and_then(|work| self.end(id, &work, ("cancelled", &Value::Null), Some("response.incomplete")));
        ended.map_or_else(|| self.response(id), Ok)
    }

    /// The response object of one that was still being made and has now ended like this; its events end with `last`.
    fn end(
        &self,
        id: &str,
        work: &Arc<Work>,
        (status, error): (&str, &Value),
        last: Option<&str>,
    ) -> Option<Bytes> {
        let mut kept = self.kept();
        let entry = kept.entries.get(id).filter(|entry| entry.running && entry.is_of(work))?;
        let ended = entry.ended(status, error);
        let response = ended.response.clone();
        kept.replace(id, ended);
        if let (Some(events), Some(last)) = (&work.events, last) {
            let response = json!({"response": parsed(&response)});
            kept.bytes += events.push(&event(events.next(), last, &response));
            events.close();
        }
        work.stop.notify_one();
        Some(response)
    }

    /// The conversation that ended in the response with this id.
    ///
    /// # Errors
    /// 404.
    pub fn conversation(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        let entry = self.find(id, "previous_response_id")?;
        if entry.running {
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
    /// Of one that is made in the background.
    pub work: Option<Arc<Work>>,
}

impl Keep {
    /// Stores one that is being made in the background.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn begin(&self, response: &Value) -> Result<(), ApiError> {
        let entry = Entry { running: true, ..self.entry(response, &self.messages) };
        let size = entry.size();
        if self.store.insert(id_of(response), entry) {
            return Ok(());
        }
        let message =
            format!("the response begins with {size} bytes, for which there is no room (--response-store)");
        Err(ApiError::invalid("background", message))
    }

    /// Stores a finished response, unless it has ended or been forgotten before.
    pub fn save(mut self, response: &Value, blocks: &[Block]) {
        self.messages.push(as_message(blocks));
        let (id, entry) = (id_of(response), self.entry(response, &self.messages));
        let Some(work) = &self.work else {
            self.store.insert(id, entry);
            return;
        };
        let mut kept = self.store.kept();
        if kept.entries.get(id).is_some_and(|entry| entry.running && entry.is_of(work)) {
            kept.replace(id, entry);
            kept.shrink(id, self.store.limit);
        }
    }

    /// Stores that one that is made in the background has failed.
    pub fn fail(&self, response: &Value, error: &Value) {
        if let Some(work) = &self.work {
            self.store.end(id_of(response), work, ("failed", error), None);
        }
    }

    fn entry(&self, response: &Value, messages: &[Value]) -> Entry {
        Entry {
            response: response.to_string().into(),
            messages: Value::from(messages).to_string().into(),
            input: Value::from(self.input.as_slice()).to_string().into(),
            work: self.work.clone(),
            running: false,
        }
    }
}

fn parsed(response: &[u8]) -> Value {
    serde_json::from_slice(response).expect("the response was written as an object")
}

fn id_of(response: &Value) -> &str {
    response["id"].as_str().unwrap_or_default()
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
            work: None,
            running: false,
        };
        store.insert(id, entry);
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

    fn in_progress(id: &str) -> Value {
        json!({"id": id, "status": "in_progress", "error": null})
    }

    fn keep(store: &Arc<ResponseStore>, streamed: bool) -> (Keep, Arc<Work>) {
        let work = Arc::new(Work::new(streamed));
        let store = Arc::clone(store);
        (Keep { store, messages: vec![json!("m")], input: Vec::new(), work: Some(Arc::clone(&work)) }, work)
    }

    fn status(text: &Bytes) -> String {
        parsed(text)["status"].as_str().unwrap().to_owned()
    }

    #[test]
    fn what_was_cancelled_or_forgotten_stays_so_whatever_ends_later() {
        let store = Arc::new(ResponseStore::new(10_000));
        let (keep, _) = keep(&store, false);
        keep.begin(&in_progress("a")).unwrap();
        assert!(store.conversation("a").unwrap_err().message.contains("still being made"));
        assert_eq!(status(&store.cancel("a").unwrap()), "cancelled");
        assert_eq!(store.conversation("a").unwrap(), [json!("m")], "what was asked, without an answer");
        let completed = json!({"id": "a", "status": "completed", "error": null});
        keep.clone().save(&completed, &[]);
        assert_eq!(status(&store.response("a").unwrap()), "cancelled");
        assert_eq!(status(&store.cancel("a").unwrap()), "cancelled", "twice is no error");
        store.delete("a").unwrap();
        assert_eq!(store.delete("a").unwrap_err().status, 404);
        keep.save(&completed, &[]);
        assert_eq!(store.response("a").unwrap_err().status, 404);
        let kept = store.kept();
        assert_eq!((kept.bytes, kept.order.len()), (0, 0));
    }

    #[test]
    fn events_count_and_what_has_ended_makes_room_for_what_is_being_made() {
        let store = Arc::new(ResponseStore::new(2_000));
        let (keep, work) = keep(&store, true);
        keep.begin(&in_progress("a")).unwrap();
        put(&store, "b", 1_000);
        store.append("a", &work, &event(0, "e", &json!({"text": "x".repeat(1_000)})));
        assert_eq!(store.response("b").unwrap_err().status, 404);
        assert_eq!(status(&store.response("a").unwrap()), "in_progress");
        let counted = || {
            let kept = store.kept();
            (kept.bytes, kept.entries["a"].size())
        };
        let (bytes, size) = counted();
        assert!(size > 1_000 && bytes == size, "{bytes} {size}");
        keep.save(&json!({"id": "a", "status": "completed"}), &[]);
        let (bytes, size) = counted();
        assert_eq!(bytes, size);
        store.delete("a").unwrap();
        assert_eq!(store.kept().bytes, 0);
    }

    #[test]
    fn a_response_that_outgrows_the_store_ends_alone_and_says_why() {
        let store = Arc::new(ResponseStore::new(2_000));
        let (keep, work) = keep(&store, true);
        keep.begin(&in_progress("a")).unwrap();
        put(&store, "b", 100);
        let events = work.events.as_ref().unwrap();
        let size = (0..10).map(|number| event(number, "e", &json!({"text": "x".repeat(300)})));
        size.for_each(|text| store.append("a", &work, &text));
        assert_eq!(store.response("a").unwrap_err().status, 404);
        assert!(store.response("b").is_ok());
        assert_eq!(store.kept().bytes, 100);
        assert!(events.size() < 500, "its events are given up");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(work.stop.notified());
    }

    #[test]
    fn a_name_given_twice_ends_what_had_it_and_keeps_its_end_out() {
        let store = Arc::new(ResponseStore::new(10_000));
        let ((first, old), (second, new)) = (keep(&store, true), keep(&store, true));
        first.begin(&in_progress("a")).unwrap();
        second.begin(&in_progress("a")).unwrap();
        store.append("a", &old, &event(0, "e", &json!({})));
        first.save(&json!({"id": "a", "status": "completed"}), &[]);
        assert_eq!(status(&store.response("a").unwrap()), "in_progress");
        assert_eq!(new.events.as_ref().unwrap().next(), 0);
        second.save(&json!({"id": "a", "status": "completed"}), &[]);
        assert_eq!(status(&store.response("a").unwrap()), "completed");
    }

    #[test]
    fn what_begins_without_room_is_refused() {
        let store = Arc::new(ResponseStore::new(20));
        let refused = keep(&store, false).0.begin(&in_progress("a")).unwrap_err();
        assert!(refused.message.contains("--response-store"), "{}", refused.message);
    }

    #[test]
    fn a_store_of_nothing_says_so() {
        let store = ResponseStore::new(0);
        put(&store, "a", 1);
        assert!(store.response("a").unwrap_err().message.contains("--response-store"));
    }
}
