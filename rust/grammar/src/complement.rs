//! What does not satisfy a schema, as a schema. By De Morgan: an instance fails a schema if it fails one of its keywords,
//! and each keyword is failed by instances of the type that it speaks of only.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Types of instances; an integer is a number.
pub(crate) const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords that restrict nothing.
const SILENT: [&str; 10] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$defs",
];
/// Most characters of the strings that are told from all others.
const MAX_TOLD: usize = 2048;

/// True if it is plain that every instance satisfies the schema.
pub(crate) fn is_always(schema: &Value) -> bool {
    match schema {
        Value::Bool(any) => *any,
        Value::Object(map) => map.iter().all(|(name, value)| {
            let all = || value.as_array().is_some_and(|all| all.iter().all(is_always));
            SILENT.contains(&name.as_str()) || (name == "allOf" && all())
        }),
        _ => false,
    }
}

/// True if it is plain that no instance does.
pub(crate) fn is_never(schema: &Value) -> bool {
    match schema {
        Value::Bool(any) => !*any,
        Value::Object(map) => {
            map.get("allOf").and_then(Value::as_array).is_some_and(|all| all.iter().any(is_never))
        }
        _ => false,
    }
}

/// A list of strings and nothing else.
pub(crate) fn string_list(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect()
}

fn listed_types(value: &Value) -> Option<Vec<String>> {
    value.as_str().map_or_else(|| string_list(value), |name| Some(vec![name.to_owned()]))
}

/// The types that the schema's own `type` allows.
pub(crate) fn types_of(map: &Map<String, Value>) -> Vec<&'static str> {
    const ALL: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
    match map.get("type").and_then(listed_types) {
        Some(own) => ALL.into_iter().filter(|name| own.iter().any(|other| other == name)).collect(),
        None => TYPES.to_vec(),
    }
}

/// A schema of what does not satisfy `schema`, among instances of `types`. `None` if it cannot be said.
pub(crate) fn complement(schema: &Value, types: &[&str]) -> Option<Value> {
    let map = match schema {
        Value::Bool(any) => return Some(Value::Bool(!any)),
        Value::Object(map) => map,
        _ => return None,
    };
    let mut ways = Vec::new();
    for (name, value) in map {
        if !SILENT.contains(&name.as_str()) {
            keyword(name, value, types, &mut ways)?;
        }
    }
    Some(match ways.len() {
        0 => Value::Bool(false),
        1 => ways.swap_remove(0),
        _ => json!({"anyOf": ways}),
    })
}

/// The ways to fail one keyword.
fn keyword(name: &str, value: &Value, types: &[&str], ways: &mut Vec<Value>) -> Option<()> {
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required});
    match name {
        "type" => {
            let named = listed_types(value)?;
            let named: Vec<&str> = named.iter().map(String::as_str).collect();
            if named.contains(&"integer") && !named.contains(&"number") && types.contains(&"number") {
                // The numbers with a fraction: no keyword speaks of them.
                return None;
            }
            let is_named =
                |kind: &str| named.contains(&kind) || (kind == "integer" && named.contains(&"number"));
            let others: Vec<&str> = types.iter().copied().filter(|kind| !is_named(kind)).collect();
            if !others.is_empty() {
                ways.push(json!({"type": others}));
            }
        }
        "const" => ways.push(other_than(std::slice::from_ref(value), types)?),
        "enum" => ways.push(other_than(value.as_array()?, types)?),
        "required" => {
            ways.extend(string_list(value)?.into_iter().map(|key| object(json!({key: false}), json!([]))));
        }
        "properties" => {
            for (key, schema) in value.as_object()? {
                let other = complement(schema, &TYPES)?;
                if !is_never(&other) {
                    ways.push(object(json!({key: other}), json!([key])));
                }
            }
        }
        "minimum" => ways.push(json!({"type": "number", "exclusiveMaximum": value})),
        "maximum" => ways.push(json!({"type": "number", "exclusiveMinimum": value})),
        "exclusiveMinimum" => ways.push(json!({"type": "number", "maximum": value})),
        "exclusiveMaximum" => ways.push(json!({"type": "number", "minimum": value})),
        "minLength" | "minItems" | "minProperties" => {
            if let Some(most) = value.as_u64()?.checked_sub(1) {
                ways.push(json!({"type": counted(name), (name.replacen("min", "max", 1)): most}));
            }
        }
        "maxLength" | "maxItems" | "maxProperties" => {
            let least = value.as_u64()?.checked_add(1)?;
            ways.push(json!({"type": counted(name), (name.replacen("max", "min", 1)): least}));
        }
        "allOf" => {
            for schema in value.as_array()? {
                ways.push(complement(schema, types)?);
            }
        }
        "anyOf" => {
            let all: Option<Vec<Value>> =
                value.as_array()?.iter().map(|schema| complement(schema, types)).collect();
            ways.push(json!({"allOf": all?}));
        }
        _ => return None,
    }
    Some(())
}

