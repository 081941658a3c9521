//! What the translations into a chat share: conversations and tools in a chat's words.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, quoted};

/// Builds the messages of a chat. Calls, and the reasoning before them, join the assistant's message that they follow,
/// since templates know one message per turn.
#[derive(Debug, Default)]
pub struct Turns {
    messages: Vec<Value>,
    /// The last message is the assistant's and not complete yet.
    open: bool,
    /// What the assistant thought before it said anything.
    reasoning: Option<String>,
}

impl Turns {
    /// Continues a conversation.
    pub fn after(messages: Vec<Value>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// A message of anybody.
    pub fn say(&mut self, role: &str, content: Value) {
        let is_assistant = role == "assistant";
        if !is_assistant {
            self.settle();
        }
        let mut message = Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content)]);
        if let Some(reasoning) = self.reasoning.take() {
            message.insert("reasoning".to_owned(), reasoning.into());
        }
        self.messages.push(message.into());
        self.open = is_assistant;
    }

    /// What the assistant thought before what follows.
    pub fn think(&mut self, text: &str) {
        self.open = false;
        match &mut self.reasoning {
            Some(reasoning) => reasoning.push_str(text),
            None => self.reasoning = Some(text.to_owned()),
        }
    }

    /// A call of the assistant.
    pub fn call(&mut self, id: &str, name: &str, arguments: &str) {
        if !self.open {
            self.say("assistant", Value::Null);
        }
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let message = self.messages.last_mut().and_then(Value::as_object_mut);
        let message = message.expect("an open turn has a message");
        let calls = message.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
        calls.as_array_mut().expect("tool_calls is made here, as a list").push(call);
    }

    /// The result of a call.
    pub fn result(&mut self, id: &str, content: &Value) {
        self.settle();
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }

    /// Ends the assistant's turn. Reasoning that nothing else of it follows is a message.
    fn settle(&mut self) {
        if self.reasoning.is_some() {
            self.say("assistant", "".into());
        }
        self.open = false;
    }

    /// The messages.
    pub fn finish(mut self) -> Vec<Value> {
        self.settle();
        self.messages
    }
}

/// A function in a chat's words.
pub fn function(
    name: &Value,
    description: Option<&Value>,
    parameters: Option<&Value>,
    strict: Option<&Value>,
) -> Value {
    let members =
        [("name", Some(name)), ("description", description), ("parameters", parameters), ("strict", strict)];
    let present = members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let function: Map<String, Value> =
        present.filter(|(_, value)| !value.is_null()).map(|(key, value)| (key, value.clone())).collect();
    json!({"type": "function", "function": function})
}

/// The string under `name`, or a refusal that says where it is missing.
pub fn string<'a>(
    object: &'a Value,
    name: &str,
    param: &'static str,
    place: &str,
) -> Result<&'a str, ApiError> {
    object
        .get(name)
        .and_then(Value::as_str)
        .ok_or_else(|| ApiError::invalid(param, format!("{place}.{name} must be a string")))
}

/// A part, item or tool that is not one of those that are known: 501 if it has a type, for the peers have many.
pub fn strange(kind: Option<&str>, param: &'static str, place: &str) -> ApiError {
    match kind {
        Some(kind) => {
            ApiError::unsupported(param, format!("{place}: the type {} is not supported", quoted(kind, 48)))
        }
        None => ApiError::invalid(param, format!("{place} must be an object with a type")),
    }
}
