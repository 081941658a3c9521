//! Results for people and for programs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::summary::warnings;

/// Form of the result file.
const SCHEMA: u64 = 1;
/// Flags whose values are nobody's business.
const SECRET: [&str; 2] = ["--api-key", "--header"];

/// One run: where it stands in a sweep, and its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Which one, for example `concurrency 8`.
    pub name: String,
    /// What it was asked to do.
    pub settings: Value,
    /// What came out.
    pub summary: Value,
}

/// The runs of one command, as in a result file.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// What they are told by in comparisons.
    pub label: String,
    /// In order.
    pub runs: Vec<Run>,
}

impl Results {
    /// As JSON, with what is needed to make them again: the command, the machine, the time.
    pub fn json(&self, mode: &str) -> Value {
        let runs = self
            .runs
            .iter()
            .map(|run| json!({"name": run.name, "settings": run.settings, "summary": run.summary}));
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        json!({
            "schema": SCHEMA,
            "tool": concat!("frizzen-bench ", env!("CARGO_PKG_VERSION")),
            "mode": mode,
            "label": self.label,
            "command": shown(std::env::args().skip(1)),
            "unix_time": time.as_secs(),
            "machine": machine(),
            "runs": runs.collect::<Vec<_>>(),
        })
    }

    /// Reads a result file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
        let document: Value =
            serde_json::from_str(&text).map_err(|error| format!("{shown} is not JSON: {error}"))?;
        let stem = || path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Self::parse(&document, stem()).ok_or_else(|| format!("{shown} is not a result of frizzen bench"))
    }

    fn parse(document: &Value, name: String) -> Option<Self> {
        if document["schema"] != SCHEMA {
            return None;
        }
        let runs = document["runs"].as_array()?.iter().map(|run| {
            Some(Run {
                name: run["name"].as_str()?.to_owned(),
                settings: run["settings"].clone(),
                summary: run["summary"].clone(),
            })
        });
        let label = document["label"].as_str().filter(|label| !label.is_empty());
        Some(Self { label: label.map_or(name, str::to_owned), runs: runs.collect::<Option<_>>()? })
    }

    /// Whether there is a run in which nothing succeeded.
    pub fn failed(&self) -> bool {
        self.runs.iter().any(|run| run.summary["completed"] == 0)
    }
}

/// A command line without what is secret.
fn shown(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut secret = false;
    let shown = words.map(|word| {
        let (flag, value) = word.split_once('=').map_or((&*word, None), |(flag, value)| (flag, Some(value)));
        let names_secret = SECRET.contains(&flag);
        let word = match value {
            _ if secret => "...".to_owned(),
            Some(_) if names_secret => format!("{flag}=..."),
            _ => word.clone(),
        };
        secret = names_secret && value.is_none();
        word
    });
    shown.collect()
}

fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "cpu": model.map(|(_, model)| model),
        "cores": std::thread::available_parallelism().map(std::num::NonZero::get).ok(),
        "load_average": load.split(' ').next().and_then(|load| load.parse::<f64>().ok()),
    })
}

/// Amounts of a summary that have one value, with their names for people.
pub const AMOUNTS: [(&str, &str); 14] = [
    ("Duration [s]", "/duration_s"),
    ("Requests completed", "/completed"),
    ("Requests failed", "/failed"),
    ("Requests [1/s]", "/requests_per_s"),
    ("Inputs [1/s]", "/inputs_per_s"),
    ("Good requests [1/s]", "/goodput/requests_per_s"),
    ("Prompt tokens", "/prompt_tokens"),
    ("Output tokens", "/output_tokens"),
    ("Output tokens [1/s]", "/output_tokens_per_s"),
    ("Output tokens, peak [1/s]", "/peak_output_tokens_per_s"),
    ("All tokens [1/s]", "/total_tokens_per_s"),
    ("Server CPU per output token [us]", "/server/cpu_us_per_output_token"),
    ("Server CPU per request [us]", "/server/cpu_us_per_request"),
    ("Server memory, peak [KiB]", "/server/peak_resident_kib"),
];

/// Quantities of a summary that have statistics.
pub const QUANTITIES: [(&str, &str); 7] = [
    ("TTFT [ms]", "ttft_ms"),
    ("TPOT [ms]", "tpot_ms"),
    ("ITL, by token [ms]", "itl_ms"),
    ("Inter-chunk [ms]", "inter_chunk_ms"),
    ("E2E [ms]", "e2e_ms"),
    ("Batch [ms]", "batch_ms"),
    ("Sent late [ms]", "late_ms"),
];

