//! Loading, failing, draining: nobody is left without an answer.

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use common::{Server, chat_body, letters, read_answer, script, slow_letters, streamed, wait_until};
use frizzen_core::{Error, SystemClock};
use frizzen_engine::mock::{Fault, MockWorker, TimingLaw};
use frizzen_metrics::Metrics;
use frizzen_server::serve::{Outcome, serve};
use frizzen_server::{AppState, ShutdownRequests, mock};
use serde_json::{Value, json};

const STEP: Duration = Duration::from_millis(5);

fn failing(fault: Fault) -> MockWorker {
    letters().taking(TimingLaw::constant(STEP)).failing(fault)
}

/// The data lines of a stream that may have begun before a failure.
fn lines(stream: TcpStream) -> Vec<String> {
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)).collect()
}

/// A long stream that has begun.
fn begun(server: &Server) -> TcpStream {
    let body = chat_body(&json!({"stream": true, "max_tokens": 4000})).to_string();
    let stream = server.client().request("POST", "/v1/chat/completions", Some(body.as_bytes()));
    wait_until("the stream runs", || server.state.engine.load().running > 0);
    stream
}

#[test]
fn a_failing_worker_ends_every_stream_with_the_error_and_then_the_server() {
    for fault in [Fault::Raise(20), Fault::Panic(20)] {
        let mut server = Server::start(failing(fault));
        let client = server.client();
        let whole = std::thread::spawn(move || client.chat(&json!({"max_tokens": 4000})));
        let streams: Vec<TcpStream> = (0..3).map(|_| begun(&server)).collect();
        for stream in streams {
            let lines = lines(stream);
            let [.., error, done] = lines.as_slice() else { panic!("{lines:?}") };
            assert_eq!(done, "[DONE]");
            let error: Value = serde_json::from_str(error).unwrap();
            assert_eq!(error["error"]["code"], 503, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().starts_with("engine failed: "), "{error}");
        }
        assert_eq!(whole.join().unwrap().error().0, 503);
        // Later requests learn the first error, while somebody still asks.
        for answer in
            [server.client().get("/health"), server.client().chat(&json!({})), server.client().get("/ping")]
        {
            assert_eq!(answer.error(), (503, "ServiceUnavailableError".to_owned(), None));
            assert!(answer.text().contains("the mock was told to"), "{}", answer.text());
        }
        assert_eq!(server.client().get("/metrics").status, 200);
        server.signal();
        assert!(matches!(server.outcome(), Outcome::Failed(Error::Engine { .. })));
    }
}

#[test]
fn an_error_before_the_first_token_is_a_status() {
    let server = Server::start(failing(Fault::Raise(1)));
    let answer = server.client().chat(&json!({"stream": true}));
    assert_eq!(answer.error(), (503, "ServiceUnavailableError".to_owned(), None));
}

#[test]
fn a_failed_server_ends_on_its_own() {
    let mut server = Server::with(&["--drain-timeout", "0.2"], failing(Fault::Raise(1)));
    assert_eq!(server.client().chat(&json!({})).status, 503);
    let outcome = server.outcome();
    assert_eq!(outcome.exit_code(), 1);
}

#[test]
fn a_row_that_fails_is_its_own_requests_error() {
    let server = Server::start(failing(Fault::BadRow(10)));
    let first = begun(&server);
    let client = server.client();
    let other = std::thread::spawn(move || client.chat(&json!({"max_tokens": 30})).ok());
    let lines = lines(first);
    let [.., error, done] = lines.as_slice() else { panic!("{lines:?}") };
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!((done.as_str(), &error["error"]["code"]), ("[DONE]", &json!(500)));
    assert_eq!(other.join().unwrap()["usage"]["completion_tokens"], 30);
    assert_eq!(server.client().get("/health").status, 200);
    server.quiesce();
}

#[test]
fn running_out_of_memory_once_is_survived() {
    let server = Server::start(failing(Fault::OutOfMemory(10)));
    let whole = server.client().chat(&json!({"max_tokens": 30})).ok();
    assert_eq!(whole["usage"]["completion_tokens"], 30);
}

#[test]
fn a_hanging_step_is_found_and_ends_the_server() {
    let mut worker = failing(Fault::Hang(5));
    let guard = worker.hang_guard();
    let mut server = Server::with(&["--step-timeout", "0.3", "--drain-timeout", "0.2"], worker);
    let stream = begun(&server);
    let lines = lines(stream);
    let [.., error, done] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(error.contains("a step has been running for"), "{error}");
    assert_eq!(done, "[DONE]");
    let outcome = server.outcome();
    assert!(matches!(outcome, Outcome::Stuck(_)));
    assert_eq!(outcome.exit_code(), 1);
    drop(guard);
}

