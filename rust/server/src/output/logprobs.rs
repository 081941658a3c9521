//! Log-probabilities in the forms of the dialects: one entry per token, always, and numbers that JSON has.

use frizzen_core::{TokenId, TokenLogprobs};

use crate::json;
use crate::output::delta::ChoiceDelta;
use crate::output::pieces::Pieces;

/// How far a choice's text has come, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Characters that are complete, U+FFFD for what can be none among them.
    complete: usize,
    /// The first bytes of the one after them.
    open: [u8; 4],
    /// How many bytes that are.
    len: usize,
}

impl Offsets {
    /// The offset of the character in which a token with these bytes begins.
    fn advance(&mut self, bytes: &[u8]) -> usize {
        let Some((first, rest)) = bytes.split_first() else { return self.complete };
        let at = self.push(*first);
        for byte in rest {
            self.push(*byte);
        }
        at
    }

    /// The offset of the character to which the next byte belongs.
    fn push(&mut self, byte: u8) -> usize {
        let before = self.complete;
        self.open[self.len] = byte;
        self.len += 1;
        let Err(error) = std::str::from_utf8(&self.open[..self.len]) else {
            (self.complete, self.len) = (before + 1, 0);
            return before;
        };
        match error.error_len() {
            // It is still incomplete: at most three bytes, so there is room for the next one.
            None => before,
            // A byte that begins or continues nothing.
            Some(_) if self.len == 1 => {
                (self.complete, self.len) = (before + 1, 0);
                before
            }
            // The bytes before it were no character, and the byte begins another one.
            Some(_) => {
                (self.complete, self.len) = (before + 1, 0);
                self.push(byte)
            }
        }
    }
}

/// True if a delta has entries, of its tokens or of its prompt.
pub(crate) fn has_any(delta: &ChoiceDelta) -> bool {
    !delta.logprobs.is_empty() || delta.echo.is_some()
}

/// `{"content":[...]}` of a chat completion.
pub(crate) fn chat(pieces: &Pieces, delta: &ChoiceDelta, top: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"content\":");
    let last = delta.tokens.len().saturating_sub(1);
    json::list(
        out,
        delta.tokens.iter().zip(&delta.logprobs).enumerate(),
        |out, (position, (id, logprobs))| {
            let silent = delta.silent_end && position == last;
            write_entries(pieces, (*id, logprobs), top, silent, out);
        },
    );
    out.push(b'}');
}

/// A token's entry, with its alternatives.
pub(crate) fn write_entries(
    pieces: &Pieces,
    (id, logprobs): (TokenId, &TokenLogprobs),
    top: usize,
    silent: bool,
    out: &mut Vec<u8>,
) {
    write_entry(pieces, id, logprobs.logprob, silent, out);
    out.extend_from_slice(b",\"top_logprobs\":");
    json::list(out, logprobs.top.iter().take(top), |out, (id, logprob)| {
        write_entry(pieces, *id, *logprob, false, out);
        out.push(b'}');
    });
    out.push(b'}');
}

/// An entry without its closing brace. A silent token added nothing to the text, so it has no bytes.
fn write_entry(pieces: &Pieces, id: TokenId, logprob: f32, silent: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"token\":");
    pieces.write_name(id, out);
    out.extend_from_slice(b",\"logprob\":");
    json::logprob(out, logprob);
    out.extend_from_slice(b",\"bytes\":");
    if silent {
        out.extend_from_slice(b"[]");
    } else {
        json::list(out, pieces.bytes(id).iter(), |out, byte| json::integer(out, u64::from(*byte)));
    }
}

