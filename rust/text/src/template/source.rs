//! What is changed in a template's source before it is compiled.

/// Brings line ends to `\n` and turns `{% generation %}` blocks into plain scopes.
///
/// `transformers` uses `generation` blocks to find the assistant's tokens for training; for inference they only open a
/// scope, as `{% with %}` does. Whitespace control stays as written.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let len = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') => expression_end(tag, "}}"),
            Some(b'%') => expression_end(tag, "%}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(len);
        match statement_name(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("raw") => {
                out.push_str(tag);
                let end = raw_end(after);
                out.push_str(&after[..end]);
                rest = &after[end..];
                continue;
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Length of the tag that `text` begins with; strings inside it may contain the closing marker.
fn expression_end(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut i = 2;
    while i < bytes.len() {
        match (quote, bytes[i]) {
            (Some(_), b'\\') => i += 1,
            (Some(q), b) if b == q => quote = None,
            (None, b @ (b'"' | b'\'')) => quote = Some(b),
            (None, _) if bytes[i..].starts_with(close.as_bytes()) => return i + close.len(),
            _ => {}
        }
        i += 1;
    }
    text.len()
}

/// The keyword of a `{% ... %}` tag.
fn statement_name(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.trim_start_matches(['-', '+']).trim_start();
    let end = inner.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(inner.len());
    Some(&inner[..end])
}

/// Where the `{% endraw %}` tag in `text` begins.
fn raw_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        if statement_name(&text[from + at..]) == Some("endraw") {
            return from + at;
        }
        from += at + 2;
    }
    text.len()
}
