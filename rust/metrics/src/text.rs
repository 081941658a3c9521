//! The two text formats: OpenMetrics 1.0 and the older Prometheus text 0.0.4.

use std::fmt::Write;

use prometheus_client::registry::Registry;

pub(crate) const INFALLIBLE: &str = "writing to a String does not fail";

/// How `/metrics` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TextFormat {
    /// Version 0.0.4: what a scraper gets that does not ask. Counters are declared under the name of their sample,
    /// with `_total`, and there is no end mark.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0: counters are declared without `_total`, and the text ends with `# EOF`.
    OpenMetrics,
}

impl TextFormat {
    /// The format for an `Accept` header.
    pub fn from_accept(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// The value of the `Content-Type` header.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The registry as OpenMetrics text.
pub(crate) fn encode(registry: &Registry) -> String {
    let mut open = String::new();
    prometheus_client::encoding::text::encode(&mut open, registry).expect(INFALLIBLE);
    open
}

/// OpenMetrics text in `format`.
pub(crate) fn convert(open: String, format: TextFormat) -> String {
    match format {
        TextFormat::OpenMetrics => open,
        TextFormat::Prometheus => to_prometheus(&open),
    }
}

/// Rewrites what differs: the declared names of counters, and the end mark.
fn to_prometheus(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut lines = open.lines();
    while let Some(line) = lines.next() {
        match line.strip_prefix("# HELP ") {
            Some(help) => {
                // A HELP line is always followed by the TYPE line of the same family.
                let declared = lines.next().unwrap_or_default();
                let (name, help) = help.split_once(' ').unwrap_or((help, ""));
                let counter = declared.strip_prefix("# TYPE ").is_some_and(|rest| rest.ends_with(" counter"));
                let suffix = if counter { "_total" } else { "" };
                let kind = declared.rsplit(' ').next().unwrap_or_default();
                writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}")
                    .expect(INFALLIBLE);
            }
            None if line == "# EOF" => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}
