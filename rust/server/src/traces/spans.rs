//! Spans in OTLP's JSON form (opentelemetry-proto 1.x, `ExportTraceServiceRequest`).
//!
//! A request is a server span; below it are `prepare` (from the head to the engine: body, template, tokens, grammar),
//! and, for each choice, `queue`, `prefill` and `decode`, which follow one another, and `detokenize` and `client_wait`,
//! which are sums of many short times drawn as one, from the first token on. Names of attributes: OpenTelemetry's
//! semantic conventions for generative models, and vLLM's where those have none.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::context::{SpanId, new_span_id};
use super::record::{Asked, Choice, Record};

const INTERNAL: u32 = 1;
const SERVER: u32 = 2;
const STATUS_ERROR: u32 = 2;

/// The body of a request to a collector.
pub fn export(service: &str, records: &[Record]) -> Value {
    let spans: Vec<Value> = records.iter().flat_map(spans).collect();
    let version = env!("CARGO_PKG_VERSION");
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", service), text("service.version", version)]},
        "scopeSpans": [{"scope": {"name": "frizzen", "version": version}, "spans": spans}],
    }]})
}

/// The root of a request comes first.
fn spans(record: &Record) -> Vec<Value> {
    let mut all = vec![root(record)];
    let Some(asked) = &record.asked else { return all };
    all.push(child(record, "prepare", record.received, asked.at, &[]));
    for (index, choice) in record.choices.iter().enumerate() {
        let Some(timing) = choice.waterfall.timing else { continue };
        let at = |time: Duration| asked.epoch + time;
        let mut part = |name: &str, from: SystemTime, to: SystemTime, more: Vec<Value>| {
            let attributes = [vec![number("frizzen.choice", index as u64)], more].concat();
            all.push(child(record, name, from, to, &attributes));
        };
        part("queue", at(timing.queued), at(timing.scheduled), Vec::new());
        let prefill = choice.waterfall.prefill;
        part(
            "prefill",
            at(timing.scheduled),
            at(timing.first_token),
            vec![
                number("frizzen.cached_tokens", prefill.cached_tokens.into()),
                number("frizzen.computed_tokens", prefill.computed_tokens.into()),
            ],
        );
        let first = at(timing.first_token);
        part(
            "decode",
            first,
            at(timing.last_token),
            vec![
                number("frizzen.tokens", choice.waterfall.tokens),
                number("frizzen.preemptions", timing.preemptions.into()),
                seconds("frizzen.lost_to_prefill", timing.lost_to_prefill),
            ],
        );
        part("detokenize", first, first + choice.waterfall.detokenize, vec![flag("frizzen.sum", true)]);
        part("client_wait", first, first + choice.waterfall.backpressure, vec![flag("frizzen.sum", true)]);
    }
    all
}

fn root(record: &Record) -> Value {
    let name = match &record.asked {
        Some(asked) => format!("{} {}", record.operation, asked.model),
        None => record.operation.to_owned(),
    };
    let mut span = span(record, record.span, &name, record.received, record.ended, &attributes(record));
    span["kind"] = SERVER.into();
    if let Some(parent) = &record.parent {
        span["parentSpanId"] = hex(parent).into();
    }
    if let Some(state) = &record.state {
        span["traceState"] = state.as_str().into();
    }
    // A refusal is the client's fault, and no failure of the server: its span has no error status.
    let refused = record.status.is_some_and(|status| (400..500).contains(&status));
    if let Some(error) = record.error.as_ref().filter(|_| !refused) {
        span["status"] = json!({"code": STATUS_ERROR, "message": error.message});
    }
    span
}

fn child(record: &Record, name: &str, from: SystemTime, to: SystemTime, attributes: &[Value]) -> Value {
    let mut span = span(record, new_span_id(), name, from, to, attributes);
    span["parentSpanId"] = hex(&record.span).into();
    span
}

fn span(
    record: &Record,
    id: SpanId,
    name: &str,
    from: SystemTime,
    to: SystemTime,
    attributes: &[Value],
) -> Value {
    json!({
        "traceId": hex(&record.trace),
        "spanId": hex(&id),
        "name": name,
        "kind": INTERNAL,
        "startTimeUnixNano": nanoseconds(from),
        "endTimeUnixNano": nanoseconds(to.max(from)),
        "attributes": attributes,
    })
}

