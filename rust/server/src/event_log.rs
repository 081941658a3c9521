//! The events of a response that is made in the background: written once, read by whoever asks, from any of them on.
//!
//! Invariants: an event's sequence number is its place, and never changes; a reader gets every event from where it begins
//! once and in order, and ends where the log is closed; events that were forgotten are a gap before an `error` event,
//! which is the last one. How much is kept is the affair of the store, which counts it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::output::stream::COMMENT;

/// What ends an event; JSON text holds no line break.
const END: &[u8] = b"\n\n";
/// Most bytes that a reader is given at once, if they are more than one piece.
const READ: usize = 16 << 10;

/// The events of one response.
#[derive(Debug, Default)]
pub struct EventLog(watch::Sender<Events>);

#[derive(Debug, Default)]
struct Events {
    /// In order.
    pieces: Vec<Piece>,
    /// Of the pieces.
    bytes: usize,
    /// Events so far, those that were forgotten counted.
    count: u64,
    closed: bool,
}

/// Events that were written together.
#[derive(Debug)]
struct Piece {
    /// The number of the first one.
    first: u64,
    text: Bytes,
}

impl Piece {
    fn size(&self) -> usize {
        size_of::<Self>() + self.text.len()
    }

    /// The text from event `number` on.
    fn since(&self, number: u64) -> Bytes {
        let skipped = number.saturating_sub(self.first);
        let ends = self.text.windows(END.len()).enumerate().filter(|(_, window)| *window == END);
        let at = match skipped.checked_sub(1) {
            None => 0,
            Some(before) => ends
                .map(|(at, _)| at + END.len())
                .nth(usize::try_from(before).unwrap_or(usize::MAX))
                .unwrap_or(self.text.len()),
        };
        self.text.slice(at..)
    }
}

fn count(text: &[u8]) -> u64 {
    text.windows(END.len()).filter(|window| *window == END).count() as u64
}

impl Events {
    fn push(&mut self, text: &[u8]) -> usize {
        if self.closed || text.is_empty() {
            return 0;
        }
        let piece = Piece { first: self.count, text: Bytes::copy_from_slice(text) };
        self.count += count(text);
        let size = piece.size();
        self.bytes += size;
        self.pieces.push(piece);
        size
    }

    /// Events from `number` on, as many as are read at once; `None` if there are none yet.
    fn since(&self, number: u64) -> Option<Bytes> {
        if number >= self.count {
            return None;
        }
        let later = self.pieces.partition_point(|piece| piece.first <= number);
        let (first, rest) = self.pieces[later.saturating_sub(1)..].split_first()?;
        let first = first.since(number);
        let mut size = first.len();
        let fits = rest.iter().take_while(|piece| {
            size += piece.text.len();
            size <= READ
        });
        let mut texts = fits.map(|piece| &piece.text).peekable();
        if texts.peek().is_none() {
            return Some(first);
        }
        let mut all = first.to_vec();
        texts.for_each(|text| all.extend_from_slice(text));
        Some(all.into())
    }
}

impl EventLog {
    /// Appends whole events; by how much the log grew, in bytes. Nothing is taken once it is closed.
    pub fn push(&self, text: &[u8]) -> usize {
        let mut size = 0;
        self.0.send_modify(|events| size = events.push(text));
        size
    }

    /// The bytes that are kept.
    pub fn size(&self) -> usize {
        self.0.borrow().bytes
    }

    /// The number of the next event.
    pub fn next(&self) -> u64 {
        self.0.borrow().count
    }

    /// No more events come.
    pub fn close(&self) {
        self.0.send_modify(|events| events.closed = true);
    }

    /// Gives up all events, and closes with this one.
    pub fn forget(&self, last: &[u8]) {
        self.0.send_modify(|events| {
            (events.pieces, events.bytes) = (Vec::new(), 0);
            events.push(last);
            events.closed = true;
        });
    }

    /// The events from this number on, as they come; a comment after every `patience` of silence, if it is not zero.
    pub fn follow(&self, from: u64, patience: Duration) -> Follower {
        let patience = if patience.is_zero() { Duration::MAX } else { patience };
        Follower(Some(Box::pin(Reader { news: self.0.subscribe(), from, patience }.read())))
    }
}

struct Reader {
    news: watch::Receiver<Events>,
    from: u64,
    patience: Duration,
}

