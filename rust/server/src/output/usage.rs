//! Token counts of a request.

use frizzen_core::SpeculationUsage;

use crate::json;
use crate::output::Waterfall;

/// What `usage` shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of all prompts; a prompt counts once, however many samples it has.
    pub prompt: u64,
    /// Tokens of all choices.
    pub completion: u64,
    /// Prompt tokens that nobody computed for this request.
    pub cached: u64,
    /// Of all choices, if the request spoke of speculation.
    pub speculation: Option<SpeculationUsage>,
    /// Of each choice, if the request asked. Shown beside the usage, where an answer ends.
    pub timings: Option<Vec<Waterfall>>,
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
        out.push(b'}');
        if let Some(speculation) = &self.speculation {
            out.extend_from_slice(b",\"speculation\":");
            out.extend_from_slice(speculation_json(speculation).to_string().as_bytes());
        }
        out.push(b'}');
    }
}

impl Usage {
    /// The times of each choice, if they are shown.
    pub fn timings_json(&self) -> Option<serde_json::Value> {
        self.timings.as_ref().map(|choices| choices.iter().map(Waterfall::json).collect())
    }

    /// Appends them as a further member, if they are shown.
    pub(crate) fn write_timings(&self, out: &mut Vec<u8>) {
        if let Some(timings) = self.timings_json() {
            out.extend_from_slice(b",\"timings\":");
            out.extend_from_slice(timings.to_string().as_bytes());
        }
    }
}

/// `lengths` and `reasons` count steps; `saved_ms` is negative if drafts cost time.
pub fn speculation_json(usage: &SpeculationUsage) -> serde_json::Value {
    let lengths = usage.lengths().map(|(length, steps)| (length.to_string(), steps.into()));
    let reasons = usage.reasons().map(|(reason, steps)| (reason.code().to_owned(), steps.into()));
    serde_json::json!({
        "drafts": usage.drafts,
        "accepted": usage.accepted,
        "saved_ms": (usage.saved * 1e6).round() / 1e3,
        "lengths": lengths.collect::<serde_json::Map<_, _>>(),
        "reasons": reasons.collect::<serde_json::Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_are_shown_even_if_zero_vllm_ascend_9911() {
        let mut out = Vec::new();
        Usage { prompt: 3, completion: 4, ..Usage::default() }.write(&mut out);
        let usage: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            usage,
            serde_json::json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 0}})
        );
    }
}
