//! Reasoning between two tags, at the beginning of an answer and, in some formats, in the middle of one.

use super::output::Output;
use super::registry::TagPair;
use super::scan::Scan;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far: reasoning may begin here.
    Before,
    /// In reasoning that has no text yet, where an opening tag repeats the one of the prompt.
    Opened,
    Inside,
    After,
}

/// Separates reasoning from the rest, which it passes on.
///
/// Reasoning ends at its closing tag, and where a tool call opens: some models never close it before one. It may open
/// again while nothing but white space followed, and later where `reopens` says so. A text without tags is passed on as
/// it is.
#[derive(Debug)]
pub(super) struct Tags {
    pair: TagPair,
    /// The closing tag, what else ends reasoning, and the opening tag last.
    inside: Vec<&'static str>,
    /// Reasoning may open again after content and between calls.
    reopens: bool,
    state: State,
    scan: Scan,
}

impl Tags {
    pub(super) fn new(pair: TagPair, ends: &[&'static str], open: bool, reopens: bool) -> Self {
        let inside = [&[pair.close], ends, &[pair.open]].concat();
        let state = if open { State::Opened } else { State::Before };
        Self { pair, inside, reopens, state, scan: Scan::default() }
    }

    pub(super) fn is_inside(&self) -> bool {
        match self.state {
            State::Opened | State::Inside => true,
            State::Before => !self.scan.is_empty(),
            // A stop string may begin like the tag.
            State::After => false,
        }
    }

    /// True where [`Self::reopens_at`] is to be asked.
    pub(super) fn may_reopen(&self) -> bool {
        self.reopens && self.state == State::After
    }

    /// Takes the next character after reasoning; true if it completed a tag that opens reasoning again. In a call
    /// (not `idle`) nothing does.
    pub(super) fn reopens_at(&mut self, c: char, idle: bool, passed: &mut String) -> bool {
        if idle {
            return self.scan.feed(c, &[self.pair.open], passed).is_some();
        }
        passed.push_str(&self.scan.take());
        passed.push(c);
        false
    }

    pub(super) fn reopen(&mut self, out: &mut Output) {
        self.state = State::Opened;
        out.begin_reasoning();
    }

    /// Takes the next character; what is not reasoning is appended to `passed`.
    pub(super) fn feed(&mut self, c: char, out: &mut Output, passed: &mut String) {
        match self.state {
            State::After => passed.push(c),
            State::Before => {
                let before = passed.len();
                if self.scan.feed(c, &[self.pair.open], passed).is_some() {
                    self.reopen(out);
                } else if !passed[before..].trim().is_empty() {
                    self.state = State::After;
                    passed.push_str(&self.scan.take());
                }
            }
            State::Opened | State::Inside => self.think(c, out, passed),
        }
    }

    fn think(&mut self, c: char, out: &mut Output, passed: &mut String) {
        let markers = match self.state {
            State::Opened => &self.inside[..],
            _ => &self.inside[..self.inside.len() - 1],
        };
        let mut text = String::new();
        let found = self.scan.feed(c, markers, &mut text);
        self.write(&text, out);
        match found {
            None => {}
            Some(0) => {
                out.end_reasoning();
                self.state = State::Before;
            }
            Some(index) if index == self.inside.len() - 1 => {}
            Some(index) => {
                out.end_reasoning();
                self.state = State::After;
                passed.push_str(self.inside[index]);
            }
        }
    }

    fn write(&mut self, text: &str, out: &mut Output) {
        for c in text.chars() {
            if !c.is_whitespace() {
                self.state = State::Inside;
            }
            out.reasoning(c);
        }
    }

    pub(super) fn finish(&mut self, out: &mut Output, passed: &mut String) {
        let held = self.scan.take();
        match self.state {
            State::Opened | State::Inside => self.write(&held, out),
            State::Before | State::After => passed.push_str(&held),
        }
    }
}
