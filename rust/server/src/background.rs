//! Responses that are made after their request has been answered.
//!
//! Such a response belongs to no connection: it ends with its last token, with a cancellation, when it is forgotten, or with
//! the server, which waits for none when it stops, since they are kept in memory only. One that is streamed goes to the log of
//! its events, and whoever reads it, the request that began it among them, reads that.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream as _;

use crate::error::ApiError;
use crate::output::stream::EventStream;
use crate::output::writer::Begun;
use crate::output::{Generation, Writer, generation};
use crate::store::{Keep, Work};

/// Makes the answer that `writer` writes and keeps. `begun` is what it is until then.
///
/// # Errors
/// There is no room for it.
pub fn make(generation: Generation, writer: Box<dyn Writer>, begun: &Begun) -> Result<Arc<Work>, ApiError> {
    let Begun { response, events, keep, work } = begun;
    keep.begin(response)?;
    let id = response["id"].as_str().unwrap_or_default().to_owned();
    keep.store.append(&id, work, events);
    let (keep, work) = (keep.clone(), Arc::clone(work));
    let making = Arc::clone(&work);
    let made = async move {
        // What is left of the generation is aborted where it is dropped.
        tokio::select! {
            () = making.stop.notified() => {}
            () = write(generation, writer, &id, &keep, &making) => {}
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it outlives the request, and the store can end it")]
    tokio::spawn(made);
    Ok(work)
}

async fn write(
    mut generation: Generation,
    mut writer: Box<dyn Writer>,
    id: &str,
    keep: &Keep,
    work: &Arc<Work>,
) {
    let Some(log) = &work.events else {
        let mut nowhere = Vec::new();
        match generation::collect(&mut generation).await {
            Ok(choices) => writer.answer(&choices, &generation.usage(), &mut nowhere),
            Err(error) => writer.failed(&error, &mut nowhere),
        }
        return;
    };
    // Its readers have comments of their own.
    let mut events = EventStream::new(generation, writer, Duration::ZERO);
    while let Some(Ok(text)) = poll_fn(|context| Pin::new(&mut events).poll_next(context)).await {
        keep.store.append(id, work, &text);
    }
    log.close();
}
