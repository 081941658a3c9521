//! A small HTTP/1.1 client that does nothing between the socket and the clock.
//!
//! The answer is handed out piece by piece, as it arrives, with the time of the read that brought it. A body is complete
//! only if its framing says so: an end before that is a failure, never a short body.

mod body;
mod connection;
mod head;
mod tls;
mod url;

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use connection::Response;
pub use head::Head;
pub use tls::Trust;
pub use url::Url;

use crate::failure::Failure;
use connection::Connection;
use tls::Secure;

/// Bytes of an error's body that are kept.
const MAX_SAID: usize = 2_000;

/// A server, and connections to it that are kept for the next request.
#[derive(Debug)]
pub struct Client {
    addresses: Vec<SocketAddr>,
    base: String,
    /// The header lines that every request carries.
    headers: String,
    timeout: Duration,
    tls: Option<Secure>,
    idle: Mutex<Vec<Connection>>,
}

/// When bytes arrived: those before `end` that no earlier mark covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Bytes of the body that had arrived.
    pub end: usize,
    /// When.
    pub at: Instant,
}

/// One request and its answer, with status 200 and a body that arrived completely.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Before the connection was taken or made.
    pub sent: Instant,
    /// When the last byte of the body had been read.
    pub ended: Instant,
    /// The header `metadata`, which binary embeddings come with.
    pub metadata: Option<String>,
    /// The body, if it was to be kept.
    pub body: Vec<u8>,
    /// When it arrived.
    pub marks: Vec<Mark>,
    /// Bytes of the body, kept or not.
    pub received: u64,
}

impl Client {
    /// Resolves the server's name once. `headers` are complete lines; `trust` says whom to believe if it is https.
    pub async fn new(
        url: &Url,
        headers: &[(String, String)],
        timeout: Duration,
        trust: &Trust,
    ) -> Result<Self, String> {
        let tls = Secure::new(url, trust)?;
        let refusal = |error| format!("cannot resolve {}: {error}", url.host);
        let addresses = tokio::net::lookup_host((&*url.host, url.port)).await.map_err(refusal)?.collect();
        let lines =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
        let headers = format!("host: {}\r\nuser-agent: frizzen-bench\r\n{lines}", url.authority());
        Ok(Self { addresses, base: url.base.clone(), headers, timeout, tls, idle: Mutex::default() })
    }

    /// Gets a small JSON document.
    pub async fn get(&self, path: &str) -> Result<Exchange, Failure> {
        self.exchange("GET", path, &[], true).await
    }

    /// Posts a JSON body. `keep` says whether the answer's body is kept or only counted, piece by piece.
    pub async fn post(&self, path: &str, body: &[u8], keep: bool) -> Result<Exchange, Failure> {
        self.exchange("POST", path, body, keep).await
    }

    async fn exchange(&self, method: &str, path: &str, body: &[u8], keep: bool) -> Result<Exchange, Failure> {
        let work = async {
            let sent = Instant::now();
            let response = self.send(method, path, body).await?;
            self.read(sent, response, keep).await
        };
        tokio::time::timeout(self.timeout, work).await.unwrap_or(Err(Failure::Timeout(self.timeout)))
    }

    async fn send(&self, method: &str, path: &str, body: &[u8]) -> Result<Response, Failure> {
        let Self { base, headers, .. } = self;
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let length = body.len();
        let head =
            format!("{method} {base}{path} HTTP/1.1\r\n{headers}{kind}content-length: {length}\r\n\r\n");
        let mut request = Vec::with_capacity(head.len() + length);
        request.extend_from_slice(head.as_bytes());
        request.extend_from_slice(body);
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(connection) = kept {
            match connection.send(&request).await {
                // The server may have closed it in the meantime: then it has not seen this request.
                Err(Failure::Closed | Failure::Send(_)) => {}
                other => return other,
            }
        }
        Connection::open(&self.addresses, self.tls.as_ref()).await?.send(&request).await
    }

    async fn read(&self, sent: Instant, mut response: Response, keep: bool) -> Result<Exchange, Failure> {
        if response.head.status != 200 {
            return Err(refusal(response).await);
        }
        let mut exchange = Exchange {
            sent,
            ended: sent,
            metadata: response.head.metadata.take(),
            body: Vec::new(),
            marks: Vec::new(),
            received: 0,
        };
        while let Some(piece) = response.next().await? {
            exchange.received += piece.len() as u64;
            if keep {
                exchange.body.extend_from_slice(piece);
                let (end, at) = (exchange.body.len(), response.read_at());
                match exchange.marks.last_mut() {
                    Some(last) if last.at == at => last.end = end,
                    _ => exchange.marks.push(Mark { end, at }),
                }
            }
        }
        exchange.ended = response.read_at();
        if let Some(connection) = response.into_connection() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        Ok(exchange)
    }
}

/// What a server said with a status that is not 200.
async fn refusal(mut response: Response) -> Failure {
    let mut said = Vec::new();
    while said.len() < MAX_SAID {
        let Ok(Some(piece)) = response.next().await else { break };
        said.extend_from_slice(piece);
    }
    said.truncate(MAX_SAID);
    Failure::Status(response.head.status, String::from_utf8_lossy(&said).into_owned())
}
