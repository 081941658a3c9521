//! What a request may ask for, before it is compiled.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::gbnf;
use crate::part::Part;
use crate::structural;

/// Why a specification is refused: a lower-case sentence that names the construct and where it stands.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct GrammarError(pub String);

impl GrammarError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The language that the output must be in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GrammarKind {
    /// JSON that satisfies this schema, given as text: the order of its properties is the order of the output's.
    Json(String),
    /// Text that this regular expression matches as a whole, in the dialect of Rust's `regex` crate.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in Lark's notation, with the rule `start`.
    Lark(String),
    /// A text of marked parts, such as tool calls.
    Parts(Part),
}

/// Blank space between the tokens of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Whitespace {
    /// What pretty printers write: one space, or a line break and an indentation of bounded length. Unbounded space
    /// would let a model loop on it until its limit.
    #[default]
    Bounded,
    /// None: compact JSON.
    None,
    /// What this regular expression matches.
    Pattern(String),
}

/// A grammar as it was asked for; the key under which the compiled one is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrammarSpec {
    /// The language.
    pub kind: GrammarKind,
    /// Blank space, for JSON only.
    pub whitespace: Whitespace,
    /// Drop the keywords of a schema that cannot be enforced instead of refusing them.
    pub lenient: bool,
    /// Bind the reasoning too.
    pub in_reasoning: bool,
}

impl From<GrammarKind> for GrammarSpec {
    fn from(kind: GrammarKind) -> Self {
        Self { kind, whitespace: Whitespace::default(), lenient: false, in_reasoning: false }
    }
}

/// The kinds of constraint that a `structured_outputs` object may hold, exactly one of them.
const KINDS: [&str; 6] = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];
/// Options beside the kind.
const OPTIONS: [&str; 4] = ["whitespace_pattern", "disable_any_whitespace", "lenient", "enable_in_reasoning"];

fn wrong(name: &str, wanted: &str) -> GrammarError {
    GrammarError::new(format!("{name} must be {wanted}"))
}

fn text(name: &str, value: &Value) -> Result<String, GrammarError> {
    match value {
        Value::String(text) if text.trim().is_empty() => Err(GrammarError::new(format!("{name} is empty"))),
        Value::String(text) => Ok(text.clone()),
        _ => Err(wrong(name, "a string")),
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, GrammarError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong(name, "true or false")),
    }
}

impl GrammarSpec {
    /// JSON that satisfies `schema`: an object, a boolean, or either of them as text.
    pub fn json(name: &str, schema: &Value) -> Result<Self, GrammarError> {
        let schema = match schema {
            Value::Object(_) | Value::Bool(_) => schema.to_string(),
            Value::String(_) => {
                let text = text(name, schema)?;
                let parsed: Value = serde_json::from_str(&text)
                    .map_err(|error| GrammarError::new(format!("{name} is not valid JSON: {error}")))?;
                if !matches!(parsed, Value::Object(_) | Value::Bool(_)) {
                    return Err(wrong(name, "a JSON schema, which is an object or a boolean"));
                }
                parsed.to_string()
            }
            _ => return Err(wrong(name, "a JSON schema, which is an object or a boolean")),
        };
        Ok(GrammarKind::Json(schema).into())
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        GrammarKind::Json(r#"{"type":"object"}"#.to_owned()).into()
    }

    /// Reads a `structured_outputs` object. `None` if it asks for nothing.
    ///
    /// # Errors
    /// A field that is unknown, of the wrong type or empty, and more or less than one kind.
    pub fn from_structured_outputs(fields: &Map<String, Value>) -> Result<Option<Self>, GrammarError> {
        let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let known = KINDS.contains(&name.as_str()) || OPTIONS.contains(&name.as_str());
            // The peers' flag of this name has a default that asks for nothing.
            let off = name == "disable_additional_properties" && *value == Value::Bool(false);
            if !known && !off {
                let message = format!(
                    "{name:?} is not supported; supported are {}",
                    [&KINDS[..], &OPTIONS].concat().join(", ")
                );
                return Err(GrammarError::new(message));
            }
        }
        // `json_object: false` asks for nothing.
        let asks = |name: &&str| {
            given(name).is_some_and(|value| *name != "json_object" || *value != Value::Bool(false))
        };
        let kinds: Vec<&str> = KINDS.into_iter().filter(|name| asks(name)).collect();
        let [kind] = kinds[..] else {
            if kinds.is_empty()
                && given("json_object").is_none()
                && !OPTIONS.iter().any(|name| given(name).is_some())
            {
                return Ok(None);
            }
            let found = if kinds.is_empty() { "none".to_owned() } else { kinds.join(" and ") };
            let message = format!("exactly one of {} must be given, got {found}", KINDS.join(", "));
            return Err(GrammarError::new(message));
        };
        let value = &fields[kind];
        let mut spec = match kind {
            "json" => Self::json("json", value)?,
            "regex" => GrammarKind::Regex(text("regex", value)?).into(),
            "choice" => GrammarKind::Choice(choices(value)?).into(),
            "grammar" => GrammarKind::Lark(text("grammar", value)?).into(),
            "structural_tag" => GrammarKind::Parts(structural::read(value)?).into(),
            _ if *value == Value::Bool(true) => Self::json_object(),
            _ => return Err(wrong("json_object", "true or false")),
        };
        spec.read_options(fields)?;
        Ok(Some(spec))
    }