#[test]
fn a_drain_lets_open_requests_end() {
    let mut server = Server::start(slow_letters(STEP));
    let body = chat_body(&json!({"stream": true, "max_tokens": 60})).to_string();
    let stream = server.client().request("POST", "/v1/chat/completions", Some(body.as_bytes()));
    wait_until("the stream runs", || server.state.engine.load().running > 0);
    server.signal();
    let events = read_answer(stream).events();
    assert_eq!(common::finish_reasons(&events, 0), ["length"]);
    assert_eq!(common::joined(&events, 0).len(), 60);
    assert_eq!(server.outcome(), Outcome::Stopped);
}

#[test]
fn what_outlives_the_drain_is_aborted_with_a_reason() {
    let mut server = Server::with(&["--drain-timeout", "0.1"], slow_letters(STEP));
    let stream = begun(&server);
    server.signal();
    let events = read_answer(stream).events();
    assert_eq!(common::finish_reasons(&events, 0), ["abort"]);
    assert_eq!(server.outcome(), Outcome::Stopped);
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut server = Server::with(&["--drain-timeout", "3600"], slow_letters(STEP));
    let stream = begun(&server);
    server.signal();
    wait_until("it drains", || server.state.engine.health() == frizzen_engine::Health::Draining);
    server.signal();
    assert_eq!(common::finish_reasons(&read_answer(stream).events(), 0), ["abort"]);
    assert_eq!(server.outcome(), Outcome::Stopped);
}

#[test]
fn while_draining_nothing_new_is_taken() {
    let server = Server::start(slow_letters(STEP));
    // A connection that was there before, on which the server still listens.
    let mut old = server.client().raw(b"GET /version HTTP/1.1\r\nhost: t\r\n\r\n");
    let mut reader = BufReader::new(old.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    server.state.engine.drain();
    let request = "POST /v1/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 14\r\n\r\n{\"prompt\":\"x\"}";
    std::io::Write::write_all(&mut old, request.as_bytes()).unwrap();
    let rest: Vec<String> = reader.lines().map_while(Result::ok).collect();
    assert!(rest.iter().any(|line| line.contains("503")), "{rest:?}");
}

#[test]
fn a_loading_server_says_what_it_does() {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        config: frizzen_server::ServerConfig,
    }
    let config = <Cli as clap::Parser>::parse_from(["serve", "mock"]).config;
    let metrics = Arc::new(Metrics::new(&config.metrics_options()));
    let (engine, seat) = frizzen_engine::seat(Arc::new(SystemClock::new()), 8);
    let state = AppState::new(&config, engine.clone(), metrics);
    let (stop, requests) = ShutdownRequests::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::clone(&state);
    let thread = std::thread::spawn(move || {
        frizzen_server::runtime().unwrap().block_on(async {
            serve(tokio::net::TcpListener::from_std(listener).unwrap(), shared, requests).await.unwrap()
        })
    });
    let get = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        read_answer(stream)
    };
    engine.set_loading("reading 3 of 7 tensors");
    for path in ["/health", "/ping", "/v1/models", "/v1/plan"] {
        let answer = get(path);
        assert_eq!(answer.error(), (503, "ServiceUnavailableError".to_owned(), None), "{path}");
        assert!(answer.text().contains("loading: reading 3 of 7 tensors"), "{}", answer.text());
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(get("/version").status, 200);
    assert_eq!(get("/metrics").status, 200);
    // The worker is there before the tokenizer: still not ready.
    let mut loop_ = frizzen_engine::Engine::new(
        seat,
        script("x"),
        config.engine_options(None),
        state.engine_metrics.clone(),
    )
    .unwrap();
    assert_eq!(get("/v1/models").status, 503);
    state.set_text(mock::text_model().unwrap());
    assert_eq!(get("/v1/models").status, 200);
    assert_eq!(get("/health").status, 200);
    stop.send(()).unwrap();
    assert_eq!(thread.join().unwrap(), Outcome::Stopped);
    assert_eq!(loop_.run(), Ok(()));
}

#[test]
fn a_silent_stream_gets_comments() {
    let worker = letters().taking(TimingLaw::constant(Duration::from_millis(300)));
    let server = Server::with(&["--keep-alive", "0.1"], worker);
    let answer = server.client().chat(&streamed(&json!({"max_tokens": 2})));
    let text = answer.text();
    assert!(text.starts_with(": ping\n\n"), "{text}");
    assert!(text.matches(": ping").count() >= 3, "{text}");
    assert_eq!(common::joined(&answer.events(), 0).len(), 2);
}