/// The statistics that are shown.
pub const STATISTICS: [&str; 4] = ["mean", "median", "p90", "p99"];

/// A run as a table.
pub fn table(run: &Run) -> String {
    let mut table = format!("== {} ==\n", run.name);
    let summary = &run.summary;
    for (name, pointer) in AMOUNTS {
        // An answer that is not generated has no output tokens, and one per request is no news.
        let trivial = (pointer == "/inputs_per_s" && summary["inputs_per_s"] == summary["requests_per_s"])
            || (pointer.contains("output_tokens") && summary["output_tokens"] == 0);
        if let Some(value) = summary.pointer(pointer).and_then(Value::as_f64).filter(|_| !trivial) {
            let _ = writeln!(table, "{name:<34}{:>12}", number(value));
        }
    }
    let present = QUANTITIES.iter().filter(|(_, member)| summary[*member].is_object());
    for (index, (name, member)) in present.enumerate() {
        if index == 0 {
            let columns =
                STATISTICS.iter().map(|column| format!("{column:>12}")).collect::<Vec<_>>().concat();
            let _ = writeln!(table, "{:<34}{columns}", "");
        }
        let values = STATISTICS
            .iter()
            .map(|column| format!("{:>12}", number(summary[*member][*column].as_f64().unwrap_or(f64::NAN))))
            .collect::<Vec<_>>()
            .concat();
        let _ = writeln!(table, "{name:<34}{values}");
    }
    if let Some(busy) = summary["client"]["busy"].as_f64() {
        let waiting = summary["client"]["waiting"].as_f64().unwrap_or_default();
        let (busy, waiting) = (busy * 100.0, waiting * 100.0);
        let _ = writeln!(table, "Client: reading thread busy {busy:.0} %, waiting for a CPU {waiting:.0} %");
    }
    for (kind, failed) in summary["errors"].as_object().into_iter().flatten() {
        let (count, first) = (&failed["count"], failed["first"].as_str().unwrap_or_default());
        let _ = writeln!(table, "failed: {count} x {kind}, first: {first}");
    }
    for warning in warnings(summary) {
        let _ = writeln!(table, "warning: {warning}");
    }
    table
}

/// Whole numbers as such, others with two digits after the point.
pub fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Outcome;
    use crate::summary::summary;

    #[test]
    fn a_result_file_gives_back_what_was_written() {
        let run = Run {
            name: "concurrency 2".to_owned(),
            settings: json!({"max_concurrency": 2}),
            summary: summary(&Outcome::default(), &[]),
        };
        let results = Results { label: "ours".to_owned(), runs: vec![run] };
        let document = results.json("serve");
        assert_eq!(Results::parse(&document, String::new()), Some(results.clone()));
        assert!(results.failed(), "nothing completed");
        let unlabelled = Results { label: String::new(), ..results };
        assert_eq!(Results::parse(&unlabelled.json("serve"), "file".to_owned()).unwrap().label, "file");
        assert_eq!(Results::parse(&json!({"runs": []}), String::new()), None);
    }

    #[test]
    fn keys_are_not_written_into_results() {
        let words = ["serve", "--api-key", "k1", "--header=a: k2", "--header", "a: k3", "--url", "u"];
        let shown = shown(words.into_iter().map(str::to_owned)).join(" ");
        assert_eq!(shown, "serve --api-key ... --header=... --header ... --url u");
    }

    #[test]
    fn a_table_shows_what_there_is_and_nothing_else() {
        let statistics = json!({"mean": 1.5, "median": 1.0, "p90": 2.0, "p99": 3.25});
        let summary = json!({"completed": 3, "requests_per_s": 2.0, "inputs_per_s": 2.0, "output_tokens": 0,
            "output_tokens_per_s": 0.0, "e2e_ms": statistics, "ttft_ms": null, "client": {"busy": 0.12},
            "errors": {"http_503": {"count": 2, "first": "status 503: busy"}}});
        let shown = table(&Run { name: "run".to_owned(), settings: Value::Null, summary });
        assert!(shown.contains("E2E [ms]"), "{shown}");
        assert!(
            shown.lines().any(|line| line.ends_with("1.50           1           2        3.25")),
            "{shown}"
        );
        assert!(shown.contains("failed: 2 x http_503, first: status 503: busy"), "{shown}");
        assert!(!shown.contains("TTFT") && !shown.contains("Inputs") && !shown.contains("Output"), "{shown}");
    }
}
