//! The text that scrapers read, and the rules of the step histogram.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

use std::time::Duration;

use frizzen_core::{FinishReason, PrefillStats, StopReason, Timing};
use frizzen_metrics::{CacheConfig, FinishedRequest, Metrics, MetricsOptions, TextFormat};

fn metrics() -> Metrics {
    Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false })
}

fn text(metrics: &Metrics) -> String {
    metrics.encode(TextFormat::Prometheus)
}

/// The value of the one series whose line starts with `name` and contains every part of `labels`.
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let fits = |line: &&str| {
        line.starts_with(name)
            && matches!(line.as_bytes().get(name.len()), Some(b'{' | b' '))
            && labels.iter().all(|label| line.contains(label))
    };
    let found: Vec<&str> = text.lines().filter(fits).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0].rsplit(' ').next().unwrap().parse().unwrap()
}

/// The order of label sets within a family is not part of the format: sorts them, and nothing else.
fn canonical(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for run in lines.chunk_by_mut(|a, b| {
        !a.starts_with('#') && a.split('{').next() == b.split('{').next() && !a.contains("le=")
    }) {
        run.sort_unstable();
    }
    lines.join("\n") + "\n"
}

#[test]
fn zero_series_exist_before_traffic() {
    let metrics = metrics();
    let _engine = metrics.engine(0);
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_count", &[]), 0.0);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_sum", &[]), 0.0);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_bucket", &["le=\"+Inf\""]), 0.0);
    for reason in ["stop", "length", "abort", "error"] {
        let label = format!("finished_reason=\"{reason}\"");
        assert_eq!(value(&text, "frizzen:request_success_total", &[&label]), 0.0);
    }
}

#[test]
fn cached_prompt_tokens_are_not_part_of_a_step() {
    let metrics = metrics();
    let engine = metrics.engine(0);
    let prefill = PrefillStats { cached_tokens: 40, computed_tokens: 60 };
    engine.first_token(prefill);
    engine.tokens(1);
    engine.step(u64::from(prefill.computed_tokens) + 1);
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_sum", &[]), 61.0);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_bucket", &["le=\"32.0\""]), 0.0);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_bucket", &["le=\"64.0\""]), 1.0);
    assert_eq!(value(&text, "frizzen:prompt_tokens_total", &[]), 100.0);
    assert_eq!(value(&text, "frizzen:prompt_tokens_cached_total", &[]), 40.0);
    assert_eq!(value(&text, "frizzen:prompt_tokens_cached_by_source_total", &["device"]), 40.0);
    assert_eq!(value(&text, "frizzen:prompt_tokens_by_source_total", &["local_compute"]), 60.0);
    assert_eq!(value(&text, "frizzen:prompt_tokens_by_source_total", &["local_cache_hit"]), 40.0);
}

#[test]
fn a_step_of_active_and_aborted_requests_counts_the_active_ones() {
    let metrics = metrics();
    let engine = metrics.engine(0);
    // Three rows came back; the request of one of them has left, so two tokens remain after the fan-out.
    engine.step([1, 0, 1].iter().sum());
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_count", &[]), 1.0);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_sum", &[]), 2.0);
}

#[test]
fn a_step_of_aborted_requests_only_is_no_observation() {
    let metrics = metrics();
    let engine = metrics.engine(0);
    engine.step(0);
    assert_eq!(value(&text(&metrics), "frizzen:iteration_tokens_total_count", &[]), 0.0);
}

#[test]
fn two_engines_are_two_series() {
    let metrics = metrics();
    let (first, second) = (metrics.engine(0), metrics.engine(1));
    first.step(5);
    second.step(7);
    second.step(9);
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_sum", &["engine=\"0\""]), 5.0);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_sum", &["engine=\"1\""]), 16.0);
    assert_eq!(value(&text, "frizzen:iteration_tokens_total_count", &["engine=\"1\""]), 2.0);
}

