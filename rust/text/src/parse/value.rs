//! Where a value ends that is JSON if it can be: at its tag, unless the tag stands in a string of the JSON.
//!
//! Whether a text is JSON is known at its end only. Until then the place of the first tag in a string is kept: if the text
//! turns out to be none, the value ended there, and what follows is read again.

use super::MAX_HELD;
use super::json::{JsonValue, Step};

#[derive(Clone, Debug)]
enum Phase {
    Json(JsonValue),
    /// Behind the JSON; it and white space after it end here.
    After(usize),
    /// No JSON: the first tag ends it.
    Bare,
}

/// What a character did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The value goes on.
    More,
    /// The value has ended; this text was read behind it.
    Ended(String),
    /// The value is too long to be held.
    TooLong,
}

/// A value so far.
#[derive(Clone, Debug)]
pub(super) struct HeldValue {
    text: String,
    phase: Phase,
    /// Behind the first tag in a string.
    tag: Option<usize>,
}

impl Default for HeldValue {
    fn default() -> Self {
        Self { text: String::new(), phase: Phase::Json(JsonValue::default()), tag: None }
    }
}

impl HeldValue {
    /// Takes the next character of a value that `tag` ends.
    pub(super) fn feed(&mut self, c: char, tag: &str) -> Taken {
        self.text.push(c);
        match &mut self.phase {
            Phase::Json(json) => {
                let in_string = json.in_string();
                match json.step(c) {
                    Step::More if in_string && self.text.ends_with(tag) => {
                        self.tag.get_or_insert(self.text.len());
                    }
                    Step::More => {}
                    Step::Done => self.phase = Phase::After(self.text.len()),
                    Step::Past | Step::Invalid => self.phase = Phase::Bare,
                }
            }
            Phase::After(end) => {
                if c.is_whitespace() && *end + c.len_utf8() == self.text.len() {
                    *end = self.text.len();
                }
                let rest = &self.text[*end..];
                if rest == tag {
                    return self.end(tag, self.text.len());
                }
                if !tag.starts_with(rest) {
                    self.phase = Phase::Bare;
                }
            }
            Phase::Bare if self.text.ends_with(tag) => return self.end(tag, self.text.len()),
            Phase::Bare => {}
        }
        match (&self.phase, self.tag) {
            (Phase::Bare, Some(end)) => self.end(tag, end),
            _ if self.text.len() <= MAX_HELD => Taken::More,
            (_, Some(end)) => self.end(tag, end),
            (_, None) => Taken::TooLong,
        }
    }

    /// The text ends here. If there was a tag, and one of `markers` behind it, the value ended there.
    pub(super) fn give_up(&mut self, tag: &str, markers: &[&str]) -> Option<String> {
        let end = self.tag?;
        let rest = self.text[end..].trim_start();
        if !markers.iter().any(|marker| rest.starts_with(marker)) {
            return None;
        }
        match self.end(tag, end) {
            Taken::Ended(rest) => Some(rest),
            _ => None,
        }
    }

    fn end(&mut self, tag: &str, end: usize) -> Taken {
        let rest = self.text.split_off(end);
        self.text.truncate(end - tag.len());
        Taken::Ended(rest)
    }

    /// The value without its tag, if that has come.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(text: &str) -> Option<(String, String)> {
        let mut value = HeldValue::default();
        for (at, c) in text.char_indices() {
            if let Taken::Ended(again) = value.feed(c, "</v>") {
                return Some((value.into_text(), again + &text[at + c.len_utf8()..]));
            }
        }
        None
    }

    #[test]
    fn a_tag_in_a_string_of_json_is_text() {
        for value in ["{\"a\": \"</v>\"}", "[\"\\\"</v>\", \"x</v></v>\"]\n", " \"</v>\" ", "{\"</v>\": 1}"] {
            assert_eq!(
                ended(&format!("{value}</v>rest")),
                Some((value.to_owned(), "rest".to_owned())),
                "{value}"
            );
        }
    }

    #[test]
    fn a_tag_ends_what_is_no_json() {
        for value in
            ["{\"a\": \"", "[\"", "\"", "plain", "{a: \"b", "\"a\" and \"b", "5 < 6", "</", "[1, 2]]", ""]
        {
            let text = format!("{value}</v> \"then\" x</v>");
            let expected = Some((value.to_owned(), " \"then\" x</v>".to_owned()));
            assert_eq!(ended(&text), expected, "{value}");
        }
    }
}
