//! OpenTelemetry traces: one per request, to a collector that is on another thread of this test.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{Server, chat_body, letters, script, slow_letters, streamed, wait_until};
use serde_json::{Value, json};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const PATIENCE: Duration = Duration::from_secs(20);

/// A collector that answers every batch with `status`.
struct Collector {
    url: String,
    batches: Receiver<(String, Value)>,
}

impl Collector {
    fn answering(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, batches) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if sender.send(take(stream.unwrap(), status)).is_err() {
                    return;
                }
            }
        });
        Self { url, batches }
    }

    /// The spans of the next batches, until there are `count` roots.
    fn spans(&self, count: usize) -> Vec<Value> {
        let mut spans = Vec::new();
        while spans.iter().filter(|span: &&Value| span["kind"] == 2).count() < count {
            let (head, body) = self.batches.recv_timeout(PATIENCE).unwrap();
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("content-type: application/json\r\n"), "{head}");
            let resource = &body["resourceSpans"][0];
            assert_eq!(attribute(&resource["resource"], "service.name"), "frizzen");
            spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
        }
        spans
    }
}

fn take(mut stream: TcpStream, status: &str) -> (String, Value) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}").unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

/// An attribute's value, whatever its type; null if there is none.
fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
    found.map_or(&Value::Null, |attribute| attribute["value"].as_object().unwrap().values().next().unwrap())
}

fn nanoseconds(span: &Value, key: &str) -> u64 {
    span[key].as_str().unwrap().parse().unwrap()
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

#[test]
fn a_request_is_a_span_with_its_phases_below_it() {
    let collector = Collector::answering("200 OK");
    let worker = slow_letters(Duration::from_millis(5));
    let server = Server::with(&["--otlp-traces-endpoint", &collector.url], worker);
    let client = server.client().header("traceparent", PARENT).header("tracestate", "vendor=1");
    let answer = client.chat(&json!({"max_tokens": 4, "n": 2, "temperature": 0.5, "seed": 7})).ok();
    let spans = collector.spans(1);
    let root = &spans[0];
    assert_eq!(root["name"], "chat mock");
    assert_eq!(root["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(
        (&root["parentSpanId"], &root["traceState"]),
        (&json!("00f067aa0ba902b7"), &json!("vendor=1"))
    );
    assert_eq!(root.get("status"), None);
    let expected = [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("mock")),
        ("gen_ai.response.id", answer["id"].clone()),
        ("gen_ai.request.max_tokens", json!("4")),
        ("gen_ai.request.temperature", json!(0.5)),
        ("gen_ai.request.seed", json!("7")),
        ("gen_ai.request.n", json!("2")),
        ("gen_ai.usage.input_tokens", json!(answer["usage"]["prompt_tokens"].to_string())),
        ("gen_ai.usage.output_tokens", json!("8")),
        ("http.route", json!("/v1/chat/completions")),
        ("http.response.status_code", json!("200")),
    ];
    for (key, value) in expected {
        assert_eq!(attribute(root, key), &value, "{key}");
    }
    let reasons = json!([{"stringValue": "length"}, {"stringValue": "length"}]);
    assert_eq!(attribute(root, "gen_ai.response.finish_reasons"), &json!({"values": reasons}));
    assert!(attribute(root, "gen_ai.latency.time_in_model_decode").as_f64().unwrap() >= 0.015);
    for name in ["queue", "prefill", "decode", "detokenize", "client_wait"] {
        assert_eq!(named(&spans, name).len(), 2, "{name} of each choice");
    }
    assert_eq!(named(&spans, "prepare").len(), 1);
    for span in &spans[1..] {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&root["traceId"], &root["spanId"]));
        let (from, to) = (nanoseconds(span, "startTimeUnixNano"), nanoseconds(span, "endTimeUnixNano"));
        // The wall clock is read more than once, and may be set meanwhile: to the millisecond.
        let slack = 1_000_000;
        assert!(nanoseconds(root, "startTimeUnixNano") <= from + slack && from <= to, "{span}");
        assert!(to <= nanoseconds(root, "endTimeUnixNano") + slack, "{span}");
    }
    let decode = named(&spans, "decode")[0];
    let took = nanoseconds(decode, "endTimeUnixNano") - nanoseconds(decode, "startTimeUnixNano");
    assert!(took >= 15_000_000, "three steps of five milliseconds: {took}");
}

