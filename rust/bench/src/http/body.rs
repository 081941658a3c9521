//! Taking a body out of its framing, whatever pieces it arrives in.

use std::ops::Range;

use super::head::Framing;

/// Where in the body we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The digits of a chunk's size.
    Size {
        /// The digits so far.
        value: u64,
        /// Whether there was one.
        any: bool,
    },
    /// What follows a chunk's size, up to the line's end.
    Extension {
        /// The chunk's size.
        size: u64,
    },
    /// Inside a chunk.
    Chunk {
        /// Bytes to come.
        left: u64,
    },
    /// The line's end after a chunk.
    ChunkEnd,
    /// The lines after the last chunk; an empty one ends the body.
    Trailer {
        /// Whether the line has anything in it.
        empty: bool,
    },
    /// Bytes that were announced.
    Length {
        /// Bytes to come.
        left: u64,
    },
    /// Whatever comes until the connection ends.
    UntilClose,
    /// All is there.
    Complete,
}

impl Body {
    /// The start of a body.
    pub fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(0) => Self::Complete,
            Framing::Length(left) => Self::Length { left },
            Framing::Chunked => Self::Size { value: 0, any: false },
            Framing::Close => Self::UntilClose,
        }
    }

    /// Takes bytes from `input`: how many, and which of them are content. No content means that all of `input` was
    /// taken or the body is complete.
    pub fn take(&mut self, input: &[u8]) -> Result<(usize, Range<usize>), String> {
        let mut at = 0;
        while at < input.len() {
            let rest = input.len() - at;
            match self {
                Self::Complete => break,
                Self::UntilClose => return Ok((input.len(), at..input.len())),
                Self::Length { left } => {
                    let taken = rest.min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= taken as u64;
                    if *left == 0 {
                        *self = Self::Complete;
                    }
                    return Ok((at + taken, at..at + taken));
                }
                Self::Chunk { left } => {
                    let taken = rest.min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= taken as u64;
                    if *left == 0 {
                        *self = Self::ChunkEnd;
                    }
                    return Ok((at + taken, at..at + taken));
                }
                _ => {
                    *self = self.after(input[at])?;
                    at += 1;
                }
            }
        }
        Ok((at, at..at))
    }

    /// The state after one byte of the framing itself.
    fn after(self, byte: u8) -> Result<Self, String> {
        Ok(match (self, byte) {
            (Self::Size { value, .. }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = (byte as char).to_digit(16).map_or(0, u64::from);
                let value = value.checked_mul(16).ok_or("a chunk's size exceeds 64 bits")? + digit;
                Self::Size { value, any: true }
            }
            (Self::Size { value, any: true }, b';' | b' ' | b'\t' | b'\r') => Self::Extension { size: value },
            (Self::Size { value: 0, any: true } | Self::Extension { size: 0 }, b'\n') => {
                Self::Trailer { empty: true }
            }
            (Self::Size { value: left, any: true } | Self::Extension { size: left }, b'\n') => {
                Self::Chunk { left }
            }
            (extension @ Self::Extension { .. }, _) => extension,
            (Self::ChunkEnd, b'\r') => Self::ChunkEnd,
            (Self::ChunkEnd, b'\n') => Self::Size { value: 0, any: false },
            (Self::Trailer { empty: true }, b'\n') => Self::Complete,
            (Self::Trailer { .. }, b'\n') => Self::Trailer { empty: true },
            (Self::Trailer { empty }, b'\r') => Self::Trailer { empty },
            (Self::Trailer { .. }, _) => Self::Trailer { empty: false },
            (state, _) => return Err(format!("byte {byte:#04x} in a chunked body, at {state:?}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(body: &mut Body, input: &[u8]) -> Vec<u8> {
        let (mut at, mut content) = (0, Vec::new());
        while at < input.len() && *body != Body::Complete {
            let (taken, part) = body.take(&input[at..]).unwrap();
            content.extend_from_slice(&input[at..][part]);
            at += taken;
        }
        content
    }

    #[test]
    fn chunks_split_anywhere_are_the_same_content() {
        let wire = b"5;a=b\r\nhello\r\n1 \r\n \r\n00A\r\n0123456789\r\n0\r\nx: y\r\n\r\n";
        for split in 0..=wire.len() {
            let mut body = Body::new(Framing::Chunked);
            let mut got = content(&mut body, &wire[..split]);
            got.extend(content(&mut body, &wire[split..]));
            assert_eq!(got, b"hello 0123456789", "split at {split}");
            assert_eq!(body, Body::Complete);
        }
    }

    #[test]
    fn a_body_is_complete_at_its_last_byte_and_not_before() {
        for (framing, wire) in
            [(Framing::Chunked, &b"2\r\nab\r\n0\r\n\r\n"[..]), (Framing::Length(3), b"abc")]
        {
            for end in 0..wire.len() {
                let mut body = Body::new(framing);
                content(&mut body, &wire[..end]);
                assert_ne!(body, Body::Complete, "{framing:?} after {end}");
            }
        }
        assert_eq!(Body::new(Framing::Length(0)), Body::Complete);
    }

    #[test]
    fn broken_chunks_are_refused() {
        for wire in [&b"\r\n"[..], b"g\r\n", b"1\r\nab", b"11111111111111111\r\n"] {
            let mut body = Body::new(Framing::Chunked);
            let (mut at, mut refused) = (0, false);
            while at < wire.len() && !refused {
                match body.take(&wire[at..]) {
                    Ok((taken, _)) => at += taken,
                    Err(_) => refused = true,
                }
            }
            assert!(refused, "{:?}", String::from_utf8_lossy(wire));
        }
    }
}
