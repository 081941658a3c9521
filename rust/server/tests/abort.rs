//! Clients that leave: wherever it happens, nothing is left behind.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use common::{Server, chat_body, letters, series, slow_letters, wait_until};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker, TimingLaw};
use frizzen_server::mock;
use serde_json::{Value, json};

/// A small deterministic generator: the test must fail the same way twice.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn aborted(server: &Server) -> f64 {
    server.metric("frizzen:request_success_total{model_name=\"mock\",engine=\"0\",finished_reason=\"abort\"}")
}

fn open(server: &Server, path: &str, body: &Value) -> TcpStream {
    server.client().request("POST", path, Some(body.to_string().as_bytes()))
}

#[test]
fn a_thousand_clients_that_leave_at_random_leave_nothing_behind() {
    // Few rows, so that some wait; small chunks, so that some are prefilled; blocks scarce, so that some are preempted.
    let info = WorkerInfo { max_num_seqs: 8, max_num_batched_tokens: 64, num_blocks: 513, ..mock::info() };
    let info = WorkerInfo { max_model_len: 1024, ..info };
    let worker = MockWorker::new(info)
        .saying(Content::Alphabet((97..123).collect()))
        .taking(TimingLaw::constant(Duration::from_micros(200)));
    let server = Server::start(worker);
    let clients: Vec<_> = (0..8)
        .map(|seed| {
            let address = server.address;
            std::thread::spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..125 {
                    leave_somewhere(address, &mut dice);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    server.quiesce();
    for gauge in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"] {
        assert_eq!(server.metric(&series(gauge)), 0.0, "{gauge}");
    }
    assert!(aborted(&server) > 100.0);
    assert_eq!(server.client().chat(&json!({"max_tokens": 5})).ok()["usage"]["completion_tokens"], 5);
}

/// Sends one request and leaves: within it, before its answer, in the middle of it, or after its end.
fn leave_somewhere(address: std::net::SocketAddr, dice: &mut Dice) {
    let body = chat_body(&json!({
        "messages": [{"role": "user", "content": "x".repeat(1 + dice.roll(300) as usize)}],
        "max_tokens": 1 + dice.roll(60),
        "stream": dice.roll(4) > 0,
        "n": 1 + dice.roll(3),
        "stop": ["qq"],
    }))
    .to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    let sent = if dice.roll(10) == 0 { dice.roll(request.len() as u64) as usize } else { request.len() };
    stream.write_all(&request.as_bytes()[..sent]).unwrap();
    if sent < request.len() {
        return;
    }
    let wanted = [0, 1, 200, 2000, usize::MAX][dice.roll(5) as usize];
    let mut buffer = [0; 512];
    let mut read = 0;
    while read < wanted {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => read += count,
        }
    }
}

#[test]
fn a_client_that_leaves_is_noticed_in_every_state_smg_1351() {
    let info = WorkerInfo { max_num_seqs: 1, max_num_batched_tokens: 16, ..mock::info() };
    let worker = MockWorker::new(info)
        .saying(Content::Alphabet([97].into()))
        .taking(TimingLaw::constant(Duration::from_millis(2)));
    let server = Server::start(worker);
    let long = json!({"prompt": "x", "max_tokens": 4000});
    let variants = [
        ("streaming", common::streamed(&long)),
        ("not streaming", long.clone()),
        ("three samples", json!({"prompt": "x", "max_tokens": 4000, "n": 3})),
        ("a long prefill", json!({"prompt": "x".repeat(4000), "max_tokens": 50})),
    ];
    for (count, (what, body)) in variants.iter().enumerate() {
        let before = aborted(&server);
        let stream = open(&server, "/v1/completions", body);
        wait_until(what, || server.state.engine.load().running > 0);
        drop(stream);
        server.quiesce();
        let samples = if count == 2 { 3.0 } else { 1.0 };
        wait_until(what, || aborted(&server) == before + samples);
    }
    // One that waits behind another.
    let first = open(&server, "/v1/completions", &long);
    wait_until("the first runs", || server.state.engine.load().running > 0);
    let second = open(&server, "/v1/completions", &long);
    wait_until("the second waits", || server.state.engine.load().waiting > 0);
    drop(second);
    wait_until("it left the queue", || server.state.engine.load().waiting == 0);
    assert_eq!(server.state.engine.load().running, 1);
    drop(first);
    server.quiesce();
}

#[test]
fn a_client_that_half_closes_has_left_vllm_54947() {
    let server = Server::start(slow_letters(Duration::from_millis(2)));
    let stream = open(&server, "/v1/completions", &json!({"prompt": "x", "max_tokens": 4000}));
    wait_until("it runs", || server.state.engine.load().running > 0);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    server.quiesce();
    assert_eq!(aborted(&server), 1.0);
}

#[test]
fn after_a_client_left_the_next_one_is_served_sglang_36552() {
    let server = Server::start(slow_letters(Duration::from_millis(1)));
    let body = chat_body(&json!({"stream": true, "max_tokens": 2000}));
    let mut stream = open(&server, "/v1/chat/completions", &body);
    let mut some = [0; 700];
    stream.read_exact(&mut some).unwrap();
    drop(stream);
    let whole = server.client().chat(&json!({"max_tokens": 10})).ok();
    assert_eq!(whole["usage"]["completion_tokens"], 10);
    server.quiesce();
    assert_eq!(aborted(&server), 1.0);
}

#[test]
fn a_slow_reader_delays_nobody_and_loses_nothing() {
    let server = Server::start(letters());
    let body = json!({"prompt": "x", "max_tokens": 3000, "stream": true, "temperature": 0});
    let slow = open(&server, "/v1/completions", &body);
    let fast = server.client().completion(&body).events();
    server.quiesce();
    let slow = common::read_answer(slow).events();
    assert_eq!(common::joined(&slow, 0), common::joined(&fast, 0));
    assert_eq!(common::joined(&fast, 0).len(), 3000);
}
