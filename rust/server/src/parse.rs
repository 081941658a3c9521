//! `POST /v1/parse`: a model's text in, the message out, for whoever wonders what a parser makes of it.

use std::sync::Arc;

use frizzen_text::Detokenizer;
use frizzen_text::parse::{
    Format, Message, MessageParser, ReasoningFormat, Setup, Start, ToolFormat, ToolSchemas,
};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::output::message::Shape;
use crate::parsing::{choose, parse_reasoning, parse_tools};
use crate::request::Fields;
use crate::request::tools::tools;
use crate::state::{AppState, TextModel};

/// The answer to a body.
///
/// Fields: `text` or `token_ids`; `reasoning_parser` and `tool_call_parser`, by default the server's (`"none"` is no
/// parser); `tools`, which some formats need to tell a number from a string; `starts_in_reasoning`, whether the prompt
/// opened reasoning, by default what is usual for the format.
pub fn parse_now(state: &AppState, body: &[u8]) -> Result<Value, ApiError> {
    let (info, model) = state.model()?;
    let mut fields = Fields::parse_untabled(body)?;
    state.check_model(fields.string("model")?.as_deref())?;
    let (reasoning, calls) = (fields.string("reasoning_parser")?, fields.string("tool_call_parser")?);
    let format = format(reasoning.as_deref(), calls.as_deref(), model)?;
    let declared = tools(&mut fields)?.unwrap_or_default();
    let start = match fields.boolean("starts_in_reasoning")? {
        None => Start::Unknown,
        Some(true) => Start::Reasoning,
        Some(false) => Start::Answer,
    };
    let ids = fields.token_ids("token_ids", info.vocab_size)?;
    let text = match (fields.string("text")?, ids) {
        (Some(text), None) => text,
        (None, Some(ids)) => {
            let shown = format.marker_tokens(&model.tokenizer);
            let mut detokenizer = Detokenizer::new(Arc::clone(&model.tokenizer), true).showing(shown);
            let mut text: String = ids.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
            text.push_str(detokenizer.finish());
            text
        }
        _ => return Err(ApiError::invalid("text", "exactly one of text and token_ids must be given")),
    };
    state.note(&fields.finish());

    let setup = Setup {
        start,
        tools: Arc::new(ToolSchemas::new(&declared)),
        id_seed: state.ids.seed(),
        ..Setup::default()
    };
    let mut parser = MessageParser::new(format, &setup);
    let mut message = Message::default();
    for delta in parser.push(&text).into_iter().chain(parser.finish()) {
        message.apply(delta);
    }
    let reasoning_content = state.http.parsing.emit_reasoning_content;
    let shape = Shape { reasoning: true, reasoning_content, parallel: true };
    let notes: Vec<String> = parser.notes().iter().map(ToString::to_string).collect();
    Ok(json!({
        "message": shape.message(&message),
        "complete": message.calls.iter().all(|call| call.complete),
        "notes": notes,
        "reasoning_parser": format.reasoning.map(|format| format.name),
        "tool_call_parser": format.tools.map(|format| format.name),
    }))
}

/// The message of a body's `text`, whose calls are of its `tools`, by these parsers.
pub(crate) fn read_text(
    state: &AppState,
    fields: &mut Fields,
    reasoning: Option<&str>,
    calls: Option<&str>,
) -> Result<Message, ApiError> {
    let (_, model) = state.model()?;
    let format = format(reasoning, calls, model)?;
    let declared = tools(fields)?.unwrap_or_default();
    let text = fields.string("text")?.ok_or_else(|| ApiError::invalid("text", "text must be a string"))?;
    let setup =
        Setup { tools: Arc::new(ToolSchemas::new(&declared)), id_seed: state.ids.seed(), ..Setup::default() };
    Ok(frizzen_text::parse::parse(&text, format, &setup))
}

fn format(reasoning: Option<&str>, calls: Option<&str>, model: &TextModel) -> Result<Format, ApiError> {
    let template = model.template.as_ref();
    let reasoning = match reasoning {
        None => model.format.reasoning,
        Some("none") => None,
        Some(name) => {
            let wanted =
                parse_reasoning(name).map_err(|error| ApiError::invalid("reasoning_parser", error))?;
            choose(Some(wanted), template, ReasoningFormat::of_template)
        }
    };
    let tools = match calls {
        None => model.format.tools,
        Some("none") => None,
        Some(name) => {
            let wanted = parse_tools(name).map_err(|error| ApiError::invalid("tool_call_parser", error))?;
            choose(Some(wanted), template, ToolFormat::of_template)
        }
    };
    Ok(Format { reasoning, tools })
}
