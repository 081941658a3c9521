//! Llama 4: a list of Python calls, `[f(x=1), g(y="z")]`, bare or after `<|python_start|>`. The arguments are turned
//! into JSON as they come.

use std::mem::take;
use std::sync::Arc;

use crate::parse::Malformed;
use crate::parse::frame::{Body, FrameSpec};
use crate::parse::output::Output;
use crate::parse::params::escape;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::schema::ToolSchemas;
use crate::parse::syntax::{ArgumentSyntax, CallSyntax, EachSyntax};

const START: &str = "<|python_start|>";
const END: &str = "<|python_end|>";

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "pythonic",
    aliases: &["llama4_pythonic", "llama4"],
    machine: Machine::Frame(FrameSpec {
        bare: Some('['),
        drops: &[END],
        ..FrameSpec::marked(&[START], |_, tools| Box::new(Calls::new(tools)))
    }),
    markers: &[START, END],
    syntax: |_| CallSyntax {
        open: "[",
        close: "]",
        separator: Some(", "),
        after_name: "(",
        arguments: ArgumentSyntax::Each(EachSyntax {
            before_key: "",
            before_json: "=",
            before_text: None,
            value_end: "",
            frame: "",
            after_value: "",
            separator: ", ",
        }),
        end: ")",
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};

/// Deepest nesting of values.
const MAX_DEPTH: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before `[`.
    Open,
    Name,
    /// Before a keyword or `)`.
    Keyword,
    Value,
    /// In a string with this quote.
    Text(char),
    /// After a backslash in such a string.
    Escape(char),
    /// In the digits of an escape.
    Code {
        quote: char,
        left: u32,
        radix: u32,
        code: u32,
    },
    /// After `)`.
    After,
    /// Not Python from some character on: the rest is passed on.
    Broken,
}

#[derive(Debug)]
struct Calls {
    tools: Arc<ToolSchemas>,
    state: State,
    /// A name, keyword, number or constant that is being read.
    word: String,
    /// Open brackets inside a value, by their JSON closers.
    open: Vec<char>,
    any: bool,
}

impl Calls {
    fn new(tools: &Arc<ToolSchemas>) -> Self {
        let tools = Arc::clone(tools);
        Self { tools, state: State::Open, word: String::new(), open: Vec::new(), any: false }
    }

    fn start(&mut self, out: &mut Output) -> Result<(), Malformed> {
        let name = take(&mut self.word);
        if name.is_empty() || !self.tools.may_call(&name) {
            return Err(Malformed("not one of the tools"));
        }
        out.start_call(&name, None);
        out.argument('{');
        self.state = State::Keyword;
        self.any = false;
        Ok(())
    }

    /// A character before a keyword, or in it.
    fn keyword(&mut self, c: char, out: &mut Output) {
        match c {
            ')' if self.word.is_empty() => {
                out.argument('}');
                out.end_call(true);
                self.state = State::After;
            }
            '=' if !self.word.is_empty() => {
                if self.any {
                    out.arguments(", ");
                }
                self.any = true;
                out.arguments(&format!("\"{}\": ", take(&mut self.word)));
                self.state = State::Value;
            }
            _ if c.is_alphanumeric() || c == '_' => self.word.push(c),
            _ if c.is_whitespace() || c == ',' => {}
            _ => self.give_up(c, out),
        }
    }

    fn give_up(&mut self, c: char, out: &mut Output) {
        out.arguments(&take(&mut self.word));
        out.argument(c);
        self.state = State::Broken;
    }

