//! A call's arguments where the format has them as one JSON object.

use super::MAX_HELD;
use super::json::{JsonValue, Step};
use super::output::Output;
use super::scan::Scan;

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

/// Waits for one of the markers that end a call, after its arguments.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    markers: &'static [&'static str],
    /// The arguments are no JSON, so nobody can say where they end but the marker.
    broken: bool,
    scan: Scan,
}

impl Closing {
    pub(super) fn new(markers: &'static [&'static str], broken: bool) -> Self {
        Self { markers, broken, scan: Scan::default() }
    }

    /// Takes the next character; the index of the marker once it is there. Text before it belongs to broken arguments,
    /// and is dropped otherwise: it is a surplus brace or a fence.
    pub(super) fn feed(&mut self, c: char, out: &mut Output) -> Option<usize> {
        let mut passed = String::new();
        let found = self.scan.feed(c, self.markers, &mut passed);
        if self.broken {
            out.arguments(&passed);
        }
        if found.is_some() {
            // A call between markers with nothing in it has no arguments.
            out.end_call(!self.broken || out.is_call_empty());
        }
        found
    }

    pub(super) fn end(&mut self, out: &mut Output) {
        if self.broken {
            out.arguments(&self.scan.take());
        }
        out.end_call(!self.broken);
    }
}
