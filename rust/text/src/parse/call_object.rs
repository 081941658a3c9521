//! A call as one JSON object: `{"name": ..., "arguments": {...}}`, in any order of the keys.

use std::mem::take;
use std::sync::Arc;

use super::args::{Flow, JsonArgs};
use super::json::{JsonValue, Step};
use super::output::Output;
use super::schema::ToolSchemas;
use super::{MAX_HELD, Malformed};

#[derive(Clone, Debug)]
enum State {
    /// Before `{`.
    Open,
    /// Before a key; `}` may come instead if the flag is set.
    Key {
        first: bool,
    },
    KeyText(JsonValue),
    Colon,
    /// Before the value of the key just read.
    Value,
    Name(JsonValue),
    Arguments,
    /// Arguments that came before the name.
    Early(JsonValue),
    Skipped(JsonValue),
    After,
}

/// Reads one object and writes one call.
#[derive(Debug)]
pub(super) struct CallObject {
    state: State,
    /// The key or string that is being read, with its quotes.
    text: String,
    name: Option<String>,
    early: Option<String>,
    arguments: JsonArgs,
    /// Objects that are open: 2 inside `"function": {...}`.
    depth: u32,
    started: bool,
    /// With declared tools, the object stands in plain text, where any other object is content. `None` between markers.
    bare: Option<Arc<ToolSchemas>>,
}

impl CallObject {
    pub(super) fn new(bare: Option<Arc<ToolSchemas>>) -> Self {
        Self {
            state: State::Open,
            text: String::new(),
            name: None,
            early: None,
            arguments: JsonArgs::default(),
            depth: 0,
            started: false,
            bare,
        }
    }

    /// Takes the next character. The call is left open: whoever knows what follows ends it.
    pub(super) fn feed(&mut self, c: char, out: &mut Output) -> Result<Flow, Malformed> {
        let spaced = !matches!(
            self.state,
            State::KeyText(_) | State::Name(_) | State::Arguments | State::Early(_) | State::Skipped(_)
        );
        if spaced && c.is_whitespace() {
            return Ok(Flow::More);
        }
        match (&mut self.state, c) {
            (State::Open, '{') => {
                self.depth += 1;
                self.state = State::Key { first: true };
            }
            (State::Key { .. }, '"') => {
                self.text.clear();
                self.state = State::KeyText(JsonValue::default());
                return self.feed(c, out);
            }
            (State::Key { first: true } | State::After, '}') => return self.close(out),
            (State::After, ',') => self.state = State::Key { first: false },
            (State::KeyText(value), _) => {
                if read_text(value, &mut self.text, c)? {
                    self.state = State::Colon;
                }
            }
            (State::Colon, ':') => self.state = State::Value,
            (State::Value, _) => return self.begin_value(c, out),
            (State::Name(value), _) => {
                if read_text(value, &mut self.text, c)? {
                    self.name = Some(decode(&self.text)?);
                    self.state = State::After;
                    if let Some(early) = self.early.take() {
                        return self.replay(&early, out);
                    }
                }
            }
            (State::Arguments, _) => {
                let flow = self.arguments.feed(c, out);
                if flow != Flow::Done {
                    return Ok(flow);
                }
                self.state = State::After;
            }
            (State::Early(value), _) => {
                let step = value.step(c);
                self.early.get_or_insert_default().push(c);
                match step {
                    Step::More => {}
                    Step::Done => self.state = State::After,
                    Step::Past | Step::Invalid => return Err(Malformed("the arguments are not JSON")),
                }
            }
            (State::Skipped(value), _) => match value.step(c) {
                Step::More => {}
                Step::Done => self.state = State::After,
                Step::Past => {
                    self.state = State::After;
                    return self.feed(c, out);
                }
                Step::Invalid => return self.stray(),
            },
            _ => return self.stray(),
        }
        Ok(Flow::More)
    }

    /// A character that does not belong here: behind the arguments it is not the call's.
    fn stray(&self) -> Result<Flow, Malformed> {
        if self.started { Ok(Flow::Past) } else { Err(Malformed("not a JSON object with a name")) }
    }

    fn begin_value(&mut self, c: char, out: &mut Output) -> Result<Flow, Malformed> {
        let key = decode(&take(&mut self.text))?;
        match key.as_str() {
            "name" if self.name.is_none() => {
                if c != '"' {
                    return Err(Malformed("the name is not a string"));
                }
                self.state = State::Name(JsonValue::default());
            }
            "arguments" | "parameters" if self.name.is_some() && !self.started => {
                self.start(out)?;
                self.state = State::Arguments;
            }
            "arguments" | "parameters" if self.early.is_none() && !self.started => {
                self.state = State::Early(JsonValue::default());
            }
            "function" if c == '{' && self.depth == 1 => {
                self.state = State::Open;
            }
            "type" | "id" | "index" => self.state = State::Skipped(JsonValue::default()),
            _ if self.bare.is_some() && !self.started => return Err(Malformed("a key that no call has")),
            _ => self.state = State::Skipped(JsonValue::default()),
        }
        self.feed(c, out)
    }

    fn start(&mut self, out: &mut Output) -> Result<(), Malformed> {
        let name = self.name.as_deref().filter(|name| !name.is_empty());
        let name = name.ok_or(Malformed("a call without a name"))?;
        if self.bare.as_ref().is_some_and(|tools| !tools.may_call(name)) {
            return Err(Malformed("not one of the tools"));
        }
        out.start_call(name, None);
        self.started = true;
        Ok(())
    }

    fn replay(&mut self, early: &str, out: &mut Output) -> Result<Flow, Malformed> {
        self.start(out)?;
        for c in early.chars() {
            let flow = self.arguments.feed(c, out);
            if flow == Flow::Broken {
                // It is JSON, and no object.
                out.arguments(early);
                out.end_call(false);
                break;
            }
        }
        Ok(Flow::More)
    }

    fn close(&mut self, out: &mut Output) -> Result<Flow, Malformed> {
        self.depth -= 1;
        if self.depth > 0 {
            self.state = State::After;
            return Ok(Flow::More);
        }
        if !self.started {
            if self.bare.is_some() {
                return Err(Malformed("an object without arguments"));
            }
            self.start(out)?;
        }
        Ok(Flow::Done)
    }

    /// The text has ended inside the object.
    pub(super) fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match self.state {
            _ if !self.started => return Err(Malformed("the text ended before the arguments")),
            State::Arguments => self.arguments.end(out),
            // The arguments are all there.
            _ => out.end_call(true),
        }
        Ok(())
    }
}

/// Takes a character of a string; true if it was the last one.
fn read_text(value: &mut JsonValue, text: &mut String, c: char) -> Result<bool, Malformed> {
    text.push(c);
    match value.step(c) {
        Step::More if text.len() < MAX_HELD => Ok(false),
        Step::Done => Ok(true),
        _ => Err(Malformed("not a string")),
    }
}

fn decode(text: &str) -> Result<String, Malformed> {
    serde_json::from_str(text).map_err(|_| Malformed("not a string"))
}
