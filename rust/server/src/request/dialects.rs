//! The fields of the dialects other than chats and completions: what each gets.
//!
//! A dialect has tables of its own, each in alphabetical order, and its reader reads those that are `Yes`. A field of
//! [`SHARED`] of a dialect that is translated into a chat goes there as it is, and gets what it gets in a chat.

use super::parity::Support::{self, Ignored, Yes};
use super::parity::{self, Dialect, LABEL, NO_LORA, NO_MEDIA, NO_TRANSFER, Off, later, never};
use super::pooling_fields;

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
    ("background", Yes),
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
    ("top_logprobs", Yes),
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

/// `/generate`, in SGLang's words.
const GENERATE: &[Entry] = &[
    ("audio_data", later(Off::Empty, NO_MEDIA)),
    ("bootstrap_host", NO_TRANSFER),
    ("bootstrap_port", NO_TRANSFER),
    ("bootstrap_room", NO_TRANSFER),
    ("cache_salt", Yes),
    ("custom_logit_processor", never(Off::Null, "logits processors are not taken from requests")),
    ("data_parallel_rank", parity::ONE_ENGINE),
    ("image_data", later(Off::Empty, NO_MEDIA)),
    ("input_embeds", later(Off::Null, "prompt embeddings are not supported")),
    ("input_ids", Yes),
    ("log_metrics", Ignored("metrics count every request")),
    ("logprob_start_len", Yes),
    ("lora_path", NO_LORA),
    ("modalities", later(Off::Empty, NO_MEDIA)),
    ("model", Yes),
    ("priority", Yes),
    ("return_hidden_states", later(Off::False, "hidden states are not returned")),
    ("return_logprob", Yes),
    ("return_text_in_logprobs", Yes),
    ("rid", Yes),
    ("sampling_params", Yes),
    ("session_params", later(Off::Empty, "sessions are not kept; prefixes are cached by content")),
    ("stream", Yes),
    ("text", Yes),
    ("token_ids_logprob", later(Off::Empty, "token_ids_logprob is not supported; top_logprobs_num is")),
    ("top_logprobs_num", Yes),
    ("video_data", later(Off::Empty, NO_MEDIA)),
];

/// The own tables of a dialect; none for chats and completions.
const fn own(dialect: Dialect) -> &'static [&'static [Entry]] {
    match dialect {
        Dialect::Responses => &[RESPONSES],
        Dialect::Messages => &[MESSAGES],
        Dialect::Tokens => &[TOKENS],
        Dialect::Generate => &[GENERATE],
        Dialect::Embeddings => pooling_fields::OF_EMBEDDINGS,
        Dialect::Pooling => pooling_fields::OF_POOLING,
        Dialect::Classify => pooling_fields::OF_CLASSIFY,
        Dialect::Score => pooling_fields::OF_SCORE,
        Dialect::Rerank => pooling_fields::OF_RERANK,
        Dialect::Cohere => pooling_fields::OF_COHERE,
        Dialect::Chat | Dialect::Completions => &[],
    }
}

/// The extras of a translated dialect. Token in, token out has them among its sampling parameters.
const fn shared(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Responses | Dialect::Messages => SHARED,
        _ => &[],
    }
}

/// Every field of a dialect that has tables of its own.
pub fn table(dialect: Dialect) -> impl Iterator<Item = Entry> {
    let shared = shared(dialect).iter().map(|name| (*name, parity::support(Dialect::Chat, name)));
    own(dialect).iter().flat_map(|table| *table).copied().chain(shared)
}

/// The entry of `name` in such a dialect.
pub fn entry(dialect: Dialect, name: &str) -> Option<Entry> {
    let find = |table: &&[Entry]| {
        table.binary_search_by(|(field, _)| (*field).cmp(name)).ok().map(|index| table[index])
    };
    own(dialect).iter().find_map(find).or_else(|| {
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
        for dialect in Dialect::ALL {
            for table in own(dialect) {
                assert!(table.is_sorted_by(|(a, _), (b, _)| a < b), "{dialect:?}");
            }
            let mut names: Vec<&str> = super::table(dialect).map(|(name, _)| name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{dialect:?} has a name twice");
        }
        assert!(SHARED.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn every_extra_is_a_field_of_a_chat() {
        for name in SHARED {
            assert!(parity::lookup(name).is_some(), "{name}");
        }
    }
}
