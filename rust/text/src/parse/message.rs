//! Composition: reasoning, then tool calls in what is left.

use std::mem::take;
use std::sync::Arc;

use super::formats::harmony::Harmony;
use super::frame::Frame;
use super::output::{Delta, Output};
use super::plugin::PluggedParser;
use super::registry::{Format, Machine};
use super::schema::ToolSchemas;
use super::tags::Tags;
use super::{Malformed, StreamParser, Uncommitted};

/// Most reasons that are kept.
const MAX_NOTES: usize = 16;

/// Where a text begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Nobody knows: what is usual for the format.
    #[default]
    Unknown,
    /// Inside reasoning, which the prompt opened.
    Reasoning,
    /// Outside reasoning, which the text may open.
    Answer,
}

/// What a parser knows beside the text.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Where the text begins.
    pub start: Start,
    /// The declared tools.
    pub tools: Arc<ToolSchemas>,
    /// The ids of calls are a function of it and of their position.
    pub id_seed: u64,
    /// Reasoning ends at its closing tag and nowhere else, not even where a call seems to open: so it is where a grammar
    /// binds what follows that tag. It does not open again after what is bound.
    pub closed_by_tag: bool,
    /// Nothing but calls may follow the reasoning: there is no content.
    pub forced: bool,
}

/// A parser for one text. It never fails: see [`notes`](Self::notes).
#[derive(Debug)]
pub struct MessageParser {
    tags: Option<Tags>,
    parser: Option<Box<dyn StreamParser>>,
    out: Output,
    passed: String,
    notes: Vec<Malformed>,
    forced: bool,
}

impl Format {
    /// True if a text that begins so begins inside reasoning.
    pub(super) fn opens_at(&self, start: Start) -> bool {
        match start {
            Start::Unknown => self.reasoning.is_some_and(|format| format.assumed_open),
            Start::Reasoning => self.reasoning.is_some(),
            Start::Answer => false,
        }
    }

    fn tags(&self, open: bool, closed_by_tag: bool) -> Option<Tags> {
        let pair = self.tag_pair().filter(|_| !self.is_harmony())?;
        let opens = self.tools.map_or(&[][..], |tools| tools.opens());
        let ends = if closed_by_tag { &[] } else { opens };
        let reopens = !closed_by_tag && self.reasoning.is_some_and(|format| format.reopens);
        Some(Tags::new(pair, ends, open, reopens))
    }
}

impl MessageParser {
    /// A parser at the beginning of a text.
    pub fn new(format: Format, setup: &Setup) -> Self {
        let open = format.opens_at(setup.start);
        let style = format.tools.map(|tools| tools.ids).unwrap_or_default();
        let mut out = Output::new(style, setup.id_seed);
        if open {
            out.begin_reasoning();
        }
        let parser: Option<Box<dyn StreamParser>> = if format.is_harmony() {
            Some(Box::new(Harmony::new(format.tools.is_some(), open)))
        } else {
            match format.tools.map(|tools| &tools.machine) {
                Some(Machine::Frame(spec)) => Some(Box::new(Frame::new(spec, Arc::clone(&setup.tools)))),
                Some(Machine::Plugged(spec)) => Some(Box::new(PluggedParser::new(spec))),
                _ => None,
            }
        };
        let tags = format.tags(open, setup.closed_by_tag);
        Self { tags, parser, out, passed: String::new(), notes: Vec::new(), forced: setup.forced }
    }

    /// Takes the next piece of the text, cut anywhere; what it makes certain.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        text.chars().for_each(|c| self.take(c));
        self.out.take()
    }

    /// Takes the next character; true if it may belong to a stop string: none in reasoning or in the markup around it
    /// does.
    pub(super) fn admits(&mut self, c: char) -> bool {
        let hidden = self.hides();
        self.take(c);
        self.out.take();
        !hidden && !self.hides()
    }

    fn hides(&self) -> bool {
        match &self.tags {
            Some(tags) => tags.is_inside(),
            None => self.parser.as_ref().is_some_and(|parser| parser.hides()),
        }
    }

    fn take(&mut self, c: char) {
        let Some(tags) = &mut self.tags else { return self.feed(c) };
        if !tags.may_reopen() {
            tags.feed(c, &mut self.out, &mut self.passed);
        } else if tags.reopens_at(
            c,
            self.parser.as_ref().is_none_or(|parser| parser.is_idle()),
            &mut self.passed,
        ) {
            // What came before the tag was passed on when the tag began.
            if let Some(parser) = &mut self.parser {
                parser.pause(&mut self.out);
            }
            tags.reopen(&mut self.out);
        }
        self.pass();
    }

    /// The text has ended: everything that was held back. Nothing may be pushed after it.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.end(false)
    }

    /// The text was cut off here, by a limit and not by the model: the same, but for the head of what would have become a
    /// call, which is no content.
    pub fn cut_off(&mut self) -> Vec<Delta> {
        self.end(true)
    }

    fn end(&mut self, cut_off: bool) -> Vec<Delta> {
        if let Some(tags) = &mut self.tags {
            tags.finish(&mut self.out, &mut self.passed);
            self.pass();
        }
        let mut deltas = self.out.take();
        let in_head = self.forced || self.parser.as_ref().is_some_and(|parser| parser.is_in_head());
        let dropped = cut_off && in_head;
        if let Some(parser) = &mut self.parser
            && let Err(reason) = parser.finish(&mut self.out)
        {
            let text = parser.reset().text;
            self.note(reason);
            text.chars().for_each(|c| self.out.content(c));
        }
        self.out.finish();
        let rest = self.out.take().into_iter();
        deltas.extend(rest.filter(|delta| !(dropped && matches!(delta, Delta::Content(_)))));
        deltas
    }

    /// Why texts that began like tool calls are none, in order; the first few.
    pub fn notes(&self) -> &[Malformed] {
        &self.notes
    }

    fn pass(&mut self) {
        let mut passed = take(&mut self.passed);
        for c in passed.chars() {
            self.feed(c);
        }
        passed.clear();
        self.passed = passed;
    }

    fn feed(&mut self, c: char) {
        let Some(parser) = &mut self.parser else { return self.out.content(c) };
        let Err(reason) = parser.feed(c, &mut self.out) else { return };
        let Uncommitted { text, again } = parser.reset();
        self.note(reason);
        let (content, again) = text.split_at(again);
        content.chars().for_each(|c| self.out.content(c));
        again.chars().for_each(|c| self.feed(c));
    }

    fn note(&mut self, reason: Malformed) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(reason);
        }
    }
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Never empty.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments as JSON text; the beginning of one if the call is not complete.
    pub arguments: String,
    /// The arguments are a JSON object.
    pub complete: bool,
}

/// A whole message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What the model thought, if anything.
    pub reasoning: String,
    /// What it answered, if anything.
    pub content: String,
    /// The tools that it calls, in order.
    pub calls: Vec<ToolCall>,
}

impl Message {
    /// Appends a delta.
    pub fn apply(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Content(text) => self.content.push_str(&text),
            Delta::CallStart { id, name, .. } => {
                self.calls.push(ToolCall { id, name, ..ToolCall::default() });
            }
            Delta::CallArguments { index, text } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
            Delta::CallEnd { index, complete } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.complete = complete;
                }
            }
        }
    }
}

/// The message of a whole text.
pub fn parse(text: &str, format: Format, setup: &Setup) -> Message {
    let mut parser = MessageParser::new(format, setup);
    let mut message = Message::default();
    parser.push(text).into_iter().for_each(|delta| message.apply(delta));
    parser.finish().into_iter().for_each(|delta| message.apply(delta));
    message
}
