//! What each request field of the peers gets here: the data behind the parser's refusals and warnings.
//!
//! A body is checked against this table before anything else is read. A field that is `Yes` must be read by the
//! parser of its dialect, and the parser can read no other: `tests` at the end fail on an entry that is stale.

use axum::http::StatusCode;
use serde_json::Value;

use crate::request::dialects;

/// Which request format a body is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/inference/v1/generate`
    Tokens,
    /// `/generate`
    Generate,
    /// `/v1/embeddings`
    Embeddings,
    /// `/pooling`
    Pooling,
    /// `/classify`
    Classify,
    /// `/score`
    Score,
    /// `/rerank`
    Rerank,
    /// `/v2/embed`
    Cohere,
}

impl Dialect {
    /// Every one, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Tokens,
        Self::Generate,
        Self::Embeddings,
        Self::Pooling,
        Self::Classify,
        Self::Score,
        Self::Rerank,
        Self::Cohere,
    ];
}

impl Dialect {
    /// What the model does, in the words of OpenTelemetry's conventions.
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses | Self::Messages => "chat",
            Self::Completions | Self::Tokens | Self::Generate => "text_completion",
            Self::Embeddings | Self::Pooling | Self::Classify | Self::Score | Self::Rerank | Self::Cohere => {
                "embeddings"
            }
        }
    }

    /// What stands before a request's name in the id of its answer.
    pub const fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completions => "cmpl-",
            Self::Responses => "resp_",
            Self::Messages => "msg_",
            Self::Embeddings | Self::Cohere => "embd-",
            Self::Pooling => "pool-",
            Self::Classify => "classify-",
            Self::Score => "score-",
            Self::Rerank => "rerank-",
            Self::Tokens | Self::Generate => "",
        }
    }
}

