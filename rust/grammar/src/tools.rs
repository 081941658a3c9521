//! The grammar of tool calls: a format's syntax, the tools' schemas, and what the client chose.

use frizzen_text::parse::{ArgumentSyntax, CallSyntax, EachSyntax};
use serde_json::{Map, Value, json};

use crate::part::Part;
use crate::spec::GrammarError;

/// Most characters of a function's name.
const MAX_NAME: usize = 256;
/// Keywords of a tool's parameters that mean something, or nothing, to a format that writes arguments one by one.
const READ: [&str; 10] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "$defs",
    "definitions",
    "$schema",
    "strict",
];
/// Keywords of a string that can be enforced without quotes around it.
const SILENT: [&str; 9] =
    ["type", "title", "description", "default", "examples", "enum", "const", "deprecated", "$comment"];
/// Most optional arguments of a tool in a format that separates them.
const MAX_OPTIONAL: usize = 32;

/// A tool whose calls are to be enforced.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool<'a> {
    /// Its name.
    pub name: &'a str,
    /// The schema of its arguments; without one it has none.
    pub parameters: Option<&'a Value>,
    /// Every keyword of the schema is enforced or the request refused. Otherwise what cannot be is left out.
    pub strict: bool,
}

impl<'a> Tool<'a> {
    /// Reads a tool of the API.
    pub fn of(tool: &'a Value) -> Option<Self> {
        let function = tool.get("function")?;
        Some(Self {
            name: function.get("name")?.as_str()?,
            parameters: function.get("parameters").filter(|schema| !schema.is_null()),
            strict: function.get("strict") == Some(&Value::Bool(true)),
        })
    }
}

