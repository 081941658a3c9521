//! Which drafter goes with what: the table that Python and the documentation read as well.

use std::sync::LazyLock;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Table {
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    drafters: Vec<String>,
    feature: String,
    verdict: Verdict,
    why: String,
    #[serde(default)]
    instead: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// It does not work, and something near it does.
    Refused,
    /// It works, with something to know about it.
    Limited,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../python/frizzen/speculate/compatibility.json"))
        .expect("the table is part of the program, and a test reads it")
});

/// A feature that options ask for, by its name in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    WeightsGiven,
    WeightsNotGiven,
    ProbabilisticDrafts,
    ParallelDrafter,
}

impl Feature {
    const fn name(self) -> &'static str {
        match self {
            Self::WeightsGiven => "weights given",
            Self::WeightsNotGiven => "weights not given",
            Self::ProbabilisticDrafts => "draft_sample_method probabilistic",
            Self::ParallelDrafter => "draft_tensor_parallel_size above 1",
        }
    }
}

/// Refuses the first of the features that does not go with the drafter, and names what does.
pub(crate) fn require(drafter: &str, features: impl IntoIterator<Item = Feature>) -> Result<(), String> {
    for feature in features {
        let feature = feature.name();
        let is_about = |rule: &&Rule| {
            rule.verdict == Verdict::Refused
                && rule.feature == feature
                && rule.drafters.iter().any(|name| name == drafter)
        };
        if let Some(rule) = TABLE.rules.iter().find(is_about) {
            let instead = rule.instead.replace("NAME", drafter);
            return Err(format!("drafter {drafter} with {feature}: {}; possible is {instead}", rule.why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_that_options_name_has_a_rule_and_every_refusal_a_way_out() {
        let all = [
            Feature::WeightsGiven,
            Feature::WeightsNotGiven,
            Feature::ProbabilisticDrafts,
            Feature::ParallelDrafter,
        ];
        for feature in all {
            assert!(TABLE.rules.iter().any(|rule| rule.feature == feature.name()), "{feature:?}");
        }
        for rule in &TABLE.rules {
            assert_eq!(rule.verdict == Verdict::Refused, !rule.instead.is_empty(), "{rule:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_drafter_the_feature_the_reason_and_the_way_out() {
        assert_eq!(require("mtp", [Feature::WeightsNotGiven, Feature::ProbabilisticDrafts]), Ok(()));
        assert_eq!(
            require("eagle3", [Feature::WeightsNotGiven]),
            Err("drafter eagle3 with weights not given: its weights are a checkpoint of their own; possible is \
                 drafter eagle3=PATH, or drafter suffix, which needs none"
                .to_owned())
        );
    }
}
