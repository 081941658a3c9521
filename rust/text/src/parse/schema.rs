//! What the declared tools say of their arguments: formats without JSON need it to tell `1` from `"1"`.

use std::collections::HashMap;

use serde_json::Value;

/// How an argument that arrives as bare text becomes JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The text is the string.
    Text,
    /// The text is JSON if it parses, and a string otherwise.
    Json,
}

/// The declared tools by name.
#[derive(Clone, Debug, Default)]
pub struct ToolSchemas {
    arguments: HashMap<String, HashMap<String, Kind>>,
}

impl ToolSchemas {
    /// The schemas of tools in the API's form (`{"type": "function", "function": {...}}`). What has no name is left out.
    pub fn new(tools: &[Value]) -> Self {
        let functions = tools.iter().map(|tool| tool.get("function").unwrap_or(tool));
        let arguments = functions.filter_map(|function| {
            let name = function.get("name")?.as_str()?.to_owned();
            let properties = function.get("parameters").and_then(|schema| schema.get("properties"));
            let properties = properties.and_then(Value::as_object).into_iter().flatten();
            Some((name, properties.map(|(key, schema)| (key.clone(), kind(schema))).collect()))
        });
        Self { arguments: arguments.collect() }
    }

    /// False if tools are declared and this is none of them.
    pub(super) fn may_call(&self, name: &str) -> bool {
        self.arguments.is_empty() || self.arguments.contains_key(name)
    }

    pub(super) fn kind(&self, name: &str, key: &str) -> Kind {
        self.arguments.get(name).and_then(|keys| keys.get(key)).copied().unwrap_or(Kind::Json)
    }
}

/// Text only if nothing else is allowed: of several types the value decides.
fn kind(schema: &Value) -> Kind {
    let only_strings = match (schema.get("type"), schema.get("enum")) {
        (Some(Value::String(name)), _) => name == "string",
        (None, Some(Value::Array(values))) => !values.is_empty() && values.iter().all(Value::is_string),
        _ => false,
    };
    if only_strings { Kind::Text } else { Kind::Json }
}
