//! `/v1/responses`, in a chat's words.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, quoted};
use crate::request::chat::ChatRequest;
use crate::request::common::Limits;
use crate::request::fields::Fields;
use crate::request::translate::{Turns, function, strange, string};

/// What a chat calls otherwise.
const NAMES: [(&str, &str); 4] = [
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format", "text"),
    ("reasoning_effort", "reasoning"),
];
/// Most entries of `metadata`, and most characters of a key and of a value: OpenAI's limits.
const METADATA: (usize, usize, usize) = (16, 64, 512);
/// Log-probabilities, among what `include` can ask for. The rest belongs to tools that are not served, and adds nothing.
pub const LOGPROBS: &str = "message.output_text.logprobs";

/// A response as it was asked for.
#[derive(Clone, Debug)]
pub struct ResponsesRequest {
    /// The same as a chat.
    pub chat: ChatRequest,
    /// What the answer repeats of the request: members of the response object.
    pub echo: Map<String, Value>,
    /// Keep the response, so that later ones can refer to it.
    pub store: bool,
    /// Answer at once, and make it then.
    pub background: bool,
    /// The items of the request, each with a type.
    pub input: Vec<Value>,
}

/// The messages of an earlier response, by its id.
pub type Recall<'a> = &'a dyn Fn(&str) -> Result<Vec<Value>, ApiError>;

impl ResponsesRequest {
    /// Reads and checks a body. `recall` finds earlier conversations.
    pub fn read(mut fields: Fields, limits: &Limits, recall: Recall<'_>) -> Result<Self, ApiError> {
        let mut chat = Map::new();
        logprobs(&mut fields, limits, &mut chat)?;
        let mut echo = Map::new();
        let previous = fields.string("previous_response_id")?;
        let earlier = previous.as_deref().map(recall).transpose()?.unwrap_or_default();
        let instructions = fields.string("instructions")?;
        let input = items(&mut fields)?;
        chat.insert("messages".to_owned(), messages(&input, instructions.as_deref(), earlier)?.into());
        let limit = fields.integer("max_output_tokens", 1..=u32::MAX)?;
        if let Some(limit) = limit {
            chat.insert("max_completion_tokens".to_owned(), limit.into());
        }
        let stop = fields.strings("stop", super::common::MAX_STOP)?;
        chat.insert("stop".to_owned(), stop.into());
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        chat.insert("parallel_tool_calls".to_owned(), parallel.into());
        let store = fields.boolean("store")?.unwrap_or(true);
        let background = fields.flag("background")?;
        if background && !store {
            let message = "background needs store to be true: there is no other way to the response";
            return Err(ApiError::invalid("background", message));
        }
        reasoning(&mut fields, &mut chat, &mut echo)?;
        text(&mut fields, &mut chat, &mut echo)?;
        tools(&mut fields, &mut chat, &mut echo)?;
        let metadata = metadata(&mut fields)?;

        let chat =
            ChatRequest::read(fields.into_chat(chat), limits).map_err(|error| error.renamed(&NAMES))?;
        let params = &chat.common.params;
        echo.extend(
            [
                ("instructions", instructions.into()),
                ("previous_response_id", previous.into()),
                ("max_output_tokens", limit.into()),
                ("parallel_tool_calls", parallel.into()),
                ("metadata", metadata),
                ("background", background.into()),
                ("temperature", params.temperature.into()),
                ("top_p", params.top_p.into()),
                ("top_logprobs", params.logprobs.unwrap_or(0).into()),
            ]
            .map(|(name, value): (&str, Value)| (name.to_owned(), value)),
        );
        Ok(Self { chat, echo, store, background, input })
    }
}

fn logprobs(fields: &mut Fields, limits: &Limits, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let include = fields.list("include")?.unwrap_or_default();
    if let Some(other) = include.iter().find(|item| !item.is_string()) {
        let other = quoted(&other.to_string(), 48);
        return Err(ApiError::invalid("include", format!("include must be a list of strings, got {other}")));
    }
    let wanted = include.iter().any(|item| item == LOGPROBS);
    let top = fields.integer("top_logprobs", 0..=limits.params.max_logprobs)?.unwrap_or(0);
    if top > 0 && !wanted {
        let message = format!("top_logprobs is {top}, but include does not have {LOGPROBS}");
        return Err(ApiError::invalid("top_logprobs", message));
    }
    chat.insert("logprobs".to_owned(), wanted.into());
    chat.insert("top_logprobs".to_owned(), top.into());
    Ok(())
}

fn metadata(fields: &mut Fields) -> Result<Value, ApiError> {
    let map = fields.object("metadata")?.unwrap_or_default();
    let (entries, key_len, value_len) = METADATA;
    let fits = |text: &str, most: usize| text.chars().count() <= most;
    let is_good = |(key, value): (&String, &Value)| {
        fits(key, key_len) && value.as_str().is_some_and(|text| fits(text, value_len))
    };
    if map.len() > entries || !map.iter().all(is_good) {
        let message = format!(
            "metadata must have at most {entries} entries, with keys of at most {key_len} and strings of at most \
             {value_len} characters"
        );
        return Err(ApiError::invalid("metadata", message));
    }
    Ok(map.into())
}

/// The items of `input`, a text as the user's message.
fn items(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    match fields.take("input") {
        Some(Value::String(text)) => {
            let content = json!([{"type": "input_text", "text": text}]);
            Ok(vec![json!({"type": "message", "role": "user", "content": content})])
        }
        Some(Value::Array(items)) if !items.is_empty() => Ok(items),
        _ => Err(ApiError::invalid("input", "input must be a string or a list of at least one item")),
    }
}

