//! A tiny server that does exactly what it is told, and the pieces to send it requests.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use frizzen_bench::answer::Reading;
use frizzen_bench::http::{Client, Trust, Url};
use frizzen_bench::load::{Job, Outcome, Target, run};

/// Long enough for anything that happens at all.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes bytes, at once.
    Write(Vec<u8>),
    /// Writes bytes one by one, each a packet of its own.
    Drip(Vec<u8>),
    /// Writes the same bytes many times.
    Repeat(&'static [u8], usize),
    /// A slow server: the pause is what is tested, nothing waits for it.
    Pause(Duration),
    /// Reads on and never answers.
    Silence,
    /// Closes the connection.
    Close,
}

/// A running server. It ends with the process.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// A server that answers the `i`-th request (of all connections) with `answers[i % answers.len()]`.
    pub fn answering(answers: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (counted, next, answers) =
            (Arc::clone(&connections), Arc::new(AtomicUsize::new(0)), Arc::new(answers));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                let (next, answers) = (Arc::clone(&next), Arc::clone(&answers));
                std::thread::spawn(move || {
                    // A client that goes away ends its connection, not the server.
                    let _ = serve(&stream.unwrap(), &next, &answers);
                });
            }
        });
        Self { address, connections }
    }

    /// Connections that were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn url(&self) -> Url {
        Url::parse(&format!("http://{}", self.address)).unwrap()
    }

    /// Sends `count` requests, one after the other.
    pub fn ask(&self, reading: Reading, count: usize) -> Outcome {
        ask(&self.url(), reading, count, PATIENCE)
    }
}

fn serve(stream: &TcpStream, next: &AtomicUsize, answers: &[Vec<Step>]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while read_request(&mut reader)? {
        let answer = &answers[next.fetch_add(1, Ordering::SeqCst) % answers.len()];
        for step in answer {
            match step {
                Step::Write(bytes) => writer.write_all(bytes)?,
                Step::Drip(bytes) => bytes.iter().try_for_each(|byte| writer.write_all(&[*byte]))?,
                Step::Repeat(bytes, times) => (0..*times).try_for_each(|_| writer.write_all(bytes))?,
                Step::Pause(pause) => std::thread::sleep(*pause),
                Step::Silence => return std::io::copy(&mut reader, &mut std::io::sink()).map(drop),
                Step::Close => return Ok(()),
            }
        }
    }
    Ok(())
}

/// Reads a request to its end; false if the connection ended before one.
fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<bool> {
    let (mut length, mut line) = (0, String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(true)
}

/// Sends `count` requests with 7 prompt tokens, one after the other.
pub fn ask(url: &Url, reading: Reading, count: usize, timeout: Duration) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let job = Job { due: Duration::ZERO, body: b"{}".to_vec(), prompt_tokens: 7, inputs: 1 };
    let target = Target { path: "/v1", reading, max_concurrency: Some(1), server_pid: None };
    runtime.block_on(async {
        let client = Arc::new(Client::new(url, &[], timeout, &Trust::default()).await.unwrap());
        run(&client, target, vec![job; count], None).await.unwrap()
    })
}

/// The head of an answer whose body has this length.
pub fn head(length: usize, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{headers}\r\n").into_bytes()
}

/// A whole answer.
pub fn whole(body: &str, headers: &str) -> Vec<u8> {
    [head(body.len(), headers), body.as_bytes().to_vec()].concat()
}

/// A streamed answer, each event a chunk.
pub fn streamed(events: &[&str]) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for event in events {
        let event = format!("data: {event}\n\n");
        write!(answer, "{:x}\r\n{event}\r\n", event.len()).unwrap();
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

/// The events of an answer of two tokens.
pub const EVENTS: [&str; 4] = [
    r#"{"choices":[{"text":"né","finish_reason":null}]}"#,
    r#"{"choices":[{"text":" b","finish_reason":"length"}]}"#,
    r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
    "[DONE]",
];

/// The only kind of failure there is, and how often.
pub fn only_failure(outcome: &Outcome) -> (&str, u64) {
    assert!(outcome.samples.is_empty(), "{:?}", outcome.samples);
    assert_eq!(outcome.failures.len(), 1, "{:?}", outcome.failures);
    outcome.failures.iter().next().map(|(kind, failed)| (&**kind, failed.count)).unwrap()
}
