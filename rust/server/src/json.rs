//! JSON written by hand where a value tree would be built only to be thrown away: once per token.

/// Appends `text` as a JSON string.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is always JSON, and a Vec takes every write");
}

/// Appends an integer.
pub(crate) fn integer(out: &mut Vec<u8>, value: u64) {
    serde_json::to_writer(out, &value).expect("an integer is always JSON, and a Vec takes every write");
}

/// What stands for minus infinity: JSON has no infinities, and OpenAI answers with this.
const LEAST_LOGPROB: f32 = -9999.0;

/// Appends a log-probability; one that is not finite becomes [`LEAST_LOGPROB`].
pub(crate) fn logprob(out: &mut Vec<u8>, value: f32) {
    let finite = if value.is_finite() { value.max(LEAST_LOGPROB) } else { LEAST_LOGPROB };
    serde_json::to_writer(out, &finite).expect("a finite number is always JSON, and a Vec takes every write");
}

/// Appends `items` with commas between them.
pub(crate) fn list<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    let mut first = true;
    for value in items {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        item(out, value);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let mut out = Vec::new();
        string(&mut out, "\"\\\n\u{0}\u{2028}é😀");
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), "\"\\\n\u{0}\u{2028}é😀");
    }

    #[test]
    fn infinite_logprobs_are_finite_numbers_sglang_5984() {
        for (value, written) in [
            (f32::NEG_INFINITY, "-9999.0"),
            (f32::NAN, "-9999.0"),
            (-12000.0, "-9999.0"),
            (-0.5, "-0.5"),
            (0.0, "0.0"),
        ] {
            let mut out = Vec::new();
            logprob(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), written);
        }
    }

    #[test]
    fn lists_have_commas_between_items_only() {
        let mut out = Vec::new();
        list(&mut out, [1, 2, 3], integer);
        list(&mut out, [], integer);
        assert_eq!(out, b"[1,2,3][]");
    }
}
