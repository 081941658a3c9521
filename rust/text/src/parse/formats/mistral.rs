//! Mistral: `[TOOL_CALLS]`, then a list of `{"name": ..., "arguments": {...}}`, or in later models one call as
//! `name[ARGS]{...}`, possibly with `[CALL_ID]id` between the two.

use std::mem::take;

use crate::parse::Malformed;
use crate::parse::args::{Broken, Flow, JsonArgs};
use crate::parse::call_object::CallObject;
use crate::parse::frame::{Body, FrameSpec};
use crate::parse::output::{IdStyle, Output};
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::syntax::CallSyntax;

const OPEN: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "mistral",
    machine: Machine::Frame(FrameSpec::marked(&[OPEN], |_, _| Box::new(Calls::Start))),
    markers: &[OPEN, ARGS, CALL_ID],
    ids: IdStyle::Nine,
    syntax: |has_token| {
        if has_token(ARGS) {
            return CallSyntax {
                separator: Some(""),
                before_name: OPEN,
                after_name: ARGS,
                trigger: Some(OPEN),
                ..CallSyntax::DEFAULT
            };
        }
        CallSyntax {
            open: "[TOOL_CALLS][",
            close: "]",
            separator: Some(", "),
            before_name: "{\"name\": \"",
            after_name: "\", \"arguments\": ",
            end: "}",
            trigger: Some(OPEN),
            ..CallSyntax::DEFAULT
        }
    },
    ..ToolFormat::DEFAULT
};

#[derive(Debug)]
enum Calls {
    Start,
    /// Before an object of the list; `]` may come instead if the flag is set.
    Item {
        first: bool,
    },
    Object(Box<CallObject>),
    /// After an object of the list.
    Comma,
    /// The name and perhaps an id, up to the arguments.
    Head(String),
    Arguments(JsonArgs),
    /// The arguments are no JSON: up to the next call, they are what they are.
    Broken(Broken),
}

impl Calls {
    fn goto(&mut self, state: Self) -> bool {
        *self = state;
        false
    }

    fn object(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        let Self::Object(call) = self else { return Ok(false) };
        match call.feed(c, out)? {
            Flow::More => Ok(false),
            Flow::Done => {
                out.end_call(true);
                Ok(self.goto(Self::Comma))
            }
            Flow::Past => {
                out.end_call(true);
                Err(Malformed("text between the arguments and the end of the object"))
            }
            Flow::Broken => {
                *self = Self::Broken(Broken::new(&[OPEN]));
                self.feed(c, out)
            }
        }
    }

    fn head(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        let Self::Head(head) = self else { return Ok(false) };
        if c != '{' && !head.ends_with(ARGS) {
            head.push(c);
            return Ok(false);
        }
        let head = take(head);
        let head = head.strip_suffix(ARGS).unwrap_or(&head);
        let (name, id) = head.split_once(CALL_ID).map_or((head, None), |(name, id)| (name, Some(id)));
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(Malformed("a call without a name"));
        }
        out.start_call(name, id.map(|id| id.trim().to_owned()));
        *self = Self::Arguments(JsonArgs::default());
        self.feed(c, out)
    }
}

impl Body for Calls {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        let spaced = matches!(self, Self::Start | Self::Item { .. } | Self::Comma);
        if spaced && c.is_whitespace() {
            return Ok(false);
        }
        match (&mut *self, c) {
            (Self::Start, '[') => Ok(self.goto(Self::Item { first: true })),
            (Self::Start, _) => {
                *self = Self::Head(String::new());
                self.feed(c, out)
            }
            (Self::Item { first: true } | Self::Comma, ']') => Ok(true),
            (Self::Item { .. }, '{') => {
                *self = Self::Object(Box::new(CallObject::new(None)));
                self.feed(c, out)
            }
            (Self::Comma, ',') => Ok(self.goto(Self::Item { first: false })),
            (Self::Item { .. } | Self::Comma, _) => Err(Malformed("not a list of calls")),
            (Self::Object(_), _) => self.object(c, out),
            (Self::Head(_), _) => self.head(c, out),
            (Self::Arguments(arguments), _) => match arguments.feed(c, out) {
                Flow::More => Ok(false),
                Flow::Done | Flow::Past => {
                    out.end_call(true);
                    Ok(true)
                }
                Flow::Broken => {
                    *self = Self::Broken(Broken::new(&[OPEN]));
                    self.feed(c, out)
                }
            },
            (Self::Broken(broken), _) => {
                if broken.feed(c, out).is_some() {
                    *self = Self::Start;
                }
                Ok(false)
            }
        }
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match self {
            Self::Start | Self::Head(_) => return Err(Malformed("the text ended before the arguments")),
            Self::Object(call) => return call.end(out),
            Self::Arguments(arguments) => arguments.end(out),
            Self::Broken(broken) => broken.end(out),
            Self::Item { .. } | Self::Comma => {}
        }
        Ok(())
    }
}