    fn read_options(&mut self, fields: &Map<String, Value>) -> Result<(), GrammarError> {
        self.lenient = flag(fields, "lenient")?;
        self.in_reasoning = flag(fields, "enable_in_reasoning")?;
        let compact = flag(fields, "disable_any_whitespace")?;
        let pattern = match fields.get("whitespace_pattern") {
            None | Some(Value::Null) => None,
            Some(Value::String(pattern)) => Some(blank_pattern(pattern)?),
            Some(_) => return Err(wrong("whitespace_pattern", "a string")),
        };
        let json = matches!(self.kind, GrammarKind::Json(_));
        if !json && (self.lenient || compact || pattern.is_some()) {
            let options = OPTIONS[..3].join(", ");
            return Err(GrammarError::new(format!("{options} are for JSON only")));
        }
        self.whitespace = match (compact, pattern) {
            (true, Some(_)) => {
                let message = "whitespace_pattern and disable_any_whitespace contradict each other";
                return Err(GrammarError::new(message));
            }
            (true, None) => Whitespace::None,
            (false, Some(pattern)) => Whitespace::Pattern(pattern),
            (false, None) => Whitespace::Bounded,
        };
        Ok(())
    }

    /// The language as a part of a text.
    ///
    /// # Errors
    /// A grammar in EBNF that cannot be translated.
    pub fn as_part(&self) -> Result<Part, GrammarError> {
        Ok(match &self.kind {
            GrammarKind::Json(schema) => Part::Json { schema: schema.clone(), lenient: self.lenient },
            GrammarKind::Regex(regex) => Part::Regex(regex.clone()),
            GrammarKind::Choice(texts) => Part::Any(texts.iter().map(|text| Part::text(&**text)).collect()),
            GrammarKind::Lark(text) if gbnf::is_gbnf(text) => Part::Lark(gbnf::to_lark(text)?),
            GrammarKind::Lark(text) => Part::Lark(text.clone()),
            GrammarKind::Parts(part) => part.clone(),
        })
    }

    /// Bytes of the specification.
    pub fn len(&self) -> usize {
        let whitespace = if let Whitespace::Pattern(pattern) = &self.whitespace { pattern.len() } else { 0 };
        whitespace
            + match &self.kind {
                GrammarKind::Json(text) | GrammarKind::Regex(text) | GrammarKind::Lark(text) => text.len(),
                GrammarKind::Choice(texts) => texts.iter().map(String::len).sum(),
                GrammarKind::Parts(part) => part.len(),
            }
    }

