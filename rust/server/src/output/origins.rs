//! From which tokens the content of a message came, where a parser reads it out of the text.
//!
//! A parser takes one character at a time and shows characters in their order, some of them late, others (markers, white
//! space around them) never. So the text is fed to it by characters, and what it shows is looked up among the characters
//! that were not shown yet: behind content as their beginning, behind anything else as their end. A message is the same
//! however its text is cut, and so are its tokens.

use std::collections::{BTreeMap, VecDeque};

use frizzen_core::TokenId;
use frizzen_text::parse::Delta;

use crate::output::delta::ChoiceDelta;
use crate::output::message::Reader;
use crate::output::pieces::Pieces;

/// A part of a message, and the tokens that have characters in it: for content only.
pub(crate) type Part<T> = (Delta, Vec<T>);

/// Follows the text of one choice. `T` stands for a token; each is shown once at most, with the first content it is in.
#[derive(Debug)]
pub(crate) struct Origins<T> {
    /// Characters that were not shown, the oldest first, and the group of tokens that each came from.
    waiting: VecDeque<(char, u64)>,
    /// Groups that were not shown and may be: a token that ends a character, and those before it that ended none.
    groups: BTreeMap<u64, Vec<T>>,
    /// The newest group.
    newest: u64,
    /// What was shown last is content.
    in_content: bool,
}

impl<T> Default for Origins<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), groups: BTreeMap::new(), newest: 0, in_content: false }
    }
}

impl<T> Origins<T> {
    /// What `reader` makes of a delta, as it would without this. `tokens` stand for those of the delta that have text.
    pub(crate) fn read(
        &mut self,
        reader: &mut Reader,
        delta: &ChoiceDelta,
        pieces: &Pieces,
        tokens: Vec<T>,
    ) -> Vec<Part<T>> {
        // A token without text is in no part, however the text is cut.
        let tokens = ends(pieces, &delta.tokens).zip(tokens);
        self.follow(reader, delta, tokens.filter_map(|(end, token)| Some((end?, token))))
    }

    /// The same, with where each of the tokens ends in the delta's text.
    fn follow(
        &mut self,
        reader: &mut Reader,
        delta: &ChoiceDelta,
        tokens: impl Iterator<Item = (usize, T)>,
    ) -> Vec<Part<T>> {
        let mut tokens = tokens.peekable();
        let mut parts: Vec<Part<T>> = Vec::new();
        let (mut end, mut buffer) = (0, [0; 4]);
        for (at, c) in delta.text.char_indices() {
            if at >= end && tokens.peek().is_some() {
                self.newest += 1;
                let group = self.groups.entry(self.newest).or_default();
                while let Some((its_end, token)) = tokens.next_if(|_| at >= end) {
                    group.push(token);
                    end = its_end;
                }
            }
            self.waiting.push_back((c, self.newest));
            for part in reader.push(c.encode_utf8(&mut buffer)) {
                self.take(part, &mut parts);
            }
        }
        for part in delta.finish.as_ref().map(|finish| reader.finish(finish)).unwrap_or_default() {
            self.take(part, &mut parts);
        }
        parts
    }

    /// Adds a part to those before it, with its tokens.
    fn take(&mut self, part: Delta, parts: &mut Vec<Part<T>>) {
        let (text, is_content) = match &part {
            Delta::Content(text) => (text, true),
            Delta::Reasoning(text) => (text, false),
            // Content that came before a call was shown before it.
            _ => {
                self.waiting.clear();
                self.in_content = false;
                self.forget();
                return join(parts, part, Vec::new());
            }
        };
        let (start, len) = self.find(text);
        self.waiting.drain(..start);
        let mut tokens = Vec::new();
        for (_, group) in self.waiting.drain(..len).filter(|_| is_content) {
            tokens.extend(self.groups.remove(&group).into_iter().flatten());
        }
        self.in_content = is_content;
        self.forget();
        join(parts, part, tokens);
    }

    /// Lets go of groups of which no more characters can come.
    fn forget(&mut self) {
        let oldest = self.waiting.front().map_or(self.newest, |(_, group)| *group);
        self.groups = self.groups.split_off(&oldest);
    }

    /// Where a text that is shown now stands among the characters that were not, and how many of them it is.
    fn find(&self, text: &str) -> (usize, usize) {
        let len = text.chars().count();
        let stands = |start: &usize| self.waiting.range(*start..).map(|(c, _)| *c).take(len).eq(text.chars());
        let Some(last) = self.waiting.len().checked_sub(len) else { return (0, self.waiting.len()) };
        let first = Some(0).filter(|start| self.in_content && stands(start));
        first.or_else(|| (0..=last).rev().find(stands)).map_or((0, self.waiting.len()), |start| (start, len))
    }
}

/// Joins parts that continue each other, as a parser does that is given all of a text.
fn join<T>(parts: &mut Vec<Part<T>>, part: Delta, tokens: Vec<T>) {
    match (parts.last_mut(), part) {
        (Some((Delta::Content(text), all)), Delta::Content(more)) => {
            text.push_str(&more);
            all.extend(tokens);
        }
        (Some((Delta::Reasoning(text), _)), Delta::Reasoning(more)) => text.push_str(&more),
        (
            Some((Delta::CallArguments { index, text }, _)),
            Delta::CallArguments { index: same, text: more },
        ) if *index == same => text.push_str(&more),
        (_, part) => parts.push((part, tokens)),
    }
}

