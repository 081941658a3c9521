//! Where stop strings are looked for: not in reasoning, and not in the markup around it.

use super::StreamParser;
use super::formats::harmony::Harmony;
use super::message::Start;
use super::output::Output;
use super::registry::Format;
use super::tags::Tags;

#[derive(Debug)]
enum Machine {
    Tags(Tags),
    Harmony(Harmony),
}

/// Follows a text and says of each character whether it may belong to a stop string.
#[derive(Debug)]
pub struct StopScope {
    machine: Machine,
    out: Output,
    passed: String,
}

impl StopScope {
    /// A scope at the beginning of a text; `None` if the format has no reasoning.
    pub fn new(format: Format, start: Start) -> Option<Self> {
        let open = format.opens_at(start);
        let machine = if format.is_harmony() {
            Machine::Harmony(Harmony::new(format.tools.is_some(), open))
        } else {
            Machine::Tags(format.tags(open)?)
        };
        Some(Self { machine, out: Output::default(), passed: String::new() })
    }

    fn hides(&self) -> bool {
        match &self.machine {
            Machine::Tags(tags) => tags.is_inside(),
            Machine::Harmony(harmony) => harmony.hides(),
        }
    }

    /// Takes the next character; true if it may belong to a stop string.
    pub fn admits(&mut self, c: char) -> bool {
        let hidden = self.hides();
        match &mut self.machine {
            Machine::Tags(tags) => tags.feed(c, &mut self.out, &mut self.passed),
            Machine::Harmony(harmony) => {
                if harmony.feed(c, &mut self.out).is_err() {
                    harmony.reset();
                }
            }
        }
        self.passed.clear();
        self.out.take();
        !hidden && !self.hides()
    }
}
