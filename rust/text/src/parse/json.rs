//! Where a JSON value ends, and whether it is one, a character at a time. Memory grows with the nesting only.

/// Deepest nesting; `serde_json`'s own limit, so that what is valid here can be parsed.
const MAX_DEPTH: usize = 127;

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The value goes on.
    More,
    /// It was the value's last one.
    Done,
    /// The value, a number, ended before it.
    Past,
    /// No JSON value goes on like this.
    Invalid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Value,
    /// After `[`: a value or `]`.
    FirstItem,
    /// After `{`: a key or `}`.
    FirstKey,
    Key,
    Colon,
    /// After a value inside a list or an object.
    After,
    Text {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
    },
    /// What is left of `true`, `false` or `null`.
    Word(&'static str),
    Number(Number),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    fn after(self, c: char) -> Option<Self> {
        match (self, c) {
            (Self::Minus, '0') => Some(Self::Zero),
            (Self::Minus, '1'..='9') | (Self::Digits, '0'..='9') => Some(Self::Digits),
            (Self::Zero | Self::Digits, '.') => Some(Self::Point),
            (Self::Point | Self::Fraction, '0'..='9') => Some(Self::Fraction),
            (Self::Zero | Self::Digits | Self::Fraction, 'e' | 'E') => Some(Self::Exponent),
            (Self::Exponent, '+' | '-') => Some(Self::ExponentSign),
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, '0'..='9') => {
                Some(Self::ExponentDigits)
            }
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::ExponentDigits)
    }
}

/// One JSON value. Control characters inside strings are let through: see
/// [`JsonArgs`](super::args::JsonArgs).
#[derive(Clone, Debug, Default)]
pub(super) struct JsonValue {
    state: State,
    /// Open lists (false) and objects (true).
    open: Vec<bool>,
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

impl JsonValue {
    /// True inside a string.
    pub(super) fn in_text(&self) -> bool {
        matches!(self.state, State::Text { .. })
    }

    /// True inside a string, be it in an escape.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.state, State::Text { .. } | State::Escape { .. } | State::Hex { .. })
    }

    /// Takes the next character. Not to be called again after anything but [`Step::More`].
    pub(super) fn step(&mut self, c: char) -> Step {
        let spaced = matches!(
            self.state,
            State::Value | State::FirstItem | State::FirstKey | State::Key | State::Colon | State::After
        );
        if spaced && is_space(c) {
            return Step::More;
        }
        match (self.state, c) {
            (State::FirstItem, ']') | (State::FirstKey, '}') => self.close(),
            (State::Value | State::FirstItem, _) => self.begin(c),
            (State::FirstKey | State::Key, '"') => self.goto(State::Text { key: true }),
            (State::Colon, ':') => self.goto(State::Value),
            (State::After, ',') => {
                self.goto(if self.open.last() == Some(&true) { State::Key } else { State::Value })
            }
            (State::After, '}') if self.open.last() == Some(&true) => self.close(),
            (State::After, ']') if self.open.last() == Some(&false) => self.close(),
            (State::Text { key: true }, '"') => self.goto(State::Colon),
            (State::Text { key: false }, '"') => self.ended(),
            (State::Text { key }, '\\') => self.goto(State::Escape { key }),
            (State::Text { .. }, _) => Step::More,
            (State::Escape { key }, 'u') => self.goto(State::Hex { key, left: 4 }),
            (State::Escape { key }, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => {
                self.goto(State::Text { key })
            }
            (State::Hex { key, left }, _) if c.is_ascii_hexdigit() => match left {
                1 => self.goto(State::Text { key }),
                _ => self.goto(State::Hex { key, left: left - 1 }),
            },
            (State::Word(rest), _) => match rest.strip_prefix(c) {
                Some("") => self.ended(),
                Some(rest) => self.goto(State::Word(rest)),
                None => Step::Invalid,
            },
            (State::Number(number), _) => match number.after(c) {
                Some(number) => self.goto(State::Number(number)),
                None if number.may_end() && self.open.is_empty() => Step::Past,
                None if number.may_end() => {
                    self.state = State::After;
                    self.step(c)
                }
                None => Step::Invalid,
            },
            _ => Step::Invalid,
        }
    }

    fn goto(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn begin(&mut self, c: char) -> Step {
        match c {
            '{' | '[' if self.open.len() == MAX_DEPTH => Step::Invalid,
            '{' => {
                self.open.push(true);
                self.goto(State::FirstKey)
            }
            '[' => {
                self.open.push(false);
                self.goto(State::FirstItem)
            }
            '"' => self.goto(State::Text { key: false }),
            't' => self.goto(State::Word("rue")),
            'f' => self.goto(State::Word("alse")),
            'n' => self.goto(State::Word("ull")),
            '-' => self.goto(State::Number(Number::Minus)),
            '0' => self.goto(State::Number(Number::Zero)),
            '1'..='9' => self.goto(State::Number(Number::Digits)),
            _ => Step::Invalid,
        }
    }

    fn close(&mut self) -> Step {
        self.open.pop();
        self.ended()
    }

    fn ended(&mut self) -> Step {
        self.state = State::After;
        if self.open.is_empty() { Step::Done } else { Step::More }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// True if the whole of `text` is one value, with nothing after it.
    fn accepts(text: &str) -> bool {
        let mut value = JsonValue::default();
        let mut chars = text.chars();
        for c in chars.by_ref() {
            match value.step(c) {
                Step::More => {}
                Step::Done => return chars.as_str().trim().is_empty(),
                Step::Past => return is_space(c) && chars.as_str().trim().is_empty(),
                Step::Invalid => return false,
            }
        }
        matches!(value.state, State::Number(number) if number.may_end() && value.open.is_empty())
    }

    #[test]
    fn it_accepts_what_a_parser_accepts() {
        for text in [
            "{}",
            "[]",
            " { \"a\" : [1, -2.5e+3, true, null, \"\\u12aF\\n\"] } ",
            "0",
            "-0.1",
            "1e9",
            "\"x\"",
            "[[[]]]",
            "{\"a\":{\"b\":{}}}",
            "01",
            "1.",
            "-",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{'a':1}",
            "[1 2]",
            "{]",
            "[}",
            "tru",
            "truee",
            "\"\\x\"",
            "\"\\u12g4\"",
            "{\"a\":1,}",
            "",
            ".5",
            "+1",
            "1e",
        ] {
            assert_eq!(accepts(text), serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(accepts(&nested(MAX_DEPTH)));
        assert!(!accepts(&nested(MAX_DEPTH + 1)));
        assert!(serde_json::from_str::<serde_json::Value>(&nested(MAX_DEPTH)).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn it_agrees_with_a_parser(text in r#"[\[\]{},:"\\ntrue0-9.eE -]{0,12}"#) {
            prop_assert_eq!(accepts(&text), serde_json::from_str::<serde_json::Value>(&text).is_ok());
        }
    }
}
