//! `frizzen bench pooling`: embeddings, rankings, and what else comes as one answer that can be large.
//!
//! The clock runs from before the request is sent until the whole body has been read, and only then is anything parsed.
//! Binary bodies are counted as they pass and not kept.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::answer::Reading;
use crate::args::{LengthArgs, LoadArgs, ResultArgs, ServerArgs, Words};
use crate::draw::Draw;
use crate::load::Job;
use crate::prompt::{Maker, Part, Prompt};
use crate::report::{Results, Run};
use crate::run::{finish, show};
use crate::session::Session;
use crate::summary::summary;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Endpoint {
    /// /v1/embeddings
    #[default]
    Embeddings,
    /// /pooling
    Pooling,
    /// /classify
    Classify,
    /// /score: a short text against each input, in letters
    Score,
    /// /rerank: the inputs by a short text, in letters
    Rerank,
}

/// What inputs are compared with.
const QUERY: &str = " w h a t i s t h i s";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Encoding {
    /// JSON numbers
    #[default]
    Float,
    /// JSON strings
    Base64,
    /// Bytes, with the usage in a header
    Bytes,
    /// Bytes and nothing else
    BytesOnly,
}

/// `frizzen bench pooling`
#[derive(Args, Clone, Debug)]
pub struct PoolingArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    lengths: LengthArgs,
    /// Which endpoint
    #[arg(long, value_enum, default_value_t)]
    endpoint: Endpoint,
    /// How the answer is written
    #[arg(long, value_enum, default_value_t)]
    encoding_format: Encoding,
    /// Element type of base64 and bytes (vLLM's field)
    #[arg(long, value_name = "TYPE")]
    embed_dtype: Option<String>,
    /// Byte order of base64 and bytes (vLLM's field)
    #[arg(long, value_name = "ORDER")]
    endianness: Option<String>,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 100)]
    num_prompts: usize,
    /// Inputs of a request
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::args::parse_concurrency)]
    batch_size: usize,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    results: ResultArgs,
}

impl Encoding {
    fn reading(self) -> Reading {
        match self {
            Self::Float | Self::Base64 => Reading::Json,
            Self::Bytes => Reading::Bytes,
            Self::BytesOnly => Reading::BytesOnly,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Base64 => "base64",
            Self::Bytes => "bytes",
            Self::BytesOnly => "bytes_only",
        }
    }
}

impl PoolingArgs {
    fn path(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Pooling => "/pooling",
            Endpoint::Classify => "/classify",
            Endpoint::Score => "/score",
            Endpoint::Rerank => "/rerank",
        }
    }

    /// True if vectors come back, and not what was made of them: only they have encodings.
    const fn returns_vectors(&self) -> bool {
        matches!(self.endpoint, Endpoint::Embeddings | Endpoint::Pooling)
    }

    /// What every request asks for, beside its inputs.
    fn asking(&self, encoding: Encoding) -> Value {
        let mut members = Map::new();
        if self.returns_vectors() {
            members.insert("encoding_format".to_owned(), encoding.name().into());
        }
        for (name, value) in [("embed_dtype", &self.embed_dtype), ("endianness", &self.endianness)] {
            members.extend(value.iter().map(|value| (name.to_owned(), value.as_str().into())));
        }
        Value::Object(members)
    }

    fn jobs(&self, members: &Map<String, Value>, maker: &Maker, count: usize, draw: &mut Draw) -> Vec<Job> {
        let tokens = maker.own(self.lengths.input_len);
        let job = |_| {
            let inputs: Vec<Prompt> =
                (0..self.batch_size).map(|_| maker.make(&[Part { tokens, seed: draw.bits() }])).collect();
            Job {
                due: std::time::Duration::ZERO,
                body: self.body(members, &inputs),
                prompt_tokens: inputs.iter().map(Prompt::tokens).sum(),
                inputs: inputs.len() as u64,
            }
        };
        (0..count).map(job).collect()
    }

    /// A request's JSON.
    fn body(&self, members: &Map<String, Value>, inputs: &[Prompt]) -> Vec<u8> {
        let mut members = members.clone();
        let inputs = inputs.iter().map(Prompt::json).collect();
        match self.endpoint {
            Endpoint::Score => {
                members.insert("queries".to_owned(), QUERY.into());
                members.insert("documents".to_owned(), inputs);
            }
            Endpoint::Rerank => {
                members.insert("query".to_owned(), QUERY.into());
                members.insert("documents".to_owned(), inputs);
            }
            Endpoint::Embeddings | Endpoint::Pooling | Endpoint::Classify => {
                members.insert("input".to_owned(), inputs);
            }
        }
        Value::Object(members).to_string().into_bytes()
    }

    /// Runs the command and writes what people read to `out`.
    pub async fn run(self, out: &mut dyn Write) -> Result<ExitCode, String> {
        let session = Session::open(&self.server).await?;
        let (path, reading) = (self.path(), self.encoding_format.reading());
        let compares = matches!(self.endpoint, Endpoint::Score | Endpoint::Rerank);
        let words = self.lengths.words.unwrap_or(if compares { Words::Letters } else { Words::Ids });
        if compares && words == Words::Ids {
            return Err(format!("{} takes texts, not token ids: leave --words ids out", self.path()));
        }
        if !self.returns_vectors() && !matches!(self.encoding_format, Encoding::Float) {
            return Err(format!("{} has no --encoding-format", self.path()));
        }
        let readable = session.members(self.asking(Encoding::Float));
        let probe = |prompt: &Prompt| self.body(&readable, std::slice::from_ref(prompt));
        let maker = session.maker(&self.lengths, words, path, probe).await?;
        let members = session.members(self.asking(self.encoding_format));
        let mut draw = Draw::new(self.lengths.seed);
        let warm = self.jobs(&members, &maker, self.load.warmup, &mut draw);
        session.warm_up(path, reading, self.load.max_concurrency, warm).await?;
        let mut jobs = self.jobs(&members, &maker, self.num_prompts, &mut draw);
        let due = self.load.arrivals().schedule(jobs.len(), &mut draw);
        jobs.iter_mut().zip(due).for_each(|(job, due)| job.due = due);
        let outcome = session.run(path, reading, self.load.max_concurrency, jobs).await?;
        let settings = json!({"model": session.model, "requests": self.num_prompts,
            "batch_size": self.batch_size, "encoding_format": self.encoding_format.name(),
            "max_concurrency": self.load.max_concurrency});
        let name = format!("pooling {}", self.encoding_format.name());
        let run = Run { name, settings, summary: summary(&outcome, &[]) };
        show(out, &run)?;
        let label = self.results.label.clone().unwrap_or_default();
        finish(&self.results, "pooling", &Results { label, runs: vec![run] })
    }
}
