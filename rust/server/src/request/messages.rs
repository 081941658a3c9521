//! `/v1/messages`, in a chat's words.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::request::chat::{ChatRequest, Conversation, conversation};
use crate::request::common::{Limits, MAX_STOP};
use crate::request::fields::Fields;
use crate::request::tools::ToolChoice;
use crate::request::translate::{Turns, function, strange, string};

/// What a chat calls the budget of reasoning.
const BUDGET: &str = "thinking_token_budget";
/// What a chat calls otherwise; the budget comes first, since a body may also name it as a chat does.
const NAMES: [(&str, &str); 5] = [
    (BUDGET, "thinking"),
    ("stop", "stop_sequences"),
    ("response_format", "output_config"),
    ("reasoning_effort", "output_config"),
    ("parallel_tool_calls", "tool_choice"),
];

/// A message as it was asked for.
pub fn read(mut fields: Fields, limits: &Limits) -> Result<ChatRequest, ApiError> {
    let mut chat = Map::new();
    let most = fields.integer("max_tokens", 1..=u32::MAX)?;
    let most = most.ok_or_else(|| ApiError::invalid("max_tokens", "max_tokens must be given"))?;
    chat.insert("max_completion_tokens".to_owned(), most.into());
    let stop = fields.strings("stop_sequences", MAX_STOP)?;
    chat.insert("stop".to_owned(), stop.into());
    output(&mut fields, &mut chat)?;
    prompt(&mut fields, &mut chat, limits.format.reasoning.is_some())?;
    let names = if chat.contains_key(BUDGET) { &NAMES[..] } else { &NAMES[1..] };
    ChatRequest::read(fields.into_chat(chat), limits).map_err(|error| error.renamed(names))
}

/// The conversation of a body of `/v1/messages/count_tokens`.
pub fn read_conversation(mut fields: Fields) -> Result<Conversation, ApiError> {
    let mut chat = Map::new();
    output(&mut fields, &mut chat)?;
    prompt(&mut fields, &mut chat, false)?;
    let mut fields = fields.into_chat(chat);
    let conversation = conversation(&mut fields)?;
    // It changes nothing about the prompt, but must not be nonsense.
    ToolChoice::read(&mut fields, conversation.tools.as_deref())?;
    Ok(conversation)
}

/// The fields that make the prompt; `counts_reasoning` if its tokens can be told from the others.
fn prompt(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    counts_reasoning: bool,
) -> Result<(), ApiError> {
    let mut turns = Turns::default();
    if let Some(system) = fields.take("system") {
        turns.say("system", blocks(&system, "system", "system")?.into());
    }
    let messages = fields.list("messages")?.filter(|messages| !messages.is_empty());
    let messages = messages
        .ok_or_else(|| ApiError::invalid("messages", "messages must be a list of at least one message"))?;
    for (index, message) in messages.iter().enumerate() {
        add(&mut turns, message, &format!("messages[{index}]"))?;
    }
    let messages = turns.finish();
    // A last message of the assistant is the beginning of the answer.
    let last = messages.last().filter(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
    chat.insert("continue_final_message".to_owned(), last.is_some().into());
    chat.insert("messages".to_owned(), messages.into());
    thinking(fields, chat, counts_reasoning)?;
    tools(fields, chat)
}

fn add(turns: &mut Turns, message: &Value, place: &str) -> Result<(), ApiError> {
    let role = string(message, "role", "messages", place)?;
    if !matches!(role, "user" | "assistant" | "system") {
        return Err(ApiError::invalid("messages", format!("{place}.role must be user, assistant or system")));
    }
    let place = format!("{place}.content");
    let parts = match message.get("content") {
        Some(Value::String(text)) => {
            turns.say(role, text.as_str().into());
            return Ok(());
        }
        Some(Value::Array(parts)) => parts,
        _ => {
            return Err(ApiError::invalid(
                "messages",
                format!("{place} must be a string or a list of blocks"),
            ));
        }
    };
    let mut text = Vec::new();
    let mut calls = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let place = format!("{place}[{index}]");
        match (part.get("type").and_then(Value::as_str), role) {
            (Some("text"), _) => {
                text.push(json!({"type": "text", "text": string(part, "text", "messages", &place)?}));
            }
            (Some("thinking"), "assistant") => turns.think(string(part, "thinking", "messages", &place)?),
            // What only the provider can read says nothing here.
            (Some("redacted_thinking"), "assistant") => {}
            (Some("tool_use"), "assistant") => calls.push((part, place)),
            (Some("tool_result"), "user") => {
                let result = part
                    .get("content")
                    .map_or(Ok(Vec::new()), |content| blocks(content, "messages", &place))?;
                turns.result(string(part, "tool_use_id", "messages", &place)?, &result.into());
            }
            (kind, _) => return Err(strange(kind, "messages", &place)),
        }
    }
    if !text.is_empty() || parts.is_empty() {
        turns.say(role, text.into());
    }
    for (call, place) in calls {
        let text = |name| string(call, name, "messages", &place);
        let input = call.get("input").filter(|input| input.is_object());
        let input =
            input.ok_or_else(|| ApiError::invalid("messages", format!("{place}.input must be an object")))?;
        turns.call(text("id")?, text("name")?, &input.to_string());
    }
    Ok(())
}