#[test]
fn a_handle_resolved_twice_is_the_same_series() {
    let metrics = metrics();
    metrics.engine(0).tokens(2);
    metrics.engine(0).tokens(3);
    assert_eq!(value(&text(&metrics), "frizzen:generation_tokens_total", &[]), 5.0);
}

#[test]
fn latencies_are_differences_of_the_first_scheduling() {
    let metrics = metrics();
    let at = Duration::from_secs;
    let timing = Timing {
        queued: at(1),
        scheduled: at(3),
        first_token: at(4),
        last_token: at(13),
        preemptions: 2,
        lost_to_prefill: at(5),
    };
    let request = FinishedRequest {
        prompt_tokens: 100,
        generation_tokens: 10,
        max_tokens: Some(10),
        cached_tokens: 48,
        timing,
    };
    metrics.engine(0).finished(&FinishReason::Length, &request);
    let text = text(&metrics);
    for (name, seconds) in [
        ("e2e_request_latency", 12.0),
        ("request_queue_time", 2.0),
        ("request_prefill_time", 1.0),
        ("request_decode_time", 9.0),
        ("request_inference_time", 10.0),
        ("request_time_per_output_token", 1.0),
    ] {
        assert_eq!(value(&text, &format!("frizzen:{name}_seconds_sum"), &[]), seconds, "{name}");
    }
    assert_eq!(value(&text, "frizzen:request_lost_to_prefill_seconds_sum", &[]), 5.0);
    assert_eq!(value(&text, "frizzen:request_prefill_kv_computed_tokens_sum", &[]), 52.0);
    assert_eq!(value(&text, "frizzen:request_num_preemptions_sum", &[]), 2.0);
    assert_eq!(value(&text, "frizzen:request_params_max_tokens_sum", &[]), 10.0);
}

#[test]
fn waiting_requests_are_those_of_all_reasons() {
    let metrics = metrics();
    metrics.engine(0).queues(2, 3, 4, 0.5);
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:num_requests_waiting", &[]), 7.0);
    assert_eq!(value(&text, "frizzen:num_requests_waiting_by_reason", &["reason=\"capacity\""]), 3.0);
    assert_eq!(value(&text, "frizzen:num_requests_waiting_by_reason", &["reason=\"deferred\""]), 4.0);
}

#[test]
fn a_request_of_one_token_has_no_time_per_output_token() {
    let metrics = metrics();
    let request = FinishedRequest { prompt_tokens: 4, generation_tokens: 1, ..FinishedRequest::default() };
    metrics.engine(0).finished(&FinishReason::Stop(StopReason::Eos(2)), &request);
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:request_time_per_output_token_seconds_sum", &[]), 0.0);
    assert_eq!(value(&text, "frizzen:request_time_per_output_token_seconds_count", &[]), 1.0);
}

#[test]
fn aborted_requests_are_counted_vllm_55634() {
    let metrics = metrics();
    metrics
        .engine(0)
        .finished(&FinishReason::Abort, &FinishedRequest { prompt_tokens: 9, ..Default::default() });
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:request_success_total", &["finished_reason=\"abort\""]), 1.0);
    assert_eq!(value(&text, "frizzen:request_prompt_tokens_count", &[]), 1.0);
    // It was never scheduled: its latencies would be those of nothing.
    assert_eq!(value(&text, "frizzen:e2e_request_latency_seconds_count", &[]), 0.0);
}

#[test]
fn clients_cannot_add_series_llm_d_router_1625() {
    let metrics = metrics();
    let http = metrics.http();
    http.answered("GET", "other", 404, 0.0);
    let before = text(&metrics).lines().count();
    for n in 0..1000 {
        http.answered(&format!("M{n}\n\"\\"), "other", 404, 0.0);
    }
    let after = text(&metrics);
    // One more method label, `other`: a counter line, and the lines of one histogram.
    assert!(after.lines().count() <= before + 8, "{after}");
    assert_eq!(value(&after, "http_requests_total", &["method=\"other\"", "status=\"4xx\""]), 1000.0);
}