fn attributes(record: &Record) -> Vec<Value> {
    let mut all = vec![
        text("gen_ai.operation.name", record.operation),
        text("gen_ai.provider.name", "frizzen"),
        text("http.request.method", "POST"),
        text("http.route", record.route),
    ];
    if let Some(status) = record.status {
        all.push(number("http.response.status_code", status.into()));
    }
    if let Some(asked) = &record.asked {
        all.push(text("gen_ai.request.model", &asked.model));
        all.push(text("gen_ai.response.model", &asked.model));
    }
    if let Some(error) = &record.error {
        all.push(text("error.type", error.kind));
    }
    if let Some(asked) = &record.asked {
        let params = &asked.params;
        all.push(text("gen_ai.request.id", &asked.name));
        all.push(text("gen_ai.response.id", &format!("{}{}", asked.prefix, asked.name)));
        all.push(number("gen_ai.request.n", asked.n.into()));
        if asked.n > 1 {
            all.push(number("gen_ai.request.choice.count", asked.n.into()));
        }
        all.extend(params.max_tokens.map(|most| number("gen_ai.request.max_tokens", most.into())));
        all.push(real("gen_ai.request.temperature", params.temperature.into()));
        all.push(real("gen_ai.request.top_p", params.top_p.into()));
        all.extend((params.top_k > 0).then(|| number("gen_ai.request.top_k", params.top_k.into())));
        all.push(real("gen_ai.request.frequency_penalty", params.frequency_penalty.into()));
        all.push(real("gen_ai.request.presence_penalty", params.presence_penalty.into()));
        all.extend(params.seed.map(|seed| number("gen_ai.request.seed", seed)));
        all.push(flag("gen_ai.request.stream", asked.stream));
        all.push(number("gen_ai.usage.input_tokens", asked.prompt_tokens));
        all.push(number("gen_ai.usage.prompt_tokens", asked.prompt_tokens));
    }
    if let Some(asked) = record.asked.as_ref().filter(|_| !record.choices.is_empty()) {
        all.extend(outcome(record, asked));
    }
    all
}

/// What the engine made of it.
fn outcome(record: &Record, asked: &Asked) -> Vec<Value> {
    let choices = &record.choices;
    let output: u64 = choices.iter().map(|choice| choice.waterfall.tokens).sum();
    let reasons: Vec<Value> = choices.iter().map(|choice| json!({"stringValue": choice.finish})).collect();
    let mut all = vec![
        number("gen_ai.usage.output_tokens", output),
        number("gen_ai.usage.completion_tokens", output),
        number("gen_ai.usage.num_sequences", choices.len() as u64),
        json!({"key": "gen_ai.response.finish_reasons", "value": {"arrayValue": {"values": reasons}}}),
    ];
    let between = |from: SystemTime, to: SystemTime| to.duration_since(from).unwrap_or_default();
    all.push(seconds("gen_ai.latency.e2e", between(record.received, record.ended)));
    // Latencies are the slowest choice's, since that is what the client waited for.
    let slowest = |part: &dyn Fn(&Choice) -> Option<Duration>| choices.iter().filter_map(part).max();
    let timing = |choice: &Choice| choice.waterfall.timing;
    let parts: [(&str, Option<Duration>); 5] = [
        (
            "gen_ai.latency.time_in_queue",
            slowest(&|choice| timing(choice).map(|timing| timing.scheduled.saturating_sub(timing.queued))),
        ),
        (
            "gen_ai.latency.time_to_first_token",
            slowest(&|choice| {
                timing(choice).map(|timing| between(record.received, asked.epoch + timing.first_token))
            }),
        ),
        (
            "gen_ai.latency.time_in_model_prefill",
            slowest(&|choice| {
                timing(choice).map(|timing| timing.first_token.saturating_sub(timing.scheduled))
            }),
        ),
        (
            "gen_ai.latency.time_in_model_decode",
            slowest(&|choice| {
                timing(choice).map(|timing| timing.last_token.saturating_sub(timing.first_token))
            }),
        ),
        (
            "gen_ai.latency.time_in_model_inference",
            slowest(&|choice| {
                timing(choice).map(|timing| timing.last_token.saturating_sub(timing.scheduled))
            }),
        ),
    ];
    all.extend(parts.into_iter().filter_map(|(name, time)| time.map(|time| seconds(name, time))));
    all
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// Integers of 64 bits are strings in protobuf's JSON.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": (value as i64).to_string()}})
}

fn real(key: &str, value: f64) -> Value {
    json!({"key": key, "value": {"doubleValue": value}})
}

fn seconds(key: &str, value: Duration) -> Value {
    real(key, value.as_secs_f64())
}

fn flag(key: &str, value: bool) -> Value {
    json!({"key": key, "value": {"boolValue": value}})
}

fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// Ids are hexadecimal in OTLP's JSON, where protobuf's own would have base64.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut digits, byte| {
        for nibble in [byte >> 4, byte & 15] {
            digits.push(char::from_digit(nibble.into(), 16).expect("four bits are one digit"));
        }
        digits
    })
}
