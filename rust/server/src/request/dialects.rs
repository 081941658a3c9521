//! The fields of the dialects that are translated into a chat: what each gets.
//!
//! A field of [`SHARED`] goes there as it is, and gets what it gets in a chat. The others are in a dialect's own table, in
//! alphabetical order; its translation reads those that are `Yes`.

use super::parity::Support::{self, Ignored, Yes};
use super::parity::{self, Dialect, LABEL, NO_MEDIA, Off, later, never};

/// One field of a dialect.
pub type Entry = (&'static str, Support);

/// Sampling and serving extras, beside what a dialect itself knows; in alphabetical order.
pub const SHARED: &[&str] = &[
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template_kwargs",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "min_p",
    "min_tokens",
    "model",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "request_id",
    "seed",
    "skip_special_tokens",
    "speculation",
    "stop_in_reasoning",
    "stop_token_ids",
    "stream",
    "temperature",
    "thinking_token_budget",
    "timings",
    "top_k",
    "top_p",
];

const CACHED: Support = Ignored("prefixes are cached by content");
const ONLY_FUNCTIONS: &str = "only functions are supported as tools";
const NOT_EDITED: Support = later(Off::Empty, "conversations are not edited by the server");

/// `/v1/responses`
const RESPONSES: &[Entry] = &[
    ("background", later(Off::False, "responses are not made in the background")),
    ("context_management", NOT_EDITED),
    ("conversation", later(Off::Null, "conversations are not kept; previous_response_id is supported")),
    ("image", later(Off::Null, NO_MEDIA)),
    ("include", Yes),
    ("input", Yes),
    ("instructions", Yes),
    ("max_output_tokens", Yes),
    ("max_tool_calls", Ignored("it limits the provider's own tools, and there are none")),
    ("metadata", Yes),
    ("moderation", later(Off::Null, "there is no moderation")),
    ("n", never(Off::One, "a response is one sample")),
    ("parallel_tool_calls", Yes),
    ("previous_response_id", Yes),
    ("prompt", later(Off::Null, "there are no stored prompt templates")),
    ("prompt_cache_key", CACHED),
    ("prompt_cache_options", CACHED),
    ("prompt_cache_retention", CACHED),
    ("reasoning", Yes),
    ("safety_identifier", LABEL),
    ("service_tier", LABEL),
    ("stop", Yes),
    ("store", Yes),
    ("stream_options", Ignored("usage is always in the last event, and streams are not obfuscated")),
    ("text", Yes),
    ("tool_choice", Yes),
    ("tools", Yes),
    ("top_logprobs", later(Off::Zero, "log-probabilities are in /v1/chat/completions")),
    ("truncation", never(Off::Text("disabled"), "a conversation that is too long is refused")),
    ("user", LABEL),
];

/// `/v1/messages`
const MESSAGES: &[Entry] = &[
    ("cache_control", CACHED),
    ("container", later(Off::Null, ONLY_FUNCTIONS)),
    ("context_management", NOT_EDITED),
    ("diagnostics", LABEL),
    ("inference_geo", LABEL),
    ("max_tokens", Yes),
    ("mcp_servers", later(Off::Empty, ONLY_FUNCTIONS)),
    ("messages", Yes),
    ("metadata", LABEL),
    ("output_config", Yes),
    ("output_format", Yes),
    ("service_tier", LABEL),
    ("speed", LABEL),
    ("stop_sequences", Yes),
    ("system", Yes),
    ("thinking", Yes),
    ("tool_choice", Yes),
    ("tools", Yes),
    ("user_profile_id", LABEL),
    ("workspace_id", LABEL),
];

/// `/inference/v1/generate`
const TOKENS: &[Entry] = &[
    ("cache_salt", Yes),
    ("features", later(Off::Empty, NO_MEDIA)),
    ("kv_transfer_params", later(Off::Empty, "kv transfer is not supported")),
    ("model", Yes),
    ("priority", Yes),
    ("request_id", Yes),
    ("sampling_params", Yes),
    ("stream", Yes),
    ("stream_options", Yes),
    ("timings", Yes),
    ("token_ids", Yes),
];

/// The own table of a translated dialect; `None` for the others.
const fn own(dialect: Dialect) -> Option<&'static [Entry]> {
    match dialect {
        Dialect::Responses => Some(RESPONSES),
        Dialect::Messages => Some(MESSAGES),
        Dialect::Tokens => Some(TOKENS),
        Dialect::Chat | Dialect::Completions => None,
    }
}

/// The extras of a translated dialect. Token in, token out has them among its sampling parameters.
const fn shared(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Responses | Dialect::Messages => SHARED,
        Dialect::Chat | Dialect::Completions | Dialect::Tokens => &[],
    }
}

/// Every field of a translated dialect; none for the others.
pub fn table(dialect: Dialect) -> impl Iterator<Item = Entry> {
    let own = own(dialect);
    let shared = shared(dialect);
    let shared = shared.iter().map(|name| (*name, parity::support(Dialect::Chat, name)));
    own.unwrap_or_default().iter().copied().chain(shared)
}

/// The entry of `name` in a translated dialect.
pub fn entry(dialect: Dialect, name: &str) -> Option<Entry> {
    let own = own(dialect)?;
    let found = own.binary_search_by(|(field, _)| (*field).cmp(name)).ok().map(|index| own[index]);
    found.or_else(|| {
        let shared = shared(dialect);
        let name = shared[shared.binary_search(&name).ok()?];
        Some((name, parity::support(Dialect::Chat, name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_and_share_no_name() {
        for table in [RESPONSES, MESSAGES, TOKENS] {
            assert!(table.is_sorted_by(|(a, _), (b, _)| a < b));
        }
        assert!(
            [RESPONSES, MESSAGES].iter().flat_map(|table| *table).all(|(name, _)| !SHARED.contains(name))
        );
        assert!(SHARED.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn every_extra_is_a_field_of_a_chat() {
        for name in SHARED {
            assert!(parity::lookup(name).is_some(), "{name}");
        }
    }
}