/// What happens to a field.
#[derive(Clone, Copy, Debug)]
pub enum Support {
    /// Read and obeyed.
    Yes,
    /// Accepted without effect, with one warning in the log; the text says why that is harmless.
    Ignored(&'static str),
    /// Refused with this status and reason, unless the value means "off".
    Refused(StatusCode, Off, &'static str),
    /// Refused: another field took its place.
    Renamed(&'static str),
    /// Not a field of this dialect.
    Unknown,
}

/// Which values of a refused field ask for nothing. `null` always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// Only `null`.
    Null,
    /// `false`.
    False,
    /// `true`: it is the default.
    True,
    /// An empty list, object or string.
    Empty,
    /// The number 0.
    Zero,
    /// The number 1.
    One,
    /// This string.
    Text(&'static str),
    /// An object whose `type` is this.
    Type(&'static str),
    /// A list of this string alone.
    Only(&'static str),
}

impl Off {
    /// True if `value` asks for nothing.
    pub fn fits(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) | (Self::False, Value::Bool(false)) | (Self::True, Value::Bool(true)) => true,
            (Self::Empty, Value::Array(items)) => items.is_empty(),
            (Self::Empty, Value::Object(items)) => items.is_empty(),
            (Self::Empty, Value::String(text)) => text.is_empty(),
            (Self::Zero, Value::Number(number)) => number.as_f64() == Some(0.0),
            (Self::One, Value::Number(number)) => number.as_f64() == Some(1.0),
            (Self::Text(text), Value::String(value)) => text == value,
            (Self::Type(text), Value::Object(fields)) => {
                fields.get("type").and_then(Value::as_str) == Some(text)
            }
            (Self::Only(text), Value::Array(items)) => {
                matches!(items.as_slice(), [one] if one.as_str() == Some(text))
            }
            _ => false,
        }
    }
}

/// One field of the peers' requests.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it gets in a chat completion.
    pub chat: Support,
    /// What it gets in a completion.
    pub completions: Support,
}

impl Field {
    /// What the field gets in this dialect.
    pub const fn support(&self, dialect: Dialect) -> Support {
        match dialect {
            Dialect::Chat => self.chat,
            Dialect::Completions => self.completions,
            // They have tables of their own, since they share few names.
            _ => Unknown,
        }
    }
}

const fn both(name: &'static str, support: Support) -> Field {
    Field { name, chat: support, completions: support }
}

const fn chat(name: &'static str, chat: Support) -> Field {
    Field { name, chat, completions: Support::Unknown }
}

const fn completions(name: &'static str, completions: Support) -> Field {
    Field { name, chat: Support::Unknown, completions }
}

/// Known, and not served by this build.
pub(super) const fn later(off: Off, why: &'static str) -> Support {
    Support::Refused(StatusCode::NOT_IMPLEMENTED, off, why)
}

/// Known, and not served by design.
pub(super) const fn never(off: Off, why: &'static str) -> Support {
    Support::Refused(StatusCode::BAD_REQUEST, off, why)
}

use Support::{Ignored, Renamed, Unknown, Yes};

const GUIDED: Support = Renamed("structured_outputs");
pub(super) const NO_LORA: Support = later(Off::Null, "there are no adapters");
pub(super) const NO_TRANSFER: Support = later(Off::Null, "kv transfer is not supported");
pub(super) const ONE_ENGINE: Support = later(Off::Zero, "the engine is chosen by load and by prefix");
pub(super) const NO_MEDIA: &str = "only text goes in and out";
pub(super) const LABEL: Support = Ignored("a label for the provider's own records");
const NO_REASONING: &str = "a completion is text as it is, in which no reasoning is told from the rest";

/// Every known field, in alphabetical order.
pub const FIELDS: &[Field] = &[
    chat("add_generation_prompt", Yes),
    both("add_special_tokens", Yes),
    both("allowed_token_ids", Yes),
    chat("audio", later(Off::Null, NO_MEDIA)),
    both("bad_words", Yes),
    both("best_of", never(Off::One, "best_of is not supported; n is")),
    both("bootstrap_host", NO_TRANSFER),
    both("bootstrap_port", NO_TRANSFER),
    both("bootstrap_room", NO_TRANSFER),
    both("cache_salt", Yes),
    chat("chat_template", never(Off::Null, "templates are taken from the server only (--chat-template)")),
    chat("chat_template_kwargs", Yes),
    chat("continue_final_message", Yes),
    both("custom_logit_processor", never(Off::Null, "logits processors are not taken from requests")),
    both(
        "custom_params",
        never(Off::Empty, "they are for logits processors, which are not taken from requests"),
    ),
    both("data_parallel_rank", ONE_ENGINE),
    chat("documents", Yes),
    both("ebnf", GUIDED),
    Field {
        name: "echo",
        chat: later(Off::False, "echo is not supported in chat; continue_final_message is"),
        completions: Yes,
    },
    chat("enable_thinking", Yes),
    both("frequency_penalty", Yes),
    chat("function_call", Renamed("tool_choice")),
    chat("functions", Renamed("tools")),
    both("guided_choice", GUIDED),
    both("guided_decoding_backend", GUIDED),
    both("guided_grammar", GUIDED),
    both("guided_json", GUIDED),
    both("guided_regex", GUIDED),
    both("guided_whitespace_pattern", GUIDED),
    both("ignore_eos", Yes),
    chat("include_reasoning", Yes),
    both("include_stop_str_in_output", Yes),
    both("json_schema", GUIDED),
    both("kv_transfer_params", later(Off::Empty, "kv transfer is not supported")),
    both("length_penalty", never(Off::One, "length_penalty belongs to beam search, which is not supported")),
    both("logit_bias", Yes),
    both("logits_processors", never(Off::Empty, "logits processors are not taken from requests")),
    both("logprob_token_ids", Yes),
    both("logprobs", Yes),
    both("lora_path", NO_LORA),
    chat("max_completion_tokens", Yes),
    both("max_tokens", Yes),
    chat("media_io_kwargs", later(Off::Empty, NO_MEDIA)),
    chat("messages", Yes),
    both("metadata", LABEL),
    both("min_p", Yes),
    both("min_tokens", Yes),
    both("mm_processor_kwargs", later(Off::Empty, NO_MEDIA)),
    chat("modalities", later(Off::Only("text"), NO_MEDIA)),
    both("model", Yes),
    both("n", Yes),
    both("no_stop_trim", Yes),
    chat("parallel_tool_calls", Yes),
    chat("prediction", Ignored("it would change the speed only")),
    both("presence_penalty", Yes),
    both("priority", Yes),
    completions("prompt", Yes),
    both("prompt_cache_key", Ignored("prefixes are cached by content")),
    completions("prompt_embeds", later(Off::Null, "prompt embeddings are not supported")),
    both("prompt_logprobs", Yes),
    chat("prompt_token_ids", Yes),
    chat("reasoning_effort", Yes),
    both("regex", GUIDED),
    both(
        "repetition_detection",
        later(Off::Null, "repetition is not detected; repetition_penalty is supported"),
    ),
    both("repetition_penalty", Yes),
    both("request_id", Yes),
    both("response_format", Yes),
    both("return_hidden_states", later(Off::False, "hidden states are not returned")),
    both("return_prompt_text", Yes),
    both("return_token_ids", Yes),
    both("return_token_offsets", Yes),
    both("return_tokens_as_token_ids", Yes),
    both("rid", Yes),
    both("safety_identifier", LABEL),
    both("seed", Yes),
    chat(
        "separate_reasoning",
        later(Off::True, "reasoning is always separated where there is a parser for it"),
    ),
    both("service_tier", LABEL),
    both("session_id", Ignored("prefixes are cached by content")),
    both("skip_special_tokens", Yes),
    both("spaces_between_special_tokens", Ignored("the tokenizer's own decoder decides")),
    both("speculation", Yes),
    both("stop", Yes),
    chat("stop_in_reasoning", Yes),
    both("stop_regex", later(Off::Empty, "stop_regex is not supported; stop is")),
    both("stop_token_ids", Yes),
    chat("store", Ignored("nothing is stored")),
    both("stream", Yes),
    both("stream_options", Yes),
    chat("stream_reasoning", later(Off::True, "reasoning is streamed like the rest")),
    both("structural_tag", GUIDED),
    both("structured_outputs", Yes),
    completions("suffix", later(Off::Empty, "there is no fill-in-the-middle")),
    both("temperature", Yes),
    Field { name: "thinking_budget", chat: Yes, completions: later(Off::Null, NO_REASONING) },
    Field { name: "thinking_token_budget", chat: Yes, completions: later(Off::Null, NO_REASONING) },
    both("timings", Yes),
    chat("tool_choice", Yes),
    chat("tools", Yes),
    both("top_k", Yes),
    chat("top_logprobs", Yes),
    both("top_p", Yes),
    both("truncate_prompt_tokens", Yes),
    both("truncation_side", Yes),
    both("use_beam_search", never(Off::False, "beam search is not supported")),
    both("user", LABEL),
    chat("verbosity", Ignored("the model was not trained for it")),
    both("vllm_xargs", later(Off::Empty, "there are no engine plug-ins that could take them")),
    chat("web_search_options", later(Off::Null, "there is no web search")),
];

/// The entry of `name`.
pub fn lookup(name: &str) -> Option<&'static Field> {
    FIELDS.binary_search_by(|field| field.name.cmp(name)).ok().map(|index| &FIELDS[index])
}

/// Every field that `dialect` knows.
pub fn table(dialect: Dialect) -> impl Iterator<Item = (&'static str, Support)> {
    let first = FIELDS.iter().map(move |field| (field.name, field.support(dialect)));
    first.filter(|(_, support)| !matches!(support, Unknown)).chain(dialects::table(dialect))
}

/// The fields that `dialect` reads.
pub fn supported(dialect: Dialect) -> impl Iterator<Item = &'static str> {
    table(dialect).filter(|(_, support)| matches!(support, Yes)).map(|(name, _)| name)
}