/// The four parallel lists of a completion, the prompt's entries first if it is repeated.
pub(crate) fn completion(
    pieces: &Pieces,
    delta: &ChoiceDelta,
    top: usize,
    offsets: &mut Offsets,
    out: &mut Vec<u8>,
) {
    let prompt: &[TokenId] = delta.echo.as_ref().map_or(&[], |echo| &echo.tokens);
    // Nothing comes before the first prompt token, so nothing could predict it.
    let prompt_logprobs = std::iter::once(None).chain(delta.prompt_logprobs.iter().map(Some));
    let output_logprobs = delta.logprobs.iter().map(Some);
    let entries: Vec<(TokenId, Option<&TokenLogprobs>)> = prompt
        .iter()
        .copied()
        .zip(prompt_logprobs)
        .chain(delta.tokens.iter().copied().zip(output_logprobs))
        .collect();
    let silent = delta.silent_end.then(|| entries.len().saturating_sub(1));
    out.extend_from_slice(b"{\"tokens\":");
    json::list(out, &entries, |out, (id, _)| pieces.write_key(*id, out));
    out.extend_from_slice(b",\"token_logprobs\":");
    json::list(out, &entries, |out, (_, logprobs)| match logprobs {
        Some(logprobs) => json::logprob(out, logprobs.logprob),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b",\"top_logprobs\":");
    json::list(out, &entries, |out, (id, logprobs)| match logprobs {
        Some(logprobs) => write_alternatives(pieces, *id, logprobs, top, out),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b",\"text_offset\":");
    json::list(out, entries.iter().enumerate(), |out, (position, (id, _))| {
        let bytes = if silent == Some(position) { &[] } else { pieces.bytes(*id) };
        json::integer(out, offsets.advance(bytes) as u64);
    });
    out.push(b'}');
}

/// `{"token":logprob,...}`: the best ones, and the chosen one wherever it ranks.
fn write_alternatives(
    pieces: &Pieces,
    chosen: TokenId,
    logprobs: &TokenLogprobs,
    top: usize,
    out: &mut Vec<u8>,
) {
    let best = &logprobs.top[..top.min(logprobs.top.len())];
    let outside = !best.iter().any(|(id, _)| *id == chosen);
    let all = best.iter().copied().chain(outside.then_some((chosen, logprobs.logprob)));
    out.push(b'{');
    for (position, (id, logprob)) in all.enumerate() {
        if position > 0 {
            out.push(b',');
        }
        pieces.write_key(id, out);
        out.push(b':');
        json::logprob(out, logprob);
    }
    out.push(b'}');
}

/// `[null,{"id":{"logprob":...,"rank":...,"decoded_token":...},...},...]` of a prompt.
pub(crate) fn prompt(
    pieces: &Pieces,
    tokens: &[TokenId],
    logprobs: &[TokenLogprobs],
    top: usize,
    out: &mut Vec<u8>,
) {
    let entries = std::iter::once(None).chain(tokens.iter().skip(1).zip(logprobs).map(Some));
    json::list(out, entries, |out, entry| {
        let Some((chosen, logprobs)) = entry else { return out.extend_from_slice(b"null") };
        let best = logprobs.top.iter().take(top).zip(1..).map(|((id, logprob), rank)| (*id, *logprob, rank));
        let outside = !logprobs.top.iter().take(top).any(|(id, _)| id == chosen);
        let all = best.chain(outside.then_some((*chosen, logprobs.logprob, logprobs.rank)));
        out.push(b'{');
        for (position, (id, logprob, rank)) in all.enumerate() {
            if position > 0 {
                out.push(b',');
            }
            json::string(out, &id.to_string());
            out.extend_from_slice(b":{\"logprob\":");
            json::logprob(out, logprob);
            out.extend_from_slice(b",\"rank\":");
            json::integer(out, u64::from(rank));
            out.extend_from_slice(b",\"decoded_token\":");
            pieces.write_name(id, out);
            out.push(b'}');
        }
        out.push(b'}');
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_count_characters_and_split_ones_share_theirs() {
        let mut offsets = Offsets::default();
        let euro = "€".as_bytes();
        assert_eq!(offsets.advance(b"ab"), 0);
        assert_eq!(offsets.advance(&euro[..1]), 2);
        assert_eq!(offsets.advance(&euro[1..]), 2);
        assert_eq!(offsets.advance(b""), 3);
        assert_eq!(offsets.advance("é!".as_bytes()), 3);
        assert_eq!(offsets.advance(b"z"), 5);
    }

    /// Bytes in any order, in tokens of any size.
    #[test]
    fn offsets_are_places_in_the_text_even_if_it_is_not_utf8_llama_cpp_python_1037() {
        let mut state = 7u32;
        let mut random = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        let bytes =
            [b'a', 0x80, 0xA7, 0xC3, 0xE2, 0x82, 0xAC, 0xED, 0xA0, 0xF0, 0x9F, 0x98, 0xF4, 0x90, 0xFF];
        for _ in 0..20_000 {
            let (mut offsets, mut all) = (Offsets::default(), Vec::new());
            for _ in 0..=random(6) {
                let token: Vec<u8> = (0..=random(3)).map(|_| bytes[random(15) as usize]).collect();
                let at = offsets.advance(&token);
                all.push(token[0]);
                let through_the_first_byte = String::from_utf8_lossy(&all).chars().count();
                assert_eq!(at, through_the_first_byte - 1, "{all:x?}");
                all.extend_from_slice(&token[1..]);
            }
        }
    }
}
