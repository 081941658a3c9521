//! Every family of metrics is moved by what it is about, seen over `/metrics`.
//!
//! The scenarios below collect which families showed something but zero. A family that none of them moves must stand in
//! [`ELSEWHERE`], with the test that does; a new family is in neither, and fails.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use std::collections::BTreeSet;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use common::{Client, Server, letters, slow_letters, streamed, wait_until};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, Fault, MockWorker, TimingLaw};
use frizzen_metrics::FAMILIES;
use frizzen_server::mock;
use serde_json::{Value, json};

/// Moved by a worker that has what they count, or published by `frizzen serve` alone.
const ELSEWHERE: &[(&str, &str)] = &[
    ("memory_bytes", "what_only_the_worker_counts_is_read_when_somebody_scrapes"),
    ("expert_tokens", "what_only_the_worker_counts_is_read_when_somebody_scrapes"),
    ("expert_balance", "what_only_the_worker_counts_is_read_when_somebody_scrapes"),
    ("graph_steps", "what_only_the_worker_counts_is_read_when_somebody_scrapes"),
    ("eager_steps", "what_only_the_worker_counts_is_read_when_somebody_scrapes"),
    ("late_compiles", "rust/metrics/tests/worker.rs"),
    ("worker_events", "rust/metrics/tests/worker.rs"),
    ("kernel_info", "tests/http/test_expert_metrics.py"),
    ("kernel_rejected_info", "rust/metrics/tests/exposition.rs"),
    ("start_seconds", "rust/metrics/tests/exposition.rs"),
];

const STEP: Duration = Duration::from_millis(2);

/// Families that showed something but zero.
#[derive(Default)]
struct Seen(BTreeSet<&'static str>);

impl Seen {
    fn look(&mut self, server: &Server) {
        let text = server.client().get("/metrics").text();
        let moved: BTreeSet<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(_, value)| value.parse::<f64>().is_ok_and(|value| value != 0.0))
            .map(|(series, _)| series.split('{').next().unwrap_or(series))
            .map(|name| name.strip_prefix("frizzen:").unwrap_or(name))
            .collect();
        for (family, _) in FAMILIES {
            // A histogram that was observed, a counter, or a gauge.
            let names = [format!("{family}_count"), format!("{family}_total"), (*family).to_owned()];
            if names.iter().any(|name| moved.contains(name.as_str())) {
                self.0.insert(family);
            }
        }
    }

    /// Looks until this family has moved.
    fn wait_for(&mut self, server: &Server, family: &str) {
        wait_until(family, || {
            self.look(server);
            self.0.contains(family)
        });
    }
}

fn in_background(client: Client, body: Value) -> JoinHandle<u16> {
    spawn(move || client.completion(&body).status)
}

/// More requests than rows, and more tokens than blocks: waiting, preemption, eviction, reuse.
fn crowded(seen: &mut Seen) {
    let info = WorkerInfo { num_blocks: 25, max_model_len: 256, max_num_seqs: 2, ..mock::info() };
    let worker =
        MockWorker::new(info).saying(Content::Alphabet([97, 98].into())).taking(TimingLaw::constant(STEP));
    let server = Server::start(worker);
    let body = |i: usize| json!({"prompt": format!("{i}").repeat(128), "max_tokens": 120});
    let running: Vec<_> = (0..4).map(|i| in_background(server.client(), body(i))).collect();
    seen.wait_for(&server, "num_requests_waiting_by_reason");
    for status in running {
        assert_eq!(status.join().unwrap(), 200);
        seen.look(&server);
    }
    let repeated = json!({"prompt": "r".repeat(250), "max_tokens": 2, "unheard_of": 1});
    for _ in 0..3 {
        server.client().completion(&repeated).ok();
    }
    server.client().post("/v1/completions", &streamed(&json!({"prompt": "x", "max_tokens": 5}))).events();
    seen.look(&server);
}

fn sleeping(seen: &mut Seen) {
    let server = Server::start(slow_letters(STEP));
    let running = in_background(server.client(), json!({"prompt": "x", "max_tokens": 100}));
    wait_until("it runs", || server.state.engine.load().running == 1);
    let client = server.client();
    let asleep = spawn(move || client.post("/sleep?mode=wait", &json!({})).status);
    seen.wait_for(&server, "sleep_mode_operations_in_flight");
    assert_eq!((running.join().unwrap(), asleep.join().unwrap()), (200, 200));
    seen.look(&server);
}

fn drafting(seen: &mut Seen) {
    let worker = MockWorker::new(WorkerInfo { max_drafts: 4, ..mock::info() })
        .saying(Content::Echo)
        .taking(TimingLaw::constant(STEP));
    let server = Server::with(&["--drafter", "ngram", "--speculation", "auto"], worker);
    let fixed = json!({"prompt": "abcdefgh", "max_tokens": 40, "speculation": {"max_tokens": 4}});
    server.client().completion(&fixed).ok();
    let auto = json!({"prompt": "abcdefgh", "max_tokens": 400});
    wait_until("drafts pay off", || {
        server.client().completion(&auto).ok();
        seen.look(&server);
        ["speculation_on", "speculation_saved_seconds"].iter().all(|family| seen.0.contains(family))
    });
}

fn failing(seen: &mut Seen) {
    let server =
        Server::with(&["--otlp-traces-endpoint", "http://127.0.0.1:9"], letters().failing(Fault::BadRow(2)));
    assert_eq!(server.client().completion(&json!({"prompt": "x", "max_tokens": 9})).status, 500);
    seen.wait_for(&server, "traces");
}

#[test]
fn every_family_is_moved_by_what_it_is_about() {
    let mut seen = Seen::default();
    for scenario in [crowded, sleeping, drafting, failing] {
        scenario(&mut seen);
    }
    let elsewhere: BTreeSet<&str> = ELSEWHERE.iter().map(|(family, _)| *family).collect();
    let still: Vec<&str> = FAMILIES
        .iter()
        .map(|(family, _)| *family)
        .filter(|family| !seen.0.contains(family) && !elsewhere.contains(family))
        .collect();
    assert!(still.is_empty(), "nothing moves {still:?}");
    let needless: Vec<_> = elsewhere.intersection(&seen.0).collect();
    assert!(needless.is_empty(), "moved here after all: {needless:?}");
}