/// Where in the text of a delta each of its tokens ends: behind the last character that it completes. `None` of one
/// without text.
fn ends<'a>(pieces: &'a Pieces, tokens: &'a [TokenId]) -> impl Iterator<Item = Option<usize>> + 'a {
    let (mut open, mut end) = (Vec::new(), 0);
    tokens.iter().map(move |id| {
        let bytes = pieces.bytes(*id);
        open.extend_from_slice(bytes);
        let mut rest = Vec::new();
        for chunk in open.utf8_chunks() {
            end += chunk.valid().len();
            let invalid = chunk.invalid();
            match std::str::from_utf8(invalid).map_err(|error| error.error_len()) {
                Ok(_) => {}
                Err(None) => rest = invalid.to_vec(),
                Err(Some(_)) => end += char::REPLACEMENT_CHARACTER.len_utf8(),
            }
        }
        open = rest;
        (!bytes.is_empty()).then_some(end)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frizzen_text::parse::{Format, Message, ReasoningFormat, Setup, Start, ToolFormat};
    use proptest::prelude::*;

    use super::*;
    use crate::output::delta::{Finish, StopDetail};
    use crate::output::message::Shape;

    fn reader() -> Reader {
        let format =
            Format { reasoning: ReasoningFormat::named("qwen3"), tools: ToolFormat::named("hermes") };
        let shape = Shape { reasoning: true, reasoning_content: false, parallel: true };
        Reader::new(format, &Setup { start: Start::Unknown, ..Setup::default() }, shape)
    }

    fn delta(text: String, is_last: bool) -> ChoiceDelta {
        let finish = is_last.then_some(Finish { reason: "stop", stop: StopDetail::None });
        ChoiceDelta { text, finish, ..ChoiceDelta::default() }
    }

    /// The message of these tokens, some at a time, and the numbers of those in its content.
    fn read(tokens: &[String], at_a_time: usize) -> (Message, Vec<usize>) {
        let (mut origins, mut reader) = (Origins::default(), reader());
        let (mut message, mut shown, mut number) = (Message::default(), Vec::new(), 0);
        let count = tokens.len().div_ceil(at_a_time);
        for (index, some) in tokens.chunks(at_a_time).enumerate() {
            let mut end = 0;
            let ends = some.iter().map(|token| {
                end += token.len();
                number += 1;
                (end, number - 1)
            });
            for (part, its) in origins.follow(&mut reader, &delta(some.concat(), index + 1 == count), ends) {
                message.apply(part);
                shown.extend(its);
            }
        }
        (message, shown)
    }

    fn piece() -> impl Strategy<Value = String> {
        let marks = [
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "{\"name\": \"f\", \"arguments\": {}}",
            "\n",
            "a b",
        ];
        prop_oneof!["[a-z é😀]{1,8}", prop::sample::select(marks.to_vec()).prop_map(str::to_owned)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// However tokens and deltas are cut, the message is what the parser makes of the text, and the tokens of its
        /// content are those that have a character in it.
        #[test]
        fn tokens_of_the_content_are_those_with_a_character_in_it(
            pieces in prop::collection::vec(piece(), 1..12),
            sizes in prop::collection::vec(1_usize..5, 1..6),
            at_a_time in 1_usize..6,
        ) {
            let text = pieces.concat();
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let (fine, places) = read(&characters, 1);
            let joined: String = places.iter().map(|place| characters[*place].as_str()).collect();
            prop_assert_eq!(&joined, &fine.content);

            let mut tokens: Vec<String> = Vec::new();
            let mut token_of = Vec::new();
            let mut sizes = sizes.iter().cycle();
            let mut rest = characters.as_slice();
            while !rest.is_empty() {
                let (token, more) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
                token_of.extend(token.iter().map(|_| tokens.len()));
                tokens.push(token.concat());
                rest = more;
            }
            let mut expected: Vec<usize> = places.iter().map(|place| token_of[*place]).collect();
            expected.dedup();
            for at_a_time in [at_a_time, usize::MAX] {
                let (message, shown) = read(&tokens, at_a_time.min(tokens.len()));
                prop_assert_eq!(&shown, &expected);
                let mut whole = Message::default();
                let mut plain = reader();
                plain.read(&delta(text.clone(), true)).into_iter().for_each(|part| whole.apply(part));
                prop_assert_eq!(message.content, whole.content);
                prop_assert_eq!(message.reasoning, whole.reasoning);
                prop_assert_eq!(message.calls.len(), whole.calls.len());
            }
        }
    }

    #[test]
    fn a_token_ends_with_the_last_character_that_it_completes() {
        let tokenizer = Arc::new(crate::mock::tokenizer().unwrap());
        let pieces = Pieces::new(Arc::clone(&tokenizer), true, false);
        let tokens = tokenizer.encode("a€b", false).unwrap();
        let ends: Vec<Option<usize>> = ends(&pieces, &tokens).collect();
        assert_eq!(ends, [Some(1), Some(1), Some(1), Some(4), Some(5)]);
    }
}