fn messages(
    items: &[Value],
    instructions: Option<&str>,
    earlier: Vec<Value>,
) -> Result<Vec<Value>, ApiError> {
    let mut all: Vec<Value> =
        instructions.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
    all.extend(earlier);
    let mut turns = Turns::after(all);
    for (index, item) in items.iter().enumerate() {
        add(&mut turns, item, &format!("input[{index}]"))?;
    }
    Ok(turns.finish())
}

/// One item of `input`.
fn add(turns: &mut Turns, item: &Value, place: &str) -> Result<(), ApiError> {
    let text = |name: &str| string(item, name, "input", place);
    match item.get("type").map_or(Some("message"), Value::as_str) {
        Some("message") => {
            let content = content(item.get("content"), &format!("{place}.content"))?;
            turns.say(text("role")?, content);
        }
        Some("function_call") => turns.call(text("call_id")?, text("name")?, text("arguments")?),
        Some("function_call_output") => {
            turns.result(text("call_id")?, &content(item.get("output"), &format!("{place}.output"))?);
        }
        Some("reasoning") => {
            for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
                turns.think(string(part, "text", "input", &format!("{place}.content"))?);
            }
        }
        kind => return Err(strange(kind, "input", place)),
    }
    Ok(())
}

/// Text, or parts of text in a chat's words.
fn content(value: Option<&Value>, place: &str) -> Result<Value, ApiError> {
    let part = |(index, part): (usize, &Value)| {
        let place = format!("{place}[{index}]");
        let text = match part.get("type").and_then(Value::as_str) {
            Some("input_text" | "output_text" | "text") => string(part, "text", "input", &place)?,
            Some("refusal") => string(part, "refusal", "input", &place)?,
            kind => return Err(strange(kind, "input", &place)),
        };
        Ok(json!({"type": "text", "text": text}))
    };
    match value {
        Some(Value::String(text)) => Ok(text.as_str().into()),
        Some(Value::Array(parts)) => {
            parts.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>().map(Value::from)
        }
        _ => Err(ApiError::invalid("input", format!("{place} must be a string or a list of parts"))),
    }
}

fn reasoning(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let asked = fields.object("reasoning")?.unwrap_or_default();
    let effort = asked.get("effort").cloned().unwrap_or(Value::Null);
    if !(effort.is_null() || effort.is_string()) {
        return Err(ApiError::invalid("reasoning", "reasoning.effort must be a string"));
    }
    // Reasoning is shown as it is, which is more than any summary that could be asked for.
    echo.insert("reasoning".to_owned(), json!({"effort": effort, "summary": null}));
    chat.insert("reasoning_effort".to_owned(), effort);
    Ok(())
}

fn text(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let asked = fields.object("text")?.unwrap_or_default();
    let format = asked.get("format").filter(|format| !format.is_null());
    if let Some(format) = format {
        chat.insert("response_format".to_owned(), response_format(format)?);
    }
    let format = format.cloned().unwrap_or_else(|| json!({"type": "text"}));
    echo.insert("text".to_owned(), json!({"format": format}));
    Ok(())
}

/// A chat has the schema's name, description and strictness in a wrapper.
fn response_format(format: &Value) -> Result<Value, ApiError> {
    let Some(members) = format.as_object() else {
        return Err(ApiError::invalid("text", "text.format must be an object"));
    };
    if members.get("type").and_then(Value::as_str) != Some("json_schema") {
        return Ok(format.clone());
    }
    let wrapped = members.iter().filter(|(name, _)| *name != "type");
    let wrapped: Map<String, Value> = wrapped.map(|(name, value)| (name.clone(), value.clone())).collect();
    Ok(json!({"type": "json_schema", "json_schema": wrapped}))
}

fn tools(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let asked = fields.list("tools")?.unwrap_or_default();
    let tool = |(index, tool): (usize, &Value)| {
        let place = format!("tools[{index}]");
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {
                string(tool, "name", "tools", &place)?;
                Ok(function(
                    &tool["name"],
                    tool.get("description"),
                    tool.get("parameters"),
                    tool.get("strict"),
                ))
            }
            kind => Err(strange(kind, "tools", &place)),
        }
    };
    let tools = asked.iter().enumerate().map(tool).collect::<Result<Vec<_>, ApiError>>()?;
    chat.insert("tools".to_owned(), tools.into());
    let choice = fields.take("tool_choice");
    let named = |name: Option<&Value>| json!({"type": "function", "function": {"name": name}});
    let translated = match &choice {
        Some(Value::Object(choice)) => match choice.get("type").and_then(Value::as_str) {
            Some("function") => named(choice.get("name")),
            Some("allowed_tools") => {
                let listed = choice.get("tools").and_then(Value::as_array).map(Vec::as_slice);
                let tools: Vec<Value> =
                    listed.unwrap_or_default().iter().map(|tool| named(tool.get("name"))).collect();
                json!({"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}})
            }
            kind => return Err(strange(kind, "tool_choice", "tool_choice")),
        },
        other => other.clone().unwrap_or_default(),
    };
    chat.insert("tool_choice".to_owned(), translated);
    echo.insert("tools".to_owned(), asked.into());
    echo.insert("tool_choice".to_owned(), choice.unwrap_or_else(|| "auto".into()));
    Ok(())
}
