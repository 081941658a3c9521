//! Server-sent events out of a whole body.

use std::borrow::Cow;

/// An event's data, and where in the body the event was complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'b> {
    /// Its `data` lines, joined by line feeds.
    pub data: Cow<'b, [u8]>,
    /// Bytes of the body up to its end.
    pub end: usize,
}

/// The events of a body that carry data. One that the body's end cuts off counts too: some servers leave the last empty
/// line out.
pub fn events(body: &[u8]) -> impl Iterator<Item = Event<'_>> {
    let (mut at, mut pending) = (0, None::<Cow<'_, [u8]>>);
    std::iter::from_fn(move || {
        while at < body.len() {
            let (line, next) = line(body, at);
            at = next;
            if line.is_empty() {
                if let Some(data) = pending.take() {
                    return Some(Event { data, end: at });
                }
            } else if let Some(more) = data_of(line) {
                pending = Some(match pending.take() {
                    None => Cow::Borrowed(more),
                    Some(so_far) => Cow::Owned([&so_far, &b"\n"[..], more].concat()),
                });
            }
        }
        pending.take().map(|data| Event { data, end: at })
    })
}

/// The line that starts at `at` without its end, and where the next one starts. A line ends with LF, CR LF or CR.
fn line(body: &[u8], at: usize) -> (&[u8], usize) {
    let rest = &body[at..];
    match rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        None => (rest, body.len()),
        Some(end) if rest[end..].starts_with(b"\r\n") => (&rest[..end], at + end + 2),
        Some(end) => (&rest[..end], at + end + 1),
    }
}

/// The value of a `data` line; at most one space after the colon is not part of it.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    let value = line.strip_prefix(b"data")?;
    if value.is_empty() {
        return Some(value);
    }
    let value = value.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(body: &str) -> Vec<String> {
        events(body.as_bytes()).map(|event| String::from_utf8(event.data.into_owned()).unwrap()).collect()
    }

    #[test]
    fn lines_may_end_in_any_of_the_three_ways() {
        for end in ["\n", "\r\n", "\r"] {
            let body =
                format!(": hi{end}{end}event: x{end}data: a{end}data:b{end}id: 1{end}{end}data{end}{end}");
            assert_eq!(data(&body), ["a\nb", ""], "{end:?}");
        }
    }

    #[test]
    fn an_event_ends_with_its_empty_line_and_a_last_one_may_lack_it() {
        let found: Vec<usize> = events(b"data: a\n\ndata: [DONE]\n").map(|event| event.end).collect();
        assert_eq!(found, [9, 22]);
        assert_eq!(data("data: a\n\ndata: [DONE]"), ["a", "[DONE]"]);
        assert_eq!(data("database: x\n\n"), [""; 0]);
    }
}
