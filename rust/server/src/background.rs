//! Responses that are made after their request has been answered.
//!
//! Such a response belongs to no connection: it ends with its last token, with a cancellation, or with the server, which
//! waits for none when it stops, since they are kept in memory only.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::output::{Generation, Writer, generation};
use crate::store::Keep;

/// Makes the answer that `writer` writes and keeps. `begun` is what it is until then.
pub fn make(mut generation: Generation, mut writer: Box<dyn Writer>, keep: Keep, begun: &Value) {
    let running = Arc::new(Notify::new());
    keep.begin(begun, Arc::clone(&running));
    let id = begun["id"].as_str().unwrap_or_default().to_owned();
    let work = async move {
        let collected = tokio::select! {
            // What is left of the generation is aborted where it is dropped.
            () = running.notified() => return,
            collected = generation::collect(&mut generation) => collected,
        };
        match collected {
            Ok(choices) => writer.answer(&choices, &generation.usage(), &mut Vec::new()),
            Err(error) => {
                let error = json!({"code": "server_error", "message": error.message});
                keep.store.end(&id, "failed", &error);
            }
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it outlives the request, and the store can end it")]
    tokio::spawn(work);
}
