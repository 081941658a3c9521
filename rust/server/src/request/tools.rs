//! `tools` and `tool_choice`.

use serde_json::Value;

use crate::error::{ApiError, quoted};
use crate::request::fields::Fields;

/// Whether the model may call tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may not; the template still shows them.
    #[default]
    None,
    /// It decides.
    Auto,
    /// It must call one.
    Required,
    /// It must call this one.
    Named(String),
}

/// Reads `tools`, each with a name.
pub fn tools(fields: &mut Fields) -> Result<Option<Vec<Value>>, ApiError> {
    let Some(tools) = fields.list("tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    for (index, tool) in tools.iter().enumerate() {
        if name_of(tool).is_none_or(str::is_empty) {
            let message =
                format!("tools[{index}] must be {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}");
            return Err(ApiError::invalid("tools", message));
        }
    }
    Ok(Some(tools))
}

fn name_of(tool: &Value) -> Option<&str> {
    tool.get("function").and_then(|function| function.get("name")?.as_str())
}

impl ToolChoice {
    /// Reads `tool_choice`: by default the model decides if there are tools.
    pub fn read(fields: &mut Fields, tools: Option<&[Value]>) -> Result<Self, ApiError> {
        let choice = match fields.take("tool_choice") {
            None => Self::Auto,
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => Self::None,
                "auto" => Self::Auto,
                "required" => Self::Required,
                other => return Err(unknown(&quoted(other, 32))),
            },
            Some(other) => Self::Named(
                name_of(&other).ok_or_else(|| unknown(&quoted(&other.to_string(), 64)))?.to_owned(),
            ),
        };
        match (tools, choice) {
            (None, Self::None | Self::Auto) => Ok(Self::None),
            (None, Self::Required | Self::Named(_)) => Err(ApiError::invalid(
                "tool_choice",
                "tool_choice must be \"none\" or \"auto\" when there are no tools",
            )),
            (Some(tools), Self::Named(name)) if !tools.iter().any(|tool| name_of(tool) == Some(&name)) => {
                Err(ApiError::invalid(
                    "tool_choice",
                    format!("{} is not one of the tools", quoted(&name, 64)),
                ))
            }
            (Some(_), choice) => Ok(choice),
        }
    }

    /// Refuses a choice that nothing would enforce or read. `readable` if a parser reads tool calls.
    pub fn check(&self, readable: bool) -> Result<(), ApiError> {
        match self {
            Self::None => Ok(()),
            _ if readable => Ok(()),
            _ => Err(ApiError::invalid(
                "tools",
                "tools need a server with --tool-call-parser, or with --enable-auto-tool-choice if the chat template \
                 shows the format; tool_choice \"none\" shows the tools to the template only",
            )),
        }
    }
}

fn unknown(got: &str) -> ApiError {
    ApiError::invalid(
        "tool_choice",
        format!(
            "tool_choice must be \"none\", \"auto\", \"required\" or {{\"type\": \"function\", \"function\": \
             {{\"name\": ...}}}}, got {got}"
        ),
    )
}