#[test]
fn a_stream_is_traced_to_its_end() {
    let collector = Collector::answering("200 OK");
    let server = Server::with(&["--otlp-traces-endpoint", &collector.url], script("hello"));
    server.client().post("/v1/chat/completions", &streamed(&chat_body(&json!({})))).events();
    let spans = collector.spans(1);
    assert_eq!(attribute(&spans[0], "gen_ai.request.stream"), true);
    assert_eq!(attribute(&spans[0], "gen_ai.response.finish_reasons")["values"][0]["stringValue"], "stop");
    assert_eq!(spans[0].get("parentSpanId"), None, "nobody sent a parent");
    assert_eq!(spans[0]["traceId"].as_str().unwrap().len(), 32);
}

#[test]
fn whoever_says_that_a_trace_is_not_sampled_gets_none() {
    let collector = Collector::answering("200 OK");
    let server = Server::with(&["--otlp-traces-endpoint", &collector.url], script("hello"));
    let unsampled = PARENT.replace("-01", "-00");
    server.client().header("traceparent", &unsampled).completion(&json!({"prompt": "x"})).ok();
    // A broken context is no context.
    server.client().header("traceparent", "00-xyz").completion(&json!({"prompt": "x"})).ok();
    let spans = collector.spans(1);
    assert_ne!(spans[0]["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(named(&spans, "text_completion mock").len(), 1);
}

#[test]
fn refusals_and_departures_are_spans_too() {
    let collector = Collector::answering("200 OK");
    let worker = slow_letters(Duration::from_millis(2));
    let server = Server::with(&["--otlp-traces-endpoint", &collector.url], worker);
    assert_eq!(server.client().completion(&json!({"prompt": "x", "top_p": 7})).status, 400);
    let refused = &collector.spans(1)[0];
    assert_eq!(refused["name"], "text_completion");
    assert_eq!(attribute(refused, "error.type"), "BadRequestError");
    assert_eq!(attribute(refused, "http.response.status_code"), "400");
    assert_eq!(refused.get("status"), None, "the client's fault is no failure of the server");

    let body = streamed(&json!({"prompt": "x", "max_tokens": 3000})).to_string();
    let mut stream = server.client().request("POST", "/v1/completions", Some(body.as_bytes()));
    let mut some = [0; 256];
    stream.read_exact(&mut some).unwrap();
    drop(stream);
    let left = &collector.spans(1)[0];
    assert_eq!(attribute(left, "gen_ai.response.finish_reasons")["values"][0]["stringValue"], "abort");
    assert_eq!(left.get("status"), None);
}

#[test]
fn a_collector_that_refuses_or_is_not_there_costs_the_trace_and_nothing_else() {
    let collector = Collector::answering("503 Service Unavailable");
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for url in [&collector.url, &nobody] {
        let server = Server::with(&["--otlp-traces-endpoint", url], letters());
        for _ in 0..3 {
            server.client().completion(&json!({"prompt": "x", "max_tokens": 1})).ok();
        }
        let outcome = |name: &str| server.metric(&format!("frizzen:traces_total{{outcome=\"{name}\"}}"));
        wait_until("all are counted", || outcome("failed") == 3.0);
        assert_eq!((outcome("exported"), outcome("dropped")), (0.0, 0.0));
    }
}

#[test]
fn what_the_queue_has_no_room_for_is_dropped_and_counted() {
    // Accepts and never answers, so that the first batch stays on its way.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let server = Server::with(&["--otlp-traces-endpoint", &url], letters());
    let tracer = server.state.tracer.as_ref().unwrap();
    let route = frizzen_server::routes::find("/v1/completions").next().unwrap();
    for _ in 0..6000 {
        drop(tracer.begin(&axum::http::HeaderMap::new(), route));
    }
    assert!(server.metric("frizzen:traces_total{outcome=\"dropped\"}") > 0.0);
    server.client().completion(&json!({"prompt": "x", "max_tokens": 1})).ok();
}

#[test]
fn what_is_left_is_sent_when_the_server_ends() {
    let collector = Collector::answering("200 OK");
    let mut server = Server::with(&["--otlp-traces-endpoint", &collector.url], script("hello"));
    server.client().completion(&json!({"prompt": "x"})).ok();
    server.signal();
    server.outcome();
    assert_eq!(named(&collector.spans(1), "text_completion mock").len(), 1);
}
