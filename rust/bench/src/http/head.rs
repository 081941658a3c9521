//! The head of an answer.

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// That many bytes.
    Length(u64),
    /// Chunks, the last one empty.
    Chunked,
    /// The connection's end.
    Close,
}

/// Status and the headers that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the connection can be used again after the body.
    pub keep_alive: bool,
    /// The header `metadata`.
    pub metadata: Option<String>,
}

impl Head {
    /// Parses the lines before the empty one.
    pub fn parse(head: &[u8]) -> Result<Self, String> {
        let text = String::from_utf8_lossy(head);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut words = first.split(' ');
        let version = words.next().unwrap_or_default();
        let status = words.next().and_then(|status| status.parse().ok());
        let (true, Some(status)) = (version.starts_with("HTTP/1."), status) else {
            return Err(format!("'{first}' is not a status line of HTTP/1"));
        };
        let mut parsed =
            Self { status, framing: Framing::Close, keep_alive: version == "HTTP/1.1", metadata: None };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            parsed.take(&name.to_ascii_lowercase(), value.trim())?;
        }
        if matches!(status, 100..=199 | 204 | 304) {
            parsed.framing = Framing::Length(0);
        }
        parsed.keep_alive &= parsed.framing != Framing::Close;
        Ok(parsed)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => self.framing = Framing::Chunked,
            "transfer-encoding" => return Err(format!("unknown transfer-encoding '{value}'")),
            // Chunks win over a length (RFC 9112, 6.3).
            "content-length" if self.framing != Framing::Chunked => {
                let length =
                    value.parse().map_err(|_| format!("content-length '{value}' is not a number"))?;
                self.framing = Framing::Length(length);
            }
            "connection" if value.eq_ignore_ascii_case("close") => self.keep_alive = false,
            "metadata" => self.metadata = Some(value.to_owned()),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_is_what_the_headers_say() {
        let framing = |headers: &str| {
            let head = Head::parse(format!("HTTP/1.1 200 OK\r\n{headers}").as_bytes()).unwrap();
            (head.framing, head.keep_alive)
        };
        assert_eq!(framing("Content-Length: 5"), (Framing::Length(5), true));
        assert_eq!(framing("content-length: 5\r\nTransfer-Encoding: Chunked"), (Framing::Chunked, true));
        assert_eq!(framing("transfer-encoding: chunked\r\ncontent-length: 5"), (Framing::Chunked, true));
        assert_eq!(framing("connection: close\r\ncontent-length: 5"), (Framing::Length(5), false));
        assert_eq!(framing("server: x"), (Framing::Close, false));
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for bad in ["", "SSH-2.0-x", "HTTP/1.1 abc", "HTTP/1.1 200 OK\r\ncontent-length: -1"] {
            Head::parse(bad.as_bytes()).unwrap_err();
        }
    }
}
