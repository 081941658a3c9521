//! Texts for the study of drafts: what follows is easy to guess, harder, or hard.

use clap::ValueEnum;

use crate::data::Query;
use crate::prompt::Prompt;

/// Words that make the prompts of a set differ.
const TOPICS: [&str; 8] = ["river", "engine", "garden", "market", "letter", "window", "island", "orchard"];

/// A set of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Texts {
    /// A list that is to be said again
    Repetitive,
    /// Accessors of a class, one like the other
    Code,
    /// The beginning of a story
    Prose,
}

impl Texts {
    /// Prompt `index` of the set.
    fn prompt(self, index: usize) -> String {
        let topic = TOPICS[index % TOPICS.len()];
        let round = index / TOPICS.len();
        match self {
            Self::Repetitive => {
                let rows: Vec<String> = (1..=8)
                    .map(|row| format!("{row}. The {topic} is {} metres long.\n", row + round))
                    .collect();
                let rows = rows.concat();
                format!("{rows}Repeat the list.\n{rows}Repeat the list.\n1. The")
            }
            Self::Code => {
                let accessors = ["name", "size", "price"].map(|field| {
                    format!(
                        "    def get_{field}(self):\n        return self.{field}\n\n    \
                         def set_{field}(self, {field}):\n        self.{field} = {field}\n\n"
                    )
                });
                let accessors = accessors.concat();
                format!("class {topic}{round}:\n{accessors}    def get_owner(self):\n")
            }
            Self::Prose => {
                format!(
                    "A short story about a {topic}. Chapter {}. It was late in the autumn when",
                    round + 1
                )
            }
        }
    }

    /// `count` prompts, each to be answered with `output` tokens.
    pub fn queries(self, count: usize, output: u32) -> Vec<Query> {
        let query =
            |index| Query { prompt: Prompt::Text(self.prompt(index)), output_tokens: output, due: None };
        (0..count).map(query).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_prompts_of_a_set_are_alike() {
        for texts in [Texts::Repetitive, Texts::Code, Texts::Prose] {
            let mut prompts: Vec<String> = (0..40).map(|index| texts.prompt(index)).collect();
            prompts.sort();
            prompts.dedup();
            assert_eq!(prompts.len(), 40);
        }
    }
}
