//! Formats that a plug-in brings: as data, as far as they are data.
//!
//! A reasoning format is two tags. A tool format is the markers around a call, and a function from the text between
//! them to the calls in it. The machine is ours and the function sees a whole body, so that a message cannot depend on how
//! its text was cut, whatever the function does; that it is a function of its argument is the plug-in's promise.

use std::fmt;
use std::mem::take;
use std::sync::OnceLock;

use super::output::Output;
use super::registry::{Machine, REASONING, ReasoningFormat, TOOLS, ToolFormat, tags};
use super::scan::Scan;
use super::{MAX_HELD, Malformed, StreamParser, TagPair, Uncommitted};

/// The calls in a body: names, and arguments as JSON text; or why there is none.
pub type ReadCalls = dyn Fn(&str) -> Result<Vec<(String, String)>, String> + Send + Sync;

/// A tool format of a plug-in.
pub struct ToolPlugin {
    /// Texts that open a call.
    pub opens: Vec<String>,
    /// The text that closes it.
    pub close: String,
    /// What stands between them.
    pub read: Box<ReadCalls>,
}

impl fmt::Debug for ToolPlugin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ToolPlugin").field("opens", &self.opens).finish_non_exhaustive()
    }
}

/// What a plug-in brings, by name.
#[derive(Debug, Default)]
pub struct Plugins {
    /// Name, opening and closing tag, and whether a text begins inside reasoning.
    pub reasoning: Vec<(String, String, String, bool)>,
    /// Name and format.
    pub tools: Vec<(String, ToolPlugin)>,
}

#[derive(Debug, Default)]
struct Plugged {
    reasoning: Vec<&'static ReasoningFormat>,
    tools: Vec<&'static ToolFormat>,
}

/// Once per process, before any flag is read: formats live as long as the program.
static PLUGGED: OnceLock<Plugged> = OnceLock::new();

fn forever(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A tool format at work: the texts of its plug-in for the life of the program.
#[derive(Debug)]
pub(super) struct PluggedTools {
    pub(super) opens: &'static [&'static str],
    close: &'static str,
    read: &'static ToolPlugin,
}

/// Adds formats to the registry.
///
/// # Errors
/// Names what is empty or taken; nothing was added then. A second call is refused.
pub fn plug(plugins: Plugins) -> Result<(), String> {
    let names = plugins.reasoning.iter().map(|entry| (&entry.0, ReasoningFormat::named(&entry.0).is_some()));
    let tools = plugins.tools.iter().map(|entry| (&entry.0, ToolFormat::named(&entry.0).is_some()));
    let mut seen = std::collections::HashSet::new();
    for (name, taken) in names.chain(tools) {
        if taken || name.is_empty() || name == "auto" || !seen.insert(name) {
            return Err(format!("a plug-in's parser cannot be named {name:?}: the name is empty or taken"));
        }
    }
    let texts = plugins.reasoning.iter().flat_map(|(_, open, close, _)| [open, close]);
    let markers = plugins.tools.iter().flat_map(|(_, tool)| tool.opens.iter().chain([&tool.close]));
    if texts.chain(markers).any(String::is_empty)
        || plugins.tools.iter().any(|(_, tool)| tool.opens.is_empty())
    {
        return Err("a plug-in's parser has an empty marker, or none that opens a call".to_owned());
    }
    let mut plugged = Plugged::default();
    for (name, open, close, assumed_open) in plugins.reasoning {
        let pair = TagPair { open: forever(open), close: forever(close) };
        plugged.reasoning.push(Box::leak(Box::new(tags(forever(name), &[], pair, assumed_open))));
    }
    for (name, mut tool) in plugins.tools {
        let opens: Vec<&'static str> = take(&mut tool.opens).into_iter().map(forever).collect();
        let (opens, close): (&'static [_], _) = (opens.leak(), forever(take(&mut tool.close)));
        let machine = Machine::Plugged(Box::leak(Box::new(PluggedTools {
            opens,
            close,
            read: Box::leak(Box::new(tool)),
        })));
        let markers = [opens, &[close]].concat().leak();
        plugged.tools.push(Box::leak(Box::new(ToolFormat {
            name: forever(name),
            machine,
            markers,
            ..ToolFormat::DEFAULT
        })));
    }
    PLUGGED.set(plugged).map_err(|_| "plug-ins can be added once only".to_owned())
}

/// Every reasoning format, ours and then those of plug-ins.
pub fn reasoning() -> impl Iterator<Item = &'static ReasoningFormat> {
    REASONING.iter().chain(PLUGGED.get().into_iter().flat_map(|plugged| plugged.reasoning.iter().copied()))
}

/// Every tool format, ours and then those of plug-ins.
pub fn tools() -> impl Iterator<Item = &'static ToolFormat> {
    TOOLS.iter().chain(PLUGGED.get().into_iter().flat_map(|plugged| plugged.tools.iter().copied()))
}

/// Content until a marker opens, a body until it closes, content again.
#[derive(Debug)]
pub(super) struct PluggedParser {
    spec: &'static PluggedTools,
    scan: Scan,
    /// The text between the markers so far; `None` outside.
    body: Option<String>,
    /// All of the text since the marker that opened, with it.
    held: String,
}

impl PluggedParser {
    pub(super) fn new(spec: &'static PluggedTools) -> Self {
        Self { spec, scan: Scan::default(), body: None, held: String::new() }
    }

    /// Writes the calls of a body, all of them or none.
    fn write(&mut self, body: &str, out: &mut Output) -> Result<(), Malformed> {
        let calls = (self.spec.read.read)(body).map_err(|_| Malformed("the plug-in reads no call in it"))?;
        let is_object = |text: &str| serde_json::from_str::<serde_json::Map<_, _>>(text).is_ok();
        if calls.is_empty() || calls.iter().any(|(name, arguments)| name.is_empty() || !is_object(arguments))
        {
            return Err(Malformed(
                "the plug-in read a call without a name or without an object of arguments",
            ));
        }
        for (name, arguments) in calls {
            out.start_call(&name, None);
            out.arguments(&arguments);
            out.end_call(true);
        }
        self.held.clear();
        Ok(())
    }
}

impl StreamParser for PluggedParser {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<(), Malformed> {
        let mut text = String::new();
        let Some(body) = &mut self.body else {
            let found = self.scan.feed(c, self.spec.opens, &mut text);
            text.chars().for_each(|c| out.content(c));
            if let Some(marker) = found {
                self.held.push_str(self.spec.opens[marker]);
                self.body = Some(String::new());
            }
            return Ok(());
        };
        self.held.push(c);
        let found = self.scan.feed(c, &[self.spec.close], &mut text);
        body.push_str(&text);
        if found.is_some() {
            let body = take(body);
            self.write(&body, out)?;
            self.body = None;
        } else if self.held.len() > MAX_HELD {
            return Err(Malformed("a call is too long"));
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Output) -> Result<(), Malformed> {
        let rest = self.scan.take();
        if let Some(body) = self.body.take() {
            // Some models end with the call instead of closing it.
            return self.write(&(body + &rest), out);
        }
        rest.chars().for_each(|c| out.content(c));
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.body.is_none()
    }

    fn is_in_head(&self) -> bool {
        self.body.is_some()
    }

    fn pause(&mut self, out: &mut Output) {
        self.scan.take().chars().for_each(|c| out.content(c));
    }

    fn reset(&mut self) -> Uncommitted {
        self.body = None;
        self.scan.take();
        Uncommitted::head(take(&mut self.held))
    }
}
