//! GLM 4.5 and later: `<tool_call>NAME`, then `<arg_key>` and `<arg_value>` in turn.

use std::sync::Arc;

use crate::parse::Malformed;
use crate::parse::frame::{Body, FrameSpec};
use crate::parse::output::Output;
use crate::parse::params::Params;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::scan::Scan;
use crate::parse::schema::ToolSchemas;
use crate::parse::syntax::{ArgumentSyntax, CallSyntax, EachSyntax};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "glm45",
    aliases: &["glm46", "glm47", "glm"],
    machine: Machine::Frame(FrameSpec::marked(&[OPEN], |_, tools| Box::new(Call::new(tools)))),
    markers: &[OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END],
    syntax: |_| CallSyntax {
        before_name: OPEN,
        after_name: "\n",
        arguments: ArgumentSyntax::Each(EachSyntax {
            before_key: KEY,
            before_json: "</arg_key>\n<arg_value>",
            before_text: Some("</arg_key>\n<arg_value>"),
            value_end: VALUE_END,
            frame: "",
            after_value: "\n",
            separator: "",
        }),
        end: CLOSE,
        trigger: Some(OPEN),
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Name,
    /// Before an argument or the end.
    Between,
    Key,
    BeforeValue,
    Value,
}

#[derive(Debug)]
struct Call {
    tools: Arc<ToolSchemas>,
    state: State,
    scan: Scan,
    name: String,
    key: String,
    params: Params,
}

impl Call {
    fn new(tools: &Arc<ToolSchemas>) -> Self {
        Self {
            tools: Arc::clone(tools),
            state: State::Name,
            scan: Scan::default(),
            name: String::new(),
            key: String::new(),
            params: Params::new(false, VALUE_END),
        }
    }

    /// What a marker between arguments does; true if it ends the call.
    fn marker(&mut self, marker: usize, out: &mut Output) -> bool {
        if marker == 0 {
            self.key.clear();
            self.state = State::Key;
            return false;
        }
        self.params.finish(out);
        true
    }

    fn start(&mut self, out: &mut Output) -> Result<(), Malformed> {
        let name = self.name.trim();
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "{<\"".contains(c)) {
            return Err(Malformed("a call without a name"));
        }
        out.start_call(name, None);
        Ok(())
    }
}

impl Body for Call {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        let mut text = String::new();
        match self.state {
            State::Name => {
                if let Some(marker) = self.scan.feed(c, &[KEY, CLOSE], &mut self.name) {
                    self.start(out)?;
                    return Ok(self.marker(marker, out));
                }
            }
            State::Between => {
                let found = self.scan.feed(c, &[KEY, CLOSE], &mut text);
                self.params.stray(&text, out);
                if let Some(marker) = found {
                    return Ok(self.marker(marker, out));
                }
            }
            State::Key => {
                if self.scan.feed(c, &[KEY_END], &mut self.key).is_some() {
                    self.state = State::BeforeValue;
                }
            }
            State::BeforeValue => {
                let found = self.scan.feed(c, &[VALUE], &mut text);
                self.params.stray(&text, out);
                if found.is_some() {
                    let key = self.key.trim();
                    let kind = self.tools.kind(self.name.trim(), key);
                    self.params.begin(key, kind, out);
                    self.state = State::Value;
                }
            }
            State::Value => {
                if self.params.feed(c, out) {
                    self.state = State::Between;
                }
            }
        }
        Ok(false)
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        if self.state == State::Name {
            return Err(Malformed("the text ended before the arguments"));
        }
        self.params.cut(out);
        Ok(())
    }

    fn unread(&mut self) -> String {
        self.params.unread()
    }

    fn give_up(&mut self, out: &mut Output) {
        if self.state == State::Value && self.params.give_up(&[KEY, CLOSE], out) {
            self.state = State::Between;
        }
    }
}
