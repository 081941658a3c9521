//! Llama 3: a bare `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before it; several are
//! separated by `;`.

use std::sync::Arc;

use crate::parse::Malformed;
use crate::parse::args::{Broken, Flow};
use crate::parse::call_object::CallObject;
use crate::parse::frame::{Body, FrameSpec};
use crate::parse::output::Output;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::schema::ToolSchemas;
use crate::parse::syntax::CallSyntax;

const TAG: &str = "<|python_tag|>";

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "llama3_json",
    aliases: &["llama3", "llama4_json"],
    machine: Machine::Frame(FrameSpec {
        bare: Some('{'),
        separator: Some(';'),
        ..FrameSpec::marked(&[TAG], |_, tools| Box::new(BareCall::new(tools)))
    }),
    markers: &[TAG],
    syntax: |_| CallSyntax {
        separator: Some("; "),
        before_name: "{\"name\": \"",
        after_name: "\", \"parameters\": ",
        end: "}",
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};

#[derive(Debug)]
enum BareCall {
    Call(Box<CallObject>),
    /// The arguments are no JSON: everything up to the end of the text belongs to them.
    Broken(Broken),
}

impl BareCall {
    fn new(tools: &Arc<ToolSchemas>) -> Self {
        Self::Call(Box::new(CallObject::new(Some(Arc::clone(tools)))))
    }
}

impl Body for BareCall {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        let call = match self {
            Self::Broken(broken) => return Ok(broken.feed(c, out).is_some()),
            Self::Call(call) => call,
        };
        match call.feed(c, out)? {
            Flow::More => Ok(false),
            Flow::Done => {
                out.end_call(true);
                Ok(true)
            }
            Flow::Past => {
                out.end_call(true);
                Err(Malformed("text between the arguments and the end of the object"))
            }
            Flow::Broken => {
                *self = Self::Broken(Broken::new(&[]));
                self.feed(c, out)
            }
        }
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match self {
            Self::Call(call) => return call.end(out),
            Self::Broken(broken) => broken.end(out),
        }
        Ok(())
    }
}
