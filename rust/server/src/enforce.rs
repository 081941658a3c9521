//! What a request's output is held to: the grammar that was asked for, the tools that must be called, and a budget of
//! reasoning before either. Decided here, compiled by the grammar crate, driven by the scheduler.

use std::sync::Arc;

use frizzen_core::{Constraint, FreeText, Reasoning, ReasoningMarkers, TokenMatcher};
use frizzen_grammar::part::Part;
use frizzen_grammar::tools::{self, Tool};
use frizzen_grammar::{Grammar, GrammarCompiler, GrammarKind, GrammarSpec};
use frizzen_text::parse::{CallSyntax, Start};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::lower::Reading;
use crate::request::constraint::refused;
use crate::request::{ChatRequest, RequestedGrammar, ToolChoice};
use crate::state::TextModel;

const TOOLS: &str = "tools";

/// The texts of a family that writes on channels.
const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const NEXT: &str = "<|start|>assistant";
const FINAL: &str = "<|channel|>final<|message|>";
const END: &str = "<|end|>";
/// What the parser takes for the end of a message, beside its end.
const ENDS: [&str; 4] = ["<|call|>", "<|return|>", "<|start|>", "<|channel|>"];

/// A constraint between processes: what the other one compiles and builds again.
#[derive(Debug, Serialize, Deserialize)]
struct Source {
    grammar: Option<GrammarSpec>,
    /// Whether the output begins in its reasoning, and how many tokens of it there may be.
    reasoning: Option<(bool, Option<u32>)>,
}

/// A grammar, and what may come before the part that it binds.
#[derive(Debug)]
pub struct Enforced {
    grammar: Option<Arc<Grammar>>,
    reasoning: Option<Reasoning>,
}

impl Constraint for Enforced {
    fn matcher(&self) -> Box<dyn TokenMatcher> {
        match &self.grammar {
            Some(grammar) => grammar.matcher(),
            None => Box::new(FreeText),
        }
    }

    fn reasoning(&self) -> Option<&Reasoning> {
        self.reasoning.as_ref()
    }

    fn source(&self) -> Option<String> {
        let source = Source {
            grammar: self.grammar.as_ref().map(|grammar| grammar.spec().clone()),
            reasoning: self.reasoning.as_ref().map(|reasoning| (reasoning.open, reasoning.budget)),
        };
        serde_json::to_string(&source).ok()
    }
}

impl Enforced {
    /// The constraint of an output that does not reason; `None` if nothing constrains it.
    pub fn plain(grammar: Option<&Arc<Grammar>>) -> Option<Arc<dyn Constraint>> {
        let grammar = Some(Arc::clone(grammar?));
        Some(Arc::new(Self { grammar, reasoning: None }))
    }

    /// The constraint whose source this is, of another process that serves the same model with the same flags.
    ///
    /// # Errors
    /// What the source is refused for.
    pub fn of_source(
        source: &str,
        compiler: &GrammarCompiler,
        markers: Option<&Arc<ReasoningMarkers>>,
    ) -> Result<Arc<dyn Constraint>, String> {
        let Source { grammar, reasoning } =
            serde_json::from_str(source).map_err(|error| error.to_string())?;
        let compiled = grammar.map(|spec| compiler.compile(&spec).map_err(|error| error.to_string()));
        let reasoning = match reasoning {
            None => None,
            Some((open, budget)) => {
                let markers = markers.ok_or("this engine knows no markers of reasoning")?;
                Some(Reasoning { markers: Arc::clone(markers), open, budget })
            }
        };
        Ok(Arc::new(Self { grammar: compiled.transpose()?, reasoning }))
    }

    /// The constraint of an output that begins at `start`; the grammar binds what comes after its reasoning.
    pub fn after_reasoning(
        grammar: Option<&Arc<Grammar>>,
        in_reasoning: bool,
        budget: Option<u32>,
        start: Start,
        markers: Option<&Arc<ReasoningMarkers>>,
    ) -> Option<Arc<dyn Constraint>> {
        let Some(markers) = markers.filter(|_| !in_reasoning && (grammar.is_some() || budget.is_some()))
        else {
            return Self::plain(grammar);
        };
        let reasoning = Reasoning { markers: Arc::clone(markers), open: start == Start::Reasoning, budget };
        Some(Arc::new(Self { grammar: grammar.map(Arc::clone), reasoning: Some(reasoning) }))
    }
}

