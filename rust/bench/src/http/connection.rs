//! One connection: send a request, read the answer in pieces.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::body::Body;
use super::head::Head;
use super::tls::Secure;
use crate::failure::Failure;

/// Bytes that one read may bring. A body's memory is this much, unless it is kept.
const READ: usize = 16 << 10;
/// Bytes of a head: `metadata` of a large batch is long.
const MAX_HEAD: usize = 8 << 20;

/// A connection between requests: nothing is unread.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were handed out.
    taken: usize,
    read_at: Instant,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// An answer whose body is still to be read.
#[derive(Debug)]
pub struct Response {
    /// Status and headers.
    pub head: Head,
    connection: Connection,
    body: Body,
}

impl Connection {
    /// Connects to the first address that answers, with TLS if the server has it.
    pub(super) async fn open(addresses: &[SocketAddr], tls: Option<&Secure>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::Connect(error.to_string());
        let stream = TcpStream::connect(addresses).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let stream = match tls {
            None => Stream::Plain(stream),
            Some(tls) => Stream::Tls(Box::new(tls.connect(stream).await.map_err(failed)?)),
        };
        Ok(Self { stream, buffer: Vec::with_capacity(READ), taken: 0, read_at: Instant::now() })
    }

    /// Sends a request and reads the head of the answer.
    pub async fn send(mut self, request: &[u8]) -> Result<Response, Failure> {
        // A server may answer before it has read all, and close: what it said is the better news.
        let written = match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(request).await,
            Stream::Tls(stream) => match stream.write_all(request).await {
                // What is written may lie in a buffer still.
                Ok(()) => stream.flush().await,
                failed => failed,
            },
        };
        loop {
            let head = match self.read_head().await {
                Err(Failure::Closed) if let Err(error) = &written => {
                    return Err(Failure::Send(error.to_string()));
                }
                head => head?,
            };
            if !(100..200).contains(&head.status) {
                let body = Body::new(head.framing);
                return Ok(Response { head, connection: self, body });
            }
        }
    }

    async fn read_head(&mut self) -> Result<Head, Failure> {
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.taken..];
            if let Some(end) = find(&unread[searched..], b"\r\n\r\n").map(|at| searched + at) {
                let head = Head::parse(&unread[..end]).map_err(Failure::Malformed)?;
                self.taken += end + 4;
                return Ok(head);
            }
            if unread.len() > MAX_HEAD {
                return Err(Failure::Malformed(format!("a head of more than {MAX_HEAD} bytes")));
            }
            searched = unread.len().saturating_sub(3);
            let nothing_yet = unread.is_empty();
            match self.fill().await {
                Ok(0) | Err(_) if nothing_yet => return Err(Failure::Closed),
                Ok(0) => return Err(Failure::Truncated("in the head".to_owned())),
                Err(error) => return Err(Failure::Truncated(format!("in the head: {error}"))),
                Ok(_) => {}
            }
        }
    }

    /// Reads what is there, once.
    async fn fill(&mut self) -> std::io::Result<usize> {
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        } else {
            self.buffer.reserve(READ);
        }
        let read = match &mut self.stream {
            Stream::Plain(stream) => stream.read_buf(&mut self.buffer).await,
            Stream::Tls(stream) => stream.read_buf(&mut self.buffer).await,
        };
        self.read_at = Instant::now();
        read
    }
}

impl Response {
    /// The next piece of the body's content; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        loop {
            let Connection { buffer, taken, .. } = &mut self.connection;
            let start = *taken;
            let (used, part) = self.body.take(&buffer[start..]).map_err(Failure::Malformed)?;
            *taken += used;
            if !part.is_empty() {
                return Ok(Some(&self.connection.buffer[start + part.start..start + part.end]));
            }
            if self.body == Body::Complete {
                return Ok(None);
            }
            match self.connection.fill().await {
                Ok(0) if self.body == Body::UntilClose => self.body = Body::Complete,
                Ok(0) => return Err(Failure::Truncated("before the body's end".to_owned())),
                Err(error) => return Err(Failure::Truncated(format!("before the body's end: {error}"))),
                Ok(_) => {}
            }
        }
    }

    /// When the last read returned.
    pub fn read_at(&self) -> Instant {
        self.connection.read_at
    }

    /// The connection, if it can take another request.
    pub fn into_connection(self) -> Option<Connection> {
        let clean = self.body == Body::Complete && self.connection.taken == self.connection.buffer.len();
        (clean && self.head.keep_alive).then_some(self.connection)
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}
