//! The formats by name, and which one a model uses by its chat template. Both are data.

use std::sync::Arc;

use frizzen_core::TokenId;

use crate::Tokenizer;

use super::formats::{deepseek, glm, harmony, hermes, kimi, llama, mistral, pythonic, qwen_coder};
use super::frame::FrameSpec;
use super::output::IdStyle;
use super::plugin::{self, PluggedTools};
use super::syntax::CallSyntax;

/// The tags around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagPair {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ReasoningMachine {
    Tags(TagPair),
    Harmony,
}

/// How a family of models writes its reasoning.
#[derive(Clone, Copy, Debug)]
pub struct ReasoningFormat {
    /// The name on the command line.
    pub name: &'static str,
    aliases: &'static [&'static str],
    pub(super) machine: ReasoningMachine,
    /// Without knowledge of the prompt, a text begins inside reasoning.
    pub(super) assumed_open: bool,
    /// The model thinks between parts of its answer and between calls too.
    pub(super) reopens: bool,
}

impl ReasoningFormat {
    const fn interleaved(self) -> Self {
        Self { reopens: true, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Machine {
    Frame(FrameSpec),
    Harmony,
    Plugged(&'static PluggedTools),
}

/// A syntax that may depend on which tokens the vocabulary has.
pub(super) type Syntax = fn(&dyn Fn(&str) -> bool) -> CallSyntax;

/// How a family of models writes tool calls.
#[derive(Clone, Copy, Debug)]
pub struct ToolFormat {
    /// The name on the command line.
    pub name: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) machine: Machine,
    /// What must be kept in the text although it may be a special token.
    pub(super) markers: &'static [&'static str],
    pub(super) ids: IdStyle,
    /// How calls are written, by a test for tokens of the vocabulary.
    pub(super) syntax: Syntax,
}

impl ToolFormat {
    /// To be adjusted with struct update syntax.
    pub(super) const DEFAULT: Self = Self {
        name: "",
        aliases: &[],
        machine: Machine::Harmony,
        markers: &[],
        ids: IdStyle::Standard,
        syntax: |_| CallSyntax::DEFAULT,
    };
}

const THINK: TagPair = TagPair { open: "<think>", close: "</think>" };

pub(super) const fn tags(
    name: &'static str,
    aliases: &'static [&'static str],
    pair: TagPair,
    assumed_open: bool,
) -> ReasoningFormat {
    ReasoningFormat { name, aliases, machine: ReasoningMachine::Tags(pair), assumed_open, reopens: false }
}

/// Every reasoning format.
pub static REASONING: &[ReasoningFormat] = &[
    tags("deepseek_r1", &[], THINK, true),
    tags("deepseek_v3", &["deepseek_v31", "deepseek_v32", "deepseek_v4"], THINK, false).interleaved(),
    tags("glm45", &["glm46", "glm47", "glm"], THINK, false).interleaved(),
    tags("kimi_k2", &["kimi"], THINK, false).interleaved(),
    tags("mistral", &[], TagPair { open: "[THINK]", close: "[/THINK]" }, false).interleaved(),
    tags("nemotron", &["nemotron_v3"], THINK, false),
    ReasoningFormat {
        name: "openai_gptoss",
        aliases: &["openai", "gpt_oss", "harmony"],
        machine: ReasoningMachine::Harmony,
        assumed_open: false,
        reopens: true,
    },
    tags("qwen3", &["think"], THINK, false),
];

/// Every tool format.
pub static TOOLS: &[ToolFormat] = &[
    deepseek::FORMAT_V3,
    deepseek::FORMAT_V31,
    deepseek::FORMAT_V32,
    deepseek::FORMAT_V4,
    glm::FORMAT,
    hermes::FORMAT,
    kimi::FORMAT,
    llama::FORMAT,
    mistral::FORMAT,
    harmony::FORMAT,
    pythonic::FORMAT,
    qwen_coder::FORMAT,
];

/// If a template holds all of these texts, its model uses the format with this name. The first row that fits decides.
type Rule = (&'static [&'static str], &'static str);

const REASONING_RULES: &[Rule] = &[
    (&["<|channel|>analysis"], "openai_gptoss"),
    (&["[THINK]"], "mistral"),
    (&["<|tool_calls_section_begin|>", "think>"], "kimi_k2"),
    (&["<arg_key>", "think>"], "glm45"),
    (&["<｜Assistant｜>", "thinking", "think>"], "deepseek_v3"),
    (&["<｜Assistant｜>", "</think>"], "deepseek_r1"),
    (&["<SPECIAL_10>", "think>"], "nemotron"),
    (&["</think>"], "qwen3"),
];

const TOOL_RULES: &[Rule] = &[
    (&["<|channel|>", "functions."], "openai"),
    (&["｜DSML｜tool_calls"], "deepseek_v4"),
    (&["｜DSML｜"], "deepseek_v32"),
    (&["<｜tool▁calls▁begin｜>", "```json"], "deepseek_v3"),
    (&["<｜tool▁calls▁begin｜>"], "deepseek_v31"),
    (&["<|tool_calls_section_begin|>"], "kimi_k2"),
    (&["<arg_key>"], "glm45"),
    (&["<function=", "<parameter="], "qwen3_coder"),
    (&["[TOOL_CALLS]"], "mistral"),
    (&["<|python_start|>"], "pythonic"),
    (&["<|python_tag|>"], "llama3_json"),
    (&["\"parameters\": dictionary of argument name"], "llama3_json"),
    (&["<tool_call>"], "hermes"),
];

fn detect(rules: &[Rule], template: &str) -> Option<&'static str> {
    rules.iter().find(|(texts, _)| texts.iter().all(|text| template.contains(text))).map(|(_, name)| *name)
}