/// One or, if `parallel` and the format allows it, more calls of these tools, and nothing else.
///
/// # Errors
/// A name or a schema that the format cannot express.
pub fn calls(syntax: &CallSyntax, tools: &[Tool<'_>], parallel: bool) -> Result<Part, GrammarError> {
    let each = tools.iter().map(|tool| call(syntax, tool)).collect::<Result<Vec<_>, _>>()?;
    let max = if parallel && syntax.separator.is_some() { None } else { Some(1) };
    let calls = Part::Repeat {
        part: Box::new(Part::Any(each)),
        separator: syntax.separator.unwrap_or_default().to_owned(),
        min: 1,
        max,
    };
    Ok(Part::All(vec![Part::text(syntax.open), calls, Part::text(syntax.close)]))
}

/// Free text in which calls of these tools may stand, and nothing that begins like a call and is none.
///
/// # Errors
/// As for [`calls`]; also a format whose calls only their place tells from content.
pub fn text_with_calls(
    syntax: &CallSyntax,
    tools: &[Tool<'_>],
    parallel: bool,
) -> Result<Part, GrammarError> {
    let trigger = syntax.trigger.ok_or_else(|| {
        GrammarError::new(
            "strict tools cannot be enforced under tool_choice \"auto\": nothing marks where a call begins in the \
             model's format; tool_choice \"required\" can be enforced",
        )
    })?;
    // Where nothing stands around the calls of a message, text may stand between them.
    let alone = syntax.open.is_empty() && syntax.close.is_empty();
    let mut calls = calls(syntax, tools, parallel && !alone)?;
    // The trigger ends the text before it: what is left of the calls begins behind it.
    if !strip_prefix(&mut calls, trigger) {
        return Err(GrammarError::new("a call does not begin with what marks it in the model's format"));
    }
    let before = Part::Until { end: trigger.to_owned(), without: Vec::new() };
    let called = Part::Repeat {
        part: Box::new(Part::All(vec![before, calls])),
        separator: String::new(),
        min: 0,
        max: if parallel && alone { None } else { Some(1) },
    };
    Ok(Part::All(vec![called, Part::Free { without: vec![trigger.to_owned()] }]))
}

/// Takes `prefix` off the first text of every alternative; false if one begins otherwise.
fn strip_prefix(part: &mut Part, prefix: &str) -> bool {
    match part {
        Part::Text(text) => match text.strip_prefix(prefix) {
            Some(rest) => {
                *text = rest.to_owned();
                true
            }
            None => false,
        },
        Part::All(parts) => {
            let first = parts.iter_mut().find(|part| !matches!(part, Part::Text(text) if text.is_empty()));
            first.is_some_and(|first| strip_prefix(first, prefix))
        }
        Part::Any(parts) => parts.iter_mut().all(|part| strip_prefix(part, prefix)),
        // Only the first one would lose it.
        Part::Repeat { part, max: Some(1), .. } => strip_prefix(part, prefix),
        _ => false,
    }
}

fn call(syntax: &CallSyntax, tool: &Tool<'_>) -> Result<Part, GrammarError> {
    let name = tool.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err(GrammarError(format!(
            "the function name {name:?} must have 1 to {MAX_NAME} characters of a-z, A-Z, 0-9, '_', '-' and '.'"
        )));
    }
    let mut parts = vec![Part::text(format!("{}{name}", syntax.before_name))];
    if let Some(before) = syntax.number {
        parts.push(Part::text(before));
        parts.push(Part::Regex("[0-9]{1,4}".to_owned()));
    }
    parts.push(Part::text(syntax.after_name));
    let named = |error: GrammarError| GrammarError(format!("the function {name:?}: {error}"));
    parts.push(match &syntax.arguments {
        ArgumentSyntax::Json => whole_object(tool).map_err(named)?,
        ArgumentSyntax::Each(each) => each_argument(each, tool).map_err(named)?,
    });
    parts.push(Part::text(syntax.end));
    Ok(Part::All(parts))
}

fn whole_object(tool: &Tool<'_>) -> Result<Part, GrammarError> {
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let mut schema = tool.parameters.cloned().unwrap_or(none);
    match &mut schema {
        // Arguments are an object, whether the schema says so or not.
        Value::Object(members)
            if !["type", "$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| members.contains_key(*key)) =>
        {
            members.insert("type".to_owned(), "object".into());
        }
        Value::Object(members) if members.get("type").is_some_and(|kind| kind != "object") => {
            return Err(GrammarError::new("its parameters must be of the type object"));
        }
        Value::Object(_) => {}
        _ => return Err(GrammarError::new("its parameters must be a schema, which is an object")),
    }
    Ok(Part::Json { schema: schema.to_string(), lenient: !tool.strict })
}

/// One argument of a tool.
struct Argument {
    part: Part,
    required: bool,
}

fn each_argument(syntax: &EachSyntax, tool: &Tool<'_>) -> Result<Part, GrammarError> {
    let empty = Map::new();
    let schema = match tool.parameters {
        None => &empty,
        Some(Value::Object(schema)) => schema,
        Some(_) => return Err(GrammarError::new("its parameters must be a schema, which is an object")),
    };
    if let Some(other) = schema.keys().find(|key| !READ.contains(&key.as_str()) && tool.strict) {
        return Err(GrammarError(format!(
            "the keyword {other:?} of its parameters cannot be enforced in a format that writes arguments one by one"
        )));
    }
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if let Some(missing) = required.iter().find(|name| !properties.contains_key(**name)) {
        return Err(GrammarError(format!("the required argument {missing:?} has no schema")));
    }
    let arguments = properties
        .iter()
        .map(|(key, value)| {
            let part = argument(syntax, key, value, schema, tool.strict)?;
            Ok(Argument { part, required: required.contains(&key.as_str()) })
        })
        .collect::<Result<Vec<_>, GrammarError>>()?;
    separated(&arguments, syntax.separator)
}

/// Arguments in order, the optional ones or not, with a separator between those that are there.
fn separated(arguments: &[Argument], separator: &str) -> Result<Part, GrammarError> {
    let maybe = |argument: &Argument, part: Part| if argument.required { part } else { part.optional() };
    if separator.is_empty() {
        return Ok(Part::All(arguments.iter().map(|each| maybe(each, each.part.clone())).collect()));
    }
    let optional = arguments.iter().take_while(|argument| !argument.required).count();
    if optional > MAX_OPTIONAL {
        return Err(GrammarError(format!(
            "{optional} optional arguments come first, the limit is {MAX_OPTIONAL}"
        )));
    }
    // Which of them is the first one decides where separators stand.
    let from = |first: usize| {
        let rest = arguments[first + 1..]
            .iter()
            .map(|each| maybe(each, Part::All(vec![Part::text(separator), each.part.clone()])));
        Part::All(std::iter::once(arguments[first].part.clone()).chain(rest).collect())
    };
    let last_first = optional.min(arguments.len().saturating_sub(1));
    let mut ways: Vec<Part> =
        if arguments.is_empty() { Vec::new() } else { (0..=last_first).map(from).collect() };
    if optional == arguments.len() {
        ways.push(Part::text(""));
    }
    Ok(Part::Any(ways))
}

fn argument(
    syntax: &EachSyntax,
    key: &str,
    schema: &Value,
    root: &Map<String, Value>,
    strict: bool,
) -> Result<Part, GrammarError> {
    if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || "_-.$".contains(c)) {
        return Err(GrammarError(format!("the argument {key:?} cannot be written in this format")));
    }
    let head = format!("{}{key}", syntax.before_key);
    let after = Part::text(syntax.after_value);
    if let Some(before) = syntax.before_text.filter(|_| is_bare_text(schema)) {
        let head = Part::text(format!("{head}{before}"));
        let end = format!("{}{}", syntax.frame, syntax.value_end);
        let value = bare_text(key, schema, &end, syntax.value_end, strict)?;
        return Ok(Part::All(vec![head, value, after]));
    }
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        // References go to the root, which this schema becomes.
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name).filter(|_| !members.contains_key(name)) {
                members.insert(name.to_owned(), definitions.clone());
            }
        }
    }
    Ok(Part::All(vec![
        Part::text(format!("{head}{}", syntax.before_json)),
        Part::Json { schema: schema.to_string(), lenient: !strict },
        Part::text(format!("{}{}", syntax.frame, syntax.value_end)),
        after,
    ]))
}

