//! Sending records to a collector: OTLP over HTTP, as JSON.
//!
//! One task takes what has gathered and sends it in one request, on a connection of its own. A collector that does not
//! take it costs these records, which are counted, and nothing else.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::Scheme;
use frizzen_metrics::TraceMetrics;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

use super::record::Record;
use super::spans;

/// Requests of one batch.
const BATCH: usize = 256;
/// How long records gather, so that a busy server sends few batches.
const GATHER: Duration = Duration::from_millis(500);
/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of its answer that are read.
const MAX_ANSWER: u64 = 64 << 10;
/// Where collectors listen, if the endpoint does not say.
const PATH: &str = "/v1/traces";

/// A collector's address: `http://HOST:PORT[/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    authority: String,
    host: String,
    port: u16,
    path: String,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("'{text}' {why}");
        let uri: Uri =
            text.parse().map_err(|_| refused("is not a URL such as http://localhost:4318/v1/traces"))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(refused(
                "must begin with http://: traces are sent as OTLP over plain HTTP, to a collector nearby",
            ));
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or_else(|| refused("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(refused("must not hold a user or a password"));
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            authority: authority.as_str().to_owned(),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            path: if path == "/" { PATH } else { path }.to_owned(),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "http://{}{}", self.authority, self.path)
    }
}

/// What sends.
#[derive(Debug)]
pub struct Exporter {
    endpoint: Endpoint,
    service: String,
    queue: Receiver<Record>,
    metrics: TraceMetrics,
    /// The last batch failed: the log says so once, not once per batch.
    failing: bool,
}

impl Exporter {
    pub(super) fn new(
        endpoint: Endpoint,
        service: String,
        queue: Receiver<Record>,
        metrics: TraceMetrics,
    ) -> Self {
        Self { endpoint, service, queue, metrics, failing: false }
    }

    /// Sends until `stopping` is over, and then what is left.
    pub async fn run(mut self, stopping: impl Future<Output = ()>) {
        let mut stopping = std::pin::pin!(stopping);
        let mut stopped = false;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                taken = self.queue.recv_many(&mut batch, BATCH) => if taken == 0 { return },
                () = &mut stopping, if !stopped => {
                    stopped = true;
                    self.queue.close();
                    continue;
                }
            }
            if !stopped && batch.len() < BATCH {
                tokio::select! {
                    () = sleep(GATHER) => {}
                    () = &mut stopping => {
                        stopped = true;
                        self.queue.close();
                    }
                }
            }
            while batch.len() < BATCH {
                let Ok(record) = self.queue.try_recv() else { break };
                batch.push(record);
            }
            self.send(&mut batch).await;
        }
    }

    async fn send(&mut self, batch: &mut Vec<Record>) {
        let body = spans::export(&self.service, batch).to_string().into_bytes();
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the collector took too long");
        match timeout(PATIENCE, self.post(&body)).await.unwrap_or_else(|_| Err(late())) {
            Ok(()) => {
                self.failing = false;
                self.metrics.exported(batch.len() as u64);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(endpoint = %self.endpoint, %error, "traces cannot be sent; they are dropped");
                }
                self.metrics.failed(batch.len() as u64);
            }
        }
        batch.clear();
    }

    async fn post(&self, body: &[u8]) -> io::Result<()> {
        let Endpoint { authority, host, port, path } = &self.endpoint;
        let mut stream = TcpStream::connect((host.as_str(), *port)).await?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\nuser-agent: frizzen/{}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            env!("CARGO_PKG_VERSION"),
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::new();
        // Asked to close, it does; whatever it says after the status line matters to nobody.
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        match answer.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5)) {
            Some([b'2', _, _]) => Ok(()),
            Some(status) => {
                Err(io::Error::other(format!("the collector answered {}", String::from_utf8_lossy(status))))
            }
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "the collector does not speak HTTP/1.1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_plain_url() {
        let endpoint: Endpoint = "http://localhost:4318".parse().unwrap();
        assert_eq!(endpoint.to_string(), "http://localhost:4318/v1/traces");
        let endpoint: Endpoint = "http://[::1]:4318/own?x=1".parse().unwrap();
        assert_eq!(
            (endpoint.host.as_str(), endpoint.port, endpoint.path.as_str()),
            ("::1", 4318, "/own?x=1")
        );
        assert_eq!("http://collector/".parse::<Endpoint>().unwrap().port, 80);
        for bad in [
            "",
            "localhost:4318",
            "https://localhost",
            "grpc://x:4317",
            "http://",
            "http://a:b@c/",
            "http://a b",
        ] {
            let error = bad.parse::<Endpoint>().unwrap_err();
            assert!(error.starts_with(&format!("'{bad}'")), "{error}");
        }
    }
}
