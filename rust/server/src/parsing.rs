//! Which parsers read the model's text: flags, in vLLM's spelling, and what they mean for a model.

use clap::Args;
use frizzen_text::ChatTemplate;
use frizzen_text::parse::{Format, ReasoningFormat, ToolFormat, plugin};

/// A format that was asked for.
#[derive(Debug)]
pub enum Wanted<T: 'static> {
    /// The one that the chat template shows.
    Auto,
    /// This one.
    Named(&'static T),
}

impl<T> Clone for Wanted<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Wanted<T> {}

/// Flags of the parsers.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Reasoning and tool calls")]
pub struct ParsingArgs {
    /// How the model writes its reasoning: auto goes by the chat template
    #[arg(long, value_name = "NAME", value_parser = parse_reasoning)]
    pub reasoning_parser: Option<Wanted<ReasoningFormat>>,
    /// How the model writes tool calls: auto goes by the chat template
    #[arg(long, value_name = "NAME", value_parser = parse_tools)]
    pub tool_call_parser: Option<Wanted<ToolFormat>>,
    /// Where a parser of one's own comes from: a Python module or file that registers reasoning parsers
    #[arg(long, value_name = "MODULE|FILE")]
    pub reasoning_parser_plugin: Option<String>,
    /// The same for tool parsers
    #[arg(long, value_name = "MODULE|FILE")]
    pub tool_parser_plugin: Option<String>,
    /// Let the model decide whether to call a tool; without --tool-call-parser, the same as --tool-call-parser auto
    #[arg(long)]
    pub enable_auto_tool_choice: bool,
    /// Send reasoning under its older name `reasoning_content` too
    #[arg(long)]
    pub emit_reasoning_content: bool,
}

/// # Errors
/// Lists the names, for one that is none of them.
pub fn parse_reasoning(name: &str) -> Result<Wanted<ReasoningFormat>, String> {
    let names = || plugin::reasoning().map(|format| format.name);
    wanted(name, ReasoningFormat::named(name), names)
}

/// # Errors
/// Lists the names, for one that is none of them.
pub fn parse_tools(name: &str) -> Result<Wanted<ToolFormat>, String> {
    wanted(name, ToolFormat::named(name), || plugin::tools().map(|format| format.name))
}

fn wanted<T, N: Iterator<Item = &'static str>>(
    name: &str,
    found: Option<&'static T>,
    names: impl Fn() -> N,
) -> Result<Wanted<T>, String> {
    match found {
        Some(format) => Ok(Wanted::Named(format)),
        None if name == "auto" => Ok(Wanted::Auto),
        None => {
            let names: Vec<&str> = names().collect();
            Err(format!("there is no parser '{name}'; there are auto, {}", names.join(", ")))
        }
    }
}

/// The format that was asked for; `None` also if the template shows none.
pub fn choose<T>(
    wanted: Option<Wanted<T>>,
    template: Option<&ChatTemplate>,
    of_template: impl Fn(&str) -> Option<&'static T>,
) -> Option<&'static T> {
    match wanted? {
        Wanted::Named(format) => Some(format),
        Wanted::Auto => template?.sources().find_map(of_template),
    }
}

impl ParsingArgs {
    /// True if a plug-in is asked for.
    pub const fn has_plugins(&self) -> bool {
        self.reasoning_parser_plugin.is_some() || self.tool_parser_plugin.is_some()
    }

    fn tools(&self) -> Option<Wanted<ToolFormat>> {
        self.tool_call_parser.or(self.enable_auto_tool_choice.then_some(Wanted::Auto))
    }

    /// The format of a model with this template.
    pub fn format(&self, template: Option<&ChatTemplate>) -> Format {
        let format = Format {
            reasoning: choose(self.reasoning_parser, template, ReasoningFormat::of_template),
            tools: choose(self.tools(), template, ToolFormat::of_template),
        };
        let name = |format: Option<&'static str>| format.unwrap_or("none");
        if self.reasoning_parser.is_some() || self.tools().is_some() {
            let reasoning = name(format.reasoning.map(|format| format.name));
            let tools = name(format.tools.map(|format| format.name));
            tracing::info!(reasoning, tools, "parsers");
        }
        if self.reasoning_parser.is_some() && format.reasoning.is_none() {
            tracing::warn!(
                "the chat template shows no sign of reasoning: --reasoning-parser can name a format"
            );
        }
        if self.tools().is_some() && format.tools.is_none() {
            tracing::warn!(
                "the chat template shows no sign of tool calls: --tool-call-parser can name a format"
            );
        }
        format
    }
}
