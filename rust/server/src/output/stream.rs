//! The event stream of an answer.
//!
//! Everything that is ready goes out in one piece. Nothing is sent before the first delta, so that an error until then
//! can still be a status code; only if that takes too long the answer begins with a comment, for impatient proxies.
//! Dropping the stream, wherever the client left, drops the generation and so aborts its samples.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tokio::time::{Instant, Sleep, sleep};

use crate::error::ApiError;
use crate::output::generation::Generation;
use crate::output::writer::Writer;

/// What is sent into silence.
pub(crate) const COMMENT: &[u8] = b": ping\n\n";
/// Longer pieces are handed over with their memory; shorter ones are copied out of a buffer that stays.
const KEPT: usize = 1024;
/// An answer as events, a body for axum.
pub struct EventStream {
    /// Gone once the last event was written.
    generation: Option<Generation>,
    writer: Box<dyn Writer>,
    /// What is not handed over yet.
    out: Vec<u8>,
    /// Silence after which a comment is sent; zero is never.
    patience: Duration,
    last: Instant,
    /// Something was handed over at `last`, and the connection has not asked for more yet.
    handed: bool,
    timer: Pin<Box<Sleep>>,
    /// Whom the timer wakes.
    waits: Option<Waker>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EventStream").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl EventStream {
    /// The events of `generation`, in the words of `writer`.
    pub fn new(generation: Generation, writer: Box<dyn Writer>, patience: Duration) -> Self {
        Self {
            generation: Some(generation),
            writer,
            out: Vec::new(),
            patience,
            last: Instant::now(),
            handed: false,
            timer: Box::pin(sleep(patience)),
            waits: None,
        }
    }

    /// Waits until there is something to send.
    ///
    /// # Errors
    /// The error of a request that fails before that: the answer can still be a status code.
    pub async fn start(&mut self) -> Result<(), ApiError> {
        poll_fn(|context| self.poll_output(context)).await
    }

    /// Ready when `out` holds something or the stream has ended.
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        match self.poll_events(context) {
            Poll::Pending if self.poll_silence(context) => {
                self.out.extend_from_slice(COMMENT);
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }

    /// Writes the events of everything that is ready.
    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        while let Some(generation) = &mut self.generation {
            match generation.poll_next(context) {
                Poll::Ready(Some(Ok(delta))) => {
                    self.writer.events(&delta, &generation.usage(), &mut self.out);
                }
                Poll::Ready(Some(Err(error))) => {
                    self.generation = None;
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(None) => {
                    self.writer.end(&generation.usage(), &mut self.out);
                    self.generation = None;
                }
                Poll::Pending if self.out.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// True if nothing was sent for too long. The timer is set once per silence and not per event: it fires early,
    /// looks at the clock, and is set again.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> bool {
        let set = self.waits.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if self.patience.is_zero() || (set && !self.timer.is_elapsed()) {
            return false;
        }
        self.waits = Some(context.waker().clone());
        while self.timer.as_mut().poll(context).is_ready() {
            let due = self.last + self.patience;
            let now = Instant::now();
            let silent = due <= now;
            self.timer.as_mut().reset(if silent { now + self.patience } else { due });
            if silent {
                return true;
            }
        }
        false
    }
}

impl Stream for EventStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.handed)
            && let Some(generation) = &mut this.generation
        {
            generation.waited(this.last.elapsed());
        }
        if this.out.is_empty() {
            match this.poll_output(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => this.writer.failed(&error, &mut this.out),
            }
        }
        if this.out.is_empty() {
            return Poll::Ready(None);
        }
        this.last = Instant::now();
        this.handed = true;
        if this.out.len() > KEPT {
            return Poll::Ready(Some(Ok(std::mem::take(&mut this.out).into())));
        }
        let bytes = Bytes::copy_from_slice(&this.out);
        this.out.clear();
        Poll::Ready(Some(Ok(bytes)))
    }
}