/// The formats' parsers take a value for a string exactly if its schema allows nothing else.
fn is_bare_text(schema: &Value) -> bool {
    match (schema.get("type"), schema.get("enum")) {
        (Some(kind), _) => kind == "string",
        (None, Some(Value::Array(values))) => !values.is_empty() && values.iter().all(Value::is_string),
        _ => false,
    }
}

fn bare_text(
    key: &str,
    schema: &Value,
    end: &str,
    value_end: &str,
    strict: bool,
) -> Result<Part, GrammarError> {
    let members = schema.as_object();
    let loud =
        members.into_iter().flatten().map(|(name, _)| name).find(|name| !SILENT.contains(&name.as_str()));
    if let Some(keyword) = loud.filter(|_| strict) {
        return Err(GrammarError(format!(
            "the argument {key:?}: the keyword {keyword:?} of a string cannot be enforced in a format that writes \
             strings without quotes"
        )));
    }
    let fixed = match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Value::Array(values))) => Some(values.clone()),
        _ => None,
    };
    let Some(fixed) = fixed else {
        return Ok(Part::Until { end: end.to_owned(), without: vec![value_end.to_owned()] });
    };
    let texts: Vec<&str> =
        fixed.iter().filter_map(Value::as_str).filter(|text| !text.contains(value_end)).collect();
    if texts.is_empty() {
        return Err(GrammarError(format!("the argument {key:?}: no string satisfies its schema")));
    }
    let texts = texts.into_iter().map(Part::text).collect();
    Ok(Part::All(vec![Part::Any(texts), Part::text(end)]))
}