impl ReasoningFormat {
    /// The texts that open and close reasoning; `None` if it is a channel among others.
    pub const fn tags(&self) -> Option<(&'static str, &'static str)> {
        match self.machine {
            ReasoningMachine::Tags(pair) => Some((pair.open, pair.close)),
            ReasoningMachine::Harmony => None,
        }
    }

    /// The format with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        plugin::reasoning().find(|format| format.name == name || format.aliases.contains(&name))
    }

    /// The format of the model with this chat template, if there is a sign of one.
    pub fn of_template(template: &str) -> Option<&'static Self> {
        detect(REASONING_RULES, template).and_then(Self::named)
    }
}

impl ToolFormat {
    /// The format with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        plugin::tools().find(|format| format.name == name || format.aliases.contains(&name))
    }

    /// The format of the model with this chat template, if there is a sign of one.
    pub fn of_template(template: &str) -> Option<&'static Self> {
        detect(TOOL_RULES, template).and_then(Self::named)
    }

    /// Texts that open a call, or nothing where only the place tells one from content.
    pub fn opens(&self) -> &'static [&'static str] {
        match &self.machine {
            Machine::Frame(spec) => spec.opens,
            Machine::Harmony => &[],
            Machine::Plugged(plugged) => plugged.opens,
        }
    }
}

/// What is read out of a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Format {
    /// Its reasoning.
    pub reasoning: Option<&'static ReasoningFormat>,
    /// Its tool calls.
    pub tools: Option<&'static ToolFormat>,
}

impl Format {
    /// True if a text is its message as it is.
    pub const fn is_plain(&self) -> bool {
        self.reasoning.is_none() && self.tools.is_none()
    }

    pub(super) fn is_harmony(&self) -> bool {
        self.reasoning.is_some_and(|format| matches!(format.machine, ReasoningMachine::Harmony))
            || self.tools.is_some_and(|format| matches!(format.machine, Machine::Harmony))
    }

