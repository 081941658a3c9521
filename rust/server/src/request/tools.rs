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

/// What `tool_choice` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCalls {
    /// Whether the model may call tools.
    pub choice: ToolChoice,
    /// It may call these only (`allowed_tools`), whatever others it is shown; `None` is all.
    pub allowed: Option<Vec<String>>,
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
    pub fn read(fields: &mut Fields, tools: Option<&[Value]>) -> Result<ToolCalls, ApiError> {
        let mut allowed = None;
        let choice = match fields.take("tool_choice") {
            None => Self::Auto,
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => Self::None,
                "auto" => Self::Auto,
                "required" => Self::Required,
                other => return Err(unknown(&quoted(other, 32))),
            },
            Some(Value::Object(choice)) if choice.get("type").is_some_and(|kind| kind == "allowed_tools") => {
                let (mode, names) = allowed_tools(choice.get("allowed_tools"), tools)?;
                allowed = Some(names);
                mode
            }
            Some(other) => Self::Named(
                name_of(&other).ok_or_else(|| unknown(&quoted(&other.to_string(), 64)))?.to_owned(),
            ),
        };
        let choice = match (tools, choice) {
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
        }?;
        Ok(ToolCalls { choice, allowed })
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

/// The mode of `allowed_tools`, and the names, all of them those of tools.
fn allowed_tools(
    given: Option<&Value>,
    tools: Option<&[Value]>,
) -> Result<(ToolChoice, Vec<String>), ApiError> {
    let wrong = |message: String| ApiError::invalid("tool_choice", message);
    let mode = match given.and_then(|given| given.get("mode")?.as_str()) {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => return Err(wrong("the mode of allowed_tools must be \"auto\" or \"required\"".to_owned())),
    };
    let listed = given.and_then(|given| given.get("tools")?.as_array());
    let listed = listed.filter(|listed| !listed.is_empty());
    let listed = listed
        .ok_or_else(|| wrong("the tools of allowed_tools must be a list of at least one tool".to_owned()))?;
    let name = |(index, tool): (usize, &Value)| {
        let name = name_of(tool).ok_or_else(|| {
            wrong(format!(
                "tools[{index}] of allowed_tools must be {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}"
            ))
        })?;
        let is_tool = tools.unwrap_or_default().iter().any(|tool| name_of(tool) == Some(name));
        let known = is_tool.then(|| name.to_owned());
        known.ok_or_else(|| wrong(format!("{} is not one of the tools", quoted(name, 64))))
    };
    Ok((mode, listed.iter().enumerate().map(name).collect::<Result<_, _>>()?))
}

fn unknown(got: &str) -> ApiError {
    ApiError::invalid(
        "tool_choice",
        format!(
            "tool_choice must be \"none\", \"auto\", \"required\", {{\"type\": \"function\", \"function\": \
             {{\"name\": ...}}}} or {{\"type\": \"allowed_tools\", \"allowed_tools\": {{\"mode\": ..., \"tools\": \
             [...]}}}}, got {got}"
        ),
    )
}
