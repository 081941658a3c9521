//! Several result files side by side, as ratios to the first.

use std::fmt::Write as _;

use serde_json::Value;

use crate::report::{AMOUNTS, QUANTITIES, Results, STATISTICS, number};

/// Columns of a comparison: width of a value with its ratio.
const WIDTH: usize = 22;

/// A table for each run that the first result has; runs of the others are found by name. A single run is compared
/// whatever its name.
pub fn compare(results: &[Results]) -> Result<String, String> {
    let [base, others @ ..] = results else { return Err("nothing to compare".to_owned()) };
    if others.is_empty() {
        return Err("a comparison needs at least two result files".to_owned());
    }
    let mut table = String::new();
    for run in &base.runs {
        let summaries: Vec<Option<&Value>> = results
            .iter()
            .map(|result| {
                let found = match &*result.runs {
                    [only] if base.runs.len() == 1 => Some(only),
                    runs => runs.iter().find(|other| other.name == run.name),
                };
                found.map(|run| &run.summary)
            })
            .collect();
        let _ = writeln!(table, "== {} ==", run.name);
        let labels = results
            .iter()
            .map(|result| format!("{:>WIDTH$}", cut(&result.label)))
            .collect::<Vec<_>>()
            .concat();
        let _ = writeln!(table, "{:<34}{labels}", "");
        for (name, pointer) in rows() {
            let values: Vec<Option<f64>> = summaries
                .iter()
                .map(|summary| summary.and_then(|summary| summary.pointer(&pointer)).and_then(Value::as_f64))
                .collect();
            if values.iter().any(|value| value.is_some_and(|value| value != 0.0)) {
                let _ = writeln!(table, "{name:<34}{}", cells(&values));
            }
        }
    }
    Ok(table)
}

fn rows() -> impl Iterator<Item = (String, String)> {
    let amounts = AMOUNTS.iter().map(|(name, pointer)| ((*name).to_owned(), (*pointer).to_owned()));
    let statistics = QUANTITIES.iter().flat_map(|(name, member)| {
        STATISTICS.iter().map(move |column| (format!("{name} {column}"), format!("/{member}/{column}")))
    });
    amounts.chain(statistics)
}

fn cells(values: &[Option<f64>]) -> String {
    let base = values.first().copied().flatten();
    let cells = values.iter().enumerate().map(|(index, value)| {
        let Some(value) = value else { return format!("{:>WIDTH$}", "-") };
        let ratio =
            base.filter(|base| index > 0 && *base != 0.0).map(|base| format!(" ({:.3}x)", value / base));
        format!("{:>WIDTH$}", number(*value) + &ratio.unwrap_or_default())
    });
    cells.collect()
}

fn cut(label: &str) -> String {
    label.chars().take(WIDTH - 1).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::Run;

    fn results(label: &str, runs: &[(&str, f64)]) -> Results {
        let runs = runs.iter().map(|(name, rate)| Run {
            name: (*name).to_owned(),
            settings: Value::Null,
            summary: json!({"requests_per_s": rate, "failed": 0, "e2e_ms": {"p99": rate * 2.0}}),
        });
        Results { label: label.to_owned(), runs: runs.collect() }
    }

    fn line<'t>(table: &'t str, start: &str) -> Vec<&'t str> {
        let line = table.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("no {start} in\n{table}"))[34..].split_whitespace().collect()
    }

    #[test]
    fn ratios_are_to_the_first_file() {
        let all = [results("a", &[("x", 10.0)]), results("b", &[("y", 25.0)]), results("c", &[("x", 0.0)])];
        let table = compare(&all).unwrap();
        assert_eq!(line(&table, "Requests [1/s]"), ["10", "25", "(2.500x)", "0", "(0.000x)"]);
        assert_eq!(line(&table, "E2E [ms] p99"), ["20", "50", "(2.500x)", "0", "(0.000x)"]);
        assert!(!table.contains("Requests failed"), "0 everywhere is no news");
    }

    #[test]
    fn the_runs_of_sweeps_are_matched_by_name() {
        let all = [results("a", &[("1", 1.0), ("2", 2.0)]), results("b", &[("2", 3.0), ("4", 9.0)])];
        let table = compare(&all).unwrap();
        let parts: Vec<&str> = table.split("== ").collect();
        assert_eq!(line(parts[1], "Requests [1/s]"), ["1", "-"]);
        assert_eq!(line(parts[2], "Requests [1/s]"), ["2", "3", "(1.500x)"]);
    }

    #[test]
    fn one_file_is_not_a_comparison() {
        compare(&[]).unwrap_err();
        compare(&[results("a", &[("x", 1.0)])]).unwrap_err();
    }
}