/// The table's own spelling of `name`, and what it gets in `dialect`.
pub fn entry(dialect: Dialect, name: &str) -> Option<(&'static str, Support)> {
    match dialect {
        Dialect::Chat | Dialect::Completions => {
            lookup(name).map(|field| (field.name, field.support(dialect)))
        }
        _ => dialects::entry(dialect, name),
    }
}

/// What `name` gets in `dialect`.
pub fn support(dialect: Dialect, name: &str) -> Support {
    entry(dialect, name).map_or(Unknown, |(_, support)| support)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_no_entry_twice() {
        for pair in FIELDS.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} and {}", pair[0].name, pair[1].name);
        }
    }

    #[test]
    fn an_entry_is_known_somewhere() {
        for field in FIELDS {
            assert!(!matches!((field.chat, field.completions), (Unknown, Unknown)), "{}", field.name);
        }
    }

    #[test]
    fn a_successor_is_itself_in_the_table() {
        for field in FIELDS {
            for support in [field.chat, field.completions] {
                if let Renamed(successor) = support {
                    assert!(lookup(successor).is_some(), "{} names {successor}", field.name);
                }
            }
        }
    }

    #[test]
    fn off_values_ask_for_nothing() {
        use serde_json::json;
        for (off, value) in [
            (Off::Null, json!(null)),
            (Off::False, json!(false)),
            (Off::Empty, json!({})),
            (Off::Empty, json!([])),
            (Off::One, json!(1.0)),
            (Off::Type("text"), json!({"type": "text"})),
            (Off::Only("text"), json!(["text"])),
        ] {
            assert!(off.fits(&value), "{off:?} {value}");
        }
        for (off, value) in [
            (Off::Null, json!(false)),
            (Off::False, json!(true)),
            (Off::Empty, json!([1])),
            (Off::One, json!(2)),
            (Off::Type("text"), json!({"type": "json_object"})),
            (Off::Only("text"), json!(["text", "audio"])),
        ] {
            assert!(!off.fits(&value), "{off:?} {value}");
        }
    }
}