#[test]
fn label_values_are_escaped() {
    let metrics = Metrics::new(&MetricsOptions { model_name: "a\"b\\c\nd".to_owned(), vllm_names: false });
    metrics.engine(0).tokens(1);
    assert_eq!(
        value(&text(&metrics), "frizzen:generation_tokens_total", &[r#"model_name="a\"b\\c\nd""#]),
        1.0
    );
}

#[test]
fn vllm_names_show_the_same_values() {
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: true });
    metrics.engine(0).tokens(3);
    metrics.engine(0).step(3);
    let text = text(&metrics);
    for prefix in ["frizzen:", "vllm:"] {
        assert_eq!(value(&text, &format!("{prefix}generation_tokens_total"), &[]), 3.0);
        assert_eq!(value(&text, &format!("{prefix}iteration_tokens_total_sum"), &[]), 3.0);
    }
}

#[test]
fn the_plan_is_labels_of_a_constant() {
    let metrics = metrics();
    metrics.kernel("attention.paged", "0-29", "reference");
    metrics.kernel_rejected("attention.paged", "flash", "missing_symbol");
    metrics.cache_config(
        0,
        &CacheConfig {
            block_size: 16,
            num_blocks: 100,
            cache_dtype: "float32".to_owned(),
            enable_prefix_caching: true,
        },
    );
    let text = text(&metrics);
    assert_eq!(value(&text, "frizzen:kernel_info", &["layer_range=\"0-29\"", "impl=\"reference\""]), 1.0);
    assert_eq!(value(&text, "frizzen:kernel_rejected_info", &["reason=\"missing_symbol\""]), 1.0);
    assert_eq!(value(&text, "frizzen:cache_config_info", &["num_gpu_blocks=\"100\""]), 1.0);
}

#[test]
fn the_phases_of_a_start_are_gauges_of_its_engine() {
    let metrics = metrics();
    metrics.start(1, "warm up", 0.25);
    let labels = ["engine=\"1\"", "phase=\"warm up\""];
    assert_eq!(value(&text(&metrics), "frizzen:start_seconds", &labels), 0.25);
}

#[test]
fn golden_text() {
    let metrics = metrics();
    let engine = metrics.engine(0);
    engine.step(61);
    engine.queues(2, 1, 0, 0.25);
    metrics.http().answered("POST", "/v1/completions", 200, 0.2);
    let text = canonical(&text(&metrics));
    if std::env::var_os("FRIZZEN_WRITE_DOCS").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/prometheus.txt");
        std::fs::write(file, &text).unwrap();
        return;
    }
    // Compared by line: the whole of it is too long for a message.
    for (line, golden) in text.lines().zip(include_str!("golden/prometheus.txt").lines()) {
        assert_eq!(line, golden);
    }
    assert_eq!(text.lines().count(), include_str!("golden/prometheus.txt").lines().count());
}

#[test]
fn open_metrics_ends_with_its_mark_and_prometheus_text_does_not() {
    let metrics = metrics();
    let _engine = metrics.engine(0);
    let open =
        metrics.encode(TextFormat::from_accept(Some("application/openmetrics-text;version=1.0.0,*/*;q=0.1")));
    assert!(open.ends_with("\n# EOF\n"));
    assert!(open.contains("# TYPE frizzen:prompt_tokens counter\n"));
    let text = metrics.encode(TextFormat::from_accept(None));
    assert!(!text.contains("# EOF"));
    assert!(text.contains("# TYPE frizzen:prompt_tokens_total counter\nfrizzen:prompt_tokens_total{"));
}

#[test]
fn le_bounds_rise_and_end_with_infinity() {
    let metrics = metrics();
    let _engine = metrics.engine(0);
    let text = text(&metrics);
    let bounds: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with("frizzen:iteration_tokens_total_bucket"))
        .map(|line| line.split("le=\"").nth(1).unwrap().split('"').next().unwrap())
        .map(|bound| if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() })
        .collect();
    assert_eq!(bounds.len(), 14);
    assert!(bounds.is_sorted());
    assert_eq!(bounds.last(), Some(&f64::INFINITY));
}
