//! Arithmetic that must hold for any run, the empty one too.

use super::*;
use crate::load::Failed;
use crate::sample::Tokens;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A request sent at 0 whose output arrives at these times, `per_piece` tokens each.
fn sample(times: &[u64], per_piece: u64) -> Sample {
    let output: Vec<Tokens> = times.iter().map(|ms| Tokens { at: at(*ms), count: per_piece }).collect();
    Sample {
        sent: Duration::ZERO,
        ended: at(times.last().copied().unwrap_or(1)),
        late: Duration::ZERO,
        output_tokens: output.len() as u64 * per_piece,
        output,
        streamed: true,
        prompt_tokens: 4,
        counted_by_server: true,
        inputs: 1,
    }
}

fn run(samples: Vec<Sample>) -> Outcome {
    let duration = samples.iter().map(|sample| sample.ended).max().unwrap_or_default();
    Outcome { samples, duration, ..Outcome::default() }
}

#[test]
fn peak_is_never_below_the_mean_and_intervals_hold_every_token_vllm_50677() {
    let tenths: Vec<u64> = (1..=10).map(|step| step * 100).collect();
    let seconds: Vec<u64> = (1..=25).map(|step| step * 130).collect();
    let runs =
        [vec![sample(&tenths, 5)], vec![sample(&[700], 50)], vec![sample(&seconds, 1), sample(&[2_999], 9)]];
    for samples in runs {
        let outcome = run(samples);
        let throughput = Throughput::of(&outcome.samples, outcome.duration).unwrap();
        let all: u64 = outcome.samples.iter().map(|sample| sample.output_tokens).sum();
        assert_eq!(throughput.tokens.iter().sum::<u64>(), all);
        let covered = throughput.interval * throughput.tokens.len() as f64;
        assert!((covered - outcome.duration.as_secs_f64()).abs() < 1e-9);
        let mean = all as f64 / outcome.duration.as_secs_f64();
        assert!(throughput.peak() >= mean - 1e-9, "{} < {mean}", throughput.peak());
    }
}

#[test]
fn no_requests_and_no_time_are_no_division_by_zero_vllm_35471() {
    let summary = summary(&run(Vec::new()), &["ttft:1".parse().unwrap()]);
    for member in ["requests_per_s", "output_tokens_per_s", "peak_output_tokens_per_s", "ttft_ms", "e2e_ms"] {
        assert!(summary[member].is_null(), "{member}");
    }
    assert!(summary["goodput"]["share"].is_null());
    assert_eq!(summary["completed"], 0);
    assert!(warnings(&summary).is_empty());
}

#[test]
fn one_request_has_statistics_of_its_own_value() {
    let summary = summary(&run(vec![sample(&[250], 1)]), &[]);
    for name in ["mean", "median", "p90", "p99", "max"] {
        assert_eq!(summary["ttft_ms"][name], 250.0);
    }
    assert!(summary["tpot_ms"].is_null() && summary["itl_ms"].is_null());
    assert_eq!(summary["output_tokens_per_s"], 4.0);
}

#[test]
fn percentiles_are_interpolated_between_ranks() {
    let statistics = Statistics::of((0..=100).rev().map(|value| (f64::from(value), 1))).unwrap();
    assert_eq!((statistics.median, statistics.p90, statistics.p99), (50.0, 90.0, 99.0));
    let statistics = Statistics::of([(1.0, 1), (2.0, 1)]).unwrap();
    assert_eq!((statistics.mean, statistics.median, statistics.max), (1.5, 1.5, 2.0));
    // A value that stands for many is as good as many, and costs no memory.
    let many = u64::MAX / 4;
    let statistics = Statistics::of([(3.0, many), (1.0, 2 * many), (9.0, 0)]).unwrap();
    assert_eq!((statistics.median, statistics.p90, statistics.max), (1.0, 3.0, 3.0));
    let statistics = Statistics::of([(5.0, 2), (1.0, 1), (7.0, 1)]).unwrap();
    assert_eq!((statistics.median, statistics.mean, statistics.count), (5.0, 4.5, 4));
}

#[test]
fn failures_count_by_kind_have_no_latency_and_are_not_good() {
    let mut outcome = run(vec![sample(&[100, 200], 1), sample(&[900, 1_000], 1)]);
    let failed = Failed { count: 2, first: "status 503: busy".to_owned() };
    outcome.failures.insert("http_503".to_owned(), failed);
    let summary = summary(&outcome, &["ttft:500".parse().unwrap(), "tpot:100".parse().unwrap()]);
    assert_eq!((&summary["completed"], &summary["failed"]), (&json!(2), &json!(2)));
    assert_eq!(summary["errors"]["http_503"], json!({"count": 2, "first": "status 503: busy"}));
    assert_eq!(summary["e2e_ms"]["count"], 2);
    assert_eq!(summary["goodput"], json!({"good": 1, "share": 0.25, "requests_per_s": 1.0}));
}

#[test]
fn a_client_in_its_own_way_is_said() {
    let busy = |busy: f64, waiting: f64| json!({"client": {"busy": busy, "waiting": waiting}});
    assert!(warnings(&busy(0.3, 0.1)).is_empty());
    assert!(warnings(&busy(0.2, 0.4))[0].contains("busy for 20 %"));
    let guessed = json!({"client": {}, "not_counted_by_server": 3});
    assert!(warnings(&guessed)[0].starts_with("3 answers came without the server's count"));
}

#[test]
fn the_first_token_is_in_no_time_per_token_vllm_7242_vllm_omni_6693_vllm_6531() {
    // A second until the first token, then 10 ms each; and an answer of one token, which has no time per token at all.
    let slow_start = sample(&[1000, 1010, 1020, 1030], 1);
    let summary = summary(&run(vec![slow_start, sample(&[1000], 1)]), &[]);
    for times in ["tpot_ms", "itl_ms"] {
        for value in ["mean", "median", "p99", "max"] {
            assert_eq!(summary[times][value], 10.0, "{times} {value}");
        }
    }
    assert_eq!(summary["tpot_ms"]["count"], 1);
    assert_eq!(summary["itl_ms"]["count"], 3);
}
