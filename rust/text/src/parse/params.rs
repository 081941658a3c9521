//! A call's arguments where the format has them one by one as bare text: they are written as a JSON object.

use std::mem::take;

use serde_json::Value;

use super::output::Output;
use super::scan::Scan;
use super::schema::Kind;
use super::value::{HeldValue, Taken};

#[derive(Clone, Debug, Default)]
enum Current {
    #[default]
    None,
    /// A string, given out as it comes.
    Text { begun: bool, newline: bool, scan: Scan },
    /// Kept until it is known what it is.
    Json(HeldValue),
}

impl Current {
    fn text() -> Self {
        Self::Text { begun: false, newline: false, scan: Scan::default() }
    }
}

/// Writes the arguments of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Params {
    any: bool,
    /// The format puts one newline before and after each value.
    framed: bool,
    current: Current,
    /// The text that ends a value.
    tag: &'static str,
    /// What was read behind the end of a value, before that was known.
    unread: String,
    /// Text stood where only arguments may: the call is not what the model meant.
    spoiled: bool,
}

impl Params {
    /// For values that `tag` ends.
    pub(super) fn new(framed: bool, tag: &'static str) -> Self {
        Self { framed, tag, ..Self::default() }
    }

    pub(super) fn begin(&mut self, key: &str, kind: Kind, out: &mut Output) {
        out.arguments(if self.any { ", " } else { "{" });
        self.any = true;
        out.arguments(&Value::from(key).to_string());
        out.arguments(": ");
        self.current = match kind {
            Kind::Text => {
                out.argument('"');
                Current::text()
            }
            Kind::Json => Current::Json(HeldValue::default()),
        };
    }

    /// Takes the next character of the value; true if it has ended, and [`Self::unread`] is to be read behind it.
    pub(super) fn feed(&mut self, c: char, out: &mut Output) -> bool {
        match &mut self.current {
            Current::None => true,
            Current::Text { scan, .. } => {
                let mut text = String::new();
                let found = scan.feed(c, &[self.tag], &mut text);
                self.write(&text, out);
                if found.is_some() {
                    self.end_value(out);
                }
                found.is_some()
            }
            Current::Json(value) => match value.feed(c, self.tag) {
                Taken::More => false,
                Taken::Ended(rest) => {
                    self.unread = rest;
                    self.end_value(out);
                    true
                }
                Taken::TooLong => {
                    // Too long to wait for: as a string it need not be kept.
                    let text = take(value).into_text();
                    out.argument('"');
                    self.current = Current::text();
                    text.chars().any(|c| self.feed(c, out))
                }
            },
        }
    }

    /// The text ends here; true if the value has ended before, as in [`Self::feed`]. `markers` may stand behind a value.
    pub(super) fn give_up(&mut self, markers: &[&str], out: &mut Output) -> bool {
        let Current::Json(value) = &mut self.current else { return false };
        let Some(rest) = value.give_up(self.tag, markers) else { return false };
        self.unread = rest;
        self.end_value(out);
        true
    }

    /// What was read behind a value that has ended.
    pub(super) fn unread(&mut self) -> String {
        take(&mut self.unread)
    }

    /// Writes a part of a string.
    fn write(&mut self, text: &str, out: &mut Output) {
        let Current::Text { begun, newline, .. } = &mut self.current else { return };
        for c in text.chars() {
            let first = !std::mem::replace(begun, true);
            if self.framed && c == '\n' && first {
                continue;
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
    }

    /// Text between arguments: kept as it is, and the call is not complete.
    pub(super) fn stray(&mut self, text: &str, out: &mut Output) {
        if !text.trim().is_empty() {
            self.spoiled = true;
            out.arguments(text);
        }
    }

    fn end_value(&mut self, out: &mut Output) {
        match take(&mut self.current) {
            Current::None => {}
            Current::Text { .. } => out.argument('"'),
            Current::Json(value) => out.arguments(&as_json(&value.into_text(), self.framed)),
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
        if let Current::Text { scan, .. } = &mut self.current {
            let held = scan.take();
            self.write(&held, out);
        }
        match take(&mut self.current) {
            Current::None => {}
            Current::Text { newline, .. } => {
                if newline {
                    escape('\n', out);
                }
            }
            Current::Json(value) => out.arguments(value.into_text().trim_start()),
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