    pub(super) fn tag_pair(&self) -> Option<TagPair> {
        match self.reasoning?.machine {
            ReasoningMachine::Tags(pair) => Some(pair),
            ReasoningMachine::Harmony => None,
        }
    }

    /// Texts that the parser must see, although a model's vocabulary may call them special.
    pub fn markers(&self) -> Vec<&'static str> {
        let harmony = self.is_harmony().then_some(harmony::FORMAT.markers);
        let tags = self.tag_pair().map(|pair| [pair.open, pair.close]);
        let calls = self.tools.map(|format| format.markers);
        let lists = [harmony, calls].into_iter().flatten().flatten().copied();
        lists.chain(tags.into_iter().flatten()).collect()
    }

    /// Those of the markers that are special tokens of `tokenizer`: they must not be hidden from the parser.
    pub fn marker_tokens(&self, tokenizer: &Tokenizer) -> Arc<[TokenId]> {
        let ids = self.markers().into_iter().filter_map(|marker| tokenizer.token_id(marker));
        ids.filter(|id| tokenizer.is_special(*id)).collect()
    }

    /// True if a prompt ends inside reasoning, so that the text goes on with it. A `continued` prompt ends in the middle
    /// of a message, any other one before it.
    pub fn opened_by(&self, prompt: &str, continued: bool) -> bool {
        let (open, close) = match (self.is_harmony(), self.tag_pair()) {
            (true, _) => ("<|channel|>analysis<|message|>", "<|end|>"),
            (false, Some(pair)) => (pair.open, pair.close),
            (false, None) => return false,
        };
        if continued { prompt.rfind(open) > prompt.rfind(close) } else { prompt.trim_end().ends_with(open) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_name_means_one_format() {
        let mut names = HashSet::new();
        for format in TOOLS {
            assert!(std::iter::once(&format.name).chain(format.aliases).all(|name| names.insert(*name)));
        }
        names.clear();
        for format in REASONING {
            assert!(std::iter::once(&format.name).chain(format.aliases).all(|name| names.insert(*name)));
        }
    }

    #[test]
    fn rules_name_formats_and_none_hides_another() {
        for (texts, name) in TOOL_RULES {
            assert_eq!(ToolFormat::of_template(&texts.concat()).map(|format| format.name), Some(*name));
        }
        for (texts, name) in REASONING_RULES {
            assert_eq!(ReasoningFormat::of_template(&texts.concat()).map(|format| format.name), Some(*name));
        }
        assert!(ToolFormat::of_template("{{ messages }}").is_none());
        assert!(ReasoningFormat::of_template("{{ messages }}").is_none());
    }

    #[test]
    fn no_marker_of_a_set_contains_another() {
        // What `Scan` relies on, for the tags, the openers of every tool format, and what else it may see.
        for tools in TOOLS {
            for reasoning in REASONING {
                let format = Format { reasoning: Some(reasoning), tools: Some(tools) };
                let pair = format.tag_pair().map(|pair| [pair.open, pair.close]);
                let set: Vec<&str> =
                    pair.into_iter().flatten().chain(tools.opens().iter().copied()).collect();
                for (i, marker) in set.iter().enumerate() {
                    assert!(
                        set.iter()
                            .skip(i + 1)
                            .all(|other| !marker.contains(other) && !other.contains(marker))
                    );
                }
            }
        }
    }

    #[test]
    fn the_start_is_read_off_the_prompt_vllm_mlx_537() {
        let qwen = Format { reasoning: ReasoningFormat::named("qwen3"), tools: None };
        assert!(qwen.opened_by("<|im_start|>assistant\n<think>\n", false));
        assert!(!qwen.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n", false));
        assert!(!qwen.opened_by("what does <think> mean?<|im_end|>\n<|im_start|>assistant\n", false));
        assert!(qwen.opened_by("assistant\n<think>\nfirst", true));
        assert!(!qwen.opened_by("assistant\n<think>\nfirst</think>then", true));
        assert!(!Format::default().opened_by("<think>", false));
    }
}
