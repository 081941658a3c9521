//! Token counts of a request.

use crate::json;

/// What `usage` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of all prompts; a prompt counts once, however many samples it has.
    pub prompt: u64,
    /// Tokens of all choices.
    pub completion: u64,
    /// Prompt tokens that nobody computed for this request.
    pub cached: u64,
}

impl Usage {
    /// Appends the object. The details are always there: 0 is a statement, absence is none.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in [
            (&b"{\"prompt_tokens\":"[..], self.prompt),
            (b",\"total_tokens\":", self.prompt + self.completion),
            (b",\"completion_tokens\":", self.completion),
            (b",\"prompt_tokens_details\":{\"cached_tokens\":", self.cached),
        ] {
            out.extend_from_slice(name);
            json::integer(out, value);
        }
        out.extend_from_slice(b"}}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_are_shown_even_if_zero_vllm_ascend_9911() {
        let mut out = Vec::new();
        Usage { prompt: 3, completion: 4, cached: 0 }.write(&mut out);
        let usage: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            usage,
            serde_json::json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 0}})
        );
    }
}