/// What a chat's answer must be: the calls that are forced, the format that was asked for, or either where the model may
/// choose. `None` if it may be anything.
///
/// # Errors
/// Calls that the model's format cannot express.
pub fn of_chat(
    request: &ChatRequest,
    reading: &Reading,
    model: &TextModel,
) -> Result<Option<RequestedGrammar>, ApiError> {
    let asked = request.common.grammar.as_ref();
    let channels = reading.format.has_channels();
    let mut wanted = match answer(request, reading, model)? {
        Some(wanted) => wanted,
        None => match asked {
            Some(asked) if channels => {
                let part = whole(asked)?;
                let part = on_final_channel(part);
                with_part(asked.field, part, Some(&asked.spec))
            }
            other => return Ok(other.cloned()),
        },
    };
    if channels && !wanted.spec.in_reasoning {
        let GrammarKind::Parts(part) = wanted.spec.kind else { return Ok(Some(wanted)) };
        let open = reading.setup.start == Start::Reasoning;
        wanted.spec.kind = GrammarKind::Parts(after_analysis(part, open));
    }
    Ok(Some(wanted))
}

/// The calls and, where it may do without them, the answer of a request whose tools are enforced.
fn answer(
    request: &ChatRequest,
    reading: &Reading,
    model: &TextModel,
) -> Result<Option<RequestedGrammar>, ApiError> {
    let declared = request.conversation.tools.as_deref().unwrap_or_default();
    let Some(format) = reading.format.tools else { return Ok(None) };
    let asked = request.common.grammar.as_ref();
    let allowed = request.allowed_tools.as_deref();
    let may_be_called =
        |tool: &Tool<'_>| allowed.is_none_or(|names| names.iter().any(|name| name == tool.name));
    let all: Vec<Tool<'_>> = declared.iter().filter_map(Tool::of).filter(may_be_called).collect();
    let syntax = format.syntax(&model.tokenizer);
    let parallel = request.parallel_tool_calls;
    let channels = reading.format.has_channels();
    let part = match &request.tool_choice {
        ToolChoice::None => return Ok(None),
        ToolChoice::Named(name) => {
            let named: Vec<Tool<'_>> = all.into_iter().filter(|tool| tool.name == name).take(1).collect();
            calls(&syntax, &named, false)?
        }
        ToolChoice::Required => calls(&syntax, &all, parallel)?,
        ToolChoice::Auto => match asked {
            Some(asked) => {
                if syntax.trigger.is_none() {
                    let message = format!(
                        "{} cannot be combined with tools that the model may call: nothing marks where a call begins \
                         in its format; tool_choice \"none\" or \"required\" can be enforced",
                        asked.field
                    );
                    return Err(ApiError::unsupported(asked.field, message));
                }
                let answer = whole(asked)?;
                let answer = if channels { on_final_channel(answer) } else { answer };
                Part::Any(vec![calls(&syntax, &all, parallel)?, answer])
            }
            None if allowed.is_none() && !all.iter().any(|tool| tool.strict) => return Ok(None),
            None if channels => {
                let text = Part::Free {
                    without: [&[END][..], &ENDS].concat().into_iter().map(str::to_owned).collect(),
                };
                Part::Any(vec![calls(&syntax, &all, parallel)?, on_final_channel(text)])
            }
            None => {
                tools::text_with_calls(&syntax, &all, parallel).map_err(|error| refused(TOOLS, &error))?
            }
        },
    };
    Ok(Some(with_part(asked.map_or(TOOLS, |asked| asked.field), part, asked.map(|asked| &asked.spec))))
}

fn calls(syntax: &CallSyntax, tools: &[Tool<'_>], parallel: bool) -> Result<Part, ApiError> {
    tools::calls(syntax, tools, parallel).map_err(|error| refused(TOOLS, &error))
}

fn with_part(field: &'static str, part: Part, options: Option<&GrammarSpec>) -> RequestedGrammar {
    let mut spec = GrammarSpec::from(GrammarKind::Parts(part));
    if let Some(options) = options {
        spec.whitespace = options.whitespace.clone();
        spec.in_reasoning = options.in_reasoning;
    }
    RequestedGrammar { spec, field }
}

/// A whole answer as a part of a text.
fn whole(asked: &RequestedGrammar) -> Result<Part, ApiError> {
    asked.spec.as_part().map_err(|error| refused(asked.field, &error))
}

fn on_final_channel(answer: Part) -> Part {
    Part::All(vec![Part::text(FINAL), answer])
}

/// Reasoning on its channel, which the prompt may have `open`ed, and then the rest as a message of its own.
fn after_analysis(rest: Part, open: bool) -> Part {
    let thought = |begin: &str| {
        Part::All(vec![
            Part::text(begin),
            Part::Until { end: END.to_owned(), without: ENDS.map(str::to_owned).to_vec() },
            Part::text(NEXT),
        ])
    };
    let begun = if open { thought("") } else { thought(ANALYSIS).optional() };
    Part::All(vec![begun, rest])
}
