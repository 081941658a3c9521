//! One exposition of several processes.
//!
//! Every process has the same families in the same order. A series that only one process has is taken as it is; one
//! that several have (the front end creates those of engine 0 at zero) is added up, except for the constant 1 of
//! `_info` families.

use std::collections::HashMap;
use std::fmt::Write;

use crate::text::INFALLIBLE;

/// A family: its two declaring lines, and its samples in the order in which they were first seen.
#[derive(Debug)]
struct Family<'a> {
    help: &'a str,
    kind: &'a str,
    samples: Vec<(&'a str, Value<'a>)>,
    /// Where each series is among the samples.
    places: HashMap<&'a str, usize>,
}

/// As it was written, or a sum.
#[derive(Debug)]
enum Value<'a> {
    Written(&'a str),
    Sum(f64),
}

impl<'a> Family<'a> {
    fn add(&mut self, series: &'a str, value: &'a str) {
        let Some(place) = self.places.get(series) else {
            self.places.insert(series, self.samples.len());
            self.samples.push((series, Value::Written(value)));
            return;
        };
        if self.is_constant() {
            return;
        }
        let known = &mut self.samples[*place].1;
        let before = match known {
            Value::Written(text) => text.parse().unwrap_or(0.0),
            Value::Sum(sum) => *sum,
        };
        *known = Value::Sum(before + value.parse::<f64>().unwrap_or(0.0));
    }

    fn is_constant(&self) -> bool {
        self.help.split(' ').nth(2).is_some_and(|name| name.ends_with("_info"))
    }
}

/// Joins OpenMetrics texts.
pub fn merge(own: &str, others: &[String]) -> String {
    let mut all: Vec<Family<'_>> = Vec::new();
    for text in std::iter::once(own).chain(others.iter().map(String::as_str)) {
        let mut lines = text.lines();
        let mut current = 0;
        while let Some(line) = lines.next() {
            if line.starts_with("# HELP ") {
                // A HELP line is always followed by the TYPE line of the same family.
                let kind = lines.next().unwrap_or_default();
                current = all.iter().position(|family| family.help == line).unwrap_or(all.len());
                if current == all.len() {
                    all.push(Family { help: line, kind, samples: Vec::new(), places: HashMap::new() });
                }
            } else if let (Some(family), Some((series, value))) =
                (all.get_mut(current), line.rsplit_once(' '))
                && !line.starts_with('#')
            {
                family.add(series, value);
            }
        }
    }
    let mut text = String::with_capacity(own.len() * (others.len() + 1));
    for family in all {
        writeln!(text, "{}\n{}", family.help, family.kind).expect(INFALLIBLE);
        for (series, value) in family.samples {
            match value {
                Value::Written(value) => writeln!(text, "{series} {value}"),
                Value::Sum(sum) => writeln!(text, "{series} {sum}"),
            }
            .expect(INFALLIBLE);
        }
    }
    text.push_str("# EOF\n");
    text
}

#[cfg(test)]
mod tests {
    use crate::{Metrics, MetricsOptions, TextFormat};

    #[test]
    fn series_of_replicas_stand_side_by_side_and_equal_ones_are_added() {
        let options = MetricsOptions { model_name: "m".to_owned(), vllm_names: false };
        let process = |rank: u32, tokens: u64| {
            let metrics = Metrics::new(&options);
            metrics.engine(rank).tokens(tokens);
            metrics.kernel("linear", "0-3", "native");
            metrics
        };
        let front = Metrics::new(&options);
        front.engine(0);
        let others: Vec<String> =
            [process(0, 5), process(1, 7)].iter().map(|one| one.encode(TextFormat::OpenMetrics)).collect();
        let text = front.encode_with(TextFormat::OpenMetrics, &others);
        let value = |start: &str| {
            let found: Vec<_> = text.lines().filter(|line| line.starts_with(start)).collect();
            assert_eq!(found.len(), 1, "{start}: {found:?}");
            found[0].rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!(value("frizzen:generation_tokens_total{model_name=\"m\",engine=\"0\"}"), "5");
        assert_eq!(value("frizzen:generation_tokens_total{model_name=\"m\",engine=\"1\"}"), "7");
        assert_eq!(value("frizzen:kernel_info{"), "1");
        assert_eq!(text.matches("# TYPE frizzen:generation_tokens ").count(), 1);
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    }
}
