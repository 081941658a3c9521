//! Flags that several commands share.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::arrival::Arrivals;
use crate::http::{Trust, Url};

/// Members of a request that the command sets itself.
const RESERVED: [&str; 6] = ["model", "prompt", "messages", "input", "max_tokens", "stream"];
/// Limits of rates and factors: times computed from them stay within what a clock can hold.
const LEAST: f64 = 1e-6;
const MOST: f64 = 1e9;

/// Which server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Where it is
    #[arg(long, visible_alias = "base-url", default_value = "http://127.0.0.1:8000", value_parser = Url::parse)]
    pub url: Url,
    /// Whom to believe that he is the server, if it is https.
    #[command(flatten)]
    pub trust: Trust,
    /// Name of the model; the first that the server lists if left out
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Path of the requests, in place of the usual one
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// Key for the server; the variable `OPENAI_API_KEY` is used if left out
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// A further header, may be repeated
    #[arg(long, value_name = "NAME:VALUE", value_parser = parse_header)]
    pub header: Vec<(String, String)>,
    /// JSON object merged into every request
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_extra)]
    pub extra_body: Map<String, Value>,
    /// Time that one request may take
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = parse_seconds)]
    pub timeout: Duration,
    /// Process of the server, if it runs on this machine: its CPU time and memory are reported
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
}

/// What prompts are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Words {
    /// Token ids: exact lengths
    Ids,
    /// Letters: lengths by two probes of the server
    Letters,
}

/// How long random prompts and answers are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct LengthArgs {
    /// Tokens of a random prompt
    #[arg(long, visible_alias = "random-input-len", value_name = "TOKENS", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub input_len: u32,
    /// Lengths are uniform within this share above and below
    #[arg(long, visible_alias = "random-range-ratio", value_name = "SHARE", default_value_t = 0.0,
          value_parser = parse_share)]
    pub range_ratio: f64,
    /// Tokens at the start of a prompt that it shares with others
    #[arg(long, visible_alias = "random-prefix-len", value_name = "TOKENS", default_value_t = 0)]
    pub prefix_len: u32,
    /// How many different shared starts there are
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub num_prefixes: u32,
    /// What prompts are made of; ids if left out, letters for a chat
    #[arg(long, value_enum, value_name = "KIND")]
    pub words: Option<Words>,
    /// Ids to draw from; the default is in every vocabulary. A mixture of experts needs a wide range
    #[arg(long, value_name = "FIRST..END", default_value = "100..250", value_parser = parse_range)]
    pub token_ids: Range<u32>,
    /// Everything that is random depends on it. A server that caches prefixes knows the prompts of an earlier run with
    /// the same seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// When requests are sent.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Requests per second; without it, all are due at once
    #[arg(long, value_name = "RATE", default_value = "inf", value_parser = parse_rate)]
    pub request_rate: f64,
    /// Shape of the gaps: 1 is Poisson, less is burstier, more is steadier
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, value_parser = parse_positive)]
    pub burstiness: f64,
    /// Requests in flight at most
    #[arg(long, value_name = "N", value_parser = parse_concurrency)]
    pub max_concurrency: Option<usize>,
    /// Time in which the rate rises to its value; without a rate, time over which the first wave is spread
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub ramp_up: Duration,
    /// Requests before the clock starts, with prompts of their own
    #[arg(long, visible_alias = "num-warmups", value_name = "N", default_value_t = 1)]
    pub warmup: usize,
}

/// Where results go.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Results")]
pub struct ResultArgs {
    /// Write the results as JSON
    #[arg(long, value_name = "FILE", value_parser = parse_output)]
    pub result_json: Option<PathBuf>,
    /// A word for this run, to be told by in comparisons
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
}

impl LoadArgs {
    /// The law of arrivals.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals {
            rate: self.request_rate,
            burstiness: self.burstiness,
            ramp_up: self.ramp_up,
            max_concurrency: self.max_concurrency,
        }
    }
}

/// A file that can be written once the run is over; one that cannot would cost the run.
pub fn parse_output(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if path.is_dir() || path.file_name().is_none() {
        return Err(format!("'{text}' is not a file"));
    }
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        return Err(format!("there is no directory '{}'", parent.display()));
    }
    Ok(path)
}

/// A rate, perhaps infinite.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| *rate >= LEAST);
    rate.ok_or_else(|| format!("'{text}' is not a rate of at least {LEAST}"))
}

/// A finite factor.
pub fn parse_positive(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (LEAST..=MOST).contains(value));
    value.ok_or_else(|| format!("'{text}' is not a number from {LEAST} to {MOST}"))
}

/// Requests in flight.
pub fn parse_concurrency(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1_000_000).contains(count));
    count.ok_or_else(|| format!("'{text}' is not a number from 1 to 1000000"))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| format!("'{text}' is not a share from 0 to below 1"))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e6).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a time from 0 to 1e6 seconds"))
}

fn parse_range(text: &str) -> Result<Range<u32>, String> {
    let ends = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    let range = ends.filter(|(first, end)| first < end).map(|(first, end)| first..end);
    range.ok_or_else(|| format!("'{text}' is not FIRST..END with FIRST below END"))
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once(':').filter(|_| !text.contains(['\r', '\n']));
    let (name, value) = parts.ok_or_else(|| format!("'{text}' is not NAME:VALUE"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn parse_extra(text: &str) -> Result<Map<String, Value>, String> {
    let extra: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
    match RESERVED.iter().find(|name| extra.contains_key(**name)) {
        Some(name) => Err(format!("'{name}' has a flag of its own")),
        None => Ok(extra),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_limits_are_refused() {
        assert_eq!(parse_range("3..5"), Ok(3..5));
        assert_eq!(parse_rate("inf"), Ok(f64::INFINITY));
        assert_eq!(parse_header("X-A: b:c"), Ok(("X-A".to_owned(), "b:c".to_owned())));
        assert!(parse_extra(r#"{"stream":false}"#).unwrap_err().contains("'stream'"));
        assert!(parse_range("5..5").is_err() && parse_range("5").is_err());
        assert!(parse_output("/no/such/directory/x.json").unwrap_err().contains("'/no/such/directory'"));
        assert!(parse_output("x.json").is_ok() && parse_output("").is_err() && parse_output("/").is_err());
        assert!(parse_rate("0").is_err() && parse_rate("NaN").is_err() && parse_positive("inf").is_err());
        assert!(parse_concurrency("0").is_err() && parse_share("1").is_err() && parse_seconds("-1").is_err());
        assert!(parse_header("a: b\r\nc: d").is_err());
    }
}
