//! Texts made of parts: literal ones with special tokens in them, free ones, JSON and regular expressions, one after the
//! other or one of several. Tool calls and structural tags are such texts; they become one grammar in Lark's notation.

use std::fmt::Write;

use frizzen_core::TokenId;
use serde::{Deserialize, Serialize};

use crate::compiler::schema_for_library;
use crate::spec::{GrammarError, Whitespace};

/// A text, or the set of texts, that may stand in one place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Part {
    /// This text. Names of special tokens in it stand for the tokens.
    Text(String),
    /// JSON that satisfies this schema.
    Json {
        /// The schema as text.
        schema: String,
        /// Leave out what of it cannot be enforced.
        lenient: bool,
    },
    /// What this regular expression matches.
    Regex(String),
    /// What this grammar in Lark's notation describes.
    Lark(String),
    /// Free text up to and including the first `end`; nothing of `without` stands before it.
    Until {
        /// What ends the text. Not empty.
        end: String,
        /// What the text before the end does not contain; what `end` itself contains is no fault.
        without: Vec<String>,
    },
    /// Free text without any of these.
    Free {
        /// What the text does not contain.
        without: Vec<String>,
    },
    /// These, one after the other.
    All(Vec<Part>),
    /// One of these; not empty.
    Any(Vec<Part>),
    /// One text after the other.
    Repeat {
        /// Each of them.
        part: Box<Part>,
        /// What stands between two of them.
        separator: String,
        /// Fewest.
        min: u32,
        /// Most; `None` without a limit.
        max: Option<u32>,
    },
}

impl Part {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The part, or nothing.
    #[must_use]
    pub fn optional(self) -> Self {
        Self::Repeat { part: Box::new(self), separator: String::new(), min: 0, max: Some(1) }
    }

    /// Bytes of the specification.
    pub fn len(&self) -> usize {
        let sum = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
        match self {
            Self::Text(text) | Self::Json { schema: text, .. } | Self::Regex(text) | Self::Lark(text) => {
                text.len()
            }
            Self::Until { end, without } => end.len() + sum(without),
            Self::Free { without } => sum(without),
            Self::All(parts) | Self::Any(parts) => parts.iter().map(|part| 1 + part.len()).sum(),
            Self::Repeat { part, separator, .. } => part.len() + separator.len(),
        }
    }

    /// True without a text in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The texts of regular expressions and grammars in it.
    pub(crate) fn nested_texts(&self) -> Vec<&str> {
        match self {
            Self::Regex(text) | Self::Lark(text) => vec![text],
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::nested_texts).collect(),
            Self::Repeat { part, .. } => part.nested_texts(),
            _ => Vec::new(),
        }
    }
}

/// A special token and the text that stands for it.
pub(crate) type Special = (String, TokenId);

/// The grammar of `part` in Lark's notation, and what was dropped from schemas that may be lenient.
pub(crate) fn to_lark(
    part: &Part,
    special: &[Special],
    whitespace: &Whitespace,
) -> Result<(String, Vec<String>), GrammarError> {
    let mut writer = Writer { special, whitespace, rules: String::new(), count: 0, dropped: Vec::new() };
    let start = writer.expression(part)?;
    Ok((format!("start: {start}\n{}", writer.rules), writer.dropped))
}

struct Writer<'a> {
    special: &'a [Special],
    whitespace: &'a Whitespace,
    rules: String,
    count: usize,
    dropped: Vec<String>,
}

