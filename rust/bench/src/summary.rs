//! Statistics of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::goodput::Objective;
use crate::load::Outcome;
use crate::sample::Sample;

/// Milliseconds of a duration.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Statistics of a quantity. Percentiles are interpolated linearly between the ranks next to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// How many values there were.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// 50th percentile.
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest value.
    pub max: f64,
}

impl Statistics {
    /// Of these values, each as often as the number beside it says; `None` if there is none.
    pub fn of(values: impl IntoIterator<Item = (f64, u64)>) -> Option<Self> {
        let mut values: Vec<(f64, u64)> = values.into_iter().filter(|(_, times)| *times > 0).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let max = values.last()?.0;
        let (mut count, mut sum) = (0, 0.0);
        for (value, times) in &mut values {
            sum += *value * *times as f64;
            count += *times;
            // From here on: how many values there are up to this one.
            *times = count;
        }
        let percentile = |fraction| percentile(&values, count, fraction);
        let mean = sum / count as f64;
        Some(Self { count, mean, median: percentile(0.5), p90: percentile(0.9), p99: percentile(0.99), max })
    }

    fn of_times(times: impl IntoIterator<Item = Duration>) -> Option<Self> {
        Self::of(times.into_iter().map(|time| (millis(time), 1)))
    }

    /// As JSON; every member but the count is in the quantity's unit.
    pub fn json(&self) -> Value {
        let Self { count, mean, median, p90, p99, max } = *self;
        json!({"count": count, "mean": round(mean), "median": round(median), "p90": round(p90),
               "p99": round(p99), "max": round(max)})
    }
}

/// `sorted` are values with the number of values up to and with each.
fn percentile(sorted: &[(f64, u64)], count: u64, fraction: f64) -> f64 {
    let at = |rank: f64| sorted[sorted.partition_point(|(_, up_to)| *up_to as f64 <= rank)].0;
    let rank = fraction * (count - 1) as f64;
    let (below, above) = (at(rank.floor()), at(rank.ceil()));
    below + (above - below) * rank.fract()
}

/// Four digits after the point: a tenth of a microsecond, where the unit is milliseconds.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Output tokens per second in intervals of equal width.
///
/// The intervals cover the run exactly, each as wide as any other and a second at least (or the whole run, if that is
/// shorter). So the highest cannot be below the mean, and all together are all tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// Seconds of an interval.
    pub interval: f64,
    /// Tokens of each.
    pub tokens: Vec<u64>,
}

impl Throughput {
    /// Of the output of these samples, over a run of this duration.
    pub fn of(samples: &[Sample], duration: Duration) -> Option<Self> {
        let seconds = duration.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let count = seconds.floor().max(1.0) as usize;
        let interval = seconds / count as f64;
        let mut tokens = vec![0; count];
        for piece in samples.iter().flat_map(|sample| &sample.output) {
            tokens[((piece.at.as_secs_f64() / interval) as usize).min(count - 1)] += piece.count;
        }
        Some(Self { interval, tokens })
    }

    /// Tokens per second of the busiest interval.
    pub fn peak(&self) -> f64 {
        self.tokens.iter().max().map_or(0.0, |most| *most as f64 / self.interval)
    }
}