/// The type whose size a keyword counts.
fn counted(keyword: &str) -> &'static str {
    match keyword {
        "minLength" | "maxLength" => "string",
        "minItems" | "maxItems" => "array",
        _ => "object",
    }
}

/// Everything of `types` but these scalars.
fn other_than(values: &[Value], types: &[&str]) -> Option<Value> {
    let mut ways = Vec::new();
    for kind in types {
        let same: Vec<&Value> = values.iter().filter(|value| is_of(value, kind)).collect();
        match *kind {
            _ if same.is_empty() => ways.push(json!({"type": kind})),
            "null" => {}
            "boolean" => {
                let left = [true, false].into_iter().find(|left| !same.contains(&&Value::Bool(*left)));
                ways.extend(left.map(|left| json!({"const": left})));
            }
            "number" | "integer" => {
                let mut points: Vec<f64> = same.iter().filter_map(|value| value.as_f64()).collect();
                points.sort_by(f64::total_cmp);
                points.dedup();
                let lows = std::iter::once(None).chain(points.iter().copied().map(Some));
                let highs = points.iter().copied().map(Some).chain(std::iter::once(None));
                for (low, high) in lows.zip(highs) {
                    let mut range = json!({"type": kind});
                    if let Some(low) = low {
                        range["exclusiveMinimum"] = number(low);
                    }
                    if let Some(high) = high {
                        range["exclusiveMaximum"] = number(high);
                    }
                    ways.push(range);
                }
            }
            "string" => {
                let texts: Vec<&str> = same.iter().filter_map(|value| value.as_str()).collect();
                ways.push(json!({"type": "string", "pattern": other_strings(&texts)?}));
            }
            _ => return None,
        }
    }
    Some(if ways.is_empty() { Value::Bool(false) } else { json!({"anyOf": ways}) })
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" | "integer" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

/// A number as it would be written.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { (value as i64).into() } else { value.into() }
}

#[derive(Default)]
struct Trie {
    next: BTreeMap<char, Trie>,
    ends: bool,
}

/// A regular expression for all strings but these.
fn other_strings(texts: &[&str]) -> Option<String> {
    if texts.iter().map(|text| text.len()).sum::<usize>() > MAX_TOLD {
        return None;
    }
    let mut root = Trie::default();
    for text in texts {
        let mut node = &mut root;
        for c in text.chars() {
            node = node.next.entry(c).or_default();
        }
        node.ends = true;
    }
    Some(format!("^({})$", root.others()))
}

impl Trie {
    /// What may follow here so that the whole is none of the texts.
    fn others(&self) -> String {
        let escaped = |c: char| match c {
            _ if c.is_alphanumeric() => c.to_string(),
            _ => format!("\\x{{{:x}}}", u32::from(c)),
        };
        let known: String = self.next.keys().map(|c| escaped(*c)).collect();
        let stray = if known.is_empty() { "[\\s\\S]".to_owned() } else { format!("[^{known}]") };
        let mut ways = vec![format!("{stray}[\\s\\S]*")];
        ways.extend(self.next.iter().map(|(c, rest)| format!("{}({})", escaped(*c), rest.others())));
        if !self.ends {
            ways.push(String::new());
        }
        ways.join("|")
    }
}
