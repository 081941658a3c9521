//! What all tool formats share: content until a call opens, the call, content again.

use std::collections::VecDeque;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use super::output::Output;
use super::scan::Scan;
use super::schema::ToolSchemas;
use super::{MAX_HELD, Malformed, StreamParser, Uncommitted};

/// The inside of a format: everything from an opening marker to where content goes on.
pub(super) trait Body: fmt::Debug + Send {
    /// Takes the next character; true if it was the last one.
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed>;

    /// True if the text so far is markup to its end, so that nothing of it can be content any more.
    fn is_settled(&self) -> bool {
        false
    }

    /// Text that was taken in vain and is to be read again, before any other.
    fn unread(&mut self) -> String {
        String::new()
    }

    /// The text has ended: what waits for more text gives up, if that leaves something to be read again.
    fn give_up(&mut self, _: &mut Output) {}

    /// The text has ended: what has begun as a call is ended, and a head without a call is an error.
    fn end(&mut self, out: &mut Output) -> Result<(), Malformed>;
}

/// How a format opens.
#[derive(Clone, Copy, Debug)]
pub struct FrameSpec {
    /// Markers that open a body.
    pub(super) opens: &'static [&'static str],
    /// Markers that mean nothing outside a body and are dropped there.
    pub(super) drops: &'static [&'static str],
    /// A character that opens a body where nothing but white space stands before it or between it and the last call.
    pub(super) bare: Option<char>,
    /// A character between bare calls.
    pub(super) separator: Option<char>,
    /// Makes the body for the marker with this index; `None` is the bare character, which the body takes next.
    pub(super) body: fn(Option<usize>, &Arc<ToolSchemas>) -> Box<dyn Body>,
}

impl FrameSpec {
    /// A format that opens with one of these markers only.
    pub(super) const fn marked(
        opens: &'static [&'static str],
        body: fn(Option<usize>, &Arc<ToolSchemas>) -> Box<dyn Body>,
    ) -> Self {
        Self { opens, drops: &[], bare: None, separator: None, body }
    }
}

/// A tool format at work.
#[derive(Debug)]
pub(super) struct Frame {
    spec: &'static FrameSpec,
    markers: Vec<&'static str>,
    tools: Arc<ToolSchemas>,
    scan: Scan,
    body: Option<Box<dyn Body>>,
    /// Characters to be read before any other.
    pending: VecDeque<char>,
    /// Text of the body that is not committed to a call.
    held: String,
    /// `held` begins with what opened the body: there was no call in it yet.
    fresh: bool,
    /// Only white space so far, or since the last call.
    blank: bool,
    called: bool,
}

impl Frame {
    pub(super) fn new(spec: &'static FrameSpec, tools: Arc<ToolSchemas>) -> Self {
        let markers = [spec.opens, spec.drops].concat();
        Self {
            spec,
            markers,
            tools,
            scan: Scan::default(),
            body: None,
            pending: VecDeque::new(),
            held: String::new(),
            fresh: false,
            blank: true,
            called: false,
        }
    }

    fn open(&mut self, marker: Option<usize>) {
        self.body = Some((self.spec.body)(marker, &self.tools));
        self.fresh = true;
        self.held = marker.map_or_else(String::new, |index| self.markers[index].to_owned());
    }

    fn read_pending(&mut self, out: &mut Output) -> Result<(), Malformed> {
        while let Some(c) = self.pending.pop_front() {
            if self.body.is_some() {
                self.feed_body(c, out)?;
            } else {
                self.feed_text(c, out)?;
            }
        }
        Ok(())
    }

    fn feed_body(&mut self, c: char, out: &mut Output) -> Result<(), Malformed> {
        let Some(body) = &mut self.body else { return Ok(()) };
        self.held.push(c);
        let (in_call, calls) = (out.in_call(), out.calls());
        let done = body.feed(c, out)?;
        put_back(&mut self.pending, &body.unread());
        let committed = in_call || out.calls() > calls;
        if committed {
            self.called = true;
            self.fresh = false;
        }
        if committed || body.is_settled() {
            self.held.clear();
        }
        if done {
            self.body = None;
            self.held.clear();
            self.blank = true;
        } else if self.held.len() > MAX_HELD {
            return Err(Malformed("the head of a call is too long"));
        }
        Ok(())
    }

