//! gpt-oss: messages on channels. `analysis` is reasoning, `final` is content, `commentary` is a call if it is addressed
//! to a function and a preamble, which is content, if it is addressed to nobody.

use std::mem::take;

use crate::parse::args::{Broken, Flow, JsonArgs};
use crate::parse::output::Output;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::scan::Scan;
use crate::parse::syntax::CallSyntax;
use crate::parse::{MAX_HELD, Malformed, StreamParser, Uncommitted};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
/// What ends a message: its own markers, and the next header if a model forgets them.
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
const FIRST_HEADER: usize = 3;
/// What a header says behind `<|start|>` and behind `<|channel|>`.
const ROLE: &str = "assistant";
/// Most bytes of a header, or behind a marker in content, in which it is looked whether a header can follow.
const MAX_CHECKED: usize = 256;
const CHANNELS: &[&str] = &["analysis", "commentary", "final"];

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "openai",
    aliases: &["openai_gptoss", "gpt_oss", "harmony"],
    machine: Machine::Harmony,
    markers: &["<|end|>", "<|call|>", "<|return|>", START, CHANNEL, CONSTRAIN, MESSAGE],
    syntax: |_| CallSyntax {
        separator: None,
        before_name: "<|channel|>commentary to=functions.",
        after_name: " <|constrain|>json<|message|>",
        trigger: Some("<|channel|>commentary to=functions."),
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};

#[derive(Debug)]
enum State {
    /// Outside messages: text that stands there is content.
    Outside,
    /// In a header; the text from its first marker on. Behind content it is checked while it comes, since the text may
    /// only name the marker.
    Header {
        text: String,
        checked: bool,
    },
    Reasoning,
    Content,
    /// Behind markers that end content if a header or nothing follows them: all from the first one on, and where the
    /// last one ended.
    Ending {
        read: String,
        end: usize,
    },
    Arguments(JsonArgs),
    Broken(Broken),
}

/// Reads a whole answer: reasoning, content and calls.
#[derive(Debug)]
pub(in crate::parse) struct Harmony {
    state: State,
    scan: Scan,
    /// Calls are shown as calls; otherwise they are content.
    calls: bool,
}

/// The channel of a header, and the function that it is addressed to.
fn address(header: &str) -> (&str, Option<&str>) {
    let word = |text: &'_ str| text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
    let channel = header.split_once(CHANNEL).map_or("", |(_, rest)| rest);
    let to = header.split_once("to=").map(|(_, rest)| &rest[..word(rest)]);
    (&channel[..word(channel)], to)
}

/// True if a header may begin like this. Text that only names a marker does not.
fn may_be_header(text: &str) -> bool {
    let begins = |text: &str, word: &str| word.starts_with(text) || text.starts_with(word);
    let channel = |text: &str| CHANNELS.iter().any(|channel| begins(text, channel));
    if let Some(rest) = text.strip_prefix(CHANNEL) {
        return channel(rest);
    }
    let Some(rest) = text.strip_prefix(START) else { return true };
    begins(rest, ROLE) && rest.split_once(CHANNEL).is_none_or(|(_, rest)| channel(rest))
}

impl Harmony {
    /// `open` if the prompt ends in reasoning.
    pub(in crate::parse) fn new(calls: bool, open: bool) -> Self {
        let state = if open { State::Reasoning } else { State::Outside };
        Self { state, scan: Scan::default(), calls }
    }

    fn begin(&mut self, out: &mut Output) {
        let State::Header { text, .. } = &mut self.state else { return };
        let header = take(text);
        let (channel, to) = address(&header);
        let function = to.and_then(|to| to.strip_prefix("functions.")).filter(|name| !name.is_empty());
        self.state = match function {
            Some(name) if self.calls => {
                out.start_call(name, None);
                State::Arguments(JsonArgs::default())
            }
            // A built-in tool is run by nobody here: what is sent to it is part of how the model thinks.
            None if channel == "analysis" || to.is_some() => {
                out.begin_reasoning();
                State::Reasoning
            }
            _ => State::Content,
        };
    }

