//! Requests for generated text.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::answer::Reading;
use crate::args::Words;
use crate::data::Query;
use crate::load::Job;
use crate::prompt::Prompt;

/// Which of OpenAI's interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// /v1/completions
    #[default]
    #[value(alias = "openai", alias = "vllm")]
    Completions,
    /// /v1/chat/completions
    #[value(alias = "openai-chat")]
    Chat,
}

impl Api {
    /// Where its requests go.
    pub fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }

    /// What its prompts are made of: what was asked for, or what suits it.
    pub fn words(self, asked: Option<Words>) -> Result<Words, String> {
        match (self, asked) {
            (Self::Chat, Some(Words::Ids)) => {
                Err("a chat is made of text: --words ids is for completions".to_owned())
            }
            (Self::Chat, None) => Ok(Words::Letters),
            (Self::Completions, None) => Ok(Words::Ids),
            (_, Some(words)) => Ok(words),
        }
    }

    /// A request's JSON.
    pub fn body(self, members: &Map<String, Value>, prompt: &Prompt, output_tokens: u32) -> Vec<u8> {
        let mut members = members.clone();
        match self {
            Self::Completions => members.insert("prompt".to_owned(), prompt.json()),
            Self::Chat => {
                members.insert("messages".to_owned(), json!([{"role": "user", "content": prompt.json()}]))
            }
        };
        members.insert("max_tokens".to_owned(), output_tokens.into());
        Value::Object(members).to_string().into_bytes()
    }

    /// The request for a query, due when the query says or at once.
    pub fn job(self, members: &Map<String, Value>, query: &Query) -> Job {
        Job {
            due: query.due.unwrap_or_default(),
            body: self.body(members, &query.prompt, query.output_tokens),
            prompt_tokens: query.prompt.tokens(),
            inputs: 1,
        }
    }
}

/// How answers are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// As a stream.
    pub stream: bool,
    /// Whether an answer may end before its length.
    pub allow_eos: bool,
    /// Whether every chunk is to say how many tokens there were.
    pub continuous_usage: bool,
}

impl Asking {
    /// The members that ask so.
    pub fn members(self) -> Value {
        let mut members = json!({"temperature": 0, "stream": self.stream});
        if !self.allow_eos {
            members["ignore_eos"] = true.into();
        }
        if self.stream {
            members["stream_options"] = json!({"include_usage": true});
        }
        if self.stream && self.continuous_usage {
            members["stream_options"]["continuous_usage_stats"] = true.into();
        }
        members
    }

    /// How the answers are read.
    pub fn reading(self) -> Reading {
        if self.stream { Reading::Stream } else { Reading::Json }
    }

    /// The same, not streamed.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { stream: false, ..self }
    }
}