impl Writer<'_> {
    /// A new rule or terminal; returns its name.
    fn define(&mut self, prefix: &str, body: &str) -> String {
        let name = format!("{prefix}{}", self.count);
        self.count += 1;
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    fn expression(&mut self, part: &Part) -> Result<String, GrammarError> {
        Ok(match part {
            Part::Text(text) => self.literal(text),
            Part::Json { schema, lenient } => {
                let (schema, dropped) = schema_for_library(schema, *lenient, self.whitespace)?;
                self.dropped.extend(dropped);
                self.define("json_", &format!("%json {schema}"))
            }
            Part::Regex(regex) => self.define("TEXT_", &regex_literal(regex)),
            Part::Lark(lark) => self.define("grammar_", &format!("%lark {{\n{lark}\n}}")),
            Part::Until { end, without } => self.until(end, without),
            Part::Free { without } => {
                let mut body = "/(?s:.*)/".to_owned();
                if let Some(found) = alternatives(without) {
                    let _ = write!(body, " & ~/(?s:.*)({found})(?s:.*)/");
                }
                self.define("TEXT_", &body)
            }
            Part::All(parts) => {
                let parts: Result<Vec<String>, _> = parts.iter().map(|part| self.expression(part)).collect();
                let parts = parts?.join(" ");
                if parts.is_empty() { "\"\"".to_owned() } else { format!("({parts})") }
            }
            Part::Any(parts) => {
                let parts: Result<Vec<String>, _> = parts.iter().map(|part| self.expression(part)).collect();
                format!("({})", parts?.join(" | "))
            }
            Part::Repeat { part, separator, min, max } => self.repeat(part, separator, *min, *max)?,
        })
    }

    /// A text as strings and special tokens.
    fn literal(&self, text: &str) -> String {
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            // The first special token in what is left, and the longest of those that begin there.
            let found = self.special.iter().filter_map(|(name, id)| Some((rest.find(name)?, name, id)));
            let found = found.min_by_key(|(at, name, _)| (*at, usize::MAX - name.len()));
            let (plain, token, after) = match found {
                Some((at, name, id)) => (&rest[..at], Some(id), &rest[at + name.len()..]),
                None => (rest, None, ""),
            };
            if !plain.is_empty() {
                pieces.push(string(plain));
            }
            pieces.extend(token.map(|id| format!("<[{id}]>")));
            rest = after;
        }
        if pieces.is_empty() { "\"\"".to_owned() } else { format!("({})", pieces.join(" ")) }
    }

    fn until(&mut self, end: &str, without: &[String]) -> String {
        let first = self.special.iter().filter_map(|(name, _)| end.find(name.as_str())).min();
        let (plain, special) = end.split_at(first.unwrap_or(end.len()));
        let mut body = format!("/(?s:.*){}/", escaped(plain));
        // No text contains a special token; but whoever reads the text cannot tell one from its name, spelled out.
        let mut all = without.to_vec();
        all.push(end.to_owned());
        if let Some(found) = alternatives(&all) {
            // What contains an end cannot go on, so the first end is the end.
            let _ = write!(body, " & ~/(?s:.*)({found})(?s:.+)/");
            if first.is_some() {
                let _ = write!(body, " & ~/(?s:.*)({found})/");
            }
        }
        let text = self.define("TEXT_", &body);
        if special.is_empty() { text } else { format!("({text} {})", self.literal(special)) }
    }

    fn repeat(
        &mut self,
        part: &Part,
        separator: &str,
        min: u32,
        max: Option<u32>,
    ) -> Result<String, GrammarError> {
        if max.is_some_and(|max| max < min) {
            return Err(GrammarError(format!("at least {min} and at most {max:?} parts are asked for")));
        }
        if max == Some(0) {
            return Ok("\"\"".to_owned());
        }
        let inner = self.expression(part)?;
        let one = self.define("part_", &inner);
        let times = |text: &str, min: u32, max: Option<u32>| match (min, max) {
            (0, Some(0)) => "\"\"".to_owned(),
            (1, Some(1)) => text.to_owned(),
            (0, Some(1)) => format!("({text})?"),
            (0, None) => format!("({text})*"),
            (1, None) => format!("({text})+"),
            (min, None) => format!("({text}){{{min},}}"),
            (min, Some(max)) => format!("({text}){{{min},{max}}}"),
        };
        if separator.is_empty() {
            return Ok(times(&one, min, max));
        }
        let more = format!("{} {one}", self.literal(separator));
        let more = times(&more, min.saturating_sub(1), max.map(|max| max - 1));
        Ok(if min == 0 { format!("({one} {more})?") } else { format!("({one} {more})") })
    }
}

/// A literal string of Lark.
fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A regular expression between slashes.
fn regex_literal(regex: &str) -> String {
    let mut out = String::from("/");
    let mut escape = false;
    for c in regex.chars() {
        match c {
            '/' if !escape => out.push_str("\\/"),
            '\n' if escape => {
                out.pop();
                out.push_str("\\n");
            }
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
        escape = c == '\\' && !escape;
    }
    out.push('/');
    out
}

/// A regular expression, within slashes, for one of these texts; `None` without any.
fn alternatives(texts: &[String]) -> Option<String> {
    let texts: Vec<String> = texts.iter().filter(|text| !text.is_empty()).map(|text| escaped(text)).collect();
    (!texts.is_empty()).then(|| texts.join("|"))
}

/// A regular expression, within slashes, for `text` itself.
pub(crate) fn escaped(text: &str) -> String {
    let mut regex = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '\n' {
            regex.push_str("\\n");
            continue;
        }
        if r"\.+*?()|[]{}^$#&-~/".contains(character) {
            regex.push('\\');
        }
        regex.push(character);
    }
    regex
}
