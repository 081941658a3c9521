//! Python's methods on strings. Methods of mappings and lists are those of minijinja's Python compatibility module.
//!
//! Indices count characters, whitespace is Python's, and work is in proportion to the text: none of these can be made
//! to loop or to allocate without bound.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

type Result<T = Value> = std::result::Result<T, Error>;

/// Widest padding.
const MAX_WIDTH: usize = 1 << 20;

/// Calls `value.method(*args)`.
pub(super) fn call(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result {
    match value.as_str() {
        Some(text) => match string_method(text, method, args)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, value, method, args),
        },
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// `None` if the method is not one of ours.
fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => strip(text, method, args)?.into(),
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "splitlines" => splitlines(text, args)?,
        "partition" | "rpartition" => partition(text, method == "rpartition", args)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "find" | "rfind" | "index" | "rindex" => find(text, method, args)?,
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            text.matches(what).count().into()
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            pad(text, method, width, fill)?.into()
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            text.chars().map(swap).collect::<String>().into()
        }
        "casefold" => {
            let () = from_args(args)?;
            text.to_lowercase().into()
        }
        "isalnum" | "isalpha" | "isdigit" | "isdecimal" | "isnumeric" | "isspace" | "islower" | "isupper" => {
            let () = from_args(args)?;
            is(text, method).into()
        }
        _ => return Ok(None),
    }))
}

/// `str.isspace` of one character: Unicode whitespace and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

fn strip<'t>(text: &'t str, method: &str, args: &[Value]) -> Result<&'t str> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    Ok(match method {
        "lstrip" => text.trim_start_matches(strips),
        "rstrip" => text.trim_end_matches(strips),
        _ => text.trim_matches(strips),
    })
}

fn split(text: &str, from_right: bool, args: &[Value]) -> Result {
    let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?).filter(|s| !s.is_none());
    let limit = limit.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    // Python counts splits, Rust counts pieces; negative means no limit.
    let pieces = usize::try_from(limit).map_or(usize::MAX, |splits| splits.saturating_add(1));
    let Some(separator) = separator else { return Ok(split_whitespace(text, from_right, pieces)) };
    let separator = separator.as_str().ok_or_else(|| invalid("split needs a string"))?;
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    if from_right {
        let mut found: Vec<&str> = text.rsplitn(pieces, separator).collect();
        found.reverse();
        Ok(found.into_iter().map(Value::from).collect())
    } else {
        Ok(text.splitn(pieces, separator).map(Value::from).collect())
    }
}

/// Pieces between runs of whitespace; the piece after the last split keeps its inner whitespace.
fn split_whitespace(text: &str, from_right: bool, pieces: usize) -> Value {
    let mut found: Vec<&str> = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        let border = if from_right {
            rest.char_indices().rev().find(|(_, c)| is_space(*c)).map(|(at, c)| at + c.len_utf8())
        } else {
            rest.find(is_space)
        };
        match border.filter(|_| found.len() + 1 < pieces) {
            Some(at) if from_right => {
                found.push(&rest[at..]);
                rest = &rest[..at];
            }
            Some(at) => {
                found.push(&rest[..at]);
                rest = &rest[at..];
            }
            None => {
                found.push(rest);
                break;
            }
        }
    }
    if from_right {
        found.reverse();
    }
    found.into_iter().map(Value::from).collect()
}

fn splitlines(text: &str, args: &[Value]) -> Result {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let is_break =
        |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines: Vec<Value> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_break) {
        let tail = &rest[at..];
        let first = tail.chars().next().map_or(0, char::len_utf8);
        let end = at + if tail.starts_with("\r\n") { 2 } else { first };
        lines.push(rest[..if keep { end } else { at }].into());
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest.into());
    }
    Ok(Value::from(lines))
}

fn partition(text: &str, from_right: bool, args: &[Value]) -> Result {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let parts = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match parts {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn find(text: &str, method: &str, args: &[Value]) -> Result {
    let (what,): (&str,) = from_args(args)?;
    let at = if method.starts_with('r') { text.rfind(what) } else { text.find(what) };
    match at {
        Some(at) => Ok(text[..at].chars().count().into()),
        None if method.ends_with("index") => Err(invalid("substring not found")),
        None => Ok((-1).into()),
    }
}

/// `text.method(width, fill)` for the padding methods.
fn pad(text: &str, method: &str, width: usize, fill: Option<&str>) -> Result<String> {
    if width > MAX_WIDTH {
        return Err(invalid(format!("width {width} is over the limit of {MAX_WIDTH}")));
    }
    let mut chars = fill.unwrap_or(if method == "zfill" { "0" } else { " " }).chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(invalid("the fill character must be exactly one character long"));
    };
    let missing = width.saturating_sub(text.chars().count());
    let run = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    Ok(match method {
        "ljust" => format!("{text}{}", run(missing)),
        "rjust" => format!("{}{text}", run(missing)),
        "zfill" => {
            let digits = text.trim_start_matches(['+', '-']);
            let sign_len = (text.len() - digits.len()).min(1);
            format!("{}{}{}", &text[..sign_len], run(missing), &text[sign_len..])
        }
        // CPython puts the odd space on the left if the width is odd.
        _ => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", run(left), run(missing - left))
        }
    })
}

fn is(text: &str, method: &str) -> bool {
    let cased = |c: char| c.is_lowercase() || c.is_uppercase();
    match method {
        "islower" => text.chars().any(cased) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(cased) && !text.chars().any(char::is_lowercase),
        _ => {
            let class = match method {
                "isalnum" => char::is_alphanumeric,
                "isalpha" => char::is_alphabetic,
                "isspace" => is_space,
                _ => char::is_numeric,
            };
            !text.is_empty() && text.chars().all(class)
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
