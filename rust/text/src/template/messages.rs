//! Messages from the API's form to the form templates expect.

use frizzen_core::{Error, Result};
use serde_json::{Map, Value, json};

use super::content::ContentFormat;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// One thought under the names that templates and clients use; the first is the standard one.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// What else of a message is text: a template would print whatever it is.
const TEXTS: [&str; 3] = ["name", "tool_call_id", "refusal"];
/// Marks the end of the message to be continued while it is rendered. Ends in a space to see whether the template
/// strips messages.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::invalid("messages", message))
}

/// Checks the messages and brings them into the form that the template with `source` reads.
pub(super) fn prepare(messages: &[Value], source: &str, format: ContentFormat) -> Result<Vec<Value>> {
    if messages.is_empty() {
        return invalid("messages must have at least 1 item, got 0");
    }
    let mut call_ids: Vec<&str> = Vec::new();
    let mut prepared = Vec::with_capacity(messages.len());
    for (i, message) in messages.iter().enumerate() {
        let Value::Object(fields) = message else {
            return invalid(format!("messages[{i}] must be an object, got {}", kind(message)));
        };
        // As transformers does: templates handle a missing key, and print or trip over a null.
        let mut fields: Map<String, Value> =
            fields.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
        for name in TEXTS.iter().chain(&REASONING) {
            check_text(fields.get(*name), || format!("messages[{i}].{name}"))?;
        }
        let role = role(i, &fields, source)?;
        let has_calls = tool_calls(i, &mut fields)?;
        match fields.get_mut("content") {
            Some(content) => format_content(i, content, format)?,
            None if role == "assistant" => {}
            None => return invalid(format!("messages[{i}].content is required for the role {role}")),
        }
        if has_calls {
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            call_ids.extend(calls.filter_map(|call| call["id"].as_str()));
        }
        if let Some(id) =
            fields.get("tool_call_id").and_then(Value::as_str).filter(|id| !call_ids.contains(id))
        {
            return invalid(format!(
                "messages[{i}].tool_call_id {id:?} is not the id of an earlier tool call"
            ));
        }
        fields.insert("role".to_owned(), role.into());
        prepared.push(Value::Object(alias_reasoning(fields)));
    }
    Ok(prepared)
}

fn check_text(value: Option<&Value>, place: impl Fn() -> String) -> Result<()> {
    match value {
        None | Some(Value::Null | Value::String(_)) => Ok(()),
        Some(other) => invalid(format!("{} must be a string, got {}", place(), kind(other))),
    }
}

/// The role, as the template calls it. Roles outside the API are allowed if the template names them.
fn role(i: usize, fields: &Map<String, Value>, source: &str) -> Result<String> {
    let role = match fields.get("role") {
        Some(Value::String(role)) if !role.is_empty() => role.as_str(),
        Some(other) => return invalid(format!("messages[{i}].role must be a string, got {other}")),
        None => return invalid(format!("messages[{i}].role is required")),
    };
    let named = source.contains(&format!("'{role}'")) || source.contains(&format!("\"{role}\""));
    if role == "developer" && !named {
        return Ok("system".to_owned());
    }
    if ROLES.contains(&role) || named {
        return Ok(role.to_owned());
    }
    invalid(format!("messages[{i}].role must be one of {ROLES:?}, got {role:?}"))
}

/// Parses the arguments of tool calls, which the API carries as JSON text and templates read as objects.
fn tool_calls(i: usize, fields: &mut Map<String, Value>) -> Result<bool> {
    let calls = match fields.get_mut("tool_calls") {
        None => return Ok(false),
        Some(Value::Array(calls)) => calls,
        Some(other) => {
            return invalid(format!("messages[{i}].tool_calls must be a list, got {}", kind(other)));
        }
    };
    if calls.is_empty() {
        fields.remove("tool_calls");
        return Ok(false);
    }
    for (j, call) in calls.iter_mut().enumerate() {
        let place = format!("messages[{i}].tool_calls[{j}]");
        if !call.is_object() {
            return invalid(format!("{place} must be an object, got {}", kind(call)));
        }
        check_text(call.get("id"), || format!("{place}.id"))?;
        // Some clients leave out the level `function`.
        let function = if call["function"].is_object() { &mut call["function"] } else { call };
        check_text(function.get("name"), || format!("{place}.function.name"))?;
        let Some(arguments) = function.get_mut("arguments") else { continue };
        let Value::String(text) = arguments else { continue };
        let parsed = if text.trim().is_empty() { Ok(json!({})) } else { serde_json::from_str(text) };
        match parsed {
            Ok(object @ Value::Object(_)) => *arguments = object,
            Ok(other) => {
                return invalid(format!(
                    "{place}.function.arguments must be a JSON object, got {}",
                    kind(&other)
                ));
            }
            Err(e) => return invalid(format!("{place}.function.arguments is not JSON: {e}")),
        }
    }
    Ok(true)
}

