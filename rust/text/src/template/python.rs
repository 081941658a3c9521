//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

use super::MAX_OUTPUT;

type Result<T = ()> = std::result::Result<T, Error>;

/// Values nested deeper than this are not written; neither are they in Python.
const MAX_NESTING: usize = 200;
/// Most values inside one value that is written. A list can hold another many times over without taking memory, so the
/// size of the template's data is no limit.
const MAX_VALUES: usize = 1 << 20;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Writes what `{{ value }}` shows.
pub(super) fn format(out: &mut Output<'_>, _state: &State<'_, '_>, value: &Value) -> Result {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&to_str(value)?),
    };
    written.map_err(Error::from)
}

/// `str(value)`.
pub(super) fn to_str(value: &Value) -> Result<String> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut writer = Writer::default();
            writer.repr(value, 0)?;
            Ok(writer.out)
        }
    }
}

/// An error in one line, with the place in the template.
pub(super) fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

/// Text of a value, within limits.
#[derive(Default)]
struct Writer {
    out: String,
    values: usize,
}

impl Writer {
    fn enter(&mut self, depth: usize) -> Result {
        self.values += 1;
        if self.values > MAX_VALUES || self.out.len() > MAX_OUTPUT {
            return Err(invalid(format!(
                "a value holds more than {MAX_VALUES} values or {MAX_OUTPUT} bytes of text"
            )));
        }
        if depth > MAX_NESTING {
            return Err(invalid(format!("a value is nested deeper than {MAX_NESTING}")));
        }
        Ok(())
    }

    fn repr(&mut self, value: &Value, depth: usize) -> Result {
        self.enter(depth)?;
        match value.kind() {
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str("None"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => write_str_repr(&mut self.out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                for (i, item) in value.try_iter()?.enumerate() {
                    self.out.push_str(if i > 0 { ", " } else { "" });
                    self.repr(&item, depth + 1)?;
                }
                self.out.push(']');
            }
            ValueKind::Map => {
                self.out.push('{');
                for (i, key) in value.try_iter()?.enumerate() {
                    self.out.push_str(if i > 0 { ", " } else { "" });
                    self.repr(&key, depth + 1)?;
                    self.out.push_str(": ");
                    self.repr(&value.get_item(&key)?, depth + 1)?;
                }
                self.out.push('}');
            }
            _ => self.out.push_str(&value.to_string()),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(x) if !value.is_integer() => self.out.push_str(&float_repr(x)),
            _ => self.out.push_str(&value.to_string()),
        }
    }
}

/// `repr(x)`: the shortest digits that read back as `x`, with an exponent below 1e-4 and from 1e16 on.
fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = x.to_string();
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable` for the characters that occur: no controls, separators, format or private-use characters.
fn is_printable(c: char) -> bool {
    let hidden = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{e0000}'..='\u{10ffff}');
    !(c.is_control() || hidden || (c.is_whitespace() && c != ' '))
}

/// How `json.dumps` is asked to write.
struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The `tojson` filter: `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(clippy::needless_pass_by_value, reason = "minijinja hands arguments over by value")]
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String> {
    let option = |name: &str, positional: Option<Value>| -> Result<Option<Value>> {
        let given = positional.or(kwargs.get::<Option<Value>>(name)?);
        Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let indent = match option("indent", indent)? {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(i64::try_from(indent)?.clamp(0, 64) as usize),
        }),
    };
    let (item_separator, key_separator) = match option("separators", None)? {
        Some(pair) => (to_str(&pair.get_item_by_index(0)?)?, to_str(&pair.get_item_by_index(1)?)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        ensure_ascii: option("ensure_ascii", ensure_ascii)?.is_some_and(|value| value.is_true()),
        indent,
        item_separator,
        key_separator,
        sort_keys: option("sort_keys", None)?.is_some_and(|value| value.is_true()),
    };
    kwargs.assert_all_used()?;
    let mut writer = Writer::default();
    style.write(&mut writer, value, 0)?;
    Ok(writer.out)
}

impl JsonStyle {
    fn write(&self, writer: &mut Writer, value: &Value, depth: usize) -> Result {
        writer.enter(depth)?;
        match value.kind() {
            ValueKind::None => writer.out.push_str("null"),
            ValueKind::Bool => writer.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(x) if x.is_nan() => writer.out.push_str("NaN"),
                Ok(x) if x.is_infinite() => {
                    writer.out.push_str(if x > 0.0 { "Infinity" } else { "-Infinity" });
                }
                _ => writer.number(value),
            },
            ValueKind::String => self.write_string(&mut writer.out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.write_block(writer, ['[', ']'], depth, items, |writer, item| {
                    self.write(writer, &item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_block(writer, ['{', '}'], depth, keys.into_iter(), |writer, key| {
                    self.write_string(&mut writer.out, &json_key(&key)?);
                    writer.out.push_str(&self.key_separator);
                    self.write(writer, &value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("a value of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_block(
        &self,
        writer: &mut Writer,
        [open, close]: [char; 2],
        depth: usize,
        items: impl Iterator<Item = Value>,
        mut write: impl FnMut(&mut Writer, Value) -> Result,
    ) -> Result {
        writer.out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                writer.out.push_str(&self.item_separator);
            }
            empty = false;
            self.new_line(&mut writer.out, depth + 1);
            write(writer, item)?;
        }
        if !empty {
            self.new_line(&mut writer.out, depth);
        }
        writer.out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !matches!(c, ' '..='~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Keys become strings as in `json.dumps`: numbers and constants as JSON writes them.
fn json_key(key: &Value) -> Result<String> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        ValueKind::Number => to_str(key)?,
        kind => return Err(invalid(format!("a key of type {kind} is not JSON serializable"))),
    })
}
