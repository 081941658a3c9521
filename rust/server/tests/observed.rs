//! What an operator sees.

mod common;

use common::{Server, letters, script, series};
use frizzen_engine::mock::{Content, Fault, MockWorker};
use frizzen_server::mock;
use serde_json::json;

const BUCKET: &str = "frizzen:iteration_tokens_total_bucket{le=\"+Inf\",model_name=\"mock\",engine=\"0\"}";

#[test]
fn series_exist_before_traffic() {
    let server = Server::start(letters());
    for name in ["prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count"] {
        assert_eq!(server.metric(&series(name)), 0.0, "{name}");
    }
    assert_eq!(server.metric(BUCKET), 0.0);
}

#[test]
fn a_request_moves_the_counters_by_its_own_tokens() {
    let server = Server::start(letters());
    let body = json!({"prompt": "x".repeat(40), "max_tokens": 10, "n": 2});
    let usage = server.client().completion(&body).ok()["usage"].clone();
    assert_eq!(usage["completion_tokens"], 20);
    server.quiesce();
    assert_eq!(server.metric(&series("generation_tokens_total")), 20.0);
    assert_eq!(server.metric(&series("prompt_tokens_total")), 80.0);
    let cached = server.metric(&series("prompt_tokens_cached_total"));
    // Computed prompt tokens and generated ones, each counted once.
    assert_eq!(server.metric(&series("iteration_tokens_total_sum")), 80.0 - cached + 20.0);
    for (name, count) in [
        ("time_to_first_token_seconds_count", 2.0),
        ("inter_token_latency_seconds_count", 18.0),
        ("e2e_request_latency_seconds_count", 2.0),
        ("request_params_n_count", 1.0),
        ("request_params_n_sum", 2.0),
        ("request_generation_tokens_sum", 20.0),
    ] {
        assert_eq!(server.metric(&series(name)), count, "{name}");
    }
}

#[test]
fn a_stop_string_counts_as_a_stop_and_not_as_an_abort() {
    let server = Server::start(script("one two three"));
    server.client().completion(&json!({"prompt": "x", "max_tokens": 64, "stop": "two"})).ok();
    server.quiesce();
    let reason = |reason: &str| {
        format!(
            "frizzen:request_success_total{{model_name=\"mock\",engine=\"0\",finished_reason=\"{reason}\"}}"
        )
    };
    common::wait_until("it is counted", || server.metric(&reason("stop")) == 1.0);
    assert_eq!(server.metric(&reason("abort")), 0.0);
}

#[test]
fn a_request_is_counted_as_ended_by_what_its_answer_says() {
    let server = Server::start(script("one two three"));
    let reason = |reason: &str| {
        format!(
            "frizzen:request_success_total{{model_name=\"mock\",engine=\"0\",finished_reason=\"{reason}\"}}"
        )
    };
    let (mut stops, mut lengths) = (0.0, 0.0);
    // "one two" has as many tokens as characters: its last one is the last that is allowed, and completes the stop string.
    for (max_tokens, stop, says) in [
        (7, "two", "stop"),
        (7, "wo", "stop"),
        (7, "two ", "length"),
        (7, "zzz", "length"),
        (6, "two", "length"),
    ] {
        for streams in [false, true] {
            let body = json!({"prompt": "x", "max_tokens": max_tokens, "stop": stop, "stream": streams});
            let answer = server.client().completion(&body);
            let said = if streams {
                common::finish_reasons(&answer.events(), 0)
            } else {
                vec![answer.ok()["choices"][0]["finish_reason"].as_str().unwrap().to_owned()]
            };
            assert_eq!(said, [says], "{body}");
            *(if says == "stop" { &mut stops } else { &mut lengths }) += 1.0;
            common::wait_until("it is counted", || {
                (server.metric(&reason("stop")), server.metric(&reason("length"))) == (stops, lengths)
            });
        }
    }
}

#[test]
fn what_clients_send_adds_no_series_llm_d_router_1625() {
    let server = Server::start(script("x"));
    let lines = || server.client().get("/metrics").text().lines().count();
    server.client().get("/nothing");
    server.client().call("BREW", "/nothing", None);
    server.client().chat(&json!({"model": "m"}));
    let before = lines();
    for number in 0..100 {
        let strange = format!("m{number}\"\\\n{{}}");
        server.client().chat(&json!({"model": strange, "user": strange, "field": number}));
        server.client().get(&format!("/nothing/{number}"));
        server.client().call(&format!("BREW{number}"), "/nothing", None);
    }
    assert_eq!(lines(), before);
}