/// Text, or a list of blocks of text, as parts of a chat.
fn blocks(value: &Value, param: &'static str, place: &str) -> Result<Vec<Value>, ApiError> {
    let part = |(index, block): (usize, &Value)| {
        let place = format!("{place}[{index}]");
        match block.get("type").and_then(Value::as_str) {
            Some("text") => Ok(json!({"type": "text", "text": string(block, "text", param, &place)?})),
            kind => Err(strange(kind, param, &place)),
        }
    };
    match value {
        Value::String(text) => Ok(vec![json!({"type": "text", "text": text})]),
        Value::Array(items) => items.iter().enumerate().map(part).collect(),
        Value::Null => Ok(Vec::new()),
        _ => Err(ApiError::invalid(param, format!("{place} must be a string or a list of blocks"))),
    }
}

/// `thinking` switches what templates call `enable_thinking`. Its budget, which clients must send, is enforced where
/// reasoning can be counted; elsewhere how much of it there is is the model's affair.
fn thinking(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    counts_reasoning: bool,
) -> Result<(), ApiError> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(()) };
    let enabled = match thinking.get("type").and_then(Value::as_str) {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => {
            let message = "thinking.type must be enabled, adaptive or disabled";
            return Err(ApiError::invalid("thinking", message));
        }
    };
    if let Some(budget) = thinking.get("budget_tokens").filter(|_| enabled && counts_reasoning) {
        chat.insert(BUDGET.to_owned(), budget.clone());
    }
    let mut kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    kwargs.entry("enable_thinking").or_insert_with(|| enabled.into());
    chat.insert("chat_template_kwargs".to_owned(), kwargs.into());
    Ok(())
}

fn output(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let config = fields.object("output_config")?.unwrap_or_default();
    let older = fields.object("output_format")?.map(Value::from);
    if let Some(effort) = config.get("effort") {
        chat.insert("reasoning_effort".to_owned(), effort.clone());
    }
    let Some(format) = config.get("format").cloned().or(older).filter(|format| !format.is_null()) else {
        return Ok(());
    };
    let (Some("json_schema"), Some(schema)) =
        (format.get("type").and_then(Value::as_str), format.get("schema"))
    else {
        let message = "output_config.format must be {\"type\": \"json_schema\", \"schema\": ...}";
        return Err(ApiError::invalid("output_config", message));
    };
    let wrapper = json!({"name": "output", "schema": schema});
    chat.insert("response_format".to_owned(), json!({"type": "json_schema", "json_schema": wrapper}));
    Ok(())
}

fn tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let asked = fields.list("tools")?.unwrap_or_default();
    let tool = |(index, tool): (usize, &Value)| {
        let place = format!("tools[{index}]");
        match tool.get("type").map_or(Some("custom"), Value::as_str) {
            Some("custom") => {
                string(tool, "name", "tools", &place)?;
                Ok(function(&tool["name"], tool.get("description"), tool.get("input_schema"), None))
            }
            kind => Err(strange(kind, "tools", &place)),
        }
    };
    let tools = asked.iter().enumerate().map(tool).collect::<Result<Vec<_>, ApiError>>()?;
    chat.insert("tools".to_owned(), tools.into());
    let Some(choice) = fields.object("tool_choice")? else { return Ok(()) };
    let translated = match choice.get("type").and_then(Value::as_str) {
        Some("auto") => "auto".into(),
        Some("none") => "none".into(),
        Some("any") => "required".into(),
        Some("tool") => json!({"type": "function", "function": {"name": choice.get("name")}}),
        kind => return Err(strange(kind, "tool_choice", "tool_choice")),
    };
    chat.insert("tool_choice".to_owned(), translated);
    if let Some(disabled) = choice.get("disable_parallel_tool_use").and_then(Value::as_bool) {
        chat.insert("parallel_tool_calls".to_owned(), (!disabled).into());
    }
    Ok(())
}
