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
    /// In a header; the text from its first marker on.
    Header(String),
    Reasoning,
    Content,
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

impl Harmony {
    /// `open` if the prompt ends in reasoning.
    pub(in crate::parse) fn new(calls: bool, open: bool) -> Self {
        let state = if open { State::Reasoning } else { State::Outside };
        Self { state, scan: Scan::default(), calls }
    }

    fn begin(&mut self, out: &mut Output) {
        let State::Header(header) = &mut self.state else { return };
        let header = take(header);
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
        if matches!(self.state, State::Reasoning) {
            out.end_reasoning();
        }
        self.state = match ENDS.get(marker) {
            Some(opener) if marker >= FIRST_HEADER => State::Header((*opener).to_owned()),
            _ => State::Outside,
        };
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
            State::Header(header) => {
                // The header goes on to its `<|message|>`, whatever markers stand in it.
                header.push(c);
                if header.len() > MAX_HELD {
                    return Err(Malformed("a header is too long"));
                }
                if header.ends_with(MESSAGE) {
                    self.begin(out);
                }
            }
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
            // A header without a message is markup.
            State::Header(_) => {}
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
            State::Header(header) => Uncommitted::head(header),
            _ => Uncommitted::default(),
        }
    }

    fn hides(&self) -> bool {
        match self.state {
            State::Header(_) | State::Reasoning => true,
            State::Outside => !self.scan.is_empty(),
            _ => false,
        }
    }
}