fn format_content(i: usize, content: &mut Value, format: ContentFormat) -> Result<()> {
    match content {
        Value::String(text) => {
            if format == ContentFormat::Parts {
                *content = json!([{"type": "text", "text": text}]);
            }
            Ok(())
        }
        Value::Array(parts) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (j, part) in parts.iter().enumerate() {
                texts.push(text_of(part).map_err(|reason| {
                    Error::invalid("messages", format!("messages[{i}].content[{j}] {reason}"))
                })?);
            }
            *content = match format {
                ContentFormat::Strings => texts.join("\n").into(),
                ContentFormat::Parts | ContentFormat::Both => {
                    parts.iter().zip(texts).map(|(part, text)| text_part(part, text)).collect()
                }
            };
            Ok(())
        }
        other => {
            invalid(format!("messages[{i}].content must be a string or a list of parts, got {}", kind(other)))
        }
    }
}

fn text_of(part: &Value) -> std::result::Result<&str, String> {
    match (part, part["type"].as_str()) {
        (Value::String(text), _) => Ok(text),
        // The names of text in `/v1/responses`, with which clients send an answer back.
        (_, Some("text" | "input_text" | "output_text")) => {
            part["text"].as_str().ok_or_else(|| "has no string in \"text\"".to_owned())
        }
        (_, Some("refusal")) => {
            part["refusal"].as_str().ok_or_else(|| "has no string in \"refusal\"".to_owned())
        }
        (_, Some(other)) => Err(format!("has the type {other:?}; this model takes only \"text\"")),
        (_, None) => Err("must be an object with a \"type\"".to_owned()),
    }
}

/// The part under the name that templates know, with what else it says if it had that name.
fn text_part(part: &Value, text: &str) -> Value {
    if part["type"] == "text" { part.clone() } else { json!({"type": "text", "text": text}) }
}

/// Gives a message's reasoning the standard name, and the name that a family's templates read.
fn alias_reasoning(fields: Map<String, Value>) -> Map<String, Value> {
    let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() else { return fields };
    let mut aliased = Map::new();
    aliased.insert("thinking".to_owned(), reasoning.clone());
    aliased.extend(fields);
    aliased.insert("reasoning_content".to_owned(), reasoning);
    aliased
}

/// Gives messages without content an empty one. True if there were any.
pub(super) fn fill_missing_content(messages: &mut [Value]) -> bool {
    let mut filled = false;
    for fields in messages.iter_mut().filter_map(Value::as_object_mut) {
        if !fields.contains_key("content") {
            fields.insert("content".to_owned(), "".into());
            filled = true;
        }
    }
    filled
}

/// Appends the tag to the last message's text and returns that text.
pub(super) fn tag_final(messages: &mut [Value], source: &str) -> Result<String> {
    if !source.contains("content") {
        return Err(Error::invalid(
            "continue_final_message",
            "the chat template does not read the content of messages, so the last one cannot be continued",
        ));
    }
    let text = messages.last_mut().and_then(|message| match message.get_mut("content")? {
        Value::Array(parts) => parts.iter_mut().rev().find_map(|part| match part {
            Value::String(_) => Some(part),
            part => part.get_mut("text"),
        }),
        content => Some(content),
    });
    match text {
        Some(Value::String(text)) => {
            let original = text.clone();
            text.push_str(TAG);
            Ok(original)
        }
        _ => Err(Error::invalid("continue_final_message", "the last message has no text to continue")),
    }
}

/// Cuts a prompt where the tagged message ends.
pub(super) fn cut_at_tag(mut prompt: String, text: &str) -> Result<String> {
    let found = prompt.rfind(TAG.trim_end()).filter(|_| prompt.contains(text.trim()));
    let Some(at) = found else {
        return Err(Error::invalid(
            "continue_final_message",
            "the chat template does not show the last message as it is, so it cannot be continued",
        ));
    };
    // A template that strips messages has eaten the space of the tag; then the text's own end is stripped too.
    let keeps_space = prompt[at..].starts_with(TAG);
    prompt.truncate(at);
    if !keeps_space {
        prompt.truncate(prompt.trim_end().len());
    }
    Ok(prompt)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
