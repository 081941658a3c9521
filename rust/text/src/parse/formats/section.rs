//! Calls between special tokens: a section of calls, each a head, an opening marker, a JSON object and an end marker.

use std::mem::take;

use crate::parse::Malformed;
use crate::parse::args::{Broken, Flow, JsonArgs, Tail};
use crate::parse::frame::Body;
use crate::parse::output::Output;
use crate::parse::scan::Scan;

/// The words of one family.
#[derive(Debug)]
pub(super) struct SectionSpec {
    /// The markers before a call, after the section, and after a call.
    pub(super) between: [&'static str; 3],
    /// Ends the head.
    pub(super) args_open: &'static str,
    /// The marker after a call and, if a model forgets it, the one after the section.
    pub(super) close: &'static [&'static str],
    /// The name and, if the family has one, the id in a head.
    pub(super) head: fn(&str) -> (&str, Option<&str>),
}

#[derive(Debug)]
enum State {
    Between(Tail),
    Head(String),
    Arguments(JsonArgs),
    Broken(Broken),
}

/// Reads one section.
#[derive(Debug)]
pub(super) struct Section {
    spec: &'static SectionSpec,
    state: State,
    scan: Scan,
    /// The last character completed the marker after a call.
    settled: bool,
}

impl Section {
    /// A section after its opening marker or, if `in_call`, after the one before a call, since some models forget the
    /// other.
    pub(super) fn new(spec: &'static SectionSpec, in_call: bool) -> Self {
        let state = if in_call { State::Head(String::new()) } else { State::Between(Tail::default()) };
        Self { spec, state, scan: Scan::default(), settled: false }
    }

    fn start(&mut self, out: &mut Output) -> Result<(), Malformed> {
        let State::Head(head) = &mut self.state else { return Ok(()) };
        let head = take(head);
        let (name, id) = (self.spec.head)(&head);
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(Malformed("a call without a name"));
        }
        out.start_call(name, id.map(str::to_owned));
        self.state = State::Arguments(JsonArgs::default());
        Ok(())
    }
}

impl Body for Section {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        match &mut self.state {
            State::Between(tail) => {
                let found = tail.feed(c, &self.spec.between)?;
                self.settled = found == Some(2);
                if found == Some(0) {
                    self.state = State::Head(String::new());
                }
                Ok(found == Some(1))
            }
            State::Head(head) => {
                if self.scan.feed(c, &[self.spec.args_open], head).is_some() {
                    self.start(out)?;
                }
                Ok(false)
            }
            State::Arguments(arguments) => match arguments.feed(c, out) {
                Flow::More => Ok(false),
                Flow::Broken => {
                    self.state = State::Broken(Broken::new(self.spec.close));
                    self.feed(c, out)
                }
                Flow::Done | Flow::Past => {
                    out.end_call(true);
                    self.state = State::Between(Tail::default());
                    Ok(false)
                }
            },
            State::Broken(broken) => {
                let found = broken.feed(c, out);
                if found == Some(0) {
                    self.state = State::Between(Tail::default());
                }
                Ok(found == Some(1))
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.settled
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match &mut self.state {
            State::Between(_) => {}
            State::Head(_) => return Err(Malformed("the text ended before the arguments")),
            State::Arguments(arguments) => arguments.end(out),
            State::Broken(broken) => broken.end(out),
        }
        Ok(())
    }
}
