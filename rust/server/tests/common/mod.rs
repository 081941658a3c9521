//! A whole server on a real socket over the mock worker, and a client that does exactly what it is told.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Parser;
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker, TimingLaw};
use frizzen_server::serve::{Listener, Outcome, serve};
use frizzen_server::tls::Tls;
use frizzen_server::{ServerConfig, SharedState, ShutdownRequests, TextModel, mock};
use frizzen_text::ChatTemplate;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: ServerConfig,
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub state: SharedState,
    stop: UnboundedSender<()>,
    thread: Option<JoinHandle<Outcome>>,
    engine: Option<JoinHandle<frizzen_core::Result<()>>>,
}

/// A mock that says what `content` says.
pub fn saying(content: Content) -> MockWorker {
    MockWorker::new(mock::info()).saying(content)
}

/// A mock that says this text and ends.
pub fn script(text: &str) -> MockWorker {
    saying(Content::Script(text.bytes().map(u32::from).collect()))
}

/// A mock that says lower-case letters for as long as it may.
pub fn letters() -> MockWorker {
    saying(Content::Alphabet((u32::from(b'a')..=u32::from(b'z')).collect()))
}

/// A mock that says letters, a token every so often.
pub fn slow_letters(step: Duration) -> MockWorker {
    letters().taking(TimingLaw::constant(step))
}

/// The mock's shape with a short context.
pub fn short_context(max_model_len: u32) -> WorkerInfo {
    WorkerInfo { max_model_len, ..mock::info() }
}

impl Server {
    pub fn start(worker: MockWorker) -> Self {
        Self::with(&[], worker)
    }

    /// A server with these flags.
    pub fn with(flags: &[&str], worker: MockWorker) -> Self {
        Self::of_model(flags, worker, mock::text_model().unwrap())
    }

    /// A server with these flags whose model has this chat template.
    pub fn with_template(flags: &[&str], worker: MockWorker, template: &str) -> Self {
        let tokenizer = Arc::new(mock::tokenizer().unwrap());
        let template = ChatTemplate::new(template, tokenizer.special_tokens().names.clone()).unwrap();
        Self::of_model(flags, worker, TextModel::new(tokenizer, Some(template)))
    }

    fn of_model(flags: &[&str], worker: MockWorker, text: TextModel) -> Self {
        let config =
            Cli::try_parse_from(["serve", "mock"].iter().chain(flags)).map_err(|error| error.to_string());
        let config = config.unwrap().config;
        let (state, engine) = mock::start(&config, worker, text);
        let (stop, requests) = ShutdownRequests::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let runtime = frizzen_server::runtime().unwrap();
            let outcome = runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let listener = match Tls::load(&shared.http.tls).unwrap() {
                    Some(tls) => Listener::Tls(listener, Arc::new(tls)),
                    None => listener.into(),
                };
                serve(listener, shared, requests).await.unwrap()
            });
            runtime.shutdown_background();
            outcome
        });
        let server = Self { address, state, stop, thread: Some(thread), engine: Some(engine) };
        wait_until("the engine is up", || server.state.model().is_ok());
        server
    }

    pub fn client(&self) -> Client {
        Client { address: self.address, headers: Vec::new() }
    }

    /// Asks the server to stop, as a signal does.
    pub fn signal(&self) {
        self.stop.send(()).unwrap();
    }

    /// Waits for the server's end.
    pub fn outcome(&mut self) -> Outcome {
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits until nothing runs, waits or holds a block.
    pub fn quiesce(&self) {
        wait_until("nothing is left", || {
            let load = self.state.engine.load();
            self.state.engine.open_streams() == 0 && load.running + load.waiting + load.used_blocks == 0
        });
    }

    /// The value of a series.
    pub fn metric(&self, series: &str) -> f64 {
        let text = self.client().get("/metrics").text();
        let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == series));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Twice: at once. The receiver may be gone already.
        let _ = self.stop.send(());
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            if let (Ok(Outcome::Stopped | Outcome::Failed(_)), Some(engine)) = (outcome, self.engine.take()) {
                let _ = engine.join();
            }
        }
    }
}

/// Polls until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The label set of the mock engine's series.
pub fn series(name: &str) -> String {
    format!("frizzen:{name}{{model_name=\"mock\",engine=\"0\"}}")
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The answer of a request that succeeded.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// `(status, type, param)` of an error in its standard form.
    pub fn error(&self) -> (u16, String, Option<String>) {
        let error = &self.json()["error"];
        assert_eq!(error["code"], self.status);
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        let param = error["param"].as_str().map(str::to_owned);
        (self.status, error["type"].as_str().unwrap().to_owned(), param)
    }

    /// The data of every event, the end mark taken off and required.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let text = self.text();
        let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let data = events.into_iter().filter(|event| !event.starts_with(':'));
        data.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

/// Sends requests, each on a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

impl Client {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends bytes as they are.
    pub fn raw(&self, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        stream
    }

    pub fn request(&self, method: &str, path: &str, body: Option<&[u8]>) -> TcpStream {
        use std::fmt::Write as _;

        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        for (name, value) in &self.headers {
            write!(request, "{name}: {value}\r\n").unwrap();
        }
        if let Some(body) = body {
            if !self.headers.iter().any(|(name, _)| name == "content-type") {
                request.push_str("content-type: application/json\r\n");
            }
            write!(request, "content-length: {}\r\n", body.len()).unwrap();
        }
        let mut bytes = (request + "\r\n").into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        self.raw(&bytes)
    }

    pub fn call(&self, method: &str, path: &str, body: Option<&[u8]>) -> Answer {
        read_answer(self.request(method, path, body))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, Some(body.to_string().as_bytes()))
    }

    pub fn completion(&self, body: &Value) -> Answer {
        self.post("/v1/completions", body)
    }

    pub fn chat(&self, fields: &Value) -> Answer {
        self.post("/v1/chat/completions", &chat_body(fields))
    }
}

/// A small conversation with these further fields.
pub fn chat_body(fields: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// `body`, as a stream.
pub fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body
}

/// Reads an answer to its end.
pub fn read_answer(stream: impl Read) -> Answer {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    let mut answer = Answer { status, headers, body: Vec::new() };
    if answer.header("transfer-encoding") == Some("chunked") {
        read_chunks(&mut reader, &mut answer.body);
    } else {
        reader.read_to_end(&mut answer.body).unwrap();
    }
    answer
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("the stream broke off"));
        let start = body.len();
        body.resize(start + size + 2, 0);
        reader.read_exact(&mut body[start..]).unwrap();
        body.truncate(start + size);
        if size == 0 {
            return;
        }
    }
}

/// The joined text of one choice of a stream.
pub fn joined(events: &[Value], index: usize) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()))
        .collect()
}

/// Every finish reason of one choice of a stream.
pub fn finish_reasons(events: &[Value], index: usize) -> Vec<String> {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["finish_reason"].as_str().map(str::to_owned))
        .collect()
}

/// The text of one choice of a whole answer.
pub fn text_of(answer: &Value, index: usize) -> String {
    let choice = &answer["choices"][index];
    choice["text"].as_str().or_else(|| choice["message"]["content"].as_str()).unwrap().to_owned()
}