/// Everything about a run that is a number.
pub fn summary(outcome: &Outcome, objectives: &[Objective]) -> Value {
    let samples = &outcome.samples;
    let seconds = outcome.duration.as_secs_f64();
    let per_second = |amount: u64| (seconds > 0.0).then(|| round(amount as f64 / seconds));
    let total = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
    let (prompt, output) = (total(|sample| sample.prompt_tokens), total(|sample| sample.output_tokens));
    let peak = Throughput::of(samples, outcome.duration).map(|throughput| round(throughput.peak()));
    let errors: BTreeMap<_, _> = outcome
        .failures
        .iter()
        .map(|(kind, failed)| (kind, json!({"count": failed.count, "first": failed.first})))
        .collect();
    let statistics = |statistics: Option<Statistics>| statistics.map(|statistics| statistics.json());
    let gaps = samples.iter().flat_map(Sample::token_gaps).map(|(gap, tokens)| (millis(gap), tokens));
    let mut summary = json!({
        "duration_s": round(seconds),
        "completed": samples.len(),
        "failed": outcome.failed(),
        "errors": errors,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "not_counted_by_server": samples.iter().filter(|sample| !sample.counted_by_server).count(),
        "requests_per_s": per_second(samples.len() as u64),
        "inputs_per_s": per_second(total(|sample| sample.inputs)),
        "output_tokens_per_s": per_second(output),
        "total_tokens_per_s": per_second(prompt + output),
        "peak_output_tokens_per_s": peak,
        "ttft_ms": statistics(Statistics::of_times(samples.iter().filter_map(Sample::time_to_first_token))),
        "tpot_ms": statistics(Statistics::of_times(samples.iter().filter_map(Sample::time_per_token))),
        "itl_ms": statistics(Statistics::of(gaps)),
        "inter_chunk_ms": statistics(Statistics::of_times(samples.iter().flat_map(Sample::chunk_gaps))),
        "e2e_ms": statistics(Statistics::of_times(samples.iter().map(Sample::latency))),
        "late_ms": statistics(Statistics::of_times(samples.iter().map(|sample| sample.late))),
        "client": client(outcome),
        "server": server(outcome, output),
    });
    if !objectives.is_empty() {
        let meets = |sample: &&Sample| objectives.iter().all(|objective| objective.met_by(sample));
        let good = samples.iter().filter(meets).count() as u64;
        let all = samples.len() as u64 + outcome.failed();
        let share = (all > 0).then(|| round(good as f64 / all as f64));
        summary["goodput"] = json!({"good": good, "share": share, "requests_per_s": per_second(good)});
    }
    summary
}

/// Shares of the run's time: `busy` and `waiting` of the thread that reads, `cpu` of all threads of this process.
fn client(outcome: &Outcome) -> Value {
    let share = |time: Duration| {
        (!outcome.duration.is_zero()).then(|| round(time.as_secs_f64() / outcome.duration.as_secs_f64()))
    };
    json!({
        "busy": outcome.client.and_then(|thread| share(thread.ran)),
        "waiting": outcome.client.and_then(|thread| share(thread.waited)),
        "cpu": outcome.client_cpu.and_then(share),
    })
}

fn server(outcome: &Outcome, output_tokens: u64) -> Value {
    let cpu = outcome.server_cpu.map(|cpu| cpu.as_secs_f64());
    let per = |amount: u64| cpu.filter(|_| amount > 0).map(|cpu| round(cpu * 1e6 / amount as f64));
    json!({
        "cpu_s": cpu.map(round),
        "cpu_us_per_output_token": per(output_tokens),
        "cpu_us_per_request": per(outcome.samples.len() as u64),
        "resident_kib": outcome.server_memory.map(|memory| memory.resident),
        "peak_resident_kib": outcome.server_memory.map(|memory| memory.peak),
    })
}

/// What a reader of the numbers has to know: the client in the way, tokens that were guessed.
pub fn warnings(summary: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let share = |name: &str| summary["client"][name].as_f64().unwrap_or_default();
    let (busy, waiting) = (share("busy"), share("waiting"));
    if busy + waiting > 0.5 {
        warnings.push(format!(
            "the client is in its own way: its reading thread was busy for {:.0} % of the run and waited for a CPU \
             for {:.0} %, so latencies include its own queue",
            busy * 100.0,
            waiting * 100.0
        ));
    }
    if let Some(count) = summary["not_counted_by_server"].as_u64().filter(|count| *count > 0) {
        warnings.push(format!(
            "{count} answers came without the server's count of tokens: prompts are estimated, and a streamed piece \
             of text counts as one token"
        ));
    }
    warnings
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