    /// True for a specification without a text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Checks that a regular expression matches nothing but JSON's blank space; with `\s` in JSON's sense.
fn blank_pattern(pattern: &str) -> Result<String, GrammarError> {
    let plain =
        pattern.replace(r"\s", r"[ \t\n\r]").replace(r"\t", "\t").replace(r"\n", "\n").replace(r"\r", "\r");
    let blank = |character: char| " \t\n\r()[]*+?|".contains(character);
    let mut in_count = false;
    for character in plain.chars() {
        match character {
            '{' => in_count = true,
            '}' => in_count = false,
            _ if blank(character) || (in_count && (character.is_ascii_digit() || character == ',')) => {}
            _ => {
                let message = format!(
                    "whitespace_pattern must match nothing but JSON's blank space, got {character:?} in it"
                );
                return Err(GrammarError::new(message));
            }
        }
    }
    if plain.is_empty() {
        return Err(GrammarError::new("whitespace_pattern is empty"));
    }
    Ok(plain)
}

fn choices(value: &Value) -> Result<Vec<String>, GrammarError> {
    let Value::Array(items) = value else { return Err(wrong("choice", "a list of strings")) };
    if items.is_empty() {
        return Err(GrammarError::new("choice is empty"));
    }
    let texts = items.iter().enumerate().map(|(at, item)| match item {
        Value::String(text) if text.is_empty() => Err(GrammarError::new(format!("choice[{at}] is empty"))),
        Value::String(text) => Ok(text.clone()),
        _ => Err(wrong(&format!("choice[{at}]"), "a string")),
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<Option<GrammarSpec>, GrammarError> {
        GrammarSpec::from_structured_outputs(value.as_object().expect("a test gives an object"))
    }

    fn refused(value: &Value) -> String {
        read(value).expect_err("this must be refused").0
    }

    #[test]
    fn empty_specifications_are_refused_by_name_vllm_23215() {
        for (value, name) in [
            (json!({"grammar": ""}), "grammar"),
            (json!({"grammar": "   "}), "grammar"),
            (json!({"choice": []}), "choice"),
            (json!({"choice": [""]}), "choice[0]"),
            (json!({"regex": ""}), "regex"),
            (json!({"json": ""}), "json"),
        ] {
            let message = refused(&value);
            assert!(message.starts_with(name) && message.ends_with("is empty"), "{message}");
        }
        let any = read(&json!({"json": {}})).expect("the empty schema is any JSON");
        assert_eq!(any, Some(GrammarKind::Json("{}".to_owned()).into()));
    }

    #[test]
    fn exactly_one_kind_is_taken_vllm_23215() {
        assert!(refused(&json!({"regex": "a", "choice": ["a"]})).contains("got regex and choice"));
        assert!(refused(&json!({"lenient": true})).contains("got none"));
        assert!(refused(&json!({"json_object": false})).contains("got none"));
        assert_eq!(read(&json!({})), Ok(None));
        assert_eq!(read(&json!({"json": null})), Ok(None));
    }

    #[test]
    fn no_field_is_ignored() {
        assert!(refused(&json!({"jsno": {}})).contains("\"jsno\" is not supported"));
        assert!(refused(&json!({"json": {}, "structural_tag": {}})).contains("got json and structural_tag"));
        assert!(refused(&json!({"regex": "a", "whitespace_pattern": " "})).contains("for JSON only"));
        assert!(refused(&json!({"json": 1})).contains("JSON schema"));
        assert!(refused(&json!({"json": "[1]"})).contains("JSON schema"));
        assert!(refused(&json!({"json": "{"})).contains("not valid JSON"));
    }

    #[test]
    fn a_whitespace_pattern_cannot_open_the_grammar() {
        for bad in [".*", "[^a]*", "a", r"\w", r"\S", "-", ""] {
            assert!(refused(&json!({"json": {}, "whitespace_pattern": bad})).contains("whitespace_pattern"));
        }
        for good in [" ", r"[ \n]?", r"\s{0,4}", "( |\t)+", r"[\s]*"] {
            assert!(read(&json!({"json": {}, "whitespace_pattern": good})).is_ok(), "{good}");
        }
    }

    #[test]
    fn options_of_whitespace_exclude_each_other() {
        let compact = read(&json!({"json": {}, "disable_any_whitespace": true})).expect("compact JSON");
        assert_eq!(compact.map(|spec| spec.whitespace), Some(Whitespace::None));
        let both = json!({"json": {}, "disable_any_whitespace": true, "whitespace_pattern": " "});
        assert!(refused(&both).contains("contradict"));
    }
}
