//! Formats of plug-ins: the same contract as ours, whatever their function does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Once;

use frizzen_text::parse::plugin::{Plugins, ToolPlugin, plug};
use frizzen_text::parse::{Format, Message, MessageParser, ReasoningFormat, Setup, ToolFormat, parse};

/// `name: {arguments}`, as many as there are lines.
fn read(body: &str) -> Result<Vec<(String, String)>, String> {
    let line = |line: &str| {
        let (name, arguments) = line.split_once(": ").ok_or_else(|| format!("{line:?} has no name"))?;
        Ok((name.to_owned(), arguments.to_owned()))
    };
    body.lines().map(line).collect()
}

fn tools() -> ToolPlugin {
    ToolPlugin {
        opens: vec!["<do>".to_owned(), "<use>".to_owned()],
        close: "</do>".to_owned(),
        read: Box::new(read),
    }
}

fn format() -> Format {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let reasoning = vec![("hm".to_owned(), "<hm>".to_owned(), "</hm>".to_owned(), false)];
        plug(Plugins { reasoning, tools: vec![("lines".to_owned(), tools())] }).unwrap();
    });
    Format { reasoning: ReasoningFormat::named("hm"), tools: ToolFormat::named("lines") }
}

fn calls(message: &Message) -> Vec<(&str, &str, bool)> {
    message.calls.iter().map(|call| (&*call.name, &*call.arguments, call.complete)).collect()
}

#[test]
fn a_message_does_not_depend_on_how_its_text_was_cut() {
    let text =
        "<hm>Which?</hm>Look: <do>f: {\"a\": \"</dx>\"}\ng: {}</do> and <use>h: {}</do>, <do>bad</do> done";
    let whole = parse(text, format(), &Setup::default());
    assert_eq!(whole.reasoning, "Which?");
    assert_eq!(whole.content, "Look:and, <do>bad</do> done");
    assert_eq!(calls(&whole), [("f", "{\"a\": \"</dx>\"}", true), ("g", "{}", true), ("h", "{}", true)]);
    for cut in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
        let mut parser = MessageParser::new(format(), &Setup::default());
        let mut message = Message::default();
        for part in [&text[..cut], &text[cut..]] {
            parser.push(part).into_iter().for_each(|delta| message.apply(delta));
        }
        parser.finish().into_iter().for_each(|delta| message.apply(delta));
        assert_eq!(message, whole, "cut at {cut}");
    }
}

#[test]
fn what_is_no_call_comes_back_as_content() {
    for text in ["<do>f: [1]</do>", "<do>: {}</do>", "<do></do>", "<do>f: {\"a\"", "<d", "<do>no</d"] {
        let message = parse(text, format(), &Setup::default());
        assert_eq!((&*message.content, message.calls.len()), (text, 0));
    }
    let unclosed = parse("<do>f: {}", format(), &Setup::default());
    assert_eq!(calls(&unclosed), [("f", "{}", true)], "some models end with the call");
}

#[test]
fn names_that_are_taken_and_markers_that_are_empty_are_refused() {
    format();
    let reasoning = |name: &str, open: &str| Plugins {
        reasoning: vec![(name.to_owned(), open.to_owned(), "x".to_owned(), true)],
        tools: Vec::new(),
    };
    for (plugins, reason) in [
        (reasoning("qwen3", "a"), "taken"),
        (reasoning("auto", "a"), "taken"),
        (reasoning("", "a"), "empty"),
        (reasoning("new", ""), "empty marker"),
        (Plugins { tools: vec![("hermes".to_owned(), tools())], ..Plugins::default() }, "taken"),
        (reasoning("new", "a"), "once only"),
    ] {
        let error = plug(plugins).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}
