//! Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one element per call.

use crate::parse::Malformed;
use crate::parse::args::{Broken, Flow, Tail};
use crate::parse::call_object::CallObject;
use crate::parse::frame::{Body, FrameSpec};
use crate::parse::output::Output;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::syntax::CallSyntax;

const CLOSE: &[&str] = &["</tool_call>"];

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "hermes",
    aliases: &["qwen", "qwen2", "qwen3"],
    machine: Machine::Frame(FrameSpec::marked(&["<tool_call>"], |_, _| Box::new(Element::new()))),
    markers: &["<tool_call>", "</tool_call>"],
    syntax: |_| CallSyntax {
        before_name: "<tool_call>\n{\"name\": \"",
        after_name: "\", \"arguments\": ",
        end: "}\n</tool_call>",
        trigger: Some("<tool_call>"),
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};

#[derive(Debug)]
enum Element {
    Call(Box<CallObject>),
    Broken(Broken),
    Tail(Tail),
}

impl Element {
    fn new() -> Self {
        Self::Call(Box::new(CallObject::new(None)))
    }
}

impl Body for Element {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        let flow = match self {
            Self::Broken(broken) => return Ok(broken.feed(c, out).is_some()),
            Self::Tail(tail) => return Ok(tail.feed(c, CLOSE)?.is_some()),
            Self::Call(call) => call.feed(c, out)?,
        };
        match flow {
            Flow::More => return Ok(false),
            Flow::Broken => *self = Self::Broken(Broken::new(CLOSE)),
            Flow::Done | Flow::Past => {
                out.end_call(true);
                *self = Self::Tail(Tail::default());
            }
        }
        if flow == Flow::Done { Ok(false) } else { self.feed(c, out) }
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match self {
            Self::Call(call) => return call.end(out),
            Self::Broken(broken) => broken.end(out),
            Self::Tail(_) => {}
        }
        Ok(())
    }
}