    /// A character of a value, outside strings.
    fn value(&mut self, c: char, out: &mut Output) {
        if c.is_alphanumeric() || "_.+-".contains(c) {
            self.word.push(c);
            return;
        }
        if !self.end_word(out) {
            return self.give_up(c, out);
        }
        match c {
            '"' | '\'' => {
                out.argument('"');
                self.state = State::Text(c);
            }
            '[' | '(' | '{' if self.open.len() < MAX_DEPTH => {
                out.argument(if c == '{' { '{' } else { '[' });
                self.open.push(match c {
                    '[' => ']',
                    '(' => ')',
                    _ => '}',
                });
            }
            ')' | ',' if self.open.is_empty() => {
                self.state = State::Keyword;
                self.keyword(c, out);
            }
            ']' | ')' | '}' if self.open.last() == Some(&c) => {
                self.open.pop();
                out.argument(if c == '}' { '}' } else { ']' });
            }
            ',' | ':' if !self.open.is_empty() => {
                out.argument(c);
                out.argument(' ');
            }
            _ if c.is_whitespace() => {}
            _ => self.give_up(c, out),
        }
    }

    /// Writes the number or constant that has ended, if there is one; false if it is neither.
    fn end_word(&mut self, out: &mut Output) -> bool {
        let json = match self.word.as_str() {
            "" => return true,
            "True" | "true" => "true",
            "False" | "false" => "false",
            "None" | "null" => "null",
            number => match serde_json::from_str::<serde_json::Value>(number) {
                Ok(_) => number,
                Err(_) => return false,
            },
        };
        out.arguments(json);
        self.word.clear();
        true
    }

    fn escaped(&mut self, c: char, quote: char, out: &mut Output) {
        self.state = State::Text(quote);
        let code = |left, radix, code| State::Code { quote, left, radix, code };
        match c {
            'n' => escape('\n', out),
            't' => escape('\t', out),
            'r' => escape('\r', out),
            'b' => escape('\u{8}', out),
            'f' => escape('\u{c}', out),
            '\n' => {}
            '\\' | '\'' | '"' => escape(c, out),
            'x' => self.state = code(2, 16, 0),
            'u' => self.state = code(4, 16, 0),
            'U' => self.state = code(8, 16, 0),
            '0'..='7' => self.state = code(2, 8, c as u32 - '0' as u32),
            _ => {
                escape('\\', out);
                escape(c, out);
            }
        }
    }

    /// A digit of an escape. Octal ones may be shorter.
    fn digit(&mut self, c: char, (quote, left, radix, code): (char, u32, u32, u32), out: &mut Output) {
        let digit = c.to_digit(radix);
        let code = digit.map_or(code, |digit| code * radix + digit);
        if digit.is_some() && left > 1 {
            self.state = State::Code { quote, left: left - 1, radix, code };
            return;
        }
        escape(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), out);
        self.state = State::Text(quote);
        if digit.is_none() {
            self.text(c, quote, out);
        }
    }

    fn text(&mut self, c: char, quote: char, out: &mut Output) {
        match c {
            _ if c == quote => {
                out.argument('"');
                self.state = State::Value;
            }
            '\\' => self.state = State::Escape(quote),
            _ => escape(c, out),
        }
    }
}

impl Body for Calls {
    fn feed(&mut self, c: char, out: &mut Output) -> Result<bool, Malformed> {
        match self.state {
            State::Open if c == '[' => self.state = State::Name,
            State::Open | State::Name | State::After if c.is_whitespace() && self.word.is_empty() => {}
            State::Name if c == '(' => self.start(out)?,
            State::Name if c.is_alphanumeric() || "_.-".contains(c) => self.word.push(c),
            State::Open | State::Name => return Err(Malformed("not a list of calls")),
            State::Keyword => self.keyword(c, out),
            State::Value => self.value(c, out),
            State::Text(quote) => self.text(c, quote, out),
            State::Escape(quote) => self.escaped(c, quote, out),
            State::Code { quote, left, radix, code } => self.digit(c, (quote, left, radix, code), out),
            State::After => match c {
                ',' => self.state = State::Name,
                ']' => return Ok(true),
                _ => return Err(Malformed("not a list of calls")),
            },
            State::Broken => out.argument(c),
        }
        Ok(false)
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Malformed> {
        match self.state {
            State::Open | State::Name => return Err(Malformed("the text ended before the arguments")),
            State::Value => out.arguments(&take(&mut self.word)),
            _ => {}
        }
        out.end_call(false);
        Ok(())
    }
}