    fn end_message(&mut self, marker: usize, out: &mut Output) {
        let thought = matches!(self.state, State::Reasoning);
        if thought {
            out.end_reasoning();
        }
        let in_content = matches!(self.state, State::Content);
        self.state = match (marker, ENDS[marker].to_owned()) {
            (FIRST_HEADER.., text) => State::Header { text, checked: !thought },
            (_, read) if in_content => State::Ending { end: read.len(), read },
            _ => State::Outside,
        };
    }

    /// Reads on behind a marker in content.
    fn follow(&mut self, c: char, out: &mut Output) -> Result<(), Malformed> {
        let State::Ending { read, end } = &mut self.state else { return Ok(()) };
        read.push(c);
        let behind = read[*end..].trim_start();
        match ENDS.iter().position(|marker| marker.starts_with(behind)) {
            Some(marker) if ENDS[marker] == behind && marker < FIRST_HEADER => *end = read.len(),
            Some(marker) if ENDS[marker] == behind => self.end_message(marker, out),
            Some(_) if read.len() <= *end + MAX_CHECKED => {}
            _ => {
                // The marker was text, and what stands behind it may be a marker again.
                let again = behind.to_owned();
                read.truncate(read.len() - again.len());
                let text = take(read);
                self.state = State::Content;
                self.write(&text, out);
                again.chars().try_for_each(|c| self.feed(c, out))?;
            }
        }
        Ok(())
    }

    fn write(&self, text: &str, out: &mut Output) {
        for c in text.chars() {
            match self.state {
                State::Reasoning => out.reasoning(c),
                _ => out.content(c),
            }
        }
    }
}

impl StreamParser for Harmony {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<(), Malformed> {
        let mut text = String::new();
        match &mut self.state {
            State::Header { text, checked } => {
                // The header goes on to its `<|message|>`, whatever markers stand in it.
                text.push(c);
                if text.len() > MAX_HELD {
                    return Err(Malformed("a header is too long"));
                }
                if *checked && text.len() < MAX_CHECKED && !may_be_header(text) {
                    return Err(Malformed("a marker without a header"));
                }
                if text.ends_with(MESSAGE) {
                    self.begin(out);
                }
            }
            State::Ending { .. } => return self.follow(c, out),
            State::Outside | State::Reasoning | State::Content => {
                let found = self.scan.feed(c, ENDS, &mut text);
                self.write(&text, out);
                if let Some(marker) = found {
                    self.end_message(marker, out);
                }
            }
            State::Arguments(arguments) => match arguments.feed(c, out) {
                Flow::More => {}
                Flow::Broken => {
                    self.state = State::Broken(Broken::new(ENDS));
                    return self.feed(c, out);
                }
                Flow::Done | Flow::Past => {
                    out.end_call(true);
                    self.state = State::Outside;
                }
            },
            State::Broken(broken) => {
                if let Some(marker) = broken.feed(c, out) {
                    self.end_message(marker, out);
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match &mut self.state {
            // A header without a message is markup, and a marker that nothing follows.
            State::Header { .. } | State::Ending { .. } => {}
            State::Arguments(arguments) => arguments.end(out),
            State::Broken(broken) => broken.end(out),
            State::Outside | State::Reasoning | State::Content => {
                let held = self.scan.take();
                self.write(&held, out);
            }
        }
        self.state = State::Outside;
        Ok(())
    }

    fn reset(&mut self) -> Uncommitted {
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Header { text, .. } => {
                self.state = State::Content;
                Uncommitted::head(text)
            }
            _ => Uncommitted::default(),
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, State::Outside | State::Content)
    }

    fn pause(&mut self, out: &mut Output) {
        let held = self.scan.take();
        self.write(&held, out);
    }

    fn hides(&self) -> bool {
        match self.state {
            State::Header { .. } | State::Reasoning => true,
            State::Outside => !self.scan.is_empty(),
            _ => false,
        }
    }
}
