//! Connections that are slow, large or many.

mod common;

use std::io::{Read, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Server, letters, read_answer, wait_until};
use frizzen_server::ShutdownRequests;
use frizzen_server::config::HttpArgs;
use frizzen_server::serve::{bind, serve};
use serde_json::json;

/// What the server sends before it closes the connection.
fn rest(mut stream: std::net::TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_client_that_drips_its_head_is_dropped_and_others_are_served() {
    let server = Server::with(&["--header-timeout", "0.3"], letters());
    let started = Instant::now();
    let slow: Vec<_> = (0..50).map(|_| server.client().raw(b"GET /health HTTP/1.1\r\nhost: te")).collect();
    assert_eq!(server.client().get("/health").status, 200);
    for stream in slow {
        let answer = rest(stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_long_stream_outlives_the_time_for_heads() {
    let server = Server::with(&["--header-timeout", "0.1"], common::slow_letters(Duration::from_millis(2)));
    let answer = server.client().completion(&json!({"prompt": "x", "max_tokens": 200, "stream": true}));
    assert_eq!(answer.events().last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_head_without_end_is_refused() {
    let server = Server::start(letters());
    let head = format!("GET /health HTTP/1.1\r\nhost: test\r\nx-long: {}", "x".repeat(200_000));
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may hang up while this is still being written.
    let _ = std::io::Write::write_all(&mut stream, head.as_bytes());
    let answer = rest(stream);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(server.client().get("/health").status, 200);
}

#[test]
fn more_connections_than_are_accepted_at_once_are_all_served() {
    let server = Server::start(letters());
    let request = b"GET /ping HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    let streams: Vec<_> = (0..400).map(|_| server.client().raw(request)).collect();
    for stream in streams {
        assert_eq!(read_answer(stream).status, 200);
    }
}

#[test]
fn one_connection_takes_one_request_after_the_other() {
    let server = Server::start(letters());
    let two =
        b"GET /ping HTTP/1.1\r\nhost: t\r\n\r\nGET /version HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    let answers = rest(server.client().raw(two));
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
}

#[test]
fn a_drain_closes_idle_connections_at_once() {
    let mut server = Server::start(letters());
    let idle = server.client().raw(b"GET /ping HTTP/1.1\r\nhost: t\r\n\r\n");
    wait_until("it is served", || server.client().get("/health").status == 200);
    server.signal();
    let started = Instant::now();
    server.outcome();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(rest(idle).starts_with("HTTP/1.1 200"));
}

#[test]
fn heads_of_many_fields_are_refused_and_cost_nothing_vllm_cve_2025_48956() {
    use std::fmt::Write as _;

    let server = Server::start(letters());
    for count in [200, 5_000, 50_000] {
        let mut head = "GET /health HTTP/1.1\r\nhost: x\r\n".to_owned();
        for field in 0..count {
            write!(head, "x-{field}: 1\r\n").unwrap();
        }
        head += "\r\n";
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        // The server may have answered, and left, before all of it was sent.
        let _ = std::io::Write::write_all(&mut stream, head.as_bytes());
        let answer = rest(stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        server.client().get("/health").ok();
    }
}

#[test]
fn a_socket_of_the_file_system_serves_and_leaves_nothing_behind() {
    let directory = std::env::temp_dir().join(format!("frizzen-uds-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("http.sock");
    // Of a server that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::start(letters());
    let http = HttpArgs { uds: Some(path.clone()), ..server.state.http.clone() };
    let runtime = frizzen_server::runtime().unwrap();
    let (stop, requests) = ShutdownRequests::channel();
    let serving = runtime.spawn({
        let state = Arc::clone(&server.state);
        let bound = runtime.block_on(bind(&http)).unwrap();
        assert_eq!(bound.url().unwrap(), format!("unix:{}", path.display()));
        assert!(runtime.block_on(bind(&http)).is_err(), "somebody listens there");
        async move { serve(bound, state, requests).await }
    });
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{\"status\":\"ready\"}"), "{answer}");
    stop.send(()).unwrap();
    runtime.block_on(serving).unwrap().unwrap();
    assert!(!path.exists());
    std::fs::remove_dir(&directory).unwrap();
}

#[test]
fn a_client_that_is_refused_before_its_body_is_read_is_told_that_the_connection_ends() {
    let server = Server::with(&["--api-key", "k"], letters());
    // The body of the first never comes, as one that is still on its way.
    for (path, key, status) in [
        ("/v1/completions", "wrong", 401),
        ("/v1/nothing", "k", 404),
        ("/health", "k", 405),
        ("/update_weights", "k", 501),
    ] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: 10\r\n\r\n"
        );
        let answer = read_answer(server.client().raw(head.as_bytes()));
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{path}");
    }
    // Two requests on one connection: what has no body, or whose body was read, keeps it.
    let get = "GET /v1/nothing HTTP/1.1\r\nhost: t\r\nauthorization: Bearer k\r\n\r\n";
    let last = "GET /health HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    let both = rest(server.client().raw(format!("{get}{last}").as_bytes()));
    assert!(both.starts_with("HTTP/1.1 404") && both.contains("HTTP/1.1 200"), "{both}");
}
