//! Structural tags: JSON that describes a text of free and constrained parts, in the form that vLLM and xgrammar take.
//!
//! Two forms are read: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and the newer
//! `{"type": "structural_tag", "format": {...}}` with nested formats.

use serde_json::{Map, Value};

use crate::part::Part;
use crate::spec::GrammarError;

/// Deepest nesting of formats.
const MAX_DEPTH: usize = 32;

type Fields = Map<String, Value>;

fn refuse<T>(message: impl Into<String>) -> Result<T, GrammarError> {
    Err(GrammarError(format!("structural_tag: {}", message.into())))
}

/// Reads a structural tag, given as an object or as its text.
///
/// # Errors
/// A field that is missing, of the wrong type or not known; a format that cannot be enforced.
pub fn read(value: &Value) -> Result<Part, GrammarError> {
    let parsed;
    let value = match value {
        Value::String(text) => {
            parsed = serde_json::from_str::<Value>(text)
                .map_err(|error| GrammarError(format!("structural_tag is not valid JSON: {error}")))?;
            &parsed
        }
        _ => value,
    };
    let Value::Object(fields) = value else { return refuse("it must be an object, or one as text") };
    if fields.contains_key("structures") {
        known(fields, "it", &["type", "structures", "triggers"])?;
        let tags = list(fields, "structures")?
            .iter()
            .enumerate()
            .map(|(at, tag)| {
                let place = format!("structures[{at}]");
                let Value::Object(tag) = tag else { return refuse(format!("{place} must be an object")) };
                known(tag, &place, &["begin", "schema", "end"])?;
                let schema = tag.get("schema").filter(|schema| !schema.is_null());
                let schema = schema.cloned().unwrap_or_else(|| Value::Object(Map::new()));
                Ok(Tag {
                    begin: text(tag, &place, "begin")?.to_owned(),
                    content: json(&schema, &place)?,
                    end: text(tag, &place, "end")?.to_owned(),
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        return triggered(&tags, &strings(fields, "triggers")?, Limits::default());
    }
    known(fields, "it", &["type", "format"])?;
    match fields.get("format") {
        Some(format) => part(format, "format", None, 0),
        None => refuse("it needs either structures and triggers, or a format"),
    }
}

struct Tag {
    begin: String,
    content: Content,
    end: String,
}

enum Content {
    Part(Part),
    /// Free text to the end of the tag.
    AnyText,
}

impl Tag {
    /// The tag behind the first `skip` bytes of its beginning.
    fn part(&self, skip: usize) -> Part {
        let begin = Part::text(&self.begin[skip..]);
        match &self.content {
            Content::Part(content) => Part::All(vec![begin, content.clone(), Part::text(&*self.end)]),
            Content::AnyText => Part::All(vec![begin, free_until(&self.end)]),
        }
    }
}

fn free_until(end: &str) -> Part {
    if end.is_empty() {
        Part::Free { without: Vec::new() }
    } else {
        Part::Until { end: end.to_owned(), without: Vec::new() }
    }
}

#[derive(Clone, Copy, Default)]
struct Limits {
    at_least_one: bool,
    stop_after_first: bool,
}

impl Limits {
    fn read(fields: &Fields, place: &str) -> Result<Self, GrammarError> {
        let flag = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => refuse(format!("{place}.{name} must be true or false")),
        };
        Ok(Self { at_least_one: flag("at_least_one")?, stop_after_first: flag("stop_after_first")? })
    }
}

/// Free text in which each trigger begins a tag.
fn triggered(tags: &[Tag], triggers: &[String], limits: Limits) -> Result<Part, GrammarError> {
    if triggers.is_empty() || triggers.iter().any(String::is_empty) {
        return refuse("triggers must be at least one text, none of them empty");
    }
    if let Some(tag) = tags.iter().find(|tag| !triggers.iter().any(|trigger| tag.begin.starts_with(trigger)))
    {
        return refuse(format!("the tag {:?} begins with none of the triggers", tag.begin));
    }
    let mut ways = Vec::new();
    for trigger in triggers {
        if triggers.iter().any(|other| other != trigger && other.contains(trigger.as_str())) {
            return refuse(format!("the trigger {trigger:?} stands in another one"));
        }
        let mut begun: Vec<Part> = tags
            .iter()
            .filter(|tag| tag.begin.starts_with(trigger))
            .map(|tag| tag.part(trigger.len()))
            .collect();
        if begun.is_empty() {
            return refuse(format!("no tag begins with the trigger {trigger:?}"));
        }
        let without = triggers.iter().filter(|other| *other != trigger).cloned().collect();
        let before = Part::Until { end: trigger.clone(), without };
        let tag = if begun.len() == 1 { begun.remove(0) } else { Part::Any(begun) };
        ways.push(Part::All(vec![before, tag]));
    }
    let tags = Part::Repeat {
        part: Box::new(Part::Any(ways)),
        separator: String::new(),
        min: u32::from(limits.at_least_one),
        max: limits.stop_after_first.then_some(1),
    };
    let rest = Part::Free { without: triggers.to_vec() };
    Ok(match (limits.stop_after_first, limits.at_least_one) {
        (true, true) => tags,
        (true, false) => Part::Any(vec![tags, rest]),
        (false, _) => Part::All(vec![tags, rest]),
    })
}

/// A format; `end` is the text that follows it, if one does.
fn part(format: &Value, place: &str, end: Option<&str>, depth: usize) -> Result<Part, GrammarError> {
    let Value::Object(fields) = format else { return refuse(format!("{place} must be an object")) };
    if depth > MAX_DEPTH {
        return refuse(format!("formats are more than {MAX_DEPTH} deep"));
    }
    let kind = text(fields, place, "type")?;
    let nested = |name: &str| -> Result<Vec<Part>, GrammarError> {
        let items = list(fields, name)?;
        items
            .iter()
            .enumerate()
            .map(|(at, item)| part(item, &format!("{place}.{name}[{at}]"), None, depth + 1))
            .collect()
    };
    match kind {
        "const_string" => {
            known(fields, place, &["type", "value"])?;
            Ok(Part::text(text(fields, place, "value")?))
        }
        "json_schema" => {
            known(fields, place, &["type", "json_schema"])?;
            match json(fields.get("json_schema").unwrap_or(&Value::Null), place)? {
                Content::Part(part) => Ok(part),
                Content::AnyText => Ok(Part::Free { without: Vec::new() }),
            }
        }
        "regex" => {
            known(fields, place, &["type", "pattern"])?;
            Ok(Part::Regex(text(fields, place, "pattern")?.to_owned()))
        }
        "any_text" => {
            known(fields, place, &["type"])?;
            Ok(free_until(end.unwrap_or_default()))
        }
        "sequence" => {
            known(fields, place, &["type", "elements"])?;
            sequence(list(fields, "elements")?, place, depth)
        }
        "or" => {
            known(fields, place, &["type", "elements"])?;
            let ways = nested("elements")?;
            if ways.is_empty() { refuse(format!("{place}.elements is empty")) } else { Ok(Part::Any(ways)) }
        }
        "tag" => Ok(tag(fields, place, depth)?.part(0)),
        "triggered_tags" => {
            known(fields, place, &["type", "triggers", "tags", "at_least_one", "stop_after_first"])?;
            triggered(
                &tags(fields, place, depth)?,
                &strings(fields, "triggers")?,
                Limits::read(fields, place)?,
            )
        }
        "tags_with_separator" => {
            known(fields, place, &["type", "tags", "separator", "at_least_one", "stop_after_first"])?;
            let limits = Limits::read(fields, place)?;
            Ok(Part::Repeat {
                part: Box::new(Part::Any(
                    tags(fields, place, depth)?.iter().map(|tag| tag.part(0)).collect(),
                )),
                separator: text(fields, place, "separator")?.to_owned(),
                min: u32::from(limits.at_least_one),
                max: limits.stop_after_first.then_some(1),
            })
        }
        other => refuse(format!("{place}: the format {other:?} is not supported")),
    }
}

fn sequence(items: &[Value], place: &str, depth: usize) -> Result<Part, GrammarError> {
    let kind = |item: &Value| item.get("type").and_then(Value::as_str).map(str::to_owned);
    let mut parts = Vec::new();
    let mut skip = false;
    for (at, item) in items.iter().enumerate() {
        let place = format!("{place}.elements[{at}]");
        if std::mem::take(&mut skip) {
            continue;
        }
        if kind(item).as_deref() != Some("any_text") || at + 1 == items.len() {
            parts.push(part(item, &place, None, depth + 1)?);
            continue;
        }
        // Free text must be told from what follows it.
        let next = &items[at + 1];
        let end = next.get("value").and_then(Value::as_str).filter(|end| !end.is_empty());
        match end.filter(|_| kind(next).as_deref() == Some("const_string")) {
            Some(end) => parts.push(part(item, &place, Some(end), depth + 1)?),
            None => return refuse(format!("{place}: any_text can be followed by a const_string only")),
        }
        skip = true;
    }
    Ok(Part::All(parts))
}

fn tags(fields: &Fields, place: &str, depth: usize) -> Result<Vec<Tag>, GrammarError> {
    let items = list(fields, "tags")?;
    if items.is_empty() {
        return refuse(format!("{place}.tags is empty"));
    }
    let each = items.iter().enumerate().map(|(at, item)| {
        let place = format!("{place}.tags[{at}]");
        match item {
            Value::Object(fields) => tag(fields, &place, depth),
            _ => refuse(format!("{place} must be an object")),
        }
    });
    each.collect()
}

fn tag(fields: &Fields, place: &str, depth: usize) -> Result<Tag, GrammarError> {
    known(fields, place, &["type", "begin", "content", "end"])?;
    let Some(content) = fields.get("content") else { return refuse(format!("{place}.content is missing")) };
    let any = content.get("type").and_then(Value::as_str) == Some("any_text");
    let inner = format!("{place}.content");
    Ok(Tag {
        begin: text(fields, place, "begin")?.to_owned(),
        content: if any { Content::AnyText } else { Content::Part(part(content, &inner, None, depth + 1)?) },
        end: text(fields, place, "end")?.to_owned(),
    })
}

fn json(schema: &Value, place: &str) -> Result<Content, GrammarError> {
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        return refuse(format!("{place} needs a JSON schema, which is an object or a boolean"));
    }
    Ok(Content::Part(Part::Json { schema: schema.to_string(), lenient: false }))
}

fn known(fields: &Fields, place: &str, names: &[&str]) -> Result<(), GrammarError> {
    match fields.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => refuse(format!("{place}: the field {name:?} is not supported")),
        None => Ok(()),
    }
}

fn text<'a>(fields: &'a Fields, place: &str, name: &str) -> Result<&'a str, GrammarError> {
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text),
        _ => refuse(format!("{place}.{name} must be a string")),
    }
}

fn list<'a>(fields: &'a Fields, name: &str) -> Result<&'a [Value], GrammarError> {
    match fields.get(name) {
        Some(Value::Array(items)) => Ok(items),
        _ => refuse(format!("{name} must be a list")),
    }
}

fn strings(fields: &Fields, name: &str) -> Result<Vec<String>, GrammarError> {
    let items = list(fields, name)?.iter().map(|item| match item {
        Value::String(text) => Ok(text.clone()),
        _ => refuse(format!("{name} must be a list of strings")),
    });
    items.collect()
}
