//! Text: from messages to token ids, and from token ids back to text.
//!
//! * [`gguf`]: the header of a GGUF file (metadata and tensor descriptions).
//! * [`tokenizer`]: [`Tokenizer`], from a Hugging Face directory or a GGUF file.
//! * [`decode`]: [`Detokenizer`], one request's text token by token.
//! * [`stop`]: stop strings over token borders, held back in whole tokens.
//! * [`stream`]: [`TextStream`], the two composed: what the server feeds with tokens.
//! * [`parse`]: [`MessageParser`], text to reasoning, content and tool calls.
//! * [`template`]: [`ChatTemplate`], chat messages to a prompt.
//!
//! Nothing here knows of HTTP or of the scheduler. Everything is synchronous; time is a parameter.

pub mod decode;
mod error;
pub mod gguf;
pub mod parse;
pub mod stop;
pub mod stream;
pub mod template;
pub mod tokenizer;

pub use decode::Detokenizer;
pub use error::LoadError;
pub use gguf::Gguf;
pub use parse::MessageParser;
pub use stop::{StopMatcher, TextDelta};
pub use stream::{StreamOptions, TextStream};
pub use template::{ChatTemplate, RenderRequest};
pub use tokenizer::{Cut, Encoded, NamedTemplate, SpecialTokens, Tokenizer};
