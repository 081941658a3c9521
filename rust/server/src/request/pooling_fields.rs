//! The fields of the endpoints that return vectors, or compare texts by them: what each gets.
//!
//! A body is made of a few groups of fields, each in alphabetical order; an endpoint is a list of groups.

use super::dialects::Entry;
use super::parity::Support::{Ignored, Yes};
use super::parity::{LABEL, NO_LORA, NO_MEDIA, Off, later, never};

/// What every endpoint takes.
const ALL: &[Entry] = &[
    ("add_special_tokens", Yes),
    ("cache_salt", Yes),
    ("lora_path", NO_LORA),
    ("metadata", LABEL),
    ("mm_processor_kwargs", later(Off::Empty, NO_MEDIA)),
    ("model", Yes),
    ("priority", Yes),
    ("request_id", Yes),
    ("rid", Yes),
    ("softmax", Yes),
    ("truncate_prompt_tokens", Yes),
    ("truncation_side", Yes),
    ("use_activation", Yes),
    ("user", LABEL),
];

/// One or several texts, or a conversation.
const INPUT: &[Entry] = &[
    ("add_generation_prompt", Yes),
    ("chat_template", never(Off::Null, "templates are taken from the server only (--chat-template)")),
    ("chat_template_kwargs", Yes),
    ("continue_final_message", Yes),
    ("documents", Yes),
    ("enable_thinking", Yes),
    ("image", later(Off::Null, NO_MEDIA)),
    ("input", Yes),
    ("media_io_kwargs", later(Off::Empty, NO_MEDIA)),
    ("messages", Yes),
    ("reasoning_effort", Yes),
    ("tools", Yes),
];

/// How vectors are written.
const ENCODING: &[Entry] = &[
    ("activation", Yes),
    ("embed_dtype", Yes),
    ("encoding_format", Yes),
    ("endianness", Yes),
    ("normalize", Yes),
];

const EMBEDDINGS: &[Entry] = &[("dimensions", Yes), ("embed_overrides", later(Off::Empty, NO_MEDIA))];

const POOLING: &[Entry] = &[
    ("data", later(Off::Null, "there are no input plug-ins; input takes texts")),
    ("dimensions", never(Off::Null, "dimensions belongs to /v1/embeddings")),
    ("step_tag_id", later(Off::Null, "steps are not told apart; the task token_classify judges every token")),
    ("task", Yes),
];

const CLASSIFY: &[Entry] = &[("activation", Yes)];

const NO_TEMPLATES: &str = "a pair is put together by the tokenizer, and no template or instruction is added";

/// Pairs of texts.
const PAIRS: &[Entry] = &[
    ("activation", Yes),
    ("apply_softmax", later(Off::False, "it is for scores of a model that generates")),
    ("chat_template", later(Off::Null, NO_TEMPLATES)),
    ("chat_template_kwargs", later(Off::Empty, NO_TEMPLATES)),
    ("instruct", later(Off::Empty, NO_TEMPLATES)),
    ("instruction", later(Off::Empty, NO_TEMPLATES)),
];

/// Three spellings of the same two sides, as the peers have them.
const SCORE: &[Entry] = &[
    ("data_1", Yes),
    ("data_2", Yes),
    ("documents", Yes),
    ("encoding_format", Ignored("a score is a number")),
    ("item_first", later(Off::False, "it is for scores of a model that generates")),
    ("items", Yes),
    (
        "label_token_ids",
        later(Off::Empty, "a model that generates gives no scores; its logprobs are in /v1/completions"),
    ),
    ("queries", Yes),
    ("query", Yes),
    ("text_1", Yes),
    ("text_2", Yes),
];

const RERANK: &[Entry] = &[
    ("documents", Yes),
    ("max_chunks_per_doc", Ignored("a document is one text; max_tokens_per_doc cuts it")),
    ("max_tokens_per_doc", Yes),
    ("query", Yes),
    ("rank_fields", later(Off::Empty, "a document is a string, or an object with the string in text")),
    ("return_documents", Yes),
    ("top_n", Yes),
];

/// `/v2/embed`, in Cohere's words.
const COHERE: &[Entry] = &[
    ("embedding_types", Yes),
    ("images", later(Off::Empty, NO_MEDIA)),
    ("input_type", Yes),
    ("inputs", Yes),
    ("max_tokens", Yes),
    ("model", Yes),
    ("output_dimension", Yes),
    ("priority", Yes),
    ("request_id", Yes),
    ("texts", Yes),
    ("truncate", Yes),
];

/// `/v1/embeddings`
pub(super) const OF_EMBEDDINGS: &[&[Entry]] = &[ALL, INPUT, ENCODING, EMBEDDINGS];
/// `/pooling`
pub(super) const OF_POOLING: &[&[Entry]] = &[ALL, INPUT, ENCODING, POOLING];
/// `/classify`
pub(super) const OF_CLASSIFY: &[&[Entry]] = &[ALL, INPUT, CLASSIFY];
/// `/score`
pub(super) const OF_SCORE: &[&[Entry]] = &[ALL, PAIRS, SCORE];
/// `/rerank`
pub(super) const OF_RERANK: &[&[Entry]] = &[ALL, PAIRS, RERANK];
/// `/v2/embed`
pub(super) const OF_COHERE: &[&[Entry]] = &[COHERE];
