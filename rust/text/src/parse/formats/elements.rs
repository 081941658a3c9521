//! Calls as elements: a function with a name, and in it a parameter with a key for each argument, as bare text.

use std::sync::Arc;

use crate::parse::Malformed;
use crate::parse::args::Tail;
use crate::parse::frame::Body;
use crate::parse::output::Output;
use crate::parse::params::Params;
use crate::parse::scan::Scan;
use crate::parse::schema::{Kind, ToolSchemas};

/// The words of one family.
#[derive(Debug)]
pub(super) struct ElementsSpec {
    /// Begins a call, before its name.
    pub(super) function: &'static str,
    pub(super) name_end: &'static str,
    /// Begins an argument, before its key.
    pub(super) parameter: &'static str,
    pub(super) key_end: &'static str,
    /// The key and, if the family writes it down, how the value is to be read.
    pub(super) key: fn(&str) -> (&str, Option<Kind>),
    pub(super) value_end: &'static str,
    pub(super) function_end: &'static str,
    /// Ends everything.
    pub(super) close: &'static str,
    /// Values stand between newlines that are not theirs.
    pub(super) framed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a call or the end.
    Between,
    Name,
    /// Inside a call, before an argument or its end.
    Inside,
    Key,
    Value,
}

/// Reads one or more calls.
#[derive(Debug)]
pub(super) struct Elements {
    spec: &'static ElementsSpec,
    tools: Arc<ToolSchemas>,
    state: State,
    scan: Scan,
    tail: Tail,
    name: String,
    key: String,
    params: Params,
}

impl Elements {
    /// Elements before their first call or, if `in_call`, before its name.
    pub(super) fn new(spec: &'static ElementsSpec, in_call: bool, tools: &Arc<ToolSchemas>) -> Self {
        Self {
            spec,
            tools: Arc::clone(tools),
            state: if in_call { State::Name } else { State::Between },
            scan: Scan::default(),
            tail: Tail::default(),
            name: String::new(),
            key: String::new(),
            params: Params::default(),
        }
    }

    fn start(&mut self, out: &mut Output) -> Result<(), Malformed> {
        let name = self.name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(Malformed("a call without a name"));
        }
        out.start_call(name, None);
        self.params = Params::new(self.spec.framed, self.spec.value_end);
        self.state = State::Inside;
        Ok(())
    }

    fn begin_value(&mut self, out: &mut Output) {
        let (key, kind) = (self.spec.key)(self.key.trim());
        let kind = kind.unwrap_or_else(|| self.tools.kind(self.name.trim(), key));
        self.params.begin(key, kind, out);
        self.key.clear();
        self.state = State::Value;
    }

    fn finish_call(&mut self, out: &mut Output) {
        self.params.finish(out);
        self.name.clear();
        self.state = State::Between;
    }
}

impl Body for Elements {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        let spec = self.spec;
        let mut text = String::new();
        match self.state {
            State::Between => {
                let found = self.tail.feed(c, &[spec.function, spec.close])?;
                if found == Some(0) {
                    self.state = State::Name;
                }
                return Ok(found == Some(1));
            }
            State::Name => {
                if self.scan.feed(c, &[spec.name_end], &mut self.name).is_some() {
                    self.start(out)?;
                }
            }
            State::Inside => {
                let markers = [spec.parameter, spec.function_end, spec.close];
                let found = self.scan.feed(c, &markers, &mut text);
                self.params.stray(&text, out);
                match found {
                    Some(0) => self.state = State::Key,
                    Some(1) => self.finish_call(out),
                    Some(_) => {
                        self.finish_call(out);
                        return Ok(true);
                    }
                    None => {}
                }
            }
            State::Key => {
                if self.scan.feed(c, &[spec.key_end], &mut self.key).is_some() {
                    self.begin_value(out);
                }
            }
            State::Value => {
                if self.params.feed(c, out) {
                    self.state = State::Inside;
                }
            }
        }
        Ok(false)
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match self.state {
            State::Between => {}
            State::Name => return Err(Malformed("the text ended before the arguments")),
            State::Inside | State::Key | State::Value => self.params.cut(out),
        }
        Ok(())
    }

    fn unread(&mut self) -> String {
        self.params.unread()
    }

    fn give_up(&mut self, out: &mut Output) {
        let ElementsSpec { parameter, function_end, close, .. } = self.spec;
        if self.state == State::Value && self.params.give_up(&[parameter, function_end, close], out) {
            self.state = State::Inside;
        }
    }
}
