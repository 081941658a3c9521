//! A call's arguments where the format has them as one JSON object.

use super::json::{JsonValue, Step};
use super::output::Output;
use super::scan::Scan;
use super::{MAX_HELD, Malformed};

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// There is more to come.
    More,
    /// It was the last one.
    Done,
    /// What it belongs to has ended before it.
    Past,
    /// The arguments are not JSON from this character on, which is still to be dealt with.
    Broken,
}

#[derive(Clone, Debug, Default)]
enum Form {
    #[default]
    Waiting,
    Object,
    /// The object as the text of a JSON string, which some models write; given out when it is complete.
    Quoted(String),
    /// `null`, as far as it was read.
    Null(String),
}

/// Passes a JSON object on, character by character. `null` is no arguments. A control character inside a string, which
/// models write for code of several lines and which JSON forbids, is passed on as its escape.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonArgs {
    form: Form,
    json: JsonValue,
}

impl JsonArgs {
    pub(super) fn feed(&mut self, c: char, out: &mut Output) -> Flow {
        if matches!(self.form, Form::Waiting) {
            self.form = match c {
                '{' => Form::Object,
                '"' => Form::Quoted(String::new()),
                'n' => Form::Null(String::new()),
                _ if c.is_whitespace() => return Flow::More,
                _ => return Flow::Broken,
            };
        }
        let in_text = self.json.in_text();
        let step = self.json.step(c);
        match &mut self.form {
            Form::Quoted(text) => {
                text.push(c);
                if step == Step::More && text.len() < MAX_HELD {
                    return Flow::More;
                }
                let (decoded, is_object) = unquote(text);
                out.arguments(&decoded);
                if !is_object {
                    out.end_call(false);
                }
                Flow::Done
            }
            Form::Null(read) if step == Step::Invalid => {
                out.arguments(read);
                Flow::Broken
            }
            Form::Null(read) => {
                read.push(c);
                if step == Step::Done { Flow::Done } else { Flow::More }
            }
            _ if step == Step::Invalid => Flow::Broken,
            Form::Object => {
                if in_text && c < ' ' {
                    out.arguments(&format!("\\u{:04x}", u32::from(c)));
                } else {
                    out.argument(c);
                }
                if step == Step::Done { Flow::Done } else { Flow::More }
            }
            Form::Waiting => Flow::More,
        }
    }

    /// The text has ended inside the arguments.
    pub(super) fn end(&mut self, out: &mut Output) {
        if let Form::Quoted(text) = &self.form {
            out.arguments(&unquote(text).0);
        }
        out.end_call(false);
    }
}

/// The content of a JSON string whose end may be missing, and whether it is a JSON object.
fn unquote(text: &str) -> (String, bool) {
    let decoded =
        serde_json::from_str::<String>(text).or_else(|_| serde_json::from_str(&format!("{text}\"")));
    let decoded = decoded.unwrap_or_else(|_| text.to_owned());
    let is_object = serde_json::from_str::<serde_json::Value>(&decoded).is_ok_and(|value| value.is_object());
    (decoded, is_object)
}

/// Arguments that are no JSON: nobody can say where they end but a marker, so everything before it belongs to them.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    markers: &'static [&'static str],
    scan: Scan,
}

impl Broken {
    pub(super) fn new(markers: &'static [&'static str]) -> Self {
        Self { markers, scan: Scan::default() }
    }

    /// Takes the next character; the index of the marker once it is there, and the call has ended.
    pub(super) fn feed(&mut self, c: char, out: &mut Output) -> Option<usize> {
        let mut passed = String::new();
        let found = self.scan.feed(c, self.markers, &mut passed);
        out.arguments(&passed);
        if found.is_some() {
            // With nothing before the marker there are no arguments, which is no fault.
            out.end_call(out.is_call_empty());
        }
        found
    }

    pub(super) fn end(&mut self, out: &mut Output) {
        out.arguments(&self.scan.take());
        out.end_call(false);
    }
}

/// Waits for a marker after a call. White space and what models write too much (a brace, a fence) is markup.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    scan: Scan,
}

impl Tail {
    /// Takes the next character; the index of the marker once it is there.
    pub(super) fn feed(&mut self, c: char, markers: &[&str]) -> Result<Option<usize>, Malformed> {
        let mut text = String::new();
        let found = self.scan.feed(c, markers, &mut text);
        if text.chars().all(|c| c.is_whitespace() || matches!(c, '}' | '`')) {
            Ok(found)
        } else {
            Err(Malformed("text where a call should begin or end"))
        }
    }
}