    fn feed_text(&mut self, c: char, out: &mut Output) -> Result<(), Malformed> {
        let separates = self.called && self.blank && self.scan.is_empty();
        if separates && self.spec.separator == Some(c) {
            return Ok(());
        }
        let mut text = String::new();
        let found = self.scan.feed(c, &self.markers, &mut text);
        for c in text.chars() {
            if self.blank && self.spec.bare == Some(c) {
                self.open(None);
                self.feed_body(c, out)?;
            } else {
                self.blank &= c.is_whitespace();
                out.content(c);
            }
        }
        if let Some(marker) = found.filter(|marker| *marker < self.spec.opens.len()) {
            self.open(Some(marker));
        }
        Ok(())
    }
}

/// What is to be read before anything else.
fn put_back(pending: &mut VecDeque<char>, text: &str) {
    text.chars().rev().for_each(|c| pending.push_front(c));
}

impl StreamParser for Frame {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<(), Malformed> {
        self.pending.push_back(c);
        self.read_pending(out)
    }

    fn finish(&mut self, out: &mut Output) -> Result<(), Malformed> {
        while let Some(body) = &mut self.body {
            body.give_up(out);
            put_back(&mut self.pending, &body.unread());
            if self.pending.is_empty() {
                break;
            }
            self.read_pending(out)?;
        }
        match &mut self.body {
            Some(body) => body.end(out)?,
            None => self.scan.take().chars().for_each(|c| out.content(c)),
        }
        self.body = None;
        self.held.clear();
        Ok(())
    }

    fn reset(&mut self) -> Uncommitted {
        self.body = None;
        self.blank = false;
        let held = take(&mut self.held);
        // Behind a call, what is held is a few characters that were looked at as markup only.
        let mut uncommitted =
            if self.fresh { Uncommitted::head(held) } else { Uncommitted { text: held, again: 0 } };
        uncommitted.text.extend(self.pending.drain(..));
        uncommitted
    }

    fn is_idle(&self) -> bool {
        self.body.is_none()
    }

    fn is_in_head(&self) -> bool {
        // Of a bare format too: the body would have refused what cannot become a call.
        self.body.is_some()
    }

    fn pause(&mut self, out: &mut Output) {
        for c in self.scan.take().chars() {
            self.blank = false;
            out.content(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::{Machine, ToolFormat};
    use super::super::{Delta, IdStyle};
    use super::*;

    fn hermes() -> Frame {
        let Some(ToolFormat { machine: Machine::Frame(spec), .. }) = ToolFormat::named("hermes") else {
            panic!("hermes is a framed format");
        };
        Frame::new(spec, Arc::default())
    }

    fn feed(frame: &mut Frame, text: &str, out: &mut Output) -> Result<(), Malformed> {
        text.chars().try_for_each(|c| frame.feed(c, out))
    }

    #[test]
    fn what_was_committed_survives_an_error_and_the_rest_is_given_back() {
        let (mut frame, mut out) = (hermes(), Output::new(IdStyle::default(), 0));
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        feed(&mut frame, &format!("Hi.{call}"), &mut out).unwrap();
        let committed = out.take();
        assert_eq!(committed.len(), 4, "{committed:?}");
        assert!(feed(&mut frame, " <tool_call>\n[", &mut out).is_err());
        assert_eq!(out.take(), []);
        assert_eq!(frame.reset(), Uncommitted::head("<tool_call>\n[".to_owned()));
        // In the content state again.
        feed(&mut frame, call, &mut out).unwrap();
        assert!(matches!(&out.take()[..], [Delta::CallStart { index: 1, .. }, ..]));
    }

    #[test]
    fn the_end_is_all_or_nothing() {
        let (mut frame, mut out) = (hermes(), Output::new(IdStyle::default(), 0));
        feed(&mut frame, "<tool_call>{\"name\": \"f", &mut out).unwrap();
        assert!(frame.finish(&mut out).is_err());
        assert_eq!(out.take(), []);
        assert_eq!(frame.reset().text, "<tool_call>{\"name\": \"f");
        frame.finish(&mut out).unwrap();
        assert_eq!(out.take(), []);
    }
}
