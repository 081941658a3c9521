//! A call's arguments where the format has them one by one as bare text: they are written as a JSON object.

use std::mem::take;

use serde_json::Value;

use super::MAX_HELD;
use super::output::Output;
use super::schema::Kind;

#[derive(Clone, Debug, Default)]
enum Current {
    #[default]
    None,
    /// A string, given out as it comes.
    Text { begun: bool, newline: bool },
    /// Kept until it is known what it is.
    Json(String),
}

/// Writes the arguments of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Params {
    any: bool,
    /// The format puts one newline before and after each value.
    framed: bool,
    current: Current,
    /// Text stood where only arguments may: the call is not what the model meant.
    spoiled: bool,
}

impl Params {
    pub(super) fn new(framed: bool) -> Self {
        Self { framed, ..Self::default() }
    }

    pub(super) fn begin(&mut self, key: &str, kind: Kind, out: &mut Output) {
        out.arguments(if self.any { ", " } else { "{" });
        self.any = true;
        out.arguments(&Value::from(key).to_string());
        out.arguments(": ");
        self.current = match kind {
            Kind::Text => {
                out.argument('"');
                Current::Text { begun: false, newline: false }
            }
            Kind::Json => Current::Json(String::new()),
        };
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Output) {
        for c in text.chars() {
            self.push_char(c, out);
        }
    }

    fn push_char(&mut self, c: char, out: &mut Output) {
        match &mut self.current {
            Current::None => {}
            Current::Text { begun, newline } => {
                let first = !std::mem::replace(begun, true);
                if self.framed && c == '\n' && first {
                    return;
                }
                if take(newline) {
                    escape('\n', out);
                }
                if self.framed && c == '\n' {
                    *newline = true;
                } else {
                    escape(c, out);
                }
            }
            Current::Json(text) => {
                text.push(c);
                if text.len() > MAX_HELD {
                    // Too long to wait for: as a string it need not be kept.
                    let text = take(text);
                    out.argument('"');
                    self.current = Current::Text { begun: false, newline: false };
                    self.push(&text, out);
                }
            }
        }
    }

    /// Text between arguments: kept as it is, and the call is not complete.
    pub(super) fn stray(&mut self, text: &str, out: &mut Output) {
        if !text.trim().is_empty() {
            self.spoiled = true;
            out.arguments(text);
        }
    }

    /// The value has ended.
    pub(super) fn end_value(&mut self, out: &mut Output) {
        match take(&mut self.current) {
            Current::None => {}
            Current::Text { .. } => out.argument('"'),
            Current::Json(text) => out.arguments(&as_json(&text, self.framed)),
        }
    }

    /// The call has ended.
    pub(super) fn finish(&mut self, out: &mut Output) {
        if self.any {
            out.argument('}');
        }
        out.end_call(!self.spoiled);
    }

    /// The text has ended inside the call.
    pub(super) fn cut(&mut self, out: &mut Output) {
        match take(&mut self.current) {
            Current::None => {}
            Current::Text { newline, .. } => {
                if newline {
                    escape('\n', out);
                }
            }
            Current::Json(text) => out.arguments(text.trim_start()),
        }
        out.end_call(false);
    }
}

/// Appends a character of a JSON string.
pub(super) fn escape(c: char, out: &mut Output) {
    match c {
        '"' => out.arguments("\\\""),
        '\\' => out.arguments("\\\\"),
        '\n' => out.arguments("\\n"),
        '\t' => out.arguments("\\t"),
        '\r' => out.arguments("\\r"),
        _ if c < ' ' => out.arguments(&format!("\\u{:04x}", u32::from(c))),
        _ => out.argument(c),
    }
}

fn as_json(text: &str, framed: bool) -> String {
    let trimmed = text.trim();
    // As Python spells them.
    match trimmed {
        "True" => return "true".to_owned(),
        "False" => return "false".to_owned(),
        "None" => return "null".to_owned(),
        _ => {}
    }
    if serde_json::from_str::<Value>(trimmed).is_ok() {
        return trimmed.to_owned();
    }
    let text = if framed {
        let text = text.strip_prefix('\n').unwrap_or(text);
        text.strip_suffix('\n').unwrap_or(text)
    } else {
        text
    };
    Value::from(text).to_string()
}
