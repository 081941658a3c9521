//! Series that follow the totals of a worker.

use frizzen_metrics::{Metrics, MetricsOptions, TextFormat};

fn metrics() -> Metrics {
    Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: false })
}

fn has(metrics: &Metrics, line: &str) {
    let text = metrics.encode(TextFormat::Prometheus);
    assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
}

#[test]
fn tokens_of_experts_follow_the_totals_and_balance_is_mean_over_maximum() {
    let metrics = metrics();
    let worker = metrics.worker(0);
    worker.experts(3, &[0, 0]);
    assert!(!metrics.encode(TextFormat::Prometheus).contains("expert_balance{"));
    worker.experts(3, &[10, 30]);
    worker.experts(3, &[20, 40]);
    has(&metrics, r#"frizzen:expert_tokens_total{model_name="m",engine="0",layer="3",expert="0"} 20"#);
    has(&metrics, r#"frizzen:expert_tokens_total{model_name="m",engine="0",layer="3",expert="1"} 40"#);
    has(&metrics, r#"frizzen:expert_balance{model_name="m",engine="0",layer="3"} 0.75"#);
}

#[test]
fn a_counter_of_a_worker_that_started_anew_does_not_fall() {
    let metrics = metrics();
    let worker = metrics.worker(0);
    for total in [5, 2, 7] {
        worker.counter("graph_steps", None, total);
    }
    has(&metrics, r#"frizzen:graph_steps_total{model_name="m",engine="0"} 7"#);
}

#[test]
fn memory_of_an_owner_rises_and_falls() {
    let metrics = metrics();
    let worker = metrics.worker(0);
    for bytes in [1 << 20, 3 << 30, 5] {
        worker.memory("graphs", bytes);
    }
    has(&metrics, r#"frizzen:memory_bytes{model_name="m",engine="0",owner="graphs"} 5"#);
}

#[test]
fn known_counters_have_families_of_their_own_and_others_share_one() {
    let metrics = metrics();
    let worker = metrics.worker(1);
    worker.counter("eager_steps", Some("3x1"), 2);
    worker.counter("late_compiles", Some("_norm"), 1);
    worker.counter("evictions", None, 4);
    worker.counter("copies", Some("in"), 9);
    let labels = r#"model_name="m",engine="1""#;
    has(&metrics, &format!(r#"frizzen:eager_steps_total{{{labels},shape="3x1"}} 2"#));
    has(&metrics, &format!(r#"frizzen:late_compiles_total{{{labels},kernel="_norm"}} 1"#));
    has(&metrics, &format!(r#"frizzen:worker_events_total{{{labels},name="evictions"}} 4"#));
    has(&metrics, &format!(r#"frizzen:worker_events_total{{{labels},name="copies:in"}} 9"#));
}

#[test]
fn shapes_without_end_become_one_series() {
    let metrics = metrics();
    let worker = metrics.worker(0);
    for shape in 0..2000 {
        worker.counter("eager_steps", Some(&shape.to_string()), 1);
    }
    let text = metrics.encode(TextFormat::Prometheus);
    assert_eq!(text.lines().filter(|line| line.starts_with("frizzen:eager_steps_total{")).count(), 513);
    assert!(text.contains("shape=\"other\""));
}