impl Reader {
    /// Waits for something to hand out; `None` at the end of a log that is closed.
    async fn read(mut self) -> Option<(Bytes, Self)> {
        loop {
            {
                let events = self.news.borrow_and_update();
                if let Some(text) = events.since(self.from) {
                    let first = events.pieces.first().map_or(0, |piece| piece.first);
                    self.from = self.from.max(first) + count(&text);
                    drop(events);
                    return Some((text, self));
                }
                if events.closed {
                    return None;
                }
            }
            match timeout(self.patience, self.news.changed()).await {
                Ok(Ok(())) => {}
                // Nobody can write any more.
                Ok(Err(_)) => return None,
                Err(_) => return Some((Bytes::from_static(COMMENT), self)),
            }
        }
    }
}

/// Reads a log from somewhere on; a body for axum.
pub struct Follower(Option<Reading>);

type Reading = Pin<Box<dyn Future<Output = Option<(Bytes, Reader)>> + Send>>;

impl std::fmt::Debug for Follower {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Follower").field("ended", &self.0.is_none()).finish()
    }
}

impl Stream for Follower {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(reading) = &mut self.0 else { return Poll::Ready(None) };
        let read = ready!(reading.as_mut().poll(context));
        let (text, next) = read.map_or((None, None), |(text, reader)| (Some(text), Some(reader)));
        self.0 = next.map(|reader| Box::pin(reader.read()) as Reading);
        Poll::Ready(text.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn event(number: u64) -> String {
        format!("event: e\ndata: {number}\n\n")
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    async fn next(follower: &mut Follower) -> Option<String> {
        let text = poll_fn(|context| Pin::new(&mut *follower).poll_next(context)).await?.unwrap();
        Some(String::from_utf8(text.to_vec()).unwrap())
    }

    async fn rest(mut follower: Follower) -> String {
        let mut all = String::new();
        while let Some(text) = next(&mut follower).await {
            all.push_str(&text);
        }
        all
    }

    #[test]
    fn every_reader_gets_every_event_from_its_own_place_on() {
        // Pieces of one to four events, so that places lie at their borders and within them.
        let log = EventLog::default();
        let mut number = 0;
        for size in [1, 4, 2, 3, 1, 1] {
            let text: String = (number..number + size).map(event).collect();
            log.push(text.as_bytes());
            number += size;
        }
        log.close();
        for from in 0..=number + 1 {
            let wanted: String = (from..number).map(event).collect();
            assert_eq!(runtime().block_on(rest(log.follow(from, Duration::ZERO))), wanted, "from {from}");
        }
    }

    #[test]
    fn long_logs_are_read_in_bounded_pieces() {
        let log = EventLog::default();
        for number in 0..10_000 {
            log.push(event(number).as_bytes());
        }
        log.close();
        runtime().block_on(async {
            let mut follower = log.follow(0, Duration::ZERO);
            let mut all = String::new();
            while let Some(text) = next(&mut follower).await {
                assert!(text.len() <= READ, "{}", text.len());
                all.push_str(&text);
            }
            assert_eq!(all, (0..10_000).map(event).collect::<String>());
        });
    }

    #[test]
    fn a_reader_waits_for_what_comes_and_gets_comments_meanwhile() {
        runtime().block_on(async {
            let log = EventLog::default();
            let mut follower = log.follow(0, Duration::from_millis(1));
            assert_eq!(next(&mut follower).await.unwrap().as_bytes(), COMMENT);
            log.push(event(0).as_bytes());
            assert_eq!(next(&mut follower).await, Some(event(0)));
            log.close();
            assert_eq!(log.push(event(1).as_bytes()), 0, "closed");
            assert_eq!(next(&mut follower).await, None);
        });
    }

    #[test]
    fn what_is_forgotten_is_a_gap_before_the_last_event() {
        runtime().block_on(async {
            let log = EventLog::default();
            let mut follower = log.follow(0, Duration::ZERO);
            log.push(event(0).as_bytes());
            assert_eq!(next(&mut follower).await, Some(event(0)));
            (1..5).for_each(|number| assert!(log.push(event(number).as_bytes()) > 0));
            assert_eq!(log.next(), 5);
            log.forget(event(5).as_bytes());
            assert_eq!(log.size(), size_of::<Piece>() + event(5).len());
            assert_eq!(rest(follower).await, event(5));
        });
    }
}