#[test]
fn requests_are_counted_by_route_and_probes_are_not() {
    let server = Server::start(script("x"));
    server.client().chat(&json!({}));
    server.client().chat(&json!({"n": 0}));
    for _ in 0..3 {
        server.client().get("/health");
    }
    let label = |status: &str| {
        format!("http_requests_total{{method=\"POST\",status=\"{status}\",handler=\"/v1/chat/completions\"}}")
    };
    assert_eq!((server.metric(&label("2xx")), server.metric(&label("4xx"))), (1.0, 1.0));
    let text = server.client().get("/metrics").text();
    assert!(!text.contains("handler=\"/health\"") && !text.contains("handler=\"/metrics\""), "{text}");
}

#[test]
fn unknown_fields_are_accepted_and_counted() {
    let server = Server::start(script("x"));
    assert_eq!(server.client().chat(&json!({"no_such_field": 1, "nor_this": 2})).status, 200);
    assert_eq!(server.metric("frizzen:request_unknown_fields_total"), 2.0);
}

#[test]
fn scrapers_get_the_format_they_ask_for() {
    let server = Server::with(&["--metrics-compat", "vllm"], script("x"));
    let plain = server.client().get("/metrics");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(plain.text().contains("\nvllm:num_requests_running{"));
    let open =
        server.client().header("accept", "application/openmetrics-text; version=1.0.0").get("/metrics");
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().ends_with("# EOF\n"));
}

#[test]
fn the_small_endpoints_answer() {
    let server = Server::start(letters());
    assert_eq!(server.client().get("/version").ok(), json!({"version": env!("CARGO_PKG_VERSION")}));
    assert_eq!(server.client().get("/v1/plan").ok(), json!({"ops": []}));
    assert_eq!(server.client().get("/ping").status, 200);
    let load = server.client().get("/load").ok();
    assert_eq!(
        load,
        json!({"server_load": 0, "running": 0, "waiting": 0, "used_blocks": 0, "total_blocks": 4096})
    );
}

#[test]
fn every_token_of_a_run_is_counted_vllm_47382() {
    let worker = MockWorker::new(mock::info()).saying(Content::Alphabet([97].into())).in_runs_of(4);
    let server = Server::start(worker);
    server.client().completion(&json!({"prompt": "x", "max_tokens": 40})).ok();
    server.quiesce();
    assert_eq!(server.metric(&series("generation_tokens_total")), 40.0);
    assert_eq!(server.metric(&series("iteration_tokens_total_sum")), 41.0);
}

#[test]
fn what_only_the_worker_counts_is_read_when_somebody_scrapes() {
    let worker = letters().answering("experts", r#"{"layers": [1], "tokens": [[6, 2]]}"#).answering(
        "counters",
        r#"{"graph_steps": 7, "eager_steps": {"3x1": 2}, "late_compiles": {}, "memory": {"graphs": 9}}"#,
    );
    let server = Server::start(worker);
    let labels = r#"model_name="mock",engine="0""#;
    for (name, count) in [
        (format!("frizzen:expert_tokens_total{{{labels},layer=\"1\",expert=\"0\"}}"), 6.0),
        (format!("frizzen:expert_balance{{{labels},layer=\"1\"}}"), 4.0 / 6.0),
        (format!("frizzen:graph_steps_total{{{labels}}}"), 7.0),
        (format!("frizzen:eager_steps_total{{{labels},shape=\"3x1\"}}"), 2.0),
        (format!("frizzen:memory_bytes{{{labels},owner=\"graphs\"}}"), 9.0),
    ] {
        common::wait_until("the worker has answered", || {
            server.client().get("/metrics").text().lines().any(|line| line.starts_with(&name))
        });
        assert!((server.metric(&name) - count).abs() < 1e-9, "{name}");
    }
}

#[test]
fn a_worker_that_does_not_answer_holds_up_no_scrape() {
    let mut worker = letters().failing(Fault::Hang(1));
    let guard = worker.hang_guard();
    let server = Server::start(worker);
    let client = server.client();
    let hanging = std::thread::spawn(move || client.completion(&json!({"prompt": "x", "max_tokens": 2})));
    common::wait_until("a step hangs", || server.state.engine.activity().is_some());
    assert_eq!(server.metric(&series("num_requests_waiting")), 0.0);
    assert!(server.metric(&series("generation_tokens_total")) < 1.0);
    drop(guard);
    hanging.join().unwrap();
}
